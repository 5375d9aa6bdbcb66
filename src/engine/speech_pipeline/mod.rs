//! The speech pipeline: talker and predictor on one thread, the codec on another, a bounded channel between them.
//!
//! In: a plan of a speech model, opened weights. Out: a [`SpeechHandle`] that takes requests and sends sound.
//! Invariant: the codec makes sound of frame n while the talker speaks frame n + 1; whatever thread or request fails,
//! every request gets a last event, and the others go on.

mod cloning;
mod handle;
mod language;
mod reply;
mod sound;
mod start;

use serde::{Deserialize, Serialize};

pub use cloning::clone_voice;
pub use handle::{Speaking, SpeechFacts, SpeechHandle, SpeechSubmission};
pub use start::start;

use super::speech::SpeechEnd;
use crate::base::Problem;

/// What a running request sends back, in order; the last is `Done` or `Failed`.
#[derive(Clone, Debug)]
pub enum SpeechEvent {
    /// The next samples, at the model's rate, in −1..=1.
    Audio {
        /// Samples.
        samples: Vec<f32>,
        /// Frames they are.
        frames: usize,
    },
    /// Finished.
    Done {
        /// Why.
        end: SpeechEnd,
        /// Counts and times.
        usage: SpeechUsage,
    },
    /// This request failed; others go on.
    Failed(Problem),
}

/// Counts and times of one request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct SpeechUsage {
    /// Tokens of the text that is said.
    pub text_tokens: usize,
    /// Rows heard before the first frame.
    pub prompt_rows: usize,
    /// Frames of sound.
    pub frames: usize,
    /// Milliseconds of sound.
    pub audio_ms: f64,
    /// Waiting for a free sequence.
    pub queue_ms: f64,
    /// From submission to the first samples.
    pub first_audio_ms: f64,
    /// The earliest start, after submission, at which a player would never have waited.
    pub playback_start_ms: f64,
    /// What a player that starts at the first samples would have waited in all.
    pub stall_ms: f64,
    /// From submission to the last samples, over the time they play.
    pub real_time_factor: f64,
}
