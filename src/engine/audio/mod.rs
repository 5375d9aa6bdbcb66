//! Sound outside the networks: files, spectra, sample rates.
//!
//! In: samples as `f32` in −1..=1, or the bytes of an upload. Out: the other. Invariant: memory grows with the bytes
//! that are there, never with a number they claim.

pub mod mel;
pub mod resample;
pub mod wav;

use crate::base::{Code, Problem};

/// A recording, one channel.
#[derive(Clone, Debug, PartialEq)]
pub struct Recording {
    /// Samples a second.
    pub sample_rate: u32,
    /// Samples in −1..=1, unless the file goes beyond.
    pub samples: Vec<f32>,
}

fn unusable(what: impl Into<String>) -> Problem {
    Problem::new(
        Code::RequestInvalid,
        what,
        "send a WAV file: PCM of 8, 16, 24 or 32 bits, or float of 32 or 64 bits",
    )
}
