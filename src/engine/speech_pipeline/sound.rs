//! The thread that makes sound: frames of codes in, samples out, several streams by turns.
//!
//! In: a codec's decoder, messages from the language thread. Out: events of the requests.
//! Invariant: states are allocated once; a stream has one from its beginning to its end, which a fault or a caller who
//! leaves brings at once; a chunk leaves
//! as soon as its chunker says so; a fault in one stream ends that stream alone.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, SyncSender};
use std::time::Instant;

use super::SpeechUsage;
use super::reply::{Reply, failed, panic_text};
use crate::base::{Bytes, Problem};
use crate::engine::kernels::{KV_BLOCK, Kernels};
use crate::engine::nets::codec_decoder::{CodecDecoder, CodecState, CodecWorkspace};
use crate::engine::speech::{Ended, Frame, SpeechEnd};
use crate::engine::team::Team;
use crate::model::speech::CODEC_PASS_FRAMES;
use crate::model::weight_path::WeightPath;
use crate::pacing::{Chunker, Player};
use crate::plan::{Dtype, EffectiveStage};

/// Below this peak, a frame is silent: −60 dB.
const SILENT_PEAK: f32 = 1e-3;

/// What the language thread says.
pub(super) enum ToSound {
    /// A stream begins.
    Begin(u64, Box<Beginning>),
    /// A frame of a stream.
    Frame(u64, Frame),
    /// A stream has no more frames.
    End(u64, Ended),
    /// What is really used?
    Ask(SyncSender<Result<EffectiveStage, Problem>>),
}

/// What a stream begins with.
pub(super) struct Beginning {
    pub reply: Reply,
    pub chunker: Chunker,
    /// Frames heard before, whose sound is not sent.
    pub reference: Option<Arc<[Frame]>>,
    /// Told how many frames in a row were silent.
    pub silent: Arc<AtomicUsize>,
    pub usage: SpeechUsage,
}

/// Least slack of all streams in microseconds; `i64::MAX` when none plays.
pub(super) type Slack = Arc<AtomicI64>;

/// The codec with its team and the states of as many streams as may run at once.
pub(super) struct Sound {
    pub kernels: &'static Kernels,
    pub team: Team,
    pub decoder: CodecDecoder,
    /// States that no stream uses.
    pub free: Vec<CodecState>,
    /// Streams at once.
    pub max_streams: usize,
    /// How weights are held.
    pub path: WeightPath,
}

impl Sound {
    /// What is really used, read back now.
    fn effective(&self) -> Result<EffectiveStage, Problem> {
        Ok(EffectiveStage {
            threads: self.team.threads(),
            worker_cpus: self.team.worker_cpus()?,
            kernels: self.kernels.name().to_owned(),
            dtype: Dtype::F32,
            weight_path: self.path.name().to_owned(),
            kv_dtype: Dtype::F32,
            context: self.decoder.spec().window,
            max_seqs: self.max_streams,
            kv_bytes: Bytes(0),
            kv_tokens_by_layer: Vec::new(),
            prefill_batch: CODEC_PASS_FRAMES,
            kv_block: KV_BLOCK,
            huge_pages: self.decoder.huge_pages(),
            weight_bytes_by_format: self.decoder.format_bytes().clone(),
            ..EffectiveStage::default()
        })
    }
}

struct Stream {
    beginning: Beginning,
    state: CodecState,
    /// Codes not yet decoded, frame after frame.
    codes: Vec<u32>,
    player: Player,
    silent: usize,
    ended: Option<Ended>,
}

/// Runs until the language thread is gone.
pub(super) fn run(mut sound: Sound, messages: &Receiver<ToSound>, slack: &Slack) {
    let mut workspace = CodecWorkspace::default();
    let mut streams: BTreeMap<u64, Stream> = BTreeMap::new();
    while let Ok(first) = messages.recv() {
        let mut next = Some(first);
        // Everything that waits, so that a turn sees all frames there are.
        while let Some(message) = next.take() {
            take(&mut sound, &mut workspace, &mut streams, message);
            next = messages.try_recv().ok();
        }
        turns(&mut sound, &mut workspace, &mut streams);
        publish(slack, &streams);
    }
}

/// A turn of every stream; those that are over leave.
fn turns(sound: &mut Sound, workspace: &mut CodecWorkspace, streams: &mut BTreeMap<u64, Stream>) {
    let mut over = Vec::new();
    for (&id, stream) in streams.iter_mut() {
        if turn(sound, workspace, stream) {
            over.push(id);
        }
    }
    for id in over {
        if let Some(stream) = streams.remove(&id) {
            sound.free.push(finish(stream));
        }
    }
}

fn publish(slack: &Slack, streams: &BTreeMap<u64, Stream>) {
    let least = streams
        .values()
        .filter(|stream| stream.player.heard().is_some())
        .map(|stream| (stream.player.slack_s(seconds(&stream.beginning.reply)) * 1e6) as i64)
        .min();
    slack.store(least.unwrap_or(i64::MAX), Ordering::Relaxed);
}

/// Seconds since the request.
fn seconds(reply: &Reply) -> f64 {
    Instant::now()
        .saturating_duration_since(reply.submitted)
        .as_secs_f64()
}

fn take(
    sound: &mut Sound,
    workspace: &mut CodecWorkspace,
    streams: &mut BTreeMap<u64, Stream>,
    message: ToSound,
) {
    match message {
        ToSound::Begin(id, beginning) => {
            if sound.free.is_empty() {
                // The stream whose slot this one got has ended; its last sound is still to be made.
                turns(sound, workspace, streams);
            }
            if let Some(stream) = begin(sound, workspace, *beginning) {
                streams.insert(id, stream);
            }
        }
        // A stream that was given up still has frames on the way.
        ToSound::Frame(id, frame) => {
            if let Some(stream) = streams.get_mut(&id) {
                stream.codes.extend(frame.iter().map(|&code| u32::from(code)));
            }
        }
        ToSound::End(id, ended) => {
            if let Some(stream) = streams.get_mut(&id) {
                stream.ended = Some(ended);
            }
        }
        ToSound::Ask(answer) => {
            // Whoever asked may have gone.
            let _ = answer.send(sound.effective());
        }
    }
}

/// A stream that has heard its reference; `None` if it failed, which was said.
fn begin(sound: &mut Sound, workspace: &mut CodecWorkspace, beginning: Beginning) -> Option<Stream> {
    let Some(mut state) = sound.free.pop() else {
        beginning
            .reply
            .fail(failed("more streams began than there is room for"));
        return None;
    };
    state.reset();
    if let Some(reference) = &beginning.reference {
        let mut unsent = Vec::new();
        for frame in reference.iter() {
            if beginning.reply.abandoned() {
                break;
            }
            let codes: Vec<u32> = frame.iter().map(|&code| u32::from(code)).collect();
            unsent.clear();
            if let Err(problem) = decode(sound, workspace, &mut state, &codes, &mut unsent) {
                sound.free.push(state);
                beginning.reply.cancel_flag().store(true, Ordering::Relaxed);
                beginning.reply.fail(problem);
                return None;
            }
        }
    }
    Some(Stream {
        beginning,
        state,
        codes: Vec::new(),
        player: Player::default(),
        silent: 0,
        ended: None,
    })
}

/// Decodes; a panic becomes a problem of this stream alone.
fn decode(
    sound: &Sound,
    workspace: &mut CodecWorkspace,
    state: &mut CodecState,
    codes: &[u32],
    samples: &mut Vec<f32>,
) -> Result<(), Problem> {
    let decoded = catch_unwind(AssertUnwindSafe(|| {
        sound
            .decoder
            .decode(sound.kernels, &sound.team, state, workspace, codes, samples)
    }));
    decoded.unwrap_or_else(|panic| {
        let text = panic_text(panic.as_ref());
        tracing::error!(panic = text, "making sound failed");
        Err(failed(text))
    })
}

/// Makes a chunk if one is due. Returns whether the stream is over.
fn turn(sound: &Sound, workspace: &mut CodecWorkspace, stream: &mut Stream) -> bool {
    if stream.beginning.reply.abandoned() {
        stream.ended = Some(Ended::Said(SpeechEnd::Cancelled));
        return true;
    }
    if let Some(Ended::Failed(_)) = stream.ended {
        return true;
    }
    let books = sound.decoder.spec().codebooks;
    let per_frame = sound.decoder.spec().samples_per_frame;
    // At the end of a stream more than one chunk may be due.
    loop {
        let waiting = stream.codes.len() / books;
        let due = stream.beginning.chunker.due(waiting, stream.ended.is_some());
        if due == 0 {
            return stream.ended.is_some();
        }
        let mut samples = Vec::with_capacity(due * per_frame);
        let codes = &stream.codes[..due * books];
        if let Err(problem) = decode(sound, workspace, &mut stream.state, codes, &mut samples) {
            stream.ended = Some(Ended::Failed(problem));
            return true;
        }
        stream.codes.drain(..due * books);
        for frame in samples.chunks(per_frame) {
            let silent = frame.iter().all(|sample| sample.abs() < SILENT_PEAK);
            stream.silent = if silent { stream.silent + 1 } else { 0 };
        }
        stream.beginning.silent.store(stream.silent, Ordering::Relaxed);
        let now = seconds(&stream.beginning.reply);
        stream.beginning.chunker.sent(now, due);
        let rate = f64::from(sound.decoder.spec().sample_rate);
        stream.player.arrive(now, samples.len() as f64 / rate);
        stream.beginning.usage.frames += due;
        stream.beginning.usage.audio_ms += samples.len() as f64 / rate * 1e3;
        stream.beginning.reply.audio(samples, due);
    }
}

/// Says how it ended, to the caller and to the thread that still speaks. Returns its state, free for another.
fn finish(stream: Stream) -> CodecState {
    let Beginning { reply, mut usage, .. } = stream.beginning;
    reply.cancel_flag().store(true, Ordering::Relaxed);
    if let Some(heard) = stream.player.heard() {
        usage.first_audio_ms = heard.ttfa_s * 1e3;
        usage.playback_start_ms = heard.playback_start_s * 1e3;
        usage.stall_ms = heard.stall_s * 1e3;
        usage.real_time_factor = heard.real_time_factor;
    }
    match stream.ended {
        Some(Ended::Said(end)) => reply.done(end, usage),
        Some(Ended::Failed(problem)) => reply.fail(problem),
        // Dropped: it says that the engine ended.
        None => {}
    }
    stream.state
}
