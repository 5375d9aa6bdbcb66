//! The engine: a plan and weights in, a running set of stages out.
//!
//! In: [`crate::plan::Plan`] and opened weights. Out: a [`Handle`] that takes requests and reports what it really uses.
//! Invariant: no configuration, environment or probing in here; what the plan says is what runs, or `start` fails.

#[allow(unsafe_code, reason = "SIMD; each block states why it is sound")]
pub mod kernels;

pub mod audio;
pub mod handle;
pub mod kv_cache;
pub mod nets;
pub mod nn;
pub mod pipeline;
pub mod sampler;
pub mod scheduler;
pub mod session;
pub mod speech;
pub mod speech_pipeline;
pub mod stage;
pub mod stages;
pub mod start;
pub mod status;
pub mod team;
pub mod text;

use serde::{Deserialize, Serialize};

use crate::base::Problem;
pub use crate::plan::effective::{Effective, EffectiveStage};
pub use handle::{Handle, ModelFacts, Submission};
pub use start::{StartProgress, start};
pub use status::Status;

/// One generation request, already tokenised.
#[derive(Clone, Debug)]
pub struct Request {
    /// Prompt tokens; at least one.
    pub prompt: Vec<u32>,
    /// How to choose tokens.
    pub sampling: Sampling,
    /// Most tokens to generate; prompt + this must fit the context.
    pub max_tokens: usize,
    /// Texts that end generation; not part of the answer.
    pub stop: Vec<String>,
    /// Go on past end-of-sequence tokens (benches).
    pub ignore_eos: bool,
    /// Report log-probabilities of the chosen token and of this many alternatives.
    pub logprobs: Option<usize>,
    /// Emit the prompt as the first text.
    pub echo: bool,
}

/// How to choose tokens. Order: logit bias, penalties, temperature, top-k, top-p, min-p, draw.
#[derive(Clone, Debug, PartialEq)]
#[expect(missing_docs, reason = "the field's own terms")]
pub struct Sampling {
    /// 0 = greedy.
    pub temperature: f32,
    /// 0 = off.
    pub top_k: u32,
    /// 1 = off.
    pub top_p: f32,
    /// 0 = off.
    pub min_p: f32,
    /// 1 = off; divides positive and multiplies negative logits of tokens seen in prompt or answer.
    pub repetition_penalty: f32,
    /// Subtracted once from tokens in the answer.
    pub presence_penalty: f32,
    /// Subtracted per occurrence in the answer.
    pub frequency_penalty: f32,
    pub logit_bias: Vec<(u32, f32)>,
    /// Same seed and request, same tokens. `None` = drawn from the clock by the server.
    pub seed: u64,
}

impl Default for Sampling {
    fn default() -> Self {
        Self {
            temperature: 0.0,
            top_k: 0,
            top_p: 1.0,
            min_p: 0.0,
            repetition_penalty: 1.0,
            presence_penalty: 0.0,
            frequency_penalty: 0.0,
            logit_bias: Vec::new(),
            seed: 0,
        }
    }
}

/// What a running request sends back, in order; the last is `Done` or `Failed`.
#[derive(Clone, Debug)]
pub enum Event {
    /// The prompt is processed.
    Prefilled {
        /// Tokens of prompt.
        tokens: usize,
    },
    /// Text became final. `text` may be empty while a character or stop text is incomplete.
    Token {
        /// The token.
        id: u32,
        /// New final text since the last event.
        text: String,
        /// Log-probabilities, if asked for.
        logprobs: Option<TokenLogprobs>,
    },
    /// Finished.
    Done {
        /// Why.
        finish: FinishReason,
        /// Text held back until now (end of a character or of a near-stop text).
        text: String,
        /// Counts and times.
        usage: Usage,
    },
    /// This request failed; others go on.
    Failed(Problem),
}

/// Log-probabilities of one step.
#[derive(Clone, Debug, PartialEq)]
pub struct TokenLogprobs {
    /// Of the chosen token (natural log, of the unmodified softmax).
    pub chosen: f32,
    /// Best alternatives, highest first: token, its log-probability.
    pub top: Vec<(u32, f32)>,
}

/// Why generation ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FinishReason {
    /// End-of-sequence token or a stop text.
    Stop,
    /// `max_tokens` or the context.
    Length,
    /// The caller left.
    Cancelled,
}

/// Counts and times of one request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Usage {
    /// Tokens of prompt.
    pub prompt_tokens: usize,
    /// Tokens generated.
    pub completion_tokens: usize,
    /// Waiting for a free sequence.
    pub queue_ms: f64,
    /// Processing the prompt.
    pub prefill_ms: f64,
    /// Generating, from the first to the last token.
    pub decode_ms: f64,
}
