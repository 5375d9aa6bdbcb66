//! The thread that speaks: takes orders, gives them slots, steps all utterances, passes frames on.
//!
//! In: commands from the handle. Out: messages to the sound thread. Invariant: an utterance, once it has a slot, keeps
//! it to the end; every running utterance gets a frame in every step; a new prompt waits while a player is about to
//! run dry, but not for ever.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TryRecvError};
use std::time::{Duration, Instant};

use super::SpeechUsage;
use super::reply::{Reply, failed, panic_text};
use super::sound::{Beginning, Slack, ToSound};
use crate::base::{Code, Problem};
use crate::engine::speech::{Ended, Manner, Prompt, SpeechEnd, Utterance};
use crate::engine::stages::TalkerStage;
use crate::model::speech::SpeechCard;
use crate::pacing::Chunker;
use crate::pacing::playback::prefill_waits;
use crate::plan::EffectiveStage;

/// Slack that a running stream keeps while a new prompt is heard.
const MARGIN_S: f64 = 0.16;
/// Longest that a prompt waits for others' slack.
const MOST_WAIT: Duration = Duration::from_secs(2);

/// A request on its way to a slot.
pub(super) struct Order {
    pub id: u64,
    pub prompt: Prompt,
    pub manner: Manner,
    pub chunker: Chunker,
    pub reply: Reply,
    pub text_tokens: usize,
}

/// What the handle says.
pub(super) enum Command {
    Order(Box<Order>),
    Ask(SyncSender<Result<[EffectiveStage; 2], Problem>>),
    /// Take no more, fail what waits, end what runs by then.
    Stop(Instant),
}

/// What the thread knows of an utterance beside the utterance.
struct Running {
    id: u64,
    /// Set by the caller, or by the sound thread when the stream is over there.
    cancel: Arc<AtomicBool>,
    deadline: Option<Instant>,
    admitted: Instant,
}

/// The thread's state.
pub(super) struct Language {
    stage: TalkerStage,
    card: Arc<SpeechCard>,
    slots: Vec<Option<Utterance>>,
    running: Vec<Option<Running>>,
    waiting: VecDeque<Box<Order>>,
    sound: SyncSender<ToSound>,
    slack: Slack,
    stop: Option<Instant>,
}

/// The sound thread is gone, and with it every stream.
struct SoundGone;

impl Language {
    pub(super) fn new(
        stage: TalkerStage,
        card: Arc<SpeechCard>,
        sound: SyncSender<ToSound>,
        slack: Slack,
    ) -> Self {
        let count = stage.max_seqs();
        Self {
            slots: (0..count).map(|_| None).collect(),
            running: (0..count).map(|_| None).collect(),
            stage,
            card,
            waiting: VecDeque::new(),
            sound,
            slack,
            stop: None,
        }
    }

    /// Runs until told to stop, or until nobody can tell it anything.
    pub(super) fn run(mut self, commands: &Receiver<Command>) {
        while self.listen(commands) {
            self.give_up_what_must_end();
            self.admit();
            if self.step().is_err() {
                break;
            }
            if self.stop.is_some() && self.idle() {
                break;
            }
        }
        // What still waits in the channel is dropped with it, and says so itself.
        for order in self.waiting.drain(..) {
            order.reply.fail(stopping());
        }
    }

    fn idle(&self) -> bool {
        self.running.iter().all(Option::is_none)
    }

    /// Takes commands; waits for one when there is nothing to do. Returns whether to go on.
    fn listen(&mut self, commands: &Receiver<Command>) -> bool {
        loop {
            let command = if self.idle() && self.waiting.is_empty() && self.stop.is_none() {
                match commands.recv() {
                    Ok(command) => command,
                    Err(_) => return false,
                }
            } else {
                match commands.try_recv() {
                    Ok(command) => command,
                    Err(TryRecvError::Empty) => return true,
                    Err(TryRecvError::Disconnected) => {
                        self.stop.get_or_insert_with(Instant::now);
                        return true;
                    }
                }
            };
            match command {
                Command::Order(order) if self.stop.is_some() => order.reply.fail(stopping()),
                Command::Order(order) => self.waiting.push_back(order),
                Command::Ask(answer) => {
                    // Whoever asked may have gone.
                    let _ = answer.send(self.stage.effective());
                }
                Command::Stop(deadline) => {
                    self.stop = Some(self.stop.map_or(deadline, |before| before.min(deadline)));
                    for order in self.waiting.drain(..) {
                        order.reply.fail(stopping());
                    }
                }
            }
        }
    }

    /// Ends what was cancelled, is late, or may not go on because the engine stops.
    fn give_up_what_must_end(&mut self) {
        let now = Instant::now();
        let late = |deadline: Option<Instant>| deadline.is_some_and(|deadline| now >= deadline);
        let mut kept = VecDeque::new();
        for order in self.waiting.drain(..) {
            if order.reply.abandoned() {
                order.reply.done(SpeechEnd::Cancelled, SpeechUsage::default());
            } else if late(order.reply.deadline) {
                order.reply.fail(deadline_passed());
            } else {
                kept.push_back(order);
            }
        }
        self.waiting = kept;
        let stopped = self.stop.is_some_and(|deadline| now >= deadline);
        for (running, utterance) in self.running.iter().zip(&mut self.slots) {
            let (Some(running), Some(utterance)) = (running, utterance) else {
                continue;
            };
            if running.cancel.load(Ordering::Relaxed) {
                utterance.end(Ended::Said(SpeechEnd::Cancelled));
            } else if late(running.deadline) {
                utterance.end(Ended::Failed(deadline_passed()));
            } else if stopped {
                utterance.end(Ended::Failed(stopping()));
            }
        }
    }

    /// Gives free slots to what waits.
    fn admit(&mut self) {
        while let Some(slot) = self.slots.iter().position(Option::is_none) {
            let Some(order) = self.waiting.pop_front() else {
                return;
            };
            let Order {
                id,
                prompt,
                manner,
                chunker,
                reply,
                text_tokens,
            } = *order;
            let rows = match self.stage.embed(&prompt) {
                Ok(rows) => rows,
                Err(problem) => {
                    reply.fail(problem);
                    continue;
                }
            };
            let admitted = Instant::now();
            let utterance = Utterance::new(&self.card, self.stage.vocab(), &prompt, rows, &manner);
            let usage = SpeechUsage {
                text_tokens,
                prompt_rows: prompt.len(),
                queue_ms: admitted.saturating_duration_since(reply.submitted).as_secs_f64() * 1e3,
                ..SpeechUsage::default()
            };
            self.running[slot] = Some(Running {
                id,
                cancel: Arc::clone(reply.cancel_flag()),
                deadline: reply.deadline,
                admitted,
            });
            let beginning = Box::new(Beginning {
                reply,
                chunker,
                reference: prompt.reference().map(Arc::clone),
                silent: Arc::clone(utterance.silent_frames()),
                usage,
            });
            self.slots[slot] = Some(utterance);
            // A sound thread that is gone has dropped its end; the next step notices.
            if self.sound.send(ToSound::Begin(id, beginning)).is_err() {
                return;
            }
        }
    }

    /// Whether prompts are heard in the next step: not while a player would run dry meanwhile.
    fn listens(&self) -> bool {
        let slots = self.slots.iter().zip(&self.running);
        let prompts = slots.filter_map(|(utterance, running)| {
            let waits = utterance
                .as_ref()
                .is_some_and(|utterance| utterance.prompt_left() > 0);
            running.as_ref().filter(|_| waits)
        });
        let oldest = prompts.map(|running| running.admitted).min();
        let waited = oldest.is_some_and(|since| since.elapsed() >= MOST_WAIT);
        let slack = self.slack.load(Ordering::Relaxed);
        waited || slack == i64::MAX || !prefill_waits(slack as f64 / 1e6, 0.0, MARGIN_S)
    }

    /// One step of everything that runs, and its frames passed on.
    fn step(&mut self) -> Result<(), SoundGone> {
        if self.idle() {
            return Ok(());
        }
        let listens = self.listens();
        let (stage, slots) = (&mut self.stage, &mut self.slots);
        let stepped = catch_unwind(AssertUnwindSafe(|| stage.step(slots, listens)));
        let fault = match stepped {
            Ok(Ok(())) => None,
            Ok(Err(problem)) => Some(problem),
            Err(panic) => {
                let text = panic_text(panic.as_ref());
                tracing::error!(panic = text, "a speech step failed");
                Some(failed(text))
            }
        };
        for (slot, running) in self.slots.iter_mut().zip(&mut self.running) {
            let (Some(utterance), Some(known)) = (slot.as_mut(), running.as_ref()) else {
                continue;
            };
            if let Some(problem) = &fault {
                utterance.end(Ended::Failed(problem.clone()));
            }
            let id = known.id;
            if let Some(frame) = utterance.take_frame() {
                self.sound
                    .send(ToSound::Frame(id, frame.to_vec()))
                    .map_err(|_| SoundGone)?;
            }
            if let Some(ended) = utterance.ended().cloned() {
                *slot = None;
                *running = None;
                self.sound.send(ToSound::End(id, ended)).map_err(|_| SoundGone)?;
            }
        }
        Ok(())
    }
}

pub(super) fn stopping() -> Problem {
    Problem::new(
        Code::NotReady,
        "the server is stopping and takes no more requests",
        "send the request again when it is back",
    )
}

fn deadline_passed() -> Problem {
    Problem::new(
        Code::DeadlinePassed,
        "the request did not finish within its time",
        "ask for less text, raise `server.request_timeout_ms`, or send fewer requests at once",
    )
}
