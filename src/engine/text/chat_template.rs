//! `ChatTemplate`: messages in, the prompt the model was trained on out.
//!
//! In: the model's Jinja template (or its family's), messages. Out: prompt text or tokens.
//! Invariant: text inside a message cannot become a control token, nor a marker the template uses to open turns
//! (in user and tool messages); a template can neither hang nor fill memory: work is metered.
//!
//! How text is kept text: before rendering, what spells such a token gets a noncharacter inside it
//! (`special::GUARD`); the tokenizer does not see a token there and drops the noncharacter. Limits: a token of a
//! single character cannot be guarded, and a template that compares a user's text with a marker sees the guarded one.

use std::collections::BTreeMap;
use std::fmt;
use std::time::{SystemTime, UNIX_EPOCH};

use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Kwargs, Value};
use minijinja::{Environment, Error, ErrorKind};

use super::default_templates;
use super::python;
use super::special::unguard;
use super::tokenizer::Tokenizer;
use crate::base::{Code, Problem};

/// Steps a rendering may take; one step is an instruction or 64 bytes of data. A long chat (1000 messages, 1 MiB)
/// takes about 200 000.
const FUEL: u64 = 4_000_000;
/// Longest template accepted; the longest published ones have about 20 KiB.
const MAX_TEMPLATE_BYTES: usize = 1 << 20;
/// The name errors show.
const NAME: &str = "chat_template";

/// One message of a chat.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ChatMessage {
    /// `system`, `developer`, `user`, `assistant` or `tool`.
    pub role: String,
    /// Its text. Several text parts are joined by the caller.
    pub content: String,
    /// The author's name, if given.
    pub name: Option<String>,
}

impl ChatMessage {
    /// A message without a name.
    pub fn new(role: impl Into<String>, content: impl Into<String>) -> Self {
        Self {
            role: role.into(),
            content: content.into(),
            name: None,
        }
    }
}

/// What a rendering may be told beyond the messages.
#[derive(Clone, Debug, PartialEq)]
pub struct ChatOptions {
    /// End with the opening of the assistant's turn.
    pub add_generation_prompt: bool,
    /// Variables for the template, such as `enable_thinking`.
    pub variables: BTreeMap<String, serde_json::Value>,
}

impl Default for ChatOptions {
    fn default() -> Self {
        Self {
            add_generation_prompt: true,
            variables: BTreeMap::new(),
        }
    }
}

/// Variables a request may not replace.
const RESERVED: &[&str] = &[
    "messages",
    "bos_token",
    "eos_token",
    "add_generation_prompt",
    "tools",
    "documents",
];

/// A compiled template.
pub struct ChatTemplate {
    environment: Environment<'static>,
    bos: String,
    eos: String,
    /// User-defined tokens the template uses as structure.
    markers: Vec<u32>,
    /// The template knows the role `developer`; otherwise it is shown as `system`.
    knows_developer: bool,
    built_in: bool,
}

impl fmt::Debug for ChatTemplate {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("ChatTemplate")
            .field("built_in", &self.built_in)
            .finish_non_exhaustive()
    }
}

/// A refusal the template itself raised.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct Raised(String);

impl ChatTemplate {
    /// Compiles the model's template, or its family's when it ships none.
    ///
    /// # Errors
    /// `TokenizerUnusable` for a template that does not compile, or a family without one.
    pub fn new(shipped: Option<&str>, family: &str, tokenizer: &Tokenizer) -> Result<Self, Problem> {
        let shipped = shipped.filter(|source| !source.trim().is_empty());
        let source = shipped
            .or_else(|| default_templates::of_family(family))
            .ok_or_else(|| {
                Problem::new(
                    Code::TokenizerUnusable,
                    format!("the model ships no chat template and the family `{family}` has none of its own"),
                    "use /v1/completions with a prompt of your own, or a model file with a chat template",
                )
            })?;
        if source.len() > MAX_TEMPLATE_BYTES {
            return Err(broken(format!(
                "the chat template has {} bytes; at most {MAX_TEMPLATE_BYTES} are read",
                source.len()
            )));
        }
        let mut environment = environment();
        let syntax = SyntaxConfig::builder()
            .trim_blocks(true)
            .lstrip_blocks(true)
            .build();
        environment.set_syntax(syntax.map_err(|error| broken(error.to_string()))?);
        environment
            .add_template_owned(NAME, without_generation_tags(source))
            .map_err(|error| {
                broken(format!(
                    "the chat template does not compile: {}",
                    describe(&error)
                ))
            })?;
        let text_of = |id: Option<u32>| id.map(|id| tokenizer.text_of(id).to_owned()).unwrap_or_default();
        Ok(Self {
            environment,
            bos: text_of(tokenizer.roles().bos),
            eos: text_of(tokenizer.roles().eos),
            markers: tokenizer.markers_in(source),
            knows_developer: source.contains("developer"),
            built_in: shipped.is_none(),
        })
    }

    /// Whether the family's template stands in for a missing one.
    pub fn is_built_in(&self) -> bool {
        self.built_in
    }

    /// The prompt's tokens.
    ///
    /// # Errors
    /// As [`Self::render`], and those of [`Tokenizer::encode`].
    pub fn prompt(
        &self,
        tokenizer: &Tokenizer,
        messages: &[ChatMessage],
        options: &ChatOptions,
    ) -> Result<Vec<u32>, Problem> {
        tokenizer.encode_guarded(&self.rendered(tokenizer, messages, options)?)
    }

    /// The prompt as text.
    ///
    /// # Errors
    /// `RequestInvalid` with the template's own words when it refuses the messages, or when a variable would replace
    /// a reserved one; `TokenizerUnusable` when the template fails or does not end.
    pub fn render(
        &self,
        tokenizer: &Tokenizer,
        messages: &[ChatMessage],
        options: &ChatOptions,
    ) -> Result<String, Problem> {
        Ok(unguard(&self.rendered(tokenizer, messages, options)?).into_owned())
    }

    /// The prompt with guards still in it.
    fn rendered(
        &self,
        tokenizer: &Tokenizer,
        messages: &[ChatMessage],
        options: &ChatOptions,
    ) -> Result<String, Problem> {
        let messages: Vec<Value> = messages
            .iter()
            .map(|message| self.message(tokenizer, message))
            .collect();
        let mut variables: Vec<(&str, Value)> = vec![
            ("messages", Value::from(messages)),
            ("bos_token", Value::from(self.bos.as_str())),
            ("eos_token", Value::from(self.eos.as_str())),
            (
                "add_generation_prompt",
                Value::from(options.add_generation_prompt),
            ),
            ("tools", Value::from(())),
            ("documents", Value::from(())),
        ];
        for (name, value) in &options.variables {
            if RESERVED.contains(&name.as_str()) {
                return Err(Problem::new(
                    Code::RequestInvalid,
                    format!("chat_template_kwargs may not set `{name}`"),
                    "leave it out; the request's own fields set it",
                ));
            }
            let value = guarded_json(value, &|text| tokenizer.guard(text, &self.markers));
            variables.push((name, python::value_of(&value)));
        }
        let template = self
            .environment
            .get_template(NAME)
            .map_err(|error| refuse(&error))?;
        template
            .render(Value::from_pairs(variables))
            .map_err(|error| refuse(&error))
    }

    fn message(&self, tokenizer: &Tokenizer, message: &ChatMessage) -> Value {
        // The assistant's own turns may hold the markers it wrote (`<think>`); others' text may not.
        let own = matches!(message.role.as_str(), "assistant" | "system" | "developer");
        let markers = if own { &[][..] } else { &self.markers };
        let role = match message.role.as_str() {
            "developer" if !self.knows_developer => "system",
            role => role,
        };
        let mut pairs = vec![
            ("role", Value::from(tokenizer.guard(role, &self.markers))),
            ("content", Value::from(tokenizer.guard(&message.content, markers))),
        ];
        if let Some(name) = &message.name {
            pairs.push(("name", Value::from(tokenizer.guard(name, &self.markers))));
        }
        Value::from_pairs(pairs)
    }
}

fn guarded_json(value: &serde_json::Value, guard: &dyn Fn(&str) -> String) -> serde_json::Value {
    use serde_json::Value as Json;
    match value {
        Json::String(text) => Json::String(guard(text)),
        Json::Array(items) => items.iter().map(|item| guarded_json(item, guard)).collect(),
        Json::Object(map) => Json::Object(
            map.iter()
                .map(|(key, item)| (guard(key), guarded_json(item, guard)))
                .collect(),
        ),
        other => other.clone(),
    }
}

fn environment() -> Environment<'static> {
    let mut environment = Environment::new();
    environment.set_auto_escape_callback(|_| minijinja::AutoEscape::None);
    environment.set_fuel(Some(FUEL));
    environment.set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
    environment.add_function("raise_exception", |message: String| -> Result<Value, Error> {
        Err(Error::new(
            ErrorKind::InvalidOperation,
            "the chat template refuses the messages",
        )
        .with_source(Raised(unguard(&message).into_owned())))
    });
    environment.add_function("strftime_now", |format: String| -> Result<String, Error> {
        let now = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .map_or(0, |since| since.as_secs());
        python::strftime(&format, now).ok_or_else(|| {
            Error::new(
                ErrorKind::InvalidOperation,
                format!("strftime_now does not know a directive in {format:?}"),
            )
        })
    });
    environment.add_filter(
        "tojson",
        |value: &Value, kwargs: Kwargs| -> Result<String, Error> {
            let indent: Option<usize> = kwargs.get("indent")?;
            for (flag, only) in [("ensure_ascii", false), ("sort_keys", false)] {
                if kwargs
                    .get::<Option<bool>>(flag)?
                    .is_some_and(|given| given != only)
                {
                    let what = format!("tojson can write only {flag}={only}");
                    return Err(Error::new(ErrorKind::InvalidOperation, what));
                }
            }
            kwargs.assert_all_used()?;
            python::to_json(value, indent.map(|width| width.min(16)))
        },
    );
    environment
}

/// Jinja that marks the assistant's tokens for training; without meaning here. A comment keeps the blank-trimming.
fn without_generation_tags(source: &str) -> String {
    let mut out = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(open) = rest.find("{%") {
        // From behind the opening: in `{%}` both would be the same sign.
        let Some(close) = rest[open + 2..].find("%}").map(|at| open + 2 + at) else {
            break;
        };
        let inside = &rest[open + 2..close];
        let word = inside.trim_matches(|c: char| c.is_whitespace() || c == '-' || c == '+');
        if matches!(word, "generation" | "endgeneration") {
            out.push_str(&rest[..open]);
            let (left, right) = (inside.starts_with('-'), inside.ends_with('-'));
            out.push_str(if left { "{#-" } else { "{#" });
            out.push_str(if right { " -#}" } else { " #}" });
        } else {
            out.push_str(&rest[..close + 2]);
        }
        rest = &rest[close + 2..];
    }
    out.push_str(rest);
    out
}

/// Kind, detail and line of an engine error.
fn describe(error: &Error) -> String {
    match error.line() {
        Some(line) => format!("{error} (line {line})"),
        None => error.to_string(),
    }
}

fn refuse(error: &Error) -> Problem {
    let mut cause: Option<&(dyn std::error::Error + 'static)> = Some(error);
    while let Some(current) = cause {
        if let Some(Raised(message)) = current.downcast_ref::<Raised>() {
            return Problem::new(
                Code::RequestInvalid,
                format!("the model's chat template refuses the messages: {message}"),
                "change the messages' order or roles as it says",
            );
        }
        cause = current.source();
    }
    if error.kind() == ErrorKind::OutOfFuel {
        return broken(format!(
            "rendering the chat template takes more than {FUEL} steps"
        ));
    }
    broken(format!("the chat template fails: {}", describe(error)))
}

fn broken(what: String) -> Problem {
    Problem::new(
        Code::TokenizerUnusable,
        what,
        "use /v1/completions with a prompt of your own, or a model file with a working template",
    )
}
