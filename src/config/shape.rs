//! `Shape`: what kind of value each key takes, read from the schema of `Profile`.
//!
//! In: schemars' JSON schema of a type. Out: a tree of shapes with ranges and doc comments.
//! Invariant: every part of our own schema is understood (a test walks all of it), so nothing is left unchecked.

use std::collections::BTreeMap;

use serde_json::Value as Json;

/// What a key takes.
#[derive(Clone, Debug, PartialEq)]
pub enum Shape {
    /// A map of known keys.
    Map(BTreeMap<String, Field>),
    /// A list of values of one shape.
    List(Box<Shape>),
    /// Text, exactly as written.
    Text,
    /// `true` or `false`.
    Truth,
    /// A whole number within bounds.
    Whole {
        /// Smallest allowed.
        min: u64,
        /// Largest allowed.
        max: u64,
    },
    /// Any number within bounds.
    Number {
        /// Smallest allowed.
        min: f64,
        /// Largest allowed.
        max: f64,
    },
    /// An amount of memory.
    Bytes,
    /// A duration.
    Millis,
    /// A set of CPU numbers.
    CpuSet,
    /// One of a few names.
    Choice(Vec<String>),
}

/// One key of a map.
#[derive(Clone, Debug, PartialEq)]
pub struct Field {
    /// What it takes.
    pub shape: Shape,
    /// Its documentation.
    pub about: String,
}

impl Shape {
    /// The shape of everything a person may write.
    #[must_use]
    pub fn of_profile() -> Self {
        let root = super::schema::root_schema().to_value();
        let definitions = root.get("$defs").cloned().unwrap_or(Json::Null);
        read(&root, &definitions)
    }

    /// The shape at a path, and whether the path exists.
    #[must_use]
    pub fn at<'a>(&self, path: impl IntoIterator<Item = &'a str>) -> Option<&Self> {
        let mut shape = self;
        for segment in path {
            let Self::Map(fields) = shape else { return None };
            shape = &fields.get(segment)?.shape;
        }
        Some(shape)
    }

    /// What it takes, for messages: "a whole number from 1 to 4096".
    #[must_use]
    pub fn wanted(&self) -> String {
        match self {
            Self::Map(_) => "a map of keys".into(),
            Self::List(item) => format!("a list, each item {}", item.wanted()),
            Self::Text => "text".into(),
            Self::Truth => "`true` or `false`".into(),
            Self::Whole { min, max } if *max >= MAX_WHOLE => format!("a whole number from {min}"),
            Self::Whole { min, max } => format!("a whole number from {min} to {max}"),
            Self::Number { min, max } if *max >= f64::MAX => format!("a number from {min}"),
            Self::Number { min, max } => format!("a number from {min} to {max}"),
            Self::Bytes => "a number of bytes such as `8GiB` or `4096`".into(),
            Self::Millis => "a duration such as `120ms` or `30s`, or a number of milliseconds".into(),
            Self::CpuSet => "CPU numbers such as `0-3,8`".into(),
            Self::Choice(names) => format!("one of `{}`", names.join("`, `")),
        }
    }
}

/// Largest whole number: what JSON and a signed 64-bit count can both hold.
const MAX_WHOLE: u64 = i64::MAX as u64;

/// Reads one JSON schema. Shapes that no type of ours has come out as `Text`, which the test below would show.
fn read(schema: &Json, definitions: &Json) -> Shape {
    let bound = |key: &str| schema.get(key).and_then(Json::as_f64);
    if let Some(name) = schema
        .get("$ref")
        .and_then(Json::as_str)
        .and_then(|r| r.rsplit('/').next())
    {
        return match name {
            "Bytes" => Shape::Bytes,
            "Millis" => Shape::Millis,
            "CpuSet" => Shape::CpuSet,
            "Secret" => Shape::Text,
            _ => read(&definitions[name], definitions),
        };
    }
    // Option<T> of a named type.
    if let Some(options) = schema.get("anyOf").and_then(Json::as_array) {
        let some = options.iter().find(|option| option["type"] != "null");
        return some.map_or(Shape::Text, |some| read(some, definitions));
    }
    // An enum whose variants carry documentation.
    if let Some(options) = schema.get("oneOf").and_then(Json::as_array) {
        return Shape::Choice(
            options
                .iter()
                .filter_map(|option| option["const"].as_str())
                .map(str::to_owned)
                .collect(),
        );
    }
    if let Some(names) = schema.get("enum").and_then(Json::as_array) {
        return Shape::Choice(names.iter().filter_map(Json::as_str).map(str::to_owned).collect());
    }
    match type_name(schema) {
        "object" => {
            let properties = schema.get("properties").and_then(Json::as_object);
            Shape::Map(
                properties
                    .into_iter()
                    .flatten()
                    .map(|(key, schema)| {
                        let about = documentation(schema, definitions);
                        let shape = read(schema, definitions);
                        (key.clone(), Field { shape, about })
                    })
                    .collect(),
            )
        }
        "array" => Shape::List(Box::new(read(&schema["items"], definitions))),
        "boolean" => Shape::Truth,
        "integer" => {
            let widest = match schema["format"].as_str() {
                Some("uint32") => u64::from(u32::MAX),
                _ => MAX_WHOLE,
            };
            Shape::Whole {
                min: bound("minimum").map_or(0, |min| min as u64),
                max: bound("maximum").map_or(widest, |max| max as u64),
            }
        }
        "number" => Shape::Number {
            min: bound("minimum").unwrap_or(f64::MIN),
            max: bound("maximum").unwrap_or(f64::MAX),
        },
        _ => Shape::Text,
    }
}

/// The type beside `null`.
fn type_name(schema: &Json) -> &str {
    match &schema["type"] {
        Json::String(name) => name,
        Json::Array(names) => names
            .iter()
            .filter_map(Json::as_str)
            .find(|name| *name != "null")
            .unwrap_or(""),
        _ => "",
    }
}

/// The doc comment of a key, with those of the names it takes.
fn documentation(schema: &Json, definitions: &Json) -> String {
    let target = |schema: &Json| {
        let name = schema.get("$ref")?.as_str()?.rsplit('/').next()?;
        definitions.get(name).cloned()
    };
    let options = schema.get("anyOf").and_then(Json::as_array);
    let named = target(schema)
        .or_else(|| options?.iter().find_map(target))
        .unwrap_or(Json::Null);
    let own = schema.get("description").and_then(Json::as_str);
    let mut text = own
        .or_else(|| named["description"].as_str())
        .unwrap_or("")
        .to_owned();
    for choice in named["oneOf"].as_array().into_iter().flatten() {
        if let (Some(name), Some(about)) = (choice["const"].as_str(), choice["description"].as_str()) {
            text.extend([" `", name, "`: ", &about.replace('\n', " ")]);
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn leaves(shape: &Shape, path: &str, out: &mut Vec<(String, Shape)>) {
        match shape {
            Shape::Map(fields) => {
                for (key, field) in fields {
                    let path = if path.is_empty() {
                        key.clone()
                    } else {
                        format!("{path}.{key}")
                    };
                    assert!(!field.about.is_empty(), "`{path}` has no documentation");
                    leaves(&field.shape, &path, out);
                }
            }
            other => out.push((path.to_owned(), other.clone())),
        }
    }

    #[test]
    fn every_key_has_the_shape_its_type_says() {
        let shape = Shape::of_profile();
        let mut all = Vec::new();
        leaves(&shape, "", &mut all);
        assert!(all.len() > 60, "{}", all.len());
        // Only these take free text; any other `Text` would be a schema part that `read` did not understand.
        let text = [
            "extends",
            "model.name",
            "model.family",
            "model.default_language",
            "model.revision",
            "model.version",
            "model.chat_template",
            "server.host",
            "server.api_key",
        ];
        for (path, shape) in &all {
            let known = text
                .iter()
                .any(|name| path == name || path.ends_with(&format!(".{name}")));
            assert_eq!(*shape == Shape::Text, known, "{path}: {shape:?}");
        }
        let at = |path: &str| shape.at(path.split('.')).unwrap().clone();
        assert_eq!(at("stages.decoder.threads"), Shape::Whole { min: 1, max: 4096 });
        assert_eq!(at("server.port"), Shape::Whole { min: 0, max: 65_535 });
        assert_eq!(at("stages.talker.kv_bytes"), Shape::Bytes);
        assert_eq!(at("policy.read_bytes_per_s"), Shape::Bytes);
        assert_eq!(at("stages.talker.cpus"), Shape::CpuSet);
        assert_eq!(at("sampling.top_p"), Shape::Number { min: 0.0, max: 1.0 });
        assert_eq!(at("policy.load_min_ms"), Shape::Millis);
        assert_eq!(at("model.languages"), Shape::List(Box::new(Shape::Text)));
        assert_eq!(
            at("stages.decoder.dtype"),
            Shape::Choice(vec!["f32".into(), "f16".into(), "bf16".into()])
        );
        assert_eq!(
            at("priority").wanted(),
            "one of `quality`, `balanced`, `fast`, `agentic`"
        );
    }
}
