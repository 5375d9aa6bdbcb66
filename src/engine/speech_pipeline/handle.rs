//! `SpeechHandle`: the only thing servers and commands hold of a running speech engine.
//!
//! In: requests. Out: their events, and what the engine is. Cheap to clone; usable from any thread.
//! Invariant: what cannot succeed is refused on submission, with numbers and names, never cut down.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{self, Sender, SyncSender};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use tokio::sync::mpsc::error::TryRecvError;
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

use super::SpeechEvent;
use super::language::{Command, Order, stopping};
use super::reply::{Reply, Seat};
use super::sound::ToSound;
use crate::base::{Code, Problem};
use crate::engine::Effective;
use crate::engine::speech::request::prompt_parts;
use crate::engine::speech::{Limits, Manner, Prompt, SpeechRequest, SpeechTexts, Voice, frames_for_text};
use crate::engine::text::Tokenizer;
use crate::model::speech::{CODE_PREDICTOR, CODE2WAV, SpeechCard, SpeechSampling, SpeechVariant, TALKER};
use crate::pacing::{Chunker, Chunking};
use crate::plan::{EffectiveMemory, EffectiveModel};
use crate::sys::memory::heap_in_use;
use crate::sys::process_memory;

/// What is being served.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SpeechFacts {
    /// Name that `/v1/models` lists.
    pub name: String,
    /// Row of `model/families.rs`.
    pub family: String,
    /// Samples a second.
    pub sample_rate: u32,
    /// Samples of a frame.
    pub samples_per_frame: usize,
    /// Positions an utterance has room for, prompt and frames.
    pub context: usize,
    /// Utterances at once.
    pub max_seqs: usize,
    /// Names of built-in voices.
    pub voices: Vec<String>,
    /// Names of languages.
    pub languages: Vec<String>,
}

/// What is asked for, beside the words and the voice.
#[derive(Clone, Debug, PartialEq)]
pub struct Speaking {
    /// What is said, by whom and how.
    pub request: SpeechRequest,
    /// Same seed and request, same sound.
    pub seed: u64,
    /// The end is not chosen before so many frames, and guards are off.
    pub min_frames: usize,
    /// Most frames; `None` = by the length of the text.
    pub max_frames: Option<usize>,
    /// The talker's sampling; `None` = the plan's.
    pub talker: Option<SpeechSampling>,
    /// The predictor's sampling; `None` = the model's.
    pub predictor: Option<SpeechSampling>,
    /// Frames of the first chunk; `None` = the engine's own.
    pub first_chunk: Option<usize>,
}

impl Speaking {
    /// A request with everything else by default.
    #[must_use]
    pub fn new(request: SpeechRequest) -> Self {
        Self {
            request,
            seed: 0,
            min_frames: 0,
            max_frames: None,
            talker: None,
            predictor: None,
            first_chunk: None,
        }
    }
}

/// An accepted request.
#[derive(Debug)]
pub struct SpeechSubmission {
    /// Number of the request.
    pub id: u64,
    /// Its events; the last is `Done` or `Failed`. Dropping this cancels the request.
    pub events: UnboundedReceiver<SpeechEvent>,
    cancel: Arc<AtomicBool>,
}

impl SpeechSubmission {
    /// Ends the request; its last event is `Done` with `Cancelled`.
    pub fn cancel(&self) {
        self.cancel.store(true, Ordering::Relaxed);
    }
}

/// A running speech engine.
#[derive(Clone, Debug)]
pub struct SpeechHandle(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    commands: Sender<Command>,
    sound: Mutex<Option<SyncSender<ToSound>>>,
    threads: Mutex<Vec<JoinHandle<()>>>,
    card: Arc<SpeechCard>,
    /// The talker's width.
    width: usize,
    tokenizer: Arc<Tokenizer>,
    texts: SpeechTexts,
    facts: SpeechFacts,
    opened: EffectiveModel,
    talker_sampling: SpeechSampling,
    chunking: Chunking,
    request_timeout: Option<Duration>,
    most_in_flight: usize,
    in_flight: Arc<AtomicUsize>,
    next_id: AtomicU64,
    stopping: AtomicBool,
}

/// What a handle is made of.
pub(super) struct Parts {
    pub commands: Sender<Command>,
    pub sound: SyncSender<ToSound>,
    pub threads: Vec<JoinHandle<()>>,
    pub card: Arc<SpeechCard>,
    pub width: usize,
    pub tokenizer: Arc<Tokenizer>,
    pub texts: SpeechTexts,
    pub facts: SpeechFacts,
    pub opened: EffectiveModel,
    pub talker_sampling: SpeechSampling,
    pub chunking: Chunking,
    pub request_timeout: Option<Duration>,
    pub most_in_flight: usize,
}

impl SpeechHandle {
    pub(super) fn new(parts: Parts) -> Self {
        Self(Arc::new(Inner {
            commands: parts.commands,
            sound: Mutex::new(Some(parts.sound)),
            threads: Mutex::new(parts.threads),
            card: parts.card,
            width: parts.width,
            tokenizer: parts.tokenizer,
            texts: parts.texts,
            facts: parts.facts,
            opened: parts.opened,
            talker_sampling: parts.talker_sampling,
            chunking: parts.chunking,
            request_timeout: parts.request_timeout,
            most_in_flight: parts.most_in_flight,
            in_flight: Arc::default(),
            next_id: AtomicU64::new(1),
            stopping: AtomicBool::new(false),
        }))
    }

    /// What is being served.
    #[must_use]
    pub fn facts(&self) -> &SpeechFacts {
        &self.0.facts
    }

    /// Whether it takes no more requests.
    #[must_use]
    pub fn stopping(&self) -> bool {
        self.0.stopping.load(Ordering::Acquire)
    }

    /// Requests that run or wait.
    #[must_use]
    pub fn in_flight(&self) -> usize {
        self.0.in_flight.load(Ordering::Acquire)
    }

    /// Checks a request and puts it into the queue.
    ///
    /// # Errors
    /// `request_invalid`, `context_length_exceeded` with the numbers, `queue_full`, `not_ready`.
    pub fn submit(&self, speaking: Speaking) -> Result<SpeechSubmission, Problem> {
        let inner = &self.0;
        let parts = prompt_parts(&inner.card, &inner.texts, &inner.tokenizer, &speaking.request)?;
        let text_tokens = parts.spoken.len();
        let prompt = Prompt::new(&inner.card.ids, parts);
        let limits = limits(
            &speaking,
            &inner.card,
            prompt.len(),
            text_tokens,
            inner.facts.context,
        )?;
        let seat = Seat::take(&inner.in_flight, inner.most_in_flight).ok_or_else(|| {
            Problem::new(
                Code::QueueFull,
                format!(
                    "{} requests are running or waiting, which is all there is room for",
                    inner.most_in_flight
                ),
                "try again later, or raise `server.max_queue`",
            )
        })?;
        let id = inner.next_id.fetch_add(1, Ordering::Relaxed);
        let cancel = Arc::new(AtomicBool::new(false));
        let (sender, events) = unbounded_channel();
        let submitted = Instant::now();
        let deadline = inner.request_timeout.map(|timeout| submitted + timeout);
        let reply = Reply::new(sender, Arc::clone(&cancel), submitted, deadline, seat);
        let order = Box::new(Order {
            id,
            prompt,
            manner: Manner {
                talker: speaking.talker.unwrap_or(inner.talker_sampling),
                predictor: speaking.predictor.unwrap_or(inner.card.predictor_sampling),
                seed: speaking.seed,
                limits,
            },
            chunker: Chunker::new(&inner.chunking, speaking.first_chunk),
            reply,
            text_tokens,
        });
        inner
            .commands
            .send(Command::Order(order))
            .map_err(|_| stopping())?;
        Ok(SpeechSubmission { id, events, cancel })
    }

    /// Speaks one frame, so that pages are touched and faults show before the first client does. Returns whether it
    /// was done within `most`.
    ///
    /// # Errors
    /// Whatever the first frame met.
    pub fn warm_up(&self, most: Duration) -> Result<bool, Problem> {
        let end = Instant::now() + most;
        let voice = if self.0.card.variant == SpeechVariant::Base {
            Voice::Cloned {
                vector: vec![0.0; self.0.width].into(),
                reference: None,
            }
        } else {
            Voice::Default
        };
        let mut submission = self.submit(Speaking {
            max_frames: Some(1),
            ..Speaking::new(SpeechRequest {
                text: "a".to_owned(),
                voice,
                language: "auto".to_owned(),
                instructions: None,
                text_at_once: None,
            })
        })?;
        loop {
            match submission.events.try_recv() {
                Ok(SpeechEvent::Done { .. }) => return Ok(true),
                Ok(SpeechEvent::Failed(problem)) => return Err(problem),
                Ok(SpeechEvent::Audio { .. }) => {}
                Err(TryRecvError::Empty) if Instant::now() > end => return Ok(false),
                Err(TryRecvError::Empty) => std::thread::sleep(Duration::from_millis(1)),
                Err(TryRecvError::Disconnected) => return Err(stopping()),
            }
        }
    }

    /// What the engine really uses, asked of its threads and the operating system now.
    ///
    /// # Errors
    /// `not_ready` after the engine has stopped; `probe_failed` when the system cannot be asked.
    pub fn effective(&self) -> Result<Effective, Problem> {
        let (sender, answer) = mpsc::sync_channel(1);
        self.0
            .commands
            .send(Command::Ask(sender))
            .map_err(|_| stopping())?;
        let [talker, predictor] = answer.recv().map_err(|_| stopping())??;
        let (sender, answer) = mpsc::sync_channel(1);
        let sound = self
            .0
            .sound
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone();
        let sound = sound.ok_or_else(stopping)?;
        sound.send(ToSound::Ask(sender)).map_err(|_| stopping())?;
        let codec = answer.recv().map_err(|_| stopping())??;
        let seen = process_memory::tree()?;
        Ok(Effective {
            model: self.0.opened.clone(),
            server: None,
            deadlines: None,
            memory: EffectiveMemory {
                anonymous_bytes: seen.anonymous,
                file_bytes: seen.file,
                shared_bytes: seen.shared,
                peak_bytes: seen.peak,
                heap_bytes: heap_in_use(),
                items: Vec::new(),
            },
            stages: [
                (TALKER.to_owned(), talker),
                (CODE_PREDICTOR.to_owned(), predictor),
                (CODE2WAV.to_owned(), codec),
            ]
            .into(),
        })
    }

    /// Requests that may wait beyond those running.
    #[must_use]
    pub fn max_queue(&self) -> usize {
        self.0.most_in_flight.saturating_sub(self.0.facts.max_seqs)
    }

    /// Longest a request may take in all; `None` = no limit.
    #[must_use]
    pub fn request_timeout(&self) -> Option<Duration> {
        self.0.request_timeout
    }

    /// Takes no more requests, fails those that wait, gives running ones `grace` to finish, then ends the threads.
    /// Waits for all that. Blocks: async callers use a blocking task.
    pub fn shutdown(&self, grace: Duration) {
        self.0.shutdown(grace);
    }
}

impl Inner {
    fn shutdown(&self, grace: Duration) {
        self.stopping.store(true, Ordering::Release);
        // Threads that are gone need no telling.
        let _ = self.commands.send(Command::Stop(Instant::now() + grace));
        // The sound thread ends when nobody can send it anything.
        self.sound.lock().unwrap_or_else(PoisonError::into_inner).take();
        let mut threads = self.threads.lock().unwrap_or_else(PoisonError::into_inner);
        for thread in threads.drain(..) {
            if thread.join().is_err() {
                tracing::error!("a thread of the speech engine ended by a panic");
            }
        }
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.shutdown(Duration::ZERO);
    }
}

/// How long the utterance may be; what was asked for is kept or refused.
fn limits(
    speaking: &Speaking,
    card: &SpeechCard,
    prompt_rows: usize,
    text_tokens: usize,
    context: usize,
) -> Result<Limits, Problem> {
    let room = context.saturating_sub(prompt_rows);
    // The last pick gives no frame.
    let by_text = frames_for_text(text_tokens).min(card.max_new_tokens - 1);
    let asked = speaking.max_frames.unwrap_or(0).max(speaking.min_frames);
    if room == 0 || asked > room {
        return Err(Problem::new(
            Code::ContextOverflow,
            format!(
                "the prompt takes {prompt_rows} positions and {asked} frames are asked for; the context is {context}"
            ),
            "send a shorter text, or ask for fewer frames",
        )
        .with(serde_json::json!({
            "prompt_rows": prompt_rows,
            "frames": asked,
            "context": context,
            "room": room,
        })));
    }
    let most = speaking
        .max_frames
        .unwrap_or_else(|| by_text.max(speaking.min_frames).min(room));
    if speaking.min_frames > most || most == 0 {
        return Err(Problem::new(
            Code::RequestInvalid,
            format!(
                "at least {} and at most {most} frames are asked for",
                speaking.min_frames
            ),
            "ask for at least one frame, and for no more at least than at most",
        ));
    }
    Ok(Limits {
        min_frames: speaking.min_frames,
        max_frames: most,
    })
}
