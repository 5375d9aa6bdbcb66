//! Why each knob has its value.
//!
//! In: decisions. Out: per key the value, where it came from, the rule with its numbers, how to verify.
//! Invariant: every knob of the plan has an entry (a test lists them).

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::base::{Code, KeyPath, Problem};
use crate::config::shape::Shape;
use crate::derive::Decision;
pub use crate::derive::Origin;

/// One knob explained.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Explanation {
    /// The value, as JSON.
    pub value: serde_json::Value,
    /// Where it came from.
    pub origin: Origin,
    /// The rule or reason, with its numbers.
    pub because: String,
    /// What bounded it, if anything did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bounded_by: Option<String>,
    /// How to see that it took effect.
    pub verify: String,
}

impl Explanation {
    /// The reason of a decision, for the knob `key`.
    #[must_use]
    pub fn of<T: Serialize>(key: &KeyPath, decision: &Decision<T>) -> Self {
        Self {
            value: json_of(&decision.value),
            origin: decision.origin.clone(),
            because: decision.because.clone(),
            bounded_by: decision.bounded_by.clone(),
            verify: verify(key).to_owned(),
        }
    }
}

/// A value as JSON. Goes by text, so that an `f32` of 0.7 is shown as 0.7.
pub(super) fn json_of<T: Serialize + ?Sized>(value: &T) -> serde_json::Value {
    serde_json::to_string(value)
        .and_then(|text| serde_json::from_str(&text))
        .unwrap_or(serde_json::Value::Null)
}

/// How to see that a knob took effect.
fn verify(key: &KeyPath) -> &'static str {
    let last = key.segments().last().unwrap_or_default();
    match key.segments().next().unwrap_or_default() {
        "stages" => match last {
            "threads" => "`edge-deploy verify` counts the stage's threads in /proc/<pid>/task",
            "cpus" | "pin" | "confine" => {
                "`edge-deploy verify` reads Cpus_allowed_list of each worker in /proc/<pid>/task/<tid>/status"
            }
            "isa_cap" => "`edge-deploy verify` shows the name of the kernel table in use",
            "dtype" | "weight_path" => {
                "`edge-deploy verify` shows the type and the bytes by format that the engine holds"
            }
            "kv_dtype" | "kv_bytes" | "kv_block" => {
                "`edge-deploy verify` compares the cache as allocated, by layer"
            }
            "context" => {
                "a request of more tokens is answered 400; `edge-deploy verify` shows the slots by layer"
            }
            "max_seqs" => {
                "`edge-deploy verify` shows the sequences there is room for; more requests wait in the queue"
            }
            "prefill_batch" => "`edge-deploy verify` shows the tokens of one pass",
            "huge_pages" => "AnonHugePages in /proc/<pid>/smaps_rollup",
            _ => "`edge-deploy verify` compares the running engine with the plan",
        },
        "server" => match last {
            "host" | "port" => "the address printed at start; `ss -ltn`",
            "api_key_required" => "a request without a key is answered 401",
            "max_queue" => "requests beyond it are answered 429",
            "max_body_bytes" => "a larger body is answered 413",
            "default_max_tokens" => "`usage.completion_tokens` of a request without `max_tokens`",
            _ => "a request beyond it is ended with `deadline_passed`",
        },
        "deadlines" => "the phase fails with `deadline_passed` and names its time",
        "memory" if matches!(last, "available_bytes" | "reserve_bytes") => {
            "`edge-deploy probe` shows what may be used and by which file of the kernel; it changes as other programs run"
        }
        "memory" if last == "mapped_bytes" => "RssFile of /proc/<pid>/status while loading",
        "memory" => {
            "RssAnon of /proc/<pid>/status stays below steady_bytes, which it reaches when every sequence has filled its context; VmHWM against peak_bytes"
        }
        "model" => match last {
            "name" => "`GET /v1/models`",
            "files" => "/proc/<pid>/maps while loading",
            "chat_template" => "`edge-deploy plan --json` names its origin; a chat request applies it",
            _ if key.as_str().starts_with("model.sampling") => {
                "a request that leaves these out gets the answer of one that states them, with the same seed"
            }
            _ => "`edge-deploy plan -m MODEL --json` reads the model's header",
        },
        _ => "`edge-deploy probe --json`; `edge-deploy plan --json`",
    }
}

/// The explanation of a knob, or a problem that names the nearest ones.
pub fn find<'a>(
    explanations: &'a BTreeMap<KeyPath, Explanation>,
    key: &str,
) -> Result<&'a Explanation, Problem> {
    let path = KeyPath::new(key);
    if let Some(found) = explanations.get(&path) {
        return Ok(found);
    }
    let is_stage = path.segments().next() == Some("stages");
    if !is_stage && !path.as_str().is_empty() && Shape::of_profile().at(path.segments()).is_some() {
        return Err(Problem::new(
            Code::UnknownKey,
            format!("`{path}` is a key of profiles and not a knob of the plan"),
            "`edge-deploy profiles show NAME --resolved` shows its value and where it is set",
        ));
    }
    let nearest = nearest(explanations, path.as_str());
    let remedy = if nearest.is_empty() {
        "`edge-deploy explain` without a key lists all of them".to_owned()
    } else {
        format!("did you mean {}?", nearest.join(" or "))
    };
    Err(Problem::new(
        Code::UnknownKey,
        format!("`{path}` is not a knob of the plan"),
        remedy,
    ))
}

/// Up to three known keys close to `wanted`: those below it or ending in it first, then by spelling.
fn nearest(explanations: &BTreeMap<KeyPath, Explanation>, wanted: &str) -> Vec<String> {
    let inside: Vec<String> = explanations
        .keys()
        .map(KeyPath::as_str)
        .filter(|key| {
            !wanted.is_empty()
                && (key.ends_with(&format!(".{wanted}")) || key.starts_with(&format!("{wanted}.")))
        })
        .map(|key| format!("`{key}`"))
        .collect();
    if !inside.is_empty() {
        return inside.into_iter().take(3).collect();
    }
    let last = wanted.rsplit('.').next().unwrap_or(wanted);
    let mut ranked: Vec<(usize, &str)> = explanations
        .keys()
        .map(|key| {
            let own = key.as_str().rsplit('.').next().unwrap_or_default();
            (
                distance(wanted, key.as_str()).min(distance(last, own)),
                key.as_str(),
            )
        })
        .collect();
    ranked.sort_unstable();
    let close = last.chars().count().div_ceil(2).max(1);
    ranked
        .into_iter()
        .take_while(|(distance, _)| *distance <= close)
        .take(3)
        .map(|(_, key)| format!("`{key}`"))
        .collect()
}

/// Levenshtein distance, cut at 64 characters: keys are shorter.
fn distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().take(64).collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.chars().take(64).enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, y) in b.iter().enumerate() {
            let substituted = diagonal + usize::from(x != *y);
            diagonal = row[j + 1];
            row[j + 1] = substituted.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_of_profiles_alone_is_pointed_at_where_it_is_shown() {
        for key in ["priority", "limits.max_context", "limits"] {
            let problem = find(&BTreeMap::new(), key).unwrap_err();
            assert!(problem.remedy.contains("profiles show"), "{key}: {problem}");
        }
        for key in ["", "server.prot", "stages.decoder.threads"] {
            let problem = find(&BTreeMap::new(), key).unwrap_err();
            assert!(!problem.remedy.contains("profiles show"), "{key}: {problem}");
        }
    }
}
