//! Engine events in the words of an endpoint.
//!
//! In: events by answer. Out: chunks as JSON, or whole bodies. Invariant: id, time, model and fingerprint are the
//! same in everything one request gets.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::reply::{
    AnswerMessage, ChatBody, ChatChoice, ChatChunk, ChatChunkChoice, ChatLogprob, ChatLogprobs, ChunkUsage,
    CompletionBody, CompletionChoice, CompletionLogprobs, Delta, TopLogprob, UsageBody,
};
use crate::engine::TokenLogprobs;
use crate::engine::text::Tokenizer;

/// Which endpoint's words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    /// `/v1/chat/completions`
    Chat,
    /// `/v1/completions`
    Completion,
}

/// What stays the same over one request.
#[derive(Clone, Debug)]
pub struct Writer {
    /// Endpoint.
    pub shape: Shape,
    /// `chatcmpl-…` or `cmpl-…`.
    pub id: String,
    /// Unix seconds.
    pub created: u64,
    /// The model's name.
    pub model: String,
    /// The plan's digest.
    pub fingerprint: String,
    /// Every chunk has a `usage`, null but in the last.
    pub include_usage: bool,
    /// For token texts.
    pub tokenizer: Arc<Tokenizer>,
}

/// One answer as it grows.
#[derive(Clone, Debug, Default)]
pub struct Answer {
    /// Text so far.
    pub text: String,
    /// Tokens so far with their log-probabilities, if asked for.
    pub logprobs: Vec<(u32, TokenLogprobs)>,
    /// `stop` or `length`, at the end.
    pub finish: &'static str,
}

impl Writer {
    fn token_text(&self, id: u32) -> (String, Vec<u8>) {
        let bytes = self.tokenizer.token_bytes(id);
        (String::from_utf8_lossy(&bytes).into_owned(), bytes)
    }

    fn chat_logprobs(&self, tokens: &[(u32, TokenLogprobs)]) -> ChatLogprobs {
        let content = tokens
            .iter()
            .map(|(id, logprobs)| {
                let (token, bytes) = self.token_text(*id);
                let top = logprobs.top.iter().map(|&(id, logprob)| {
                    let (token, bytes) = self.token_text(id);
                    TopLogprob {
                        token,
                        logprob,
                        bytes,
                    }
                });
                ChatLogprob {
                    token,
                    logprob: logprobs.chosen,
                    bytes,
                    top_logprobs: top.collect(),
                }
            })
            .collect();
        ChatLogprobs {
            content,
            refusal: None,
        }
    }

    /// `offset` is the number of characters of answer before the first of `tokens`.
    fn completion_logprobs(&self, tokens: &[(u32, TokenLogprobs)], mut offset: usize) -> CompletionLogprobs {
        let mut lists = CompletionLogprobs::default();
        for (id, logprobs) in tokens {
            let (text, _) = self.token_text(*id);
            let mut top: BTreeMap<String, f32> = logprobs
                .top
                .iter()
                .map(|&(id, logprob)| (self.token_text(id).0, logprob))
                .collect();
            top.entry(text.clone()).or_insert(logprobs.chosen);
            lists.text_offset.push(offset);
            offset += text.chars().count();
            lists.tokens.push(text);
            lists.token_logprobs.push(logprobs.chosen);
            lists.top_logprobs.push(top);
        }
        lists
    }

    /// The first chunk of an answer: a chat's role, or the echoed prompt of a completion. `None` when there is none.
    pub fn opening(&self, index: usize, echo: &str) -> Option<String> {
        match self.shape {
            Shape::Chat => Some(self.chat_chunk(
                index,
                Delta {
                    role: Some("assistant"),
                    content: Some(String::new()),
                },
                None,
                None,
            )),
            Shape::Completion if echo.is_empty() => None,
            Shape::Completion => Some(self.completion_chunk(index, echo.to_owned(), None, None)),
        }
    }

    /// New text of an answer.
    pub fn part(
        &self,
        index: usize,
        text: String,
        token: Option<&(u32, TokenLogprobs)>,
        offset: usize,
    ) -> String {
        let tokens = token.map(std::slice::from_ref);
        match self.shape {
            Shape::Chat => {
                let logprobs = tokens.map(|tokens| self.chat_logprobs(tokens));
                self.chat_chunk(
                    index,
                    Delta {
                        role: None,
                        content: Some(text),
                    },
                    logprobs,
                    None,
                )
            }
            Shape::Completion => {
                let logprobs = tokens.map(|tokens| self.completion_logprobs(tokens, offset));
                self.completion_chunk(index, text, logprobs, None)
            }
        }
    }

    /// The end of an answer.
    pub fn closing(&self, index: usize, finish: &'static str) -> String {
        match self.shape {
            Shape::Chat => self.chat_chunk(index, Delta::default(), None, Some(finish)),
            Shape::Completion => self.completion_chunk(index, String::new(), None, Some(finish)),
        }
    }

    /// The chunk with the counts.
    pub fn usage(&self, usage: UsageBody) -> String {
        let usage = ChunkUsage::Counts(usage);
        match self.shape {
            Shape::Chat => json(&ChatChunk {
                usage,
                ..self.empty_chat_chunk()
            }),
            Shape::Completion => json(&CompletionBody {
                usage,
                ..self.empty_completion()
            }),
        }
    }

    fn unsaid_usage(&self) -> ChunkUsage {
        if self.include_usage {
            ChunkUsage::Null
        } else {
            ChunkUsage::Absent
        }
    }

    fn empty_chat_chunk(&self) -> ChatChunk {
        ChatChunk {
            id: self.id.clone(),
            object: "chat.completion.chunk",
            created: self.created,
            model: self.model.clone(),
            system_fingerprint: self.fingerprint.clone(),
            choices: Vec::new(),
            usage: self.unsaid_usage(),
        }
    }

    fn empty_completion(&self) -> CompletionBody {
        CompletionBody {
            id: self.id.clone(),
            object: "text_completion",
            created: self.created,
            model: self.model.clone(),
            system_fingerprint: self.fingerprint.clone(),
            choices: Vec::new(),
            usage: self.unsaid_usage(),
        }
    }

    fn chat_chunk(
        &self,
        index: usize,
        delta: Delta,
        logprobs: Option<ChatLogprobs>,
        finish_reason: Option<&'static str>,
    ) -> String {
        let choices = vec![ChatChunkChoice {
            index,
            delta,
            logprobs,
            finish_reason,
        }];
        json(&ChatChunk {
            choices,
            ..self.empty_chat_chunk()
        })
    }

    fn completion_chunk(
        &self,
        index: usize,
        text: String,
        logprobs: Option<CompletionLogprobs>,
        finish_reason: Option<&'static str>,
    ) -> String {
        let choices = vec![CompletionChoice {
            text,
            index,
            logprobs,
            finish_reason,
        }];
        json(&CompletionBody {
            choices,
            ..self.empty_completion()
        })
    }

    /// The whole body. `echoes` are the prompts to begin answers with, by answer; empty where not asked for.
    pub fn body(
        &self,
        answers: Vec<Answer>,
        echoes: &[String],
        with_logprobs: bool,
        usage: UsageBody,
    ) -> String {
        match self.shape {
            Shape::Chat => {
                let choices = answers.into_iter().enumerate().map(|(index, answer)| ChatChoice {
                    index,
                    logprobs: with_logprobs.then(|| self.chat_logprobs(&answer.logprobs)),
                    message: AnswerMessage {
                        role: "assistant",
                        content: answer.text,
                        refusal: None,
                    },
                    finish_reason: answer.finish,
                });
                json(&ChatBody {
                    id: self.id.clone(),
                    object: "chat.completion",
                    created: self.created,
                    model: self.model.clone(),
                    system_fingerprint: self.fingerprint.clone(),
                    choices: choices.collect(),
                    usage,
                })
            }
            Shape::Completion => {
                let choices = answers
                    .into_iter()
                    .enumerate()
                    .map(|(index, answer)| CompletionChoice {
                        index,
                        logprobs: with_logprobs.then(|| self.completion_logprobs(&answer.logprobs, 0)),
                        text: echoes.get(index).cloned().unwrap_or_default() + &answer.text,
                        finish_reason: Some(answer.finish),
                    });
                let choices = choices.collect();
                json(&CompletionBody {
                    choices,
                    usage: ChunkUsage::Counts(usage),
                    ..self.empty_completion()
                })
            }
        }
    }
}

/// Our reply types have text keys and finite or absent numbers only; serde_json writes others as null.
fn json(value: &impl serde::Serialize) -> String {
    serde_json::to_string(value).unwrap_or_else(|error| {
        tracing::error!(%error, "a reply could not be written");
        "null".to_owned()
    })
}
