//! Request fields into engine terms, or a refusal that names the field.
//!
//! In: wire structs, the plan's sampling defaults. Out: [`Asked`]. Invariant: nothing out of range passes, nothing
//! asked for is silently left out.

use std::collections::BTreeMap;

use serde_json::Value;

use super::errors::ApiError;
use super::wire::{ChatRequest, CompletionRequest, Content, Message, OneOrMany, StreamOptions};
use crate::engine::Sampling;
use crate::engine::text::ChatMessage;
use crate::plan::SamplingPlan;

/// Most answers to one prompt.
pub const MAX_N: u64 = 8;
/// Most stop texts, as OpenAI has it.
const MAX_STOPS: usize = 4;
/// Longest stop text in bytes.
const MAX_STOP_BYTES: usize = 1024;
/// Most entries of `logit_bias`.
const MAX_BIASES: usize = 1024;

/// What both endpoints ask of the engine.
#[derive(Clone, Debug, PartialEq)]
pub struct Asked {
    /// How to choose tokens. Answer i of n adds i to the seed.
    pub sampling: Sampling,
    /// Most tokens, if said.
    pub max_tokens: Option<usize>,
    /// Texts that end the answer.
    pub stop: Vec<String>,
    /// Answers to each prompt.
    pub n: usize,
    /// Alternatives to report for each token; `None` = no log-probabilities.
    pub logprobs: Option<usize>,
    /// Go on past tokens that end an answer.
    pub ignore_eos: bool,
    /// Send the answer as it is made.
    pub stream: bool,
    /// Send a last chunk with the counts.
    pub include_usage: bool,
}

/// The fields both endpoints share, by reference.
struct Shared<'a> {
    n: Option<u64>,
    stream: Option<bool>,
    stream_options: Option<StreamOptions>,
    stop: Option<&'a OneOrMany>,
    temperature: Option<f64>,
    top_p: Option<f64>,
    top_k: Option<i64>,
    min_p: Option<f64>,
    repetition_penalty: Option<f64>,
    presence_penalty: Option<f64>,
    frequency_penalty: Option<f64>,
    logit_bias: Option<&'a BTreeMap<String, f64>>,
    seed: Option<i64>,
    ignore_eos: Option<bool>,
    response_format: Option<&'a Value>,
    /// Fields that are refused when they ask for something.
    extensions: [(&'static str, Option<&'a Value>); 11],
}

macro_rules! shared {
    ($request:expr) => {
        Shared {
            n: $request.n,
            stream: $request.stream,
            stream_options: $request.stream_options,
            stop: $request.stop.as_ref(),
            temperature: $request.temperature,
            top_p: $request.top_p,
            top_k: $request.top_k,
            min_p: $request.min_p,
            repetition_penalty: $request.repetition_penalty,
            presence_penalty: $request.presence_penalty,
            frequency_penalty: $request.frequency_penalty,
            logit_bias: $request.logit_bias.as_ref(),
            seed: $request.seed,
            ignore_eos: $request.ignore_eos,
            response_format: $request.response_format.as_ref(),
            extensions: [
                ("guided_json", $request.guided_json.as_ref()),
                ("guided_regex", $request.guided_regex.as_ref()),
                ("guided_choice", $request.guided_choice.as_ref()),
                ("guided_grammar", $request.guided_grammar.as_ref()),
                ("structured_outputs", $request.structured_outputs.as_ref()),
                ("json_schema", $request.json_schema.as_ref()),
                ("grammar", $request.grammar.as_ref()),
                ("min_tokens", $request.min_tokens.as_ref()),
                ("stop_token_ids", $request.stop_token_ids.as_ref()),
                ("bad_words", $request.bad_words.as_ref()),
                ("use_beam_search", $request.use_beam_search.as_ref()),
            ],
        }
    };
}

/// Checks a chat request. `fresh_seed` is used when none is given.
///
/// # Errors
/// `RequestInvalid` or `RequestUnsupported`, naming the field.
pub fn chat(request: &ChatRequest, defaults: &SamplingPlan, fresh_seed: u64) -> Result<Asked, ApiError> {
    refuse_given("tools", request.tools.as_ref(), &[])?;
    refuse_given("functions", request.functions.as_ref(), &[])?;
    refuse_given("tool_choice", request.tool_choice.as_ref(), &["none", "auto"])?;
    refuse_given("function_call", request.function_call.as_ref(), &["none", "auto"])?;
    refuse_given("audio", request.audio.as_ref(), &[])?;
    refuse_given("web_search_options", request.web_search_options.as_ref(), &[])?;
    if request
        .modalities
        .as_ref()
        .is_some_and(|given| *given != serde_json::json!(["text"]))
    {
        return Err(ApiError::unsupported(
            "modalities",
            "only text is generated",
            "leave `modalities` out",
        ));
    }
    let logprobs = match (request.logprobs.unwrap_or(false), request.top_logprobs) {
        (true, top) => Some(within("top_logprobs", top.unwrap_or(0), 0, 20)? as usize),
        (false, None | Some(0)) => None,
        (false, Some(_)) => {
            return Err(ApiError::invalid(
                "top_logprobs",
                "`top_logprobs` needs `logprobs`: true",
                "set `logprobs` to true",
            ));
        }
    };
    let max_tokens = match (request.max_completion_tokens, request.max_tokens) {
        (Some(new), Some(old)) if new != old => {
            return Err(ApiError::invalid(
                "max_tokens",
                format!("`max_tokens` is {old} but `max_completion_tokens` is {new}"),
                "send one of the two",
            ));
        }
        (Some(new), _) => Some(("max_completion_tokens", new)),
        (None, old) => old.map(|old| ("max_tokens", old)),
    };
    common(&shared!(request), max_tokens, logprobs, defaults, fresh_seed)
}

/// Checks a completion request. `fresh_seed` is used when none is given.
///
/// # Errors
/// `RequestInvalid` or `RequestUnsupported`, naming the field.
pub fn completion(
    request: &CompletionRequest,
    defaults: &SamplingPlan,
    fresh_seed: u64,
) -> Result<Asked, ApiError> {
    if request.best_of.is_some_and(|best_of| best_of != 1) {
        return Err(ApiError::unsupported(
            "best_of",
            "`best_of` other than 1 is not built",
            "leave it out and use `n`",
        ));
    }
    if request.suffix.as_ref().is_some_and(|suffix| !suffix.is_empty()) {
        return Err(ApiError::unsupported(
            "suffix",
            "filling in before a `suffix` is not built",
            "leave `suffix` out",
        ));
    }
    refuse_given("tools", request.tools.as_ref(), &[])?;
    let logprobs = request
        .logprobs
        .map(|count| within("logprobs", count, 0, 5))
        .transpose()?;
    if logprobs.is_some() && request.echo.unwrap_or(false) {
        return Err(ApiError::unsupported(
            "echo",
            "log-probabilities of the prompt are not built, so `echo` and `logprobs` exclude each other",
            "leave one of the two out",
        ));
    }
    let max_tokens = request.max_tokens.map(|max| ("max_tokens", max));
    common(
        &shared!(request),
        max_tokens,
        logprobs.map(|count| count as usize),
        defaults,
        fresh_seed,
    )
}

fn common(
    shared: &Shared<'_>,
    max_tokens: Option<(&str, u64)>,
    logprobs: Option<usize>,
    defaults: &SamplingPlan,
    fresh_seed: u64,
) -> Result<Asked, ApiError> {
    if let Some(format) = shared.response_format {
        let kind = format.get("type").and_then(Value::as_str);
        if kind != Some("text") {
            return Err(ApiError::unsupported(
                "response_format.type",
                format!(
                    "`response_format.type` is {}; structured output is not built",
                    shown(format.get("type"))
                ),
                "use `text` and check the answer yourself",
            ));
        }
    }
    for (name, value) in shared.extensions {
        refuse_given(name, value, &[])?;
    }
    let stream = shared.stream.unwrap_or(false);
    if shared.stream_options.is_some() && !stream {
        return Err(ApiError::invalid(
            "stream_options",
            "`stream_options` needs `stream`: true",
            "set `stream` to true",
        ));
    }
    let max_tokens = match max_tokens {
        Some((name, value)) => Some(within(name, value, 1, u64::from(u32::MAX))? as usize),
        None => None,
    };
    let top_k = shared.top_k.unwrap_or(i64::from(defaults.top_k));
    if !(-1..=1_000_000).contains(&top_k) {
        return Err(ApiError::invalid(
            "top_k",
            format!("`top_k` is {top_k}"),
            "send −1 to 1000000",
        ));
    }
    let sampling = Sampling {
        temperature: range("temperature", shared.temperature, defaults.temperature, 0.0, 2.0)?,
        top_k: top_k.max(0) as u32,
        top_p: range(
            "top_p",
            shared.top_p,
            defaults.top_p,
            f64::from(f32::MIN_POSITIVE),
            1.0,
        )?,
        min_p: range("min_p", shared.min_p, defaults.min_p, 0.0, 1.0)?,
        repetition_penalty: range(
            "repetition_penalty",
            shared.repetition_penalty,
            defaults.repetition_penalty,
            0.01,
            10.0,
        )?,
        presence_penalty: range("presence_penalty", shared.presence_penalty, 0.0, -2.0, 2.0)?,
        frequency_penalty: range("frequency_penalty", shared.frequency_penalty, 0.0, -2.0, 2.0)?,
        logit_bias: biases(shared.logit_bias)?,
        seed: shared.seed.map_or(fresh_seed, i64::cast_unsigned),
    };
    Ok(Asked {
        sampling,
        max_tokens,
        stop: stops(shared.stop)?,
        n: within("n", shared.n.unwrap_or(1), 1, MAX_N)? as usize,
        logprobs,
        ignore_eos: shared.ignore_eos.unwrap_or(false),
        stream,
        include_usage: shared
            .stream_options
            .and_then(|options| options.include_usage)
            .unwrap_or(false),
    })
}

/// A value as a message shows it, cut to a readable length.
fn shown(value: Option<&Value>) -> String {
    let text = value.map_or_else(|| "absent".to_owned(), Value::to_string);
    if text.chars().count() <= 60 {
        text
    } else {
        text.chars().take(60).collect::<String>() + "…"
    }
}

/// Refuses a field that asks for something, unless it is empty or one of `harmless`.
fn refuse_given(name: &str, value: Option<&Value>, harmless: &[&str]) -> Result<(), ApiError> {
    let asks = match value {
        None | Some(Value::Null | Value::Bool(false)) => false,
        Some(Value::Number(number)) => number.as_f64() != Some(0.0),
        Some(Value::Array(items)) => !items.is_empty(),
        Some(Value::String(text)) => !harmless.contains(&text.as_str()),
        Some(_) => true,
    };
    if asks {
        let what = format!("`{name}` is {}; this is not built", shown(value));
        return Err(ApiError::unsupported(name, what, format!("leave `{name}` out")));
    }
    Ok(())
}

fn within(name: &str, value: u64, least: u64, most: u64) -> Result<u64, ApiError> {
    if (least..=most).contains(&value) {
        Ok(value)
    } else {
        Err(ApiError::invalid(
            name,
            format!("`{name}` is {value}"),
            format!("send {least} to {most}"),
        ))
    }
}

fn range(name: &str, value: Option<f64>, default: f32, least: f64, most: f64) -> Result<f32, ApiError> {
    let Some(value) = value else { return Ok(default) };
    if (least..=most).contains(&value) {
        return Ok(value as f32);
    }
    let shown_least = if least > 0.0 && least < 1e-30 {
        "above 0".to_owned()
    } else {
        least.to_string()
    };
    Err(ApiError::invalid(
        name,
        if value.abs() < 1e9 {
            format!("`{name}` is {value}")
        } else {
            format!("`{name}` is {value:e}")
        },
        format!("send {shown_least} to {most}"),
    ))
}

fn stops(stop: Option<&OneOrMany>) -> Result<Vec<String>, ApiError> {
    let stops = match stop {
        None => Vec::new(),
        Some(OneOrMany::One(text)) => vec![text.clone()],
        Some(OneOrMany::Many(texts)) => texts.clone(),
    };
    if stops.len() > MAX_STOPS {
        return Err(ApiError::invalid(
            "stop",
            format!("`stop` has {} texts", stops.len()),
            "send at most 4",
        ));
    }
    if stops
        .iter()
        .any(|text| text.is_empty() || text.len() > MAX_STOP_BYTES)
    {
        return Err(ApiError::invalid(
            "stop",
            "a text of `stop` is empty or longer than 1024 bytes",
            "send texts of 1 to 1024 bytes",
        ));
    }
    Ok(stops)
}

fn biases(given: Option<&BTreeMap<String, f64>>) -> Result<Vec<(u32, f32)>, ApiError> {
    let given = given.into_iter().flatten();
    let mut biases = Vec::new();
    for (id, &bias) in given {
        let name = || format!("logit_bias.{}", id.chars().take(20).collect::<String>());
        // One spelling for each id, so that no id can have two biases.
        let token = id.parse::<u32>().ok().filter(|token| token.to_string() == *id);
        let token = token.ok_or_else(|| {
            ApiError::invalid(
                name(),
                "a key of `logit_bias` is not a token id",
                "send ids such as \"50256\"",
            )
        })?;
        if !(-100.0..=100.0).contains(&bias) {
            return Err(ApiError::invalid(
                name(),
                format!("a bias is {bias}"),
                "send −100 to 100",
            ));
        }
        biases.push((token, bias as f32));
        if biases.len() > MAX_BIASES {
            return Err(ApiError::invalid(
                "logit_bias",
                "`logit_bias` has too many entries",
                "send at most 1024",
            ));
        }
    }
    Ok(biases)
}

/// The messages as the chat template takes them.
///
/// # Errors
/// `RequestInvalid` or `RequestUnsupported`, naming the message.
pub fn messages(messages: &[Message]) -> Result<Vec<ChatMessage>, ApiError> {
    if messages.is_empty() {
        return Err(ApiError::invalid(
            "messages",
            "`messages` is empty or absent",
            "send at least one message",
        ));
    }
    messages
        .iter()
        .enumerate()
        .map(|(at, message)| one_message(at, message))
        .collect()
}

fn one_message(at: usize, message: &Message) -> Result<ChatMessage, ApiError> {
    let place = |field: &str| format!("messages[{at}].{field}");
    if !matches!(
        message.role.as_str(),
        "system" | "developer" | "user" | "assistant" | "tool"
    ) {
        let role: String = message.role.chars().take(40).collect();
        return Err(ApiError::invalid(
            place("role"),
            format!("the role {role:?} is not known"),
            "use system, developer, user, assistant or tool",
        ));
    }
    refuse_given(&place("tool_calls"), message.tool_calls.as_ref(), &[])?;
    refuse_given(&place("function_call"), message.function_call.as_ref(), &[])?;
    refuse_given(&place("audio"), message.audio.as_ref(), &[])?;
    let content = match &message.content {
        None => {
            return Err(ApiError::invalid(
                place("content"),
                "a message has no `content`",
                "send a text, perhaps empty",
            ));
        }
        Some(Content::Text(text)) => text.clone(),
        Some(Content::Parts(parts)) => {
            let mut texts = Vec::with_capacity(parts.len());
            for (number, part) in parts.iter().enumerate() {
                let place = format!("messages[{at}].content[{number}]");
                match (part.kind.as_str(), &part.text) {
                    ("text", Some(text)) => texts.push(text.as_str()),
                    ("text", None) => {
                        return Err(ApiError::invalid(
                            place,
                            "a text part has no `text`",
                            "send `text` with it",
                        ));
                    }
                    (other, _) => {
                        let other: String = other.chars().take(40).collect();
                        return Err(ApiError::unsupported(
                            format!("{place}.type"),
                            format!("parts of type {other:?} are not served; the model reads text only"),
                            "send text parts",
                        ));
                    }
                }
            }
            texts.join("\n")
        }
    };
    Ok(ChatMessage {
        role: message.role.clone(),
        content,
        name: message.name.clone(),
    })
}

#[cfg(test)]
mod tests;
