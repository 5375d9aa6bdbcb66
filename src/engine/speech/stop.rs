//! When an utterance ends although the model does not say so.
//!
//! In: the codes chosen, what the codec heard of its own sound. Out: a reason to stop, or none.
//! Invariant: a request that asks for a least number of frames gets them: the guards are off then.
//!
//! Why: these models sometimes never choose the end, and go on with near-silence or one sound until the last frame
//! allowed.

use serde::{Deserialize, Serialize};

/// Frames that any text gets.
const BASE_FRAMES: usize = 125;
/// Frames for each text token: 1.28 s, slower than slow speech.
const FRAMES_PER_TOKEN: usize = 16;
/// Frames looked at for repetition: 5 s.
const REPETITION_WINDOW: usize = 64;
/// With at most so many different codes among them, nothing is said any more.
const REPETITION_CODES: usize = 2;
/// Frames of silence in a row that end an utterance: 4 s.
pub const SILENT_FRAMES: usize = 50;

/// Why an utterance ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SpeechEnd {
    /// The model said so.
    End,
    /// The most frames asked for, or that fit the text or the context.
    MaxFrames,
    /// The text was said and nothing but silence came.
    Silence,
    /// The text was said and the same few codes came over and over.
    Repetition,
    /// The caller left.
    Cancelled,
}

/// How long an utterance may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// The end is not chosen before so many frames; above 0, guards are off.
    pub min_frames: usize,
    /// Most frames.
    pub max_frames: usize,
}

/// Most frames for a text of so many tokens.
#[must_use]
pub fn frames_for_text(tokens: usize) -> usize {
    FRAMES_PER_TOKEN
        .saturating_mul(tokens)
        .saturating_add(BASE_FRAMES)
}

/// Watches codebook 0 of one utterance.
#[derive(Debug)]
pub struct Guard {
    recent: [u32; REPETITION_WINDOW],
    count: usize,
}

impl Default for Guard {
    fn default() -> Self {
        Self {
            recent: [0; REPETITION_WINDOW],
            count: 0,
        }
    }
}

impl Guard {
    /// Takes the code of a frame that came when all text had been heard. Returns whether the last frames said
    /// nothing.
    pub fn repeats(&mut self, code: u32) -> bool {
        self.recent[self.count % REPETITION_WINDOW] = code;
        self.count += 1;
        if self.count < REPETITION_WINDOW {
            return false;
        }
        let mut different = [0u32; REPETITION_CODES];
        let mut found = 0;
        for &code in &self.recent {
            if different[..found].contains(&code) {
                continue;
            }
            if found == REPETITION_CODES {
                return false;
            }
            different[found] = code;
            found += 1;
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_run_of_few_codes_is_noticed_and_speech_is_not() {
        let mut guard = Guard::default();
        let first = (0..1000).position(|at| guard.repeats(at % 2));
        assert_eq!(first, Some(REPETITION_WINDOW - 1));
        let mut guard = Guard::default();
        assert!(!(0..1000).any(|at| guard.repeats(at % 3)));
        // Speech first, then one code: the window has to pass.
        let mut guard = Guard::default();
        assert!(!(0..200).any(|at| guard.repeats(at)));
        assert_eq!(
            (0..100).position(|_| guard.repeats(7)),
            Some(REPETITION_WINDOW - 2)
        );
    }

    #[test]
    fn the_cap_grows_with_the_text() {
        assert_eq!((frames_for_text(0), frames_for_text(10)), (125, 285));
        assert_eq!(frames_for_text(usize::MAX), usize::MAX);
    }
}
