//! One utterance while it has a slot: what its talker hears next, what it chose, when it ends.
//!
//! In: an embedded prompt, logits. Out: rows for passes, frames of codes. Invariant: buffers are allocated when it
//! begins; a step allocates nothing.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::prompt::Prompt;
use super::stop::{Guard, Limits, SILENT_FRAMES, SpeechEnd};
use crate::base::{Code, Problem};
use crate::engine::sampler::{CodeSampler, NoFiniteLogit};
use crate::model::speech::{CONTROL_ROWS, SpeechCard, SpeechSampling};

/// Text rows projected at once while speaking.
pub(super) const TRAILING_BATCH: usize = 16;

/// How an utterance is to be spoken.
#[derive(Clone, Debug, PartialEq)]
pub struct Manner {
    /// How the talker chooses.
    pub talker: SpeechSampling,
    /// How the predictor chooses.
    pub predictor: SpeechSampling,
    /// Same seed and request, same codes.
    pub seed: u64,
    /// How long it may be.
    pub limits: Limits,
}

/// How an utterance ended.
#[derive(Clone, Debug, PartialEq)]
#[expect(clippy::large_enum_variant, reason = "one for each utterance, moved once")]
pub enum Ended {
    /// As it should.
    Said(SpeechEnd),
    /// By a fault of its own.
    Failed(Problem),
}

/// One utterance.
#[derive(Debug)]
pub struct Utterance {
    /// Embedded prompt; emptied once it was heard.
    pub(super) prompt: Vec<f32>,
    pub(super) prompt_rows: usize,
    /// Rows of the prompt heard so far.
    pub(super) heard: usize,
    /// Positions in the talker's cache.
    pub(super) position: usize,
    pub(super) trailing: Vec<u32>,
    /// Vectors of the trailing ids from `trailing_first` on.
    pub(super) trailing_rows: Vec<f32>,
    pub(super) trailing_first: usize,
    /// The row the talker hears next.
    pub(super) input: Vec<f32>,
    /// Codes of the frame being made or just made.
    pub(super) frame: Vec<u16>,
    pub(super) fresh: bool,
    pub(super) ended: Option<Ended>,
    talker: CodeSampler,
    pub(super) predictor: CodeSampler,
    limits: Limits,
    guard: Guard,
    silent: Arc<AtomicUsize>,
    picks: usize,
    frames: usize,
    codec_eos: u32,
    /// Codes before the control rows.
    codes: usize,
}

/// What the talker's logits said.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Pick {
    /// A frame begins with this code.
    Code(u32),
    /// The utterance ended.
    End,
}

impl Utterance {
    /// An utterance whose embedded prompt is `rows`.
    #[must_use]
    pub fn new(card: &SpeechCard, vocab: usize, prompt: &Prompt, rows: Vec<f32>, manner: &Manner) -> Self {
        let width = rows.len() / prompt.len().max(1);
        // Two streams of draws from one seed.
        let other = manner.seed ^ 0x5bd1_e995_9d1b_54a3;
        Self {
            prompt_rows: prompt.len(),
            prompt: rows,
            heard: 0,
            position: 0,
            trailing: prompt.trailing().to_vec(),
            trailing_rows: Vec::with_capacity(TRAILING_BATCH * width),
            trailing_first: 0,
            input: vec![0.0; width],
            frame: vec![0; card.codebooks],
            fresh: false,
            ended: None,
            talker: CodeSampler::new(manner.talker, manner.seed, vocab),
            predictor: CodeSampler::new(manner.predictor, other, card.predictor.vocab),
            limits: manner.limits,
            guard: Guard::default(),
            silent: Arc::default(),
            picks: 0,
            frames: 0,
            codec_eos: card.ids.codec_eos,
            codes: vocab.saturating_sub(CONTROL_ROWS),
        }
    }

    /// Frames in a row that the codec found silent; the codec writes it.
    #[must_use]
    pub fn silent_frames(&self) -> &Arc<AtomicUsize> {
        &self.silent
    }

    /// Frames completed.
    #[must_use]
    pub fn frames(&self) -> usize {
        self.frames
    }

    /// Prompt rows not yet heard.
    #[must_use]
    pub fn prompt_left(&self) -> usize {
        self.prompt_rows - self.heard
    }

    /// The frame the last step completed, once.
    pub fn take_frame(&mut self) -> Option<&[u16]> {
        std::mem::take(&mut self.fresh).then_some(self.frame.as_slice())
    }

    /// How it ended, if it did.
    #[must_use]
    pub fn ended(&self) -> Option<&Ended> {
        self.ended.as_ref()
    }

    /// Ends it, unless it has ended already.
    pub fn end(&mut self, how: Ended) {
        self.ended.get_or_insert(how);
    }

    /// Chooses from the talker's logits, which become scores; `settle` has the last word.
    pub(super) fn pick(&mut self, logits: &mut [f32], settle: impl FnOnce(&[f32], u32) -> u32) -> Pick {
        let too_early = self.picks < 2 || self.frames < self.limits.min_frames;
        for (logit, id) in logits.iter_mut().zip(0u32..).skip(self.codes) {
            if id != self.codec_eos || too_early {
                *logit = f32::NEG_INFINITY;
            }
        }
        let code = match self.talker.choose(logits) {
            Ok(code) => settle(logits, code),
            Err(broken) => {
                self.end(Ended::Failed(unusable_numbers(broken)));
                return Pick::End;
            }
        };
        self.talker.remember(code);
        self.picks += 1;
        if code == self.codec_eos {
            self.end(Ended::Said(SpeechEnd::End));
        } else if self.frames >= self.limits.max_frames {
            self.end(Ended::Said(SpeechEnd::MaxFrames));
        } else if let Some(end) = self.runaway(code) {
            self.end(Ended::Said(end));
        }
        if self.ended.is_some() {
            return Pick::End;
        }
        Pick::Code(code)
    }

    /// What a guard says about a frame that would begin with `code`.
    fn runaway(&mut self, code: u32) -> Option<SpeechEnd> {
        if self.limits.min_frames > 0 || self.frames < self.trailing.len() {
            return None;
        }
        if self.guard.repeats(code) {
            Some(SpeechEnd::Repetition)
        } else if self.silent.load(Ordering::Relaxed) >= SILENT_FRAMES {
            Some(SpeechEnd::Silence)
        } else {
            None
        }
    }

    /// The frame is complete; `frame` holds its codes.
    pub(super) fn completed(&mut self) {
        self.fresh = true;
        self.frames += 1;
    }
}

pub(super) fn unusable_numbers(broken: NoFiniteLogit) -> Problem {
    Problem::new(
        Code::StageFailed,
        format!("the network produced no usable numbers: {broken}"),
        "check the model file (`edge-deploy doctor`); it may be damaged",
    )
    .why("a code cannot be chosen from them")
}
