//! `Handle`: the only thing servers, benches and calibration hold of a running engine.
//!
//! In: requests. Out: their events, and what the engine is and does. Cheap to clone; usable from any thread.
//! Invariant: what cannot succeed is refused on submission with numbers, never cut down or truncated.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak, mpsc};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

use super::pipeline::Line;
use super::session::Order;
use super::status::Status;
use super::text::{ChatTemplate, Tokenizer};
use super::{Effective, EffectiveStage, Event, Request};
use crate::base::{Bytes, Code, Problem};
use crate::plan::{EffectiveItem, EffectiveMemory, EffectiveModel};
use crate::sys::memory::heap_in_use;
use crate::sys::process_memory;

/// Most stop texts of one request.
const MAX_STOPS: usize = 64;
/// Most alternatives reported by token.
const MAX_LOGPROBS: usize = 100;

/// What is being served.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ModelFacts {
    /// Name that `/v1/models` lists.
    pub name: String,
    /// Row of `model/families.rs`.
    pub family: String,
    /// Total weights.
    pub parameters: u64,
    /// Length of a row of logits; token ids of a request are below it.
    pub vocab: usize,
    /// Tokens a request may use, prompt and answer.
    pub context: usize,
    /// The context the model was trained for.
    pub context_train: u64,
    /// Answers generated at once.
    pub max_seqs: usize,
    /// Tokens that end an answer.
    pub stop_ids: Vec<u32>,
}

/// An accepted request.
#[derive(Debug)]
pub struct Submission {
    /// Number of the request, for [`Handle::cancel`].
    pub id: u64,
    /// Its events; the last is `Done` or `Failed`. Dropping this cancels the request.
    pub events: UnboundedReceiver<Event>,
}

/// A running engine.
#[derive(Clone, Debug)]
pub struct Handle(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    stage_name: String,
    line: Arc<Line>,
    thread: Mutex<Option<JoinHandle<()>>>,
    tokenizer: Arc<Tokenizer>,
    chat_template: Option<Arc<ChatTemplate>>,
    facts: ModelFacts,
    opened: EffectiveModel,
    tokenizer_bytes: Option<Bytes>,
    request_timeout: Option<Duration>,
    next_id: AtomicU64,
    cancels: Mutex<HashMap<u64, Weak<AtomicBool>>>,
}

/// What a handle is made of.
#[derive(Debug)]
pub struct Parts {
    /// Name of the stage in the plan.
    pub stage_name: String,
    /// The line to its thread.
    pub line: Arc<Line>,
    /// Its thread.
    pub thread: JoinHandle<()>,
    /// Text to tokens and back.
    pub tokenizer: Arc<Tokenizer>,
    /// Chats to text, if the model has a template.
    pub chat_template: Option<Arc<ChatTemplate>>,
    /// What is served.
    pub facts: ModelFacts,
    /// What was opened.
    pub opened: EffectiveModel,
    /// Heap that the tokenizer took, where it is counted.
    pub tokenizer_bytes: Option<Bytes>,
    /// Longest a request may take in all; `None` = no limit.
    pub request_timeout: Option<Duration>,
}

impl Handle {
    /// Puts a handle together; [`super::start()`] does it for a plan.
    #[must_use]
    pub fn new(parts: Parts) -> Self {
        Self(Arc::new(Inner {
            stage_name: parts.stage_name,
            line: parts.line,
            thread: Mutex::new(Some(parts.thread)),
            tokenizer: parts.tokenizer,
            chat_template: parts.chat_template,
            facts: parts.facts,
            opened: parts.opened,
            tokenizer_bytes: parts.tokenizer_bytes,
            request_timeout: parts.request_timeout,
            next_id: AtomicU64::new(1),
            cancels: Mutex::default(),
        }))
    }

    /// Checks a request and puts it into the queue.
    ///
    /// # Errors
    /// `context_length_exceeded` with the numbers, `request_invalid`, `queue_full`, `not_ready`.
    pub fn submit(&self, request: Request) -> Result<Submission, Problem> {
        check(&request, &self.0.facts)?;
        let id = self.0.next_id.fetch_add(1, Ordering::Relaxed);
        let cancel = Arc::new(AtomicBool::new(false));
        let (sender, events) = unbounded_channel();
        let submitted = Instant::now();
        {
            let mut cancels = self.0.cancels();
            cancels.retain(|_, flag| flag.strong_count() > 0);
            cancels.insert(id, Arc::downgrade(&cancel));
        }
        self.0.line.submit(Order {
            id,
            request,
            cancel,
            events: sender,
            submitted,
            deadline: self.0.request_timeout.map(|timeout| submitted + timeout),
        })?;
        Ok(Submission { id, events })
    }

    /// Cancels a request; its last event is `Done` with `Cancelled`. Returns whether it was still in the
    /// engine; for a moment after its last event that may still be so.
    #[must_use = "a request that already ended cannot be cancelled"]
    pub fn cancel(&self, id: u64) -> bool {
        let flag = self.0.cancels().get(&id).and_then(Weak::upgrade);
        flag.is_some_and(|flag| {
            flag.store(true, Ordering::Relaxed);
            true
        })
    }

    /// The model's tokenizer.
    #[must_use]
    pub fn tokenizer(&self) -> &Arc<Tokenizer> {
        &self.0.tokenizer
    }

    /// The model's chat template, if it has one.
    #[must_use]
    pub fn chat_template(&self) -> Option<&Arc<ChatTemplate>> {
        self.0.chat_template.as_ref()
    }

    /// What is being served.
    #[must_use]
    pub fn model_facts(&self) -> &ModelFacts {
        &self.0.facts
    }

    /// Counts, rates and histograms as of now.
    #[must_use]
    pub fn status(&self) -> Status {
        self.0.line.status(Instant::now())
    }

    /// What the engine really uses, asked of its thread and the operating system now. Waits for the current pass.
    ///
    /// # Errors
    /// `not_ready` after the engine has stopped; `probe_failed` when the system cannot be asked.
    pub fn effective(&self) -> Result<Effective, Problem> {
        let (sender, answer) = mpsc::sync_channel(1);
        self.0.line.ask(sender)?;
        let stage = answer.recv().map_err(|_| {
            Problem::new(
                Code::NotReady,
                "the engine has stopped",
                "start it again before asking what it uses",
            )
        })??;
        Ok(Effective {
            model: self.0.opened.clone(),
            memory: memory(&stage, self.0.tokenizer_bytes)?,
            stages: [(self.0.stage_name.clone(), stage)].into(),
            server: None,
            deadlines: None,
        })
    }

    /// Requests that may wait beyond those running.
    #[must_use]
    pub fn max_queue(&self) -> usize {
        self.0.line.max_in_flight().saturating_sub(self.0.facts.max_seqs)
    }

    /// Longest a request may take in all; `None` = no limit.
    #[must_use]
    pub fn request_timeout(&self) -> Option<Duration> {
        self.0.request_timeout
    }

    /// Takes no more requests, fails those that wait, gives running answers `grace` to finish, then ends the thread.
    /// Waits for all that; further calls wait too. Blocks: async callers use a blocking task.
    pub fn shutdown(&self, grace: Duration) {
        self.0.shutdown(grace);
    }
}

impl Inner {
    fn cancels(&self) -> MutexGuard<'_, HashMap<u64, Weak<AtomicBool>>> {
        self.cancels.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn shutdown(&self, grace: Duration) {
        self.line.stop(Instant::now() + grace);
        // The lock is held while joining, so that a second caller waits as well.
        let mut thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(thread) = thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the engine's thread ended by a panic");
        }
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.shutdown(Duration::ZERO);
    }
}

/// The process's memory, and what of it is known by item.
fn memory(stage: &EffectiveStage, tokenizer: Option<Bytes>) -> Result<EffectiveMemory, Problem> {
    let seen = process_memory::tree()?;
    let vectors = stage.tensors.iter().filter(|tensor| tensor.kernel.is_none());
    let vectors: u64 = vectors.map(|tensor| tensor.bytes.0).sum();
    let mut known = vec![
        ("weights", Bytes(stage.weight_resident_bytes.0 + vectors)),
        ("kv", stage.kv_resident_bytes),
        ("activations", stage.activation_bytes),
        ("rope", stage.rope_bytes),
    ];
    known.extend(tokenizer.map(|bytes| ("tokenizer", bytes)));
    let sum: u64 = known.iter().map(|(_, bytes)| bytes.0).sum();
    known.push(("process", Bytes(seen.anonymous.0.saturating_sub(sum))));
    Ok(EffectiveMemory {
        anonymous_bytes: seen.anonymous,
        file_bytes: seen.file,
        shared_bytes: seen.shared,
        peak_bytes: seen.peak,
        heap_bytes: heap_in_use(),
        items: known
            .into_iter()
            .map(|(name, bytes)| EffectiveItem {
                name: name.to_owned(),
                bytes,
            })
            .collect(),
    })
}

/// Refuses what cannot succeed.
fn check(request: &Request, facts: &ModelFacts) -> Result<(), Problem> {
    let invalid = |what: String, remedy: &str| Err(Problem::new(Code::RequestInvalid, what, remedy));
    let prompt = request.prompt.len();
    if prompt == 0 {
        return invalid(
            "the prompt has no tokens".to_owned(),
            "send a prompt that is not empty",
        );
    }
    if request.max_tokens == 0 {
        return invalid(
            "`max_tokens` is 0".to_owned(),
            "ask for at least one token, or leave `max_tokens` out",
        );
    }
    if prompt.saturating_add(request.max_tokens) > facts.context {
        let room = facts.context.saturating_sub(prompt);
        let remedy = if room > 0 {
            format!("ask for at most {room} tokens, or shorten the prompt")
        } else {
            format!("shorten the prompt to less than {} tokens", facts.context)
        };
        return Err(Problem::new(
            Code::ContextOverflow,
            format!(
                "the prompt has {prompt} tokens and {} more are asked for, {} in all; the context is {}",
                request.max_tokens,
                prompt.saturating_add(request.max_tokens),
                facts.context
            ),
            remedy,
        )
        .with(serde_json::json!({
            "prompt_tokens": prompt,
            "max_tokens": request.max_tokens,
            "context": facts.context,
            "room": room,
        })));
    }
    if let Some(id) = request.prompt.iter().find(|&&id| id as usize >= facts.vocab) {
        return invalid(
            format!(
                "the prompt holds the token id {id}; ids end at {}",
                facts.vocab - 1
            ),
            "send text, or ids of this model's own tokenizer",
        );
    }
    if request.stop.len() > MAX_STOPS || request.stop.iter().any(String::is_empty) {
        return invalid(
            format!("{} stop texts, some perhaps empty", request.stop.len()),
            "send at most 64 stop texts, none of them empty",
        );
    }
    if let Some(count) = request.logprobs.filter(|&count| count > MAX_LOGPROBS) {
        return invalid(
            format!("{count} alternatives are asked for by token"),
            "ask for log-probabilities of at most 100 alternatives",
        );
    }
    check_sampling(request, facts)
}

fn check_sampling(request: &Request, facts: &ModelFacts) -> Result<(), Problem> {
    let sampling = &request.sampling;
    let rules = [
        (
            "temperature",
            sampling.temperature,
            sampling.temperature >= 0.0,
            "0 or more",
        ),
        (
            "top_p",
            sampling.top_p,
            sampling.top_p > 0.0 && sampling.top_p <= 1.0,
            "above 0 and at most 1",
        ),
        (
            "min_p",
            sampling.min_p,
            (0.0..=1.0).contains(&sampling.min_p),
            "between 0 and 1",
        ),
        (
            "repetition_penalty",
            sampling.repetition_penalty,
            sampling.repetition_penalty > 0.0,
            "above 0",
        ),
        (
            "presence_penalty",
            sampling.presence_penalty,
            true,
            "a finite number",
        ),
        (
            "frequency_penalty",
            sampling.frequency_penalty,
            true,
            "a finite number",
        ),
    ];
    for (name, value, holds, wanted) in rules {
        if !value.is_finite() || !holds {
            return Err(Problem::new(
                Code::RequestInvalid,
                format!("`{name}` is {value}"),
                format!("send a `{name}` that is {wanted}"),
            ));
        }
    }
    let bad_bias = |&&(id, bias): &&(u32, f32)| id as usize >= facts.vocab || !bias.is_finite();
    if let Some((id, bias)) = sampling.logit_bias.iter().find(bad_bias) {
        return Err(Problem::new(
            Code::RequestInvalid,
            format!(
                "`logit_bias` has {bias} for token {id}; ids end at {}",
                facts.vocab - 1
            ),
            "send finite numbers for ids of this model's own tokenizer",
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests;
