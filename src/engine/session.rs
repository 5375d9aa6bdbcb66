//! One request while it has a sequence: what it feeds next, what it sends back, when it ends.
//!
//! In: an [`Order`], logits. Out: rows of the next pass, events. Invariant: each event is sent as soon as it is
//! final, the last is `Done` or `Failed`, and nothing is sent after it.

mod stop_text;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use tokio::sync::mpsc::UnboundedSender;

use super::nets::Row;
use super::sampler::Sampler;
use super::text::{Detokenizer, Tokenizer};
use super::{Event, FinishReason, Request, TokenLogprobs, Usage};
use crate::base::{Code, Problem};
pub use stop_text::{Released, StopMatcher};

/// A request on its way through the engine.
#[derive(Debug)]
pub struct Order {
    /// Number of the request.
    pub id: u64,
    /// What is asked for; checked by the handle.
    pub request: Request,
    /// Set by the caller to stop.
    pub cancel: Arc<AtomicBool>,
    /// Where events go. Unbounded, so that a slow reader holds up nobody; `max_tokens` bounds what can pile up.
    pub events: UnboundedSender<Event>,
    /// When it was submitted.
    pub submitted: Instant,
    /// When it must be done.
    pub deadline: Option<Instant>,
}

/// Why an order must end before its answer is complete.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// The caller left or cancelled.
    Cancelled,
    /// Its deadline passed.
    DeadlinePassed,
}

impl Order {
    /// Whether it must end now.
    #[must_use]
    pub fn ending(&self, now: Instant) -> Option<Ending> {
        if self.cancel.load(Ordering::Relaxed) || self.events.is_closed() {
            Some(Ending::Cancelled)
        } else if self.deadline.is_some_and(|deadline| now >= deadline) {
            Some(Ending::DeadlinePassed)
        } else {
            None
        }
    }

    /// Sends an event; a caller who has left gets nothing.
    fn send(&self, event: Event) {
        // A closed channel is noticed by `ending` before the next pass.
        let _ = self.events.send(event);
    }

    /// Ends it with a problem.
    pub fn fail(&self, problem: Problem) {
        self.send(Event::Failed(problem));
    }

    /// Ends it while it still waits.
    pub fn end_waiting(&self, ending: Ending, now: Instant) {
        match ending {
            Ending::Cancelled => self.send(Event::Done {
                finish: FinishReason::Cancelled,
                text: String::new(),
                usage: Usage {
                    prompt_tokens: self.request.prompt.len(),
                    queue_ms: milliseconds(now.saturating_duration_since(self.submitted)),
                    ..Usage::default()
                },
            }),
            Ending::DeadlinePassed => self.fail(deadline_passed(self, now, 0)),
        }
    }
}

fn deadline_passed(order: &Order, now: Instant, generated: usize) -> Problem {
    let waited = now.saturating_duration_since(order.submitted);
    Problem::new(
        Code::DeadlinePassed,
        format!(
            "the request did not finish within its time: {:.1} s passed, {generated} of at most {} tokens were generated",
            waited.as_secs_f64(),
            order.request.max_tokens
        ),
        "ask for fewer tokens, raise `server.request_timeout_ms`, or send fewer requests at once",
    )
}

fn milliseconds(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1e3
}

/// What a step did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// More to do.
    Going,
    /// The last event was sent: answered.
    Finished,
    /// The last event was sent: a problem.
    Failed,
}

/// A request with a sequence.
#[derive(Debug)]
pub struct Session {
    /// The request and its channel.
    pub order: Order,
    sampler: Sampler,
    detokenizer: Detokenizer,
    stops: StopMatcher,
    /// Prompt text to send in front of the answer.
    echo: String,
    /// Tokens in the KV cache.
    filled: usize,
    generated: usize,
    /// The token to feed when the prompt is done.
    last_token: u32,
    admitted: Instant,
    first_token: Option<Instant>,
    last_token_at: Option<Instant>,
}

impl Session {
    /// Gives `order` a sequence.
    #[must_use]
    pub fn new(mut order: Order, tokenizer: &Tokenizer, now: Instant) -> Self {
        let request = &mut order.request;
        let echo = if request.echo {
            tokenizer.decode(&request.prompt)
        } else {
            String::new()
        };
        Self {
            sampler: Sampler::new(std::mem::take(&mut request.sampling), &request.prompt),
            detokenizer: Detokenizer::after_prompt(),
            stops: StopMatcher::new(&request.stop),
            echo,
            filled: 0,
            generated: 0,
            last_token: 0,
            admitted: now,
            first_token: None,
            last_token_at: None,
            order,
        }
    }

    /// Prompt tokens still to be processed.
    #[must_use]
    pub fn prompt_left(&self) -> usize {
        self.order.request.prompt.len().saturating_sub(self.filled)
    }

    /// Appends this session's rows: the next at most `prompt_limit` prompt tokens, or the last generated token.
    /// Returns how many.
    pub fn next_rows(&self, sequence: usize, prompt_limit: usize, rows: &mut Vec<Row>) -> usize {
        let prompt = &self.order.request.prompt;
        if self.prompt_left() == 0 {
            rows.push(Row {
                sequence,
                position: self.filled,
                token: self.last_token,
                logits: true,
            });
            return 1;
        }
        let end = prompt.len().min(self.filled + prompt_limit);
        rows.extend((self.filled..end).map(|position| Row {
            sequence,
            position,
            token: prompt[position],
            logits: position + 1 == prompt.len(),
        }));
        end - self.filled
    }

    /// Takes the result of a pass with `fed` rows of this session; `logits` if one of them asked.
    pub fn advance(
        &mut self,
        fed: usize,
        logits: Option<&mut [f32]>,
        tokenizer: &Tokenizer,
        now: Instant,
    ) -> Progress {
        let in_prompt = self.prompt_left() > 0;
        self.filled += fed;
        let Some(logits) = logits else {
            return Progress::Going;
        };
        if in_prompt {
            self.order.send(Event::Prefilled {
                tokens: self.order.request.prompt.len(),
            });
        }
        let choice = match self.sampler.choose(logits, self.order.request.logprobs) {
            Ok(choice) => choice,
            Err(broken) => {
                self.order.fail(
                    Problem::new(
                        Code::StageFailed,
                        format!("the network produced no usable numbers: {broken}"),
                        "check the model file (`edge-deploy doctor`); it may be damaged",
                    )
                    .why("a token cannot be chosen from them"),
                );
                return Progress::Failed;
            }
        };
        self.generated += 1;
        self.first_token.get_or_insert(now);
        self.last_token_at = Some(now);
        self.last_token = choice.id;
        self.take_token(choice.id, choice.logprobs, tokenizer)
    }

    fn take_token(&mut self, id: u32, logprobs: Option<TokenLogprobs>, tokenizer: &Tokenizer) -> Progress {
        if tokenizer.is_stop(id) && !self.order.request.ignore_eos {
            return self.finish(FinishReason::Stop);
        }
        let piece = self.detokenizer.push(tokenizer, id);
        let released = self.stops.push(&piece);
        let text = self.with_echo(released.text);
        self.order.send(Event::Token { id, text, logprobs });
        if released.stopped {
            self.done(FinishReason::Stop, String::new())
        } else if self.generated >= self.order.request.max_tokens {
            self.finish(FinishReason::Length)
        } else {
            Progress::Going
        }
    }

    /// Ends the answer with the text held back; what an unfinished character becomes may complete a stop text.
    fn finish(&mut self, reason: FinishReason) -> Progress {
        let rest = self.detokenizer.finish();
        let mut released = self.stops.push(&rest);
        let reason = if released.stopped {
            FinishReason::Stop
        } else {
            released.text.push_str(&self.stops.finish());
            reason
        };
        self.done(reason, released.text)
    }

    fn done(&mut self, finish: FinishReason, text: String) -> Progress {
        let text = self.with_echo(text);
        let usage = self.usage();
        self.order.send(Event::Done { finish, text, usage });
        Progress::Finished
    }

    fn with_echo(&mut self, text: String) -> String {
        if self.echo.is_empty() {
            text
        } else {
            std::mem::take(&mut self.echo) + &text
        }
    }

    /// Ends it early. What is certain of the text was already sent.
    pub fn end(&mut self, ending: Ending, now: Instant) {
        match ending {
            Ending::Cancelled => {
                self.finish(FinishReason::Cancelled);
            }
            Ending::DeadlinePassed => self.order.fail(deadline_passed(&self.order, now, self.generated)),
        }
    }

    /// From submission to a sequence.
    #[must_use]
    pub fn queue_time(&self) -> Duration {
        self.admitted.saturating_duration_since(self.order.submitted)
    }

    /// When the last token was chosen.
    #[must_use]
    pub fn last_token_at(&self) -> Option<Instant> {
        self.last_token_at
    }

    fn usage(&self) -> Usage {
        let since = |end: Option<Instant>, start: Option<Instant>| match (end, start) {
            (Some(end), Some(start)) => milliseconds(end.saturating_duration_since(start)),
            _ => 0.0,
        };
        Usage {
            prompt_tokens: self.order.request.prompt.len(),
            completion_tokens: self.generated,
            queue_ms: milliseconds(self.queue_time()),
            prefill_ms: since(self.first_token, Some(self.admitted)),
            decode_ms: since(self.last_token_at, self.first_token),
        }
    }
}
