//! The plan as a document: JSON and YAML, its digest, and a profile that pins what was planned.
//!
//! In: a plan, or its text. Out: the text, or the plan. Invariant: a document whose digest does not match its knobs
//! is refused, so a plan that was edited by hand never runs under the old plan's name.

use std::fmt::Write as _;

use serde_json::{Map, Value, json};
use sha2::{Digest, Sha256};

use super::explain::json_of;
use super::{Origin, Plan, SCHEMA};
use crate::base::{Code, Problem};

impl Plan {
    /// 16 hex digits of SHA-256 over the canonical JSON of every knob: model, stages, server and deadlines. Reasons,
    /// warnings, names of profiles and the memory that happened to be free are not in it.
    #[must_use]
    pub fn computed_digest(&self) -> String {
        // Where the files lie and which profile said so are no knobs: the same plan is the same plan.
        let mut model = self.model.clone();
        model.profile.clear();
        for file in &mut model.files {
            *file = file.file_name().map(Into::into).unwrap_or_default();
        }
        let knobs = json!({
            "schema": self.schema,
            "model": json_of(&model),
            "stages": json_of(&self.stages),
            "server": json_of(&self.server),
            "deadlines": json_of(&self.deadlines),
        });
        let hash = Sha256::digest(canonical(&knobs).as_bytes());
        hash.iter().take(8).fold(String::new(), |mut text, byte| {
            // Writing to a String cannot fail.
            let _ = write!(text, "{byte:02x}");
            text
        })
    }

    /// The whole plan as indented JSON.
    pub fn to_json(&self) -> Result<String, Problem> {
        serde_json::to_string_pretty(self).map_err(|error| unwritable(&error))
    }

    /// The whole plan as YAML.
    pub fn to_yaml(&self) -> Result<String, Problem> {
        serde_yaml::to_string(&json_of(self)).map_err(|error| unwritable(&error))
    }

    /// Reads a plan from JSON or YAML (JSON is YAML). The model's card is not part of a document: inspect the files
    /// again and put it into `model.card`.
    pub fn read(text: &str) -> Result<Self, Problem> {
        let bad = |error: String| {
            Problem::new(
                Code::BadValue,
                format!("this is not a plan: {error}"),
                "make one with `edge-deploy plan --json`",
            )
        };
        let plan: Self = if text.trim_start().starts_with('{') {
            serde_json::from_str(text).map_err(|error| bad(error.to_string()))?
        } else {
            let value: Value = serde_yaml::from_str(text).map_err(|error| bad(error.to_string()))?;
            serde_json::from_str(&value.to_string()).map_err(|error| bad(error.to_string()))?
        };
        if plan.schema != SCHEMA {
            return Err(Problem::new(
                Code::BadValue,
                format!("the plan has schema {}, this version reads {SCHEMA}", plan.schema),
                "plan again with this version",
            ));
        }
        let digest = plan.computed_digest();
        if digest != plan.digest {
            return Err(Problem::new(
                Code::BadValue,
                format!(
                    "the plan says digest {}, but its values give {digest}",
                    plan.digest
                ),
                "to change a value pin it in a profile or with `--set`, and plan again",
            )
            .why("an edited plan would no longer match its explanations and memory sums"));
        }
        Ok(plan)
    }

    /// A profile that pins what was planned, or only what somebody pinned before. Planned with it again, the same
    /// machine and model give a plan of the same digest; only a key for the API, which is not in the plan, has to be
    /// given again.
    pub fn to_profile_yaml(&self, pinned_only: bool) -> Result<String, Problem> {
        let mut root = Map::new();
        for (key, explanation) in &self.explanations {
            let Some(path) = profile_key(key.as_str()) else {
                continue;
            };
            let pinned = matches!(explanation.origin, Origin::Pinned { .. });
            // A stage without keys and values has no cache to be set.
            if pinned_only && !pinned || explanation.value == 0 && path.ends_with(".kv_bytes") {
                continue;
            }
            insert(&mut root, &path, explanation.value.clone());
        }
        let pinned_template = self.model.chat_template == PINNED_TEMPLATE;
        if let (true, Some(card)) = (pinned_template, &self.model.card) {
            let template = card.chat_template.clone().unwrap_or_default();
            insert(&mut root, "model.chat_template", Value::from(template));
        }
        let mut text = format!(
            "# Plan {} of `{}` on a machine of class {}, pinned. Give it back with `--profile FILE`.\n",
            self.digest, self.model.name, self.hardware_class
        );
        if self.server.api_key_required {
            text.push_str("# The API key is not written here: give it again in EDGE_DEPLOY_API_KEY.\n");
        }
        if root.is_empty() {
            return Ok(text);
        }
        text.push_str(&serde_yaml::to_string(&Value::Object(root)).map_err(|error| unwritable(&error))?);
        Ok(text)
    }
}

/// The origin of a pinned chat template.
const PINNED_TEMPLATE: &str = "pinned";

/// Puts a value at a dotted path, making the maps on the way.
fn insert(map: &mut Map<String, Value>, path: &str, value: Value) {
    match path.split_once('.') {
        None => {
            map.insert(path.to_owned(), value);
        }
        Some((head, rest)) => {
            let entry = map
                .entry(head.to_owned())
                .or_insert_with(|| Value::Object(Map::new()));
            if let Value::Object(inner) = entry {
                insert(inner, rest, value);
            }
        }
    }
}

/// The profile's name of a plan's knob, where a profile can pin it.
#[must_use]
pub fn profile_key(key: &str) -> Option<String> {
    match key {
        "model.name" | "model.family" => Some(key.to_owned()),
        // The key itself is not in the plan and cannot be written out.
        "server.api_key_required" => None,
        _ => {
            if let Some(rest) = key.strip_prefix("model.sampling.") {
                return Some(format!("sampling.{rest}"));
            }
            let pinnable = key.starts_with("server.") || key.starts_with("deadlines.");
            (pinnable || key.starts_with("stages.")).then(|| key.to_owned())
        }
    }
}

fn unwritable(error: &dyn std::fmt::Display) -> Problem {
    Problem::new(
        Code::Internal,
        format!("the plan cannot be written as text: {error}"),
        "please report this",
    )
}

/// JSON with sorted keys and no spaces.
fn canonical(value: &Value) -> String {
    match value {
        Value::Object(map) => {
            let mut keys: Vec<&String> = map.keys().collect();
            keys.sort();
            let members: Vec<String> = keys
                .into_iter()
                .map(|key| format!("{}:{}", Value::from(key.as_str()), canonical(&map[key])))
                .collect();
            format!("{{{}}}", members.join(","))
        }
        Value::Array(items) => format!("[{}]", items.iter().map(canonical).collect::<Vec<_>>().join(",")),
        other => other.to_string(),
    }
}
