//! What clients get: the OpenAI response bodies and chunks.
//!
//! In: ids, texts, counts. Out: JSON. Invariant: every field a client's own types demand is present.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::Serialize;

/// Counts of one request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, JsonSchema)]
#[expect(clippy::struct_field_names, reason = "OpenAI's names")]
pub struct UsageBody {
    /// Tokens of all prompts.
    pub prompt_tokens: usize,
    /// Tokens generated, over all answers.
    pub completion_tokens: usize,
    /// Both.
    pub total_tokens: usize,
}

/// The `usage` of a chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(untagged)]
pub enum ChunkUsage {
    /// Not asked for: the field is left out.
    Absent,
    /// Asked for, and not the last chunk: `null`.
    Null,
    /// The last chunk.
    Counts(UsageBody),
}

impl ChunkUsage {
    fn is_absent(&self) -> bool {
        *self == Self::Absent
    }
}

/// A whole chat answer.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct ChatBody {
    /// `chatcmpl-…`
    pub id: String,
    /// `chat.completion`
    pub object: &'static str,
    /// Unix seconds.
    pub created: u64,
    /// The model's name.
    pub model: String,
    /// Digest of the plan that runs.
    pub system_fingerprint: String,
    /// The answers.
    pub choices: Vec<ChatChoice>,
    /// Counts.
    pub usage: UsageBody,
}

/// One chat answer.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct ChatChoice {
    /// Which of `n`.
    pub index: usize,
    /// The answer.
    pub message: AnswerMessage,
    /// If asked for.
    pub logprobs: Option<ChatLogprobs>,
    /// `stop` or `length`.
    pub finish_reason: &'static str,
}

/// The assistant's message.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct AnswerMessage {
    /// `assistant`
    pub role: &'static str,
    /// Its text.
    pub content: String,
    /// Always null: no refusals are made here.
    pub refusal: Option<String>,
}

/// Log-probabilities in the chat shape.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct ChatLogprobs {
    /// One for each token.
    pub content: Vec<ChatLogprob>,
    /// Always null.
    pub refusal: Option<Vec<ChatLogprob>>,
}

/// One token's log-probability.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct ChatLogprob {
    /// The token's text; U+FFFD where it is part of a character.
    pub token: String,
    /// Natural logarithm.
    pub logprob: f32,
    /// The token's bytes.
    pub bytes: Vec<u8>,
    /// The likeliest tokens of this step.
    pub top_logprobs: Vec<TopLogprob>,
}

/// One alternative.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct TopLogprob {
    /// The token's text.
    pub token: String,
    /// Natural logarithm.
    pub logprob: f32,
    /// The token's bytes.
    pub bytes: Vec<u8>,
}

/// One chunk of a streamed chat answer.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct ChatChunk {
    /// The same in every chunk.
    pub id: String,
    /// `chat.completion.chunk`
    pub object: &'static str,
    /// The same in every chunk.
    pub created: u64,
    /// The model's name.
    pub model: String,
    /// Digest of the plan that runs.
    pub system_fingerprint: String,
    /// One, or none in the chunk with the counts.
    pub choices: Vec<ChatChunkChoice>,
    /// Absent unless asked for; null in all chunks but the last.
    #[serde(skip_serializing_if = "ChunkUsage::is_absent")]
    #[schemars(with = "Option<UsageBody>")]
    pub usage: ChunkUsage,
}

/// One answer's part of a chunk.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct ChatChunkChoice {
    /// Which of `n`.
    pub index: usize,
    /// What is new.
    pub delta: Delta,
    /// If asked for.
    pub logprobs: Option<ChatLogprobs>,
    /// Null until the last.
    pub finish_reason: Option<&'static str>,
}

/// What is new in a chunk.
#[derive(Clone, Debug, Default, Serialize, JsonSchema)]
pub struct Delta {
    /// `assistant`, in the first chunk.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub role: Option<&'static str>,
    /// New text.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub content: Option<String>,
}

/// A plain completion, whole or a chunk: OpenAI gives both this shape.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct CompletionBody {
    /// `cmpl-…`
    pub id: String,
    /// `text_completion`
    pub object: &'static str,
    /// Unix seconds.
    pub created: u64,
    /// The model's name.
    pub model: String,
    /// Digest of the plan that runs.
    pub system_fingerprint: String,
    /// The answers.
    pub choices: Vec<CompletionChoice>,
    /// Counts. In chunks absent unless asked for, and null in all but the last.
    #[serde(skip_serializing_if = "ChunkUsage::is_absent")]
    #[schemars(with = "Option<UsageBody>")]
    pub usage: ChunkUsage,
}

/// One plain answer.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct CompletionChoice {
    /// The text, or what is new of it.
    pub text: String,
    /// Prompt by prompt, then by `n`.
    pub index: usize,
    /// If asked for.
    pub logprobs: Option<CompletionLogprobs>,
    /// `stop` or `length`; null until the last chunk.
    pub finish_reason: Option<&'static str>,
}

/// Log-probabilities in the completions shape: parallel lists.
#[derive(Clone, Debug, Default, Serialize, JsonSchema)]
pub struct CompletionLogprobs {
    /// Token texts.
    pub tokens: Vec<String>,
    /// Of each chosen token.
    pub token_logprobs: Vec<f32>,
    /// For each token, the likeliest ones by text.
    pub top_logprobs: Vec<BTreeMap<String, f32>>,
    /// Characters of answer before each token.
    pub text_offset: Vec<usize>,
}

/// `GET /v1/models`.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct ModelList {
    /// `list`
    pub object: &'static str,
    /// The one model.
    pub data: Vec<ModelBody>,
}

/// One model.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct ModelBody {
    /// Its name.
    pub id: String,
    /// `model`
    pub object: &'static str,
    /// Unix seconds of the server's start.
    pub created: u64,
    /// `edge-deploy`
    pub owned_by: &'static str,
    /// Row of the family table.
    pub family: String,
    /// Tokens a request may use, prompt and answer.
    pub context_length: usize,
    /// Whether it is loaded.
    pub ready: bool,
}

/// Any error.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct ErrorBody {
    /// The error.
    pub error: ErrorDetail,
}

/// The error's parts.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct ErrorDetail {
    /// What was seen and what to do.
    pub message: String,
    /// `invalid_request_error`, `authentication_error`, `rate_limit_error` or `server_error`.
    #[serde(rename = "type")]
    pub kind: &'static str,
    /// The field that is wrong.
    pub param: Option<String>,
    /// Stable code.
    pub code: String,
}
