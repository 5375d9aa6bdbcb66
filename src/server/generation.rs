//! One request's answers in the engine.
//!
//! In: prompts and what is asked. Out: events of all answers, merged. Invariant: dropping a [`Generation`] cancels
//! everything that still runs, so a client that leaves frees its sequences at once.

use std::task::{Context, Poll};

use super::errors::ApiError;
use super::reply::UsageBody;
use super::validate::Asked;
use crate::base::{Code, Problem};
use crate::engine::{Event, FinishReason, Handle, Request, Submission, Usage};

/// Answers on their way.
#[derive(Debug)]
pub struct Generation {
    /// By choice index; `None` once its last event came.
    running: Vec<Option<Submission>>,
    /// Where the next look begins, so that no answer starves another.
    next: usize,
    answers_per_prompt: usize,
    usage: UsageBody,
}

impl Generation {
    /// Submits `asked.n` answers for each prompt. All or none: a refusal cancels those already submitted.
    ///
    /// # Errors
    /// The engine's refusal, naming `prompt_field` where the prompt is at fault.
    pub fn submit(
        handle: &Handle,
        prompts: Vec<Vec<u32>>,
        asked: &Asked,
        default_max_tokens: usize,
        prompt_field: &str,
    ) -> Result<Self, ApiError> {
        let context = handle.model_facts().context;
        let mut running = Vec::with_capacity(prompts.len() * asked.n);
        for prompt in prompts {
            for answer in 0..asked.n {
                let mut sampling = asked.sampling.clone();
                sampling.seed = sampling.seed.wrapping_add(answer as u64);
                // Without a wish the answer may fill what the prompt leaves; a full context is the engine's to refuse.
                let room = context.saturating_sub(prompt.len()).max(1);
                let request = Request {
                    prompt: prompt.clone(),
                    sampling,
                    max_tokens: asked.max_tokens.unwrap_or(default_max_tokens.min(room)),
                    stop: asked.stop.clone(),
                    ignore_eos: asked.ignore_eos,
                    logprobs: asked.logprobs,
                    echo: false,
                };
                let submission = handle.submit(request).map_err(|problem| {
                    let names_prompt = problem.code == Code::ContextOverflow;
                    let error = ApiError::from(problem);
                    if names_prompt {
                        error.naming(prompt_field)
                    } else {
                        error
                    }
                })?;
                running.push(Some(submission));
            }
        }
        Ok(Self {
            running,
            next: 0,
            answers_per_prompt: asked.n.max(1),
            usage: UsageBody::default(),
        })
    }

    /// How many answers there are in all.
    pub fn answers(&self) -> usize {
        self.running.len()
    }

    /// The counts so far; complete once [`Self::poll_event`] gives `None`.
    pub fn usage(&self) -> UsageBody {
        self.usage
    }

    fn count(&mut self, index: usize, usage: &Usage) {
        // A prompt with several answers is counted once, as OpenAI does.
        if index.is_multiple_of(self.answers_per_prompt) {
            self.usage.prompt_tokens += usage.prompt_tokens;
        }
        self.usage.completion_tokens += usage.completion_tokens;
        self.usage.total_tokens = self.usage.prompt_tokens + self.usage.completion_tokens;
    }

    /// The next event of any answer with its index; `None` when all are done. A failure ends them all.
    pub fn poll_event(
        &mut self,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<(usize, Event), ApiError>>> {
        let count = self.running.len();
        let mut open = false;
        for step in 0..count {
            let index = (self.next + step) % count;
            let Some(submission) = &mut self.running[index] else {
                continue;
            };
            open = true;
            let Poll::Ready(event) = submission.events.poll_recv(context) else {
                continue;
            };
            self.next = (index + 1) % count;
            let outcome = match event {
                Some(Event::Failed(problem)) => Err(problem),
                Some(Event::Done {
                    finish: FinishReason::Cancelled,
                    ..
                }) => Err(Problem::new(
                    Code::NotReady,
                    "the server stopped before the answer was complete",
                    "send the request again after the restart",
                )),
                None => Err(Problem::new(
                    Code::StageFailed,
                    "the engine ended without finishing the answer",
                    "send the request again; report it if it stays so",
                )),
                Some(event) => Ok(event),
            };
            return Poll::Ready(Some(match outcome {
                Ok(event) => {
                    if let Event::Done { usage, .. } = &event {
                        self.count(index, usage);
                        self.running[index] = None;
                    }
                    Ok((index, event))
                }
                Err(problem) => {
                    self.running.fill_with(|| None);
                    Err(problem.into())
                }
            }));
        }
        if open { Poll::Pending } else { Poll::Ready(None) }
    }

    /// [`Self::poll_event`], awaited.
    pub async fn event(&mut self) -> Option<Result<(usize, Event), ApiError>> {
        std::future::poll_fn(|context| self.poll_event(context)).await
    }
}

/// OpenAI's word for why an answer ended.
pub fn finish_word(finish: FinishReason) -> &'static str {
    match finish {
        FinishReason::Length => "length",
        FinishReason::Stop | FinishReason::Cancelled => "stop",
    }
}
