//! The line into and out of the sound stage: frames of codes wait here, bounded, until they are chunks of samples.
//!
//! In: frames from the stage before, one stream each. Out: work for the stage's thread, events for who listens.
//! Invariant: memory is bounded by streams × (frames waiting + chunks waiting); a listener who does not read holds up
//! only its own stream; leaving, at either end, frees the slot at once (at the latest when a pass under way ends).

use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::mpsc;

use crate::base::{Code, Problem};
use crate::model::speech::CODEC_PASS_FRAMES;
use crate::pacing::{Chunker, Chunking, Heard, Player};

/// A frame whose samples all stay below this is silent: −54 dB of full scale.
const SILENT: f32 = 0.002;
/// How often a stream is looked at whose listener does not read; reading wakes nobody here.
const UNREAD: Duration = Duration::from_millis(5);
/// How often listeners are looked at that may have left, while there is nothing to do.
const IDLE: Duration = Duration::from_millis(100);

/// Sizes of a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LineLimits {
    /// Streams at once.
    pub streams: usize,
    /// Codes of a frame.
    pub codebooks: usize,
    /// Samples of a frame.
    pub frame_samples: usize,
    /// Samples a second.
    pub sample_rate: u32,
    /// Frames of a stream that wait to be decoded.
    pub frames_waiting: usize,
    /// Chunks of a stream that wait to be heard.
    pub chunks_waiting: usize,
}

/// A stream to be opened.
#[derive(Clone, Debug)]
pub struct SoundOrder {
    /// How it is cut.
    pub chunking: Chunking,
    /// Overrides the size of the first chunk.
    pub first_chunk: Option<usize>,
    /// Frames decoded but not heard: those of a cloned voice's recording.
    pub unheard_frames: usize,
    /// When the request began; chunk times count from here.
    pub began: Instant,
    /// Silent frames in a row, written here.
    pub silent_frames: Arc<AtomicUsize>,
}

/// What a listener gets; the last is `Done` or `Failed`.
#[derive(Clone, Debug, PartialEq)]
pub enum SoundEvent {
    /// Sound.
    Chunk {
        /// Samples in −1..=1.
        pcm: Vec<f32>,
        /// Frames they are of.
        frames: usize,
    },
    /// The stream has ended.
    Done {
        /// What a player heard; `None` for a stream without sound.
        heard: Option<Heard>,
    },
    /// The stream failed; others go on.
    Failed(Problem),
}

/// What became of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Push {
    /// It waits to be decoded.
    Taken,
    /// There is no room; try again after [`SoundLine::wait_for_room`].
    Full,
    /// Nobody listens any more, or the stream failed.
    Gone,
}

/// The line. Cheap to clone.
#[derive(Clone, Debug)]
pub struct SoundLine(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    limits: LineLimits,
    state: Mutex<State>,
    /// There may be work.
    work: Condvar,
    /// There may be room.
    room: Condvar,
}

#[derive(Debug)]
struct State {
    slots: Vec<Option<Stream>>,
    opened: u64,
    closed: bool,
}

#[derive(Debug)]
struct Stream {
    id: u64,
    codes: VecDeque<u16>,
    /// No more frames come.
    ended: bool,
    /// Frames of the chunk under way that are not decoded yet.
    due: usize,
    /// Frames of the chunk under way.
    chunk_frames: usize,
    pcm: Vec<f32>,
    unheard: usize,
    decoded: usize,
    /// A pass is under way.
    working: bool,
    chunker: Chunker,
    player: Player,
    began: Instant,
    silent_frames: Arc<AtomicUsize>,
    listener: mpsc::Sender<SoundEvent>,
}

/// Frames to decode in one pass.
#[derive(Debug)]
pub struct Work {
    /// Which state.
    pub slot: usize,
    /// The state is to be as before a stream.
    pub first: bool,
    /// Whole frames.
    pub codes: Vec<u32>,
    stream: u64,
}

/// The end that brings codes. Dropping it without [`Self::finish`] leaves the stream.
#[derive(Debug)]
pub struct CodeSource {
    line: SoundLine,
    slot: usize,
    stream: u64,
    finished: bool,
}

impl SoundLine {
    /// An open line without streams.
    #[must_use]
    pub fn new(limits: LineLimits) -> Self {
        Self(Arc::new(Inner {
            limits: LineLimits {
                frames_waiting: limits.frames_waiting.max(1),
                chunks_waiting: limits.chunks_waiting.max(1),
                ..limits
            },
            state: Mutex::new(State {
                slots: (0..limits.streams).map(|_| None).collect(),
                opened: 0,
                closed: false,
            }),
            work: Condvar::new(),
            room: Condvar::new(),
        }))
    }

    /// Opens a stream: the end that brings codes, and the one that hears.
    ///
    /// # Errors
    /// `queue_full` when all streams are taken, `not_ready` when the line is closed.
    pub fn open(&self, order: SoundOrder) -> Result<(CodeSource, mpsc::Receiver<SoundEvent>), Problem> {
        let mut state = self.lock();
        if state.closed {
            return Err(stopping());
        }
        let Some(slot) = state.slots.iter().position(Option::is_none) else {
            return Err(Problem::new(
                Code::QueueFull,
                format!("all {} streams of sound are taken", state.slots.len()),
                "try again later, or raise `max_seqs`",
            ));
        };
        state.opened += 1;
        let stream = state.opened;
        // One more, so that the last event always fits.
        let (listener, events) = mpsc::channel(self.0.limits.chunks_waiting + 1);
        state.slots[slot] = Some(Stream {
            id: stream,
            codes: VecDeque::new(),
            ended: false,
            due: 0,
            chunk_frames: 0,
            pcm: Vec::new(),
            unheard: order.unheard_frames,
            decoded: 0,
            working: false,
            chunker: Chunker::new(&order.chunking, order.first_chunk),
            player: Player::default(),
            began: order.began,
            silent_frames: order.silent_frames,
            listener,
        });
        let source = CodeSource {
            line: self.clone(),
            slot,
            stream,
            finished: false,
        };
        Ok((source, events))
    }

    /// Streams that are open.
    #[must_use]
    pub fn streams(&self) -> usize {
        self.lock().slots.iter().flatten().count()
    }

    /// Closes the line: open streams fail with `not_ready`, [`Self::next`] ends.
    pub fn close(&self) {
        let mut state = self.lock();
        state.closed = true;
        for slot in &mut state.slots {
            if let Some(stream) = slot.take() {
                stream.tell(SoundEvent::Failed(stopping()));
            }
        }
        self.0.work.notify_all();
        self.0.room.notify_all();
    }

    /// Waits until some stream may have room again, or `longest`.
    pub fn wait_for_room(&self, longest: Duration) {
        let state = self.lock();
        let full = |stream: &Stream| self.waiting(stream) >= self.0.limits.frames_waiting;
        if state.slots.iter().flatten().any(full) {
            let _ = self
                .0
                .room
                .wait_timeout(state, longest)
                .unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// The next frames to decode; waits for them. `None` once the line is closed.
    #[must_use]
    pub fn next(&self) -> Option<Work> {
        let mut state = self.lock();
        loop {
            if state.closed {
                return None;
            }
            self.sweep(&mut state);
            if let Some(work) = self.choose(&mut state) {
                return Some(work);
            }
            let unread = state.slots.iter().flatten().any(|stream| self.is_due(stream));
            let wait = if unread { UNREAD } else { IDLE };
            state = if state.slots.iter().all(Option::is_none) {
                self.0.work.wait(state).unwrap_or_else(PoisonError::into_inner)
            } else {
                let waited = self.0.work.wait_timeout(state, wait);
                waited.unwrap_or_else(PoisonError::into_inner).0
            };
        }
    }

    /// Takes the samples of `work`; sends the chunk if it is complete.
    pub fn made(&self, work: Work, pcm: &[f32]) {
        let mut state = self.lock();
        let limits = self.0.limits;
        let Some(stream) = state.stream(work.slot, work.stream) else {
            return;
        };
        stream.working = false;
        for frame in pcm.chunks(limits.frame_samples) {
            if frame.iter().all(|sample| sample.abs() < SILENT) {
                stream.silent_frames.fetch_add(1, Ordering::Relaxed);
            } else {
                stream.silent_frames.store(0, Ordering::Relaxed);
            }
            if stream.decoded < stream.unheard {
                stream.chunk_frames = stream.chunk_frames.saturating_sub(1);
            } else {
                stream.pcm.extend_from_slice(frame);
            }
            stream.decoded += 1;
        }
        if stream.due == 0 && stream.chunk_frames > 0 {
            let frames = std::mem::take(&mut stream.chunk_frames);
            let pcm = std::mem::take(&mut stream.pcm);
            let now = stream.began.elapsed().as_secs_f64();
            stream
                .player
                .arrive(now, pcm.len() as f64 / f64::from(limits.sample_rate));
            stream.chunker.sent(now, frames);
            stream.tell(SoundEvent::Chunk { pcm, frames });
        }
        self.0.room.notify_all();
    }

    /// `work` could not be done: its stream fails and its slot is free.
    pub fn failed(&self, work: &Work, problem: Problem) {
        let mut state = self.lock();
        if let Some(stream) = state.stream(work.slot, work.stream) {
            stream.tell(SoundEvent::Failed(problem));
            state.slots[work.slot] = None;
        }
        self.0.room.notify_all();
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Streams are changed in steps that cannot panic half-way.
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Frames that wait.
    fn waiting(&self, stream: &Stream) -> usize {
        stream.codes.len() / self.0.limits.codebooks
    }

    /// Whether frames could be decoded if the listener has room.
    fn is_due(&self, stream: &Stream) -> bool {
        stream.due > 0 || self.would_send(stream) > 0
    }

    /// Frames of the next chunk, if it is due. Frames that are not heard are decoded as they come, and a stream that
    /// cannot hold a whole chunk sends what it can hold.
    fn would_send(&self, stream: &Stream) -> usize {
        let waiting = self.waiting(stream);
        let unheard = stream.unheard.saturating_sub(stream.decoded);
        if unheard > 0 {
            return waiting.min(unheard);
        }
        let full = waiting >= self.0.limits.frames_waiting;
        stream.chunker.due(waiting, stream.ended || full)
    }

    /// Frees slots whose listener has left or whose stream is complete.
    fn sweep(&self, state: &mut State) {
        for slot in &mut state.slots {
            let Some(stream) = slot else { continue };
            let left = stream.listener.is_closed();
            let complete = stream.ended && stream.codes.is_empty() && stream.due == 0;
            if stream.working || !(left || complete) {
                continue;
            }
            stream.tell(SoundEvent::Done {
                heard: stream.player.heard(),
            });
            *slot = None;
            self.0.room.notify_all();
        }
    }

    /// Of the streams with frames due and a listener with room, the one whose player runs dry first.
    fn choose(&self, state: &mut State) -> Option<Work> {
        let ready = state.slots.iter().enumerate().filter_map(|(slot, stream)| {
            let stream = stream.as_ref()?;
            let ready = !stream.working && self.is_due(stream) && stream.listener.capacity() > 1;
            ready.then(|| (slot, stream.player.slack_s(stream.began.elapsed().as_secs_f64())))
        });
        let (slot, _) = ready.min_by(|a, b| a.1.total_cmp(&b.1))?;
        let stream = state.slots[slot].as_ref()?;
        let begins = (stream.due == 0).then(|| self.would_send(stream));
        let stream = state.slots[slot].as_mut()?;
        if let Some(frames) = begins {
            stream.due = frames;
            stream.chunk_frames = frames;
        }
        let frames = stream.due.min(CODEC_PASS_FRAMES);
        stream.due -= frames;
        stream.working = true;
        Some(Work {
            slot,
            first: stream.decoded == 0,
            codes: stream
                .codes
                .drain(..frames * self.0.limits.codebooks)
                .map(u32::from)
                .collect(),
            stream: stream.id,
        })
    }
}

impl State {
    fn stream(&mut self, slot: usize, id: u64) -> Option<&mut Stream> {
        self.slots
            .get_mut(slot)?
            .as_mut()
            .filter(|stream| stream.id == id)
    }
}

impl Stream {
    fn tell(&self, event: SoundEvent) {
        // Room was kept for it; a listener that has left needs nothing.
        let _ = self.listener.try_send(event);
    }
}

impl CodeSource {
    /// Frames there is room for.
    #[must_use]
    pub fn room(&self) -> usize {
        let mut state = self.line.lock();
        let most = self.line.0.limits.frames_waiting;
        let stream = state.stream(self.slot, self.stream);
        stream.map_or(0, |stream| most.saturating_sub(self.line.waiting(stream)))
    }

    /// Hands one frame over; never waits.
    ///
    /// # Panics
    /// If `frame` has not one code for each codebook.
    pub fn push(&self, frame: &[u16]) -> Push {
        let limits = self.line.0.limits;
        assert_eq!(frame.len(), limits.codebooks, "codes of a frame");
        let mut state = self.line.lock();
        let Some(stream) = state.stream(self.slot, self.stream) else {
            return Push::Gone;
        };
        if stream.listener.is_closed() {
            return Push::Gone;
        }
        if self.line.waiting(stream) >= limits.frames_waiting {
            return Push::Full;
        }
        stream.codes.extend(frame);
        self.line.0.work.notify_one();
        Push::Taken
    }

    /// No more frames come; what waits is still decoded and heard.
    pub fn finish(mut self) {
        self.finished = true;
        let mut state = self.line.lock();
        if let Some(stream) = state.stream(self.slot, self.stream) {
            stream.ended = true;
        }
        self.line.0.work.notify_one();
    }

    /// The stream fails with `problem`.
    pub fn fail(mut self, problem: Problem) {
        self.finished = true;
        self.leave(problem);
    }

    fn leave(&self, problem: Problem) {
        let mut state = self.line.lock();
        if let Some(stream) = state.stream(self.slot, self.stream) {
            stream.tell(SoundEvent::Failed(problem));
            state.slots[self.slot] = None;
        }
        self.line.0.work.notify_one();
    }
}

impl Drop for CodeSource {
    fn drop(&mut self) {
        if !self.finished {
            self.leave(Problem::new(
                Code::Cancelled,
                "the request was cancelled",
                "send it again if that was not meant",
            ));
        }
    }
}

fn stopping() -> Problem {
    Problem::new(
        Code::NotReady,
        "the engine is stopping",
        "try again when it is up again",
    )
}

#[cfg(test)]
mod tests;
