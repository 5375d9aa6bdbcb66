//! `config.json` and the small files beside it, as Hugging Face checkpoints have them.
//!
//! In: a folder. Out: the network as data, end tokens, sampling defaults, chat template.
//! Invariant: files are bounded in size before they are read; an absent key gets the family's documented default, a
//! key of a wrong kind is refused.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use super::{malformed, unreadable, unsupported};
use crate::base::{Code, Place, Problem};

/// Largest `config.json`, `generation_config.json` or chat template; real ones have some kilobytes.
const MAX_SMALL: u64 = 1 << 20;
/// Largest `tokenizer_config.json`: it lists thousands of added tokens in some models.
const MAX_TOKENIZER_CONFIG: u64 = 16 << 20;
/// Largest shard index; those of the largest models have some megabytes.
const MAX_INDEX: u64 = 64 << 20;

/// `config.json` with the part that describes the language model brought to the front.
#[derive(Clone, Debug)]
pub struct HfConfig {
    path: PathBuf,
    root: Map<String, Value>,
    /// The checkpoint wraps the language model in a larger one (`text_config`).
    pub nested: bool,
    /// Key of the part of the file that this is; empty for all of it.
    within: String,
}

/// `tokenizer_config.json`, as far as it matters here.
#[derive(Clone, Debug, Default, Deserialize)]
pub struct TokenizerConfig {
    #[serde(default)]
    chat_template: Option<Value>,
    #[serde(default)]
    added_tokens_decoder: BTreeMap<String, AddedToken>,
    #[serde(default)]
    bos_token: Option<TokenText>,
    #[serde(default)]
    eos_token: Option<TokenText>,
    /// Whether plain texts get the beginning-of-sequence token.
    #[serde(default)]
    pub add_bos_token: Option<bool>,
}

#[derive(Clone, Debug, Deserialize)]
struct AddedToken {
    content: String,
    #[serde(default)]
    special: bool,
}

/// A token given as text or as an object.
#[derive(Clone, Debug, Deserialize)]
#[serde(untagged)]
enum TokenText {
    Plain(String),
    Object { content: String },
}

/// `model.safetensors.index.json`.
#[derive(Clone, Debug, Deserialize)]
pub struct ShardIndex {
    /// File of each tensor.
    pub weight_map: BTreeMap<String, String>,
}

/// Reads a JSON file of at most `limit` bytes; `None` if there is no such file.
fn read_json<T: DeserializeOwned>(path: &Path, limit: u64) -> Result<Option<T>, Problem> {
    let Some(text) = read_text(path, limit)? else {
        return Ok(None);
    };
    serde_json::from_str(&text).map(Some).map_err(|error| {
        malformed(&super::file_name(path), &error).at(Place {
            line: u32::try_from(error.line()).ok(),
            column: u32::try_from(error.column()).ok(),
            ..Place::of(path.display().to_string())
        })
    })
}

/// Reads a text file of at most `limit` bytes; `None` if there is no such file.
fn read_text(path: &Path, limit: u64) -> Result<Option<String>, Problem> {
    let facts = match std::fs::metadata(path) {
        Ok(facts) => facts,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(unreadable(path, &error)),
    };
    let name = super::file_name(path);
    if !facts.is_file() || facts.len() > limit {
        return Err(malformed(
            &name,
            format!(
                "it is no regular file of at most {limit} bytes ({} bytes)",
                facts.len()
            ),
        )
        .at(Place::of(path.display().to_string())));
    }
    let bytes = std::fs::read(path).map_err(|error| unreadable(path, &error))?;
    super::sniff::refuse_other_kinds(&bytes, &name, "JSON")
        .map_err(|problem| problem.at(Place::of(path.display().to_string())))?;
    String::from_utf8(bytes)
        .map(Some)
        .map_err(|_| malformed(&name, "it is not UTF-8").at(Place::of(path.display().to_string())))
}

impl HfConfig {
    /// Reads `config.json` in `folder`.
    pub fn read(folder: &Path) -> Result<Self, Problem> {
        let path = folder.join("config.json");
        let Some(mut root) = read_json::<Map<String, Value>>(&path, MAX_SMALL)? else {
            return Err(Problem::new(
                Code::ModelNotFound,
                format!("`{}` has no config.json", folder.display()),
                "download the whole model folder, or use a GGUF file, which carries its own description",
            )
            .why("safetensors hold weights only; the shape of the network stands in config.json")
            .at(Place::of(path.display().to_string())));
        };
        let nested = match root.remove("text_config") {
            Some(Value::Object(text)) => {
                // What the inner part does not say, such as the token ids, the outer one may.
                for (key, value) in text {
                    if key != "architectures" && key != "model_type" {
                        root.insert(key, value);
                    }
                }
                true
            }
            _ => false,
        };
        Ok(Self {
            path,
            root,
            nested,
            within: String::new(),
        })
    }

    /// The object under `key` as a configuration of its own.
    pub fn section(&self, key: &str) -> Result<Option<Self>, Problem> {
        let found = self.object(key)?;
        Ok(found.map(|object| Self {
            path: self.path.clone(),
            root: object.clone(),
            nested: false,
            within: if self.within.is_empty() {
                key.to_owned()
            } else {
                format!("{}.{key}", self.within)
            },
        }))
    }

    /// The object under `key`, which has to be there.
    pub fn required_section(&self, key: &str) -> Result<Self, Problem> {
        self.section(key)?
            .ok_or_else(|| self.fault(format!("it has no key `{key}`")))
    }

    /// File name for messages.
    #[must_use]
    pub fn name(&self) -> &'static str {
        "config.json"
    }

    /// Key of the part of the file that this is; empty for all of it.
    #[must_use]
    pub fn within(&self) -> &str {
        &self.within
    }

    fn place(&self) -> Place {
        Place::of(self.path.display().to_string())
    }

    /// The header contradicts itself.
    pub(crate) fn fault(&self, what: impl std::fmt::Display) -> Problem {
        malformed(self.name(), self.inside(what)).at(self.place())
    }

    /// `what` with the part of the file it is about.
    fn inside(&self, what: impl std::fmt::Display) -> String {
        if self.within.is_empty() {
            what.to_string()
        } else {
            format!("in `{}`: {what}", self.within)
        }
    }

    /// A valid model of a kind not served.
    pub(crate) fn refuse(&self, what: impl std::fmt::Display, remedy: &str) -> Problem {
        unsupported(self.name(), self.inside(what), remedy).at(self.place())
    }

    /// A value; `null` counts as absent.
    #[must_use]
    pub fn get(&self, key: &str) -> Option<&Value> {
        self.root.get(key).filter(|value| !value.is_null())
    }

    fn typed<'a, T>(
        &'a self,
        key: &str,
        wanted: &str,
        read: impl Fn(&'a Value) -> Option<T>,
    ) -> Result<Option<T>, Problem> {
        let Some(value) = self.get(key) else {
            return Ok(None);
        };
        read(value)
            .map(Some)
            .ok_or_else(|| self.fault(format!("`{key}` is {value}, not {wanted}")))
    }

    /// A count or width.
    pub fn size(&self, key: &str) -> Result<Option<usize>, Problem> {
        self.typed(key, "a whole number", |v| {
            v.as_u64().and_then(|n| usize::try_from(n).ok())
        })
    }

    /// A count or width that has no default.
    pub fn required_size(&self, key: &str) -> Result<usize, Problem> {
        self.size(key)?
            .ok_or_else(|| self.fault(format!("it has no key `{key}`")))
    }

    /// A list of counts or widths.
    pub fn sizes(&self, key: &str) -> Result<Option<Vec<usize>>, Problem> {
        self.typed(key, "a list of whole numbers", |value| {
            let whole = |item: &Value| item.as_u64().and_then(|n| usize::try_from(n).ok());
            value.as_array()?.iter().map(whole).collect()
        })
    }

    /// A real number.
    pub fn real(&self, key: &str) -> Result<Option<f64>, Problem> {
        self.typed(key, "a number", Value::as_f64)
    }

    /// A truth value.
    pub fn flag(&self, key: &str) -> Result<Option<bool>, Problem> {
        self.typed(key, "true or false", Value::as_bool)
    }

    /// A text.
    pub fn text(&self, key: &str) -> Result<Option<&str>, Problem> {
        self.typed(key, "a text", Value::as_str)
    }

    /// A list of texts.
    pub fn texts(&self, key: &str) -> Result<Option<Vec<&str>>, Problem> {
        self.typed(key, "a list of texts", |value| {
            value.as_array()?.iter().map(Value::as_str).collect()
        })
    }

    /// An object.
    pub fn object(&self, key: &str) -> Result<Option<&Map<String, Value>>, Problem> {
        self.typed(key, "an object", Value::as_object)
    }

    /// Token ids given as a number or a list.
    pub fn token_ids(&self, key: &str) -> Result<Vec<u32>, Problem> {
        Ok(self
            .typed(key, "a token or a list of them", token_ids)?
            .unwrap_or_default())
    }
}

fn token_ids(value: &Value) -> Option<Vec<u32>> {
    let one = |value: &Value| value.as_u64().and_then(|n| u32::try_from(n).ok());
    match value {
        Value::Array(list) => list.iter().map(one).collect(),
        other => one(other).map(|id| vec![id]),
    }
}

/// `generation_config.json` in `folder`, if it is there, with the same getters as `config.json`.
pub fn generation_config(folder: &Path) -> Result<Option<HfConfig>, Problem> {
    let path = folder.join("generation_config.json");
    let root = read_json::<Map<String, Value>>(&path, MAX_SMALL)?;
    Ok(root.map(|root| HfConfig {
        path,
        root,
        nested: false,
        within: String::new(),
    }))
}

/// `model.safetensors.index.json` in `folder`, if it is there.
pub fn shard_index(folder: &Path) -> Result<Option<ShardIndex>, Problem> {
    read_json(&folder.join("model.safetensors.index.json"), MAX_INDEX)
}

/// `tokenizer_config.json` in `folder`, or an empty one.
pub fn tokenizer_config(folder: &Path) -> Result<TokenizerConfig, Problem> {
    let found = read_json(&folder.join("tokenizer_config.json"), MAX_TOKENIZER_CONFIG)?;
    Ok(found.unwrap_or_default())
}

impl TokenizerConfig {
    /// Id as written, text, and whether it is structure rather than text, of every added token.
    pub fn added_tokens(&self) -> impl Iterator<Item = (&str, &str, bool)> {
        let tokens = self.added_tokens_decoder.iter();
        tokens.map(|(id, token)| (id.as_str(), token.content.as_str(), token.special))
    }

    fn id_of(&self, text: &str) -> Option<u32> {
        let mut added = self.added_tokens_decoder.iter();
        added.find(|(_, token)| token.content == text)?.0.parse().ok()
    }

    fn id_of_token(&self, token: Option<&TokenText>) -> Option<u32> {
        match token? {
            TokenText::Plain(text) | TokenText::Object { content: text } => self.id_of(text),
        }
    }

    /// The beginning-of-sequence token, if it is among the added tokens.
    #[must_use]
    pub fn bos_id(&self) -> Option<u32> {
        self.id_of_token(self.bos_token.as_ref())
    }

    /// The end-of-sequence token and every added token that ends a turn.
    #[must_use]
    pub fn stop_ids(&self) -> Vec<u32> {
        let ends = |token: &AddedToken| crate::model::end_tokens::is_end(token.content.as_bytes());
        let turn_ends = self.added_tokens_decoder.iter().filter(|(_, token)| ends(token));
        let ids = turn_ends.filter_map(|(id, _)| id.parse().ok());
        ids.chain(self.id_of_token(self.eos_token.as_ref())).collect()
    }

    /// The chat template of this file: a text, or of a list of named ones the `default`.
    fn template(&self) -> Option<String> {
        match self.chat_template.as_ref()? {
            Value::String(text) => Some(text.clone()),
            Value::Array(list) => {
                let named = |name: &str| list.iter().find(|item| item["name"] == name);
                let chosen = named("default").or(list.first())?;
                chosen["template"].as_str().map(str::to_owned)
            }
            _ => None,
        }
    }
}

/// The chat template: `chat_template.jinja`, else `chat_template.json`, else the one in the tokenizer's
/// configuration.
pub fn chat_template(folder: &Path, tokenizer: &TokenizerConfig) -> Result<Option<String>, Problem> {
    if let Some(text) = read_text(&folder.join("chat_template.jinja"), MAX_SMALL)? {
        return Ok(Some(text));
    }
    let json = read_json::<Value>(&folder.join("chat_template.json"), MAX_SMALL)?;
    if let Some(text) = json.as_ref().and_then(|json| json["chat_template"].as_str()) {
        return Ok(Some(text.to_owned()));
    }
    Ok(tokenizer.template())
}
