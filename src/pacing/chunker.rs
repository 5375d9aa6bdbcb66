//! Chunk sizes of one stream, in any of the three modes.
//!
//! In: [`Chunking`] from the plan, frames as they are made. Out: whether to send now.
//! Invariant: the end of a stream sends what is left, whatever the mode.

use super::controller::{Adaptive, AdaptiveSettings};
use super::simulation::size_at;

/// How a stream is cut.
#[derive(Clone, Debug, PartialEq)]
pub enum Chunking {
    /// Chunks of one size.
    Fixed {
        /// Frames.
        frames: usize,
    },
    /// Sizes one after another; the last repeats.
    Ramp {
        /// Frames of each chunk.
        sizes: Vec<usize>,
    },
    /// Sizes from what is measured.
    Adaptive(AdaptiveSettings),
}

/// The chunks of one stream.
#[derive(Clone, Debug)]
pub struct Chunker {
    mode: Mode,
    sent: usize,
    /// Overrides the first size.
    first: Option<usize>,
}

#[derive(Clone, Debug)]
enum Mode {
    Ramp(Vec<usize>),
    Adaptive(Adaptive),
}

impl Chunker {
    /// A stream that has sent nothing; `first` overrides the size of its first chunk.
    #[must_use]
    pub fn new(chunking: &Chunking, first: Option<usize>) -> Self {
        let first = first.map(|frames| frames.max(1));
        let mode = match chunking {
            Chunking::Fixed { frames } => Mode::Ramp(vec![(*frames).max(1)]),
            Chunking::Ramp { sizes } => Mode::Ramp(sizes.clone()),
            Chunking::Adaptive(settings) => Mode::Adaptive(Adaptive::new(AdaptiveSettings {
                first: first.unwrap_or(settings.first),
                ..*settings
            })),
        };
        Self { mode, sent: 0, first }
    }

    /// Frames the next chunk waits for.
    #[must_use]
    pub fn target(&self) -> usize {
        match &self.mode {
            Mode::Adaptive(controller) => controller.target(),
            Mode::Ramp(_) if self.sent == 0 && self.first.is_some() => self.first.unwrap_or(1),
            Mode::Ramp(sizes) => size_at(sizes, self.sent),
        }
    }

    /// How many of `waiting` frames to send now: the target once they reach it, the rest once the stream has ended.
    #[must_use]
    pub fn due(&self, waiting: usize, ended: bool) -> usize {
        let target = self.target();
        if waiting >= target || ended {
            waiting.min(target)
        } else {
            0
        }
    }

    /// `frames` were sent at `now_s`.
    pub fn sent(&mut self, now_s: f64, frames: usize) {
        self.sent += 1;
        if let Mode::Adaptive(controller) = &mut self.mode {
            controller.sent(now_s, frames);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn targets(mut chunker: Chunker, count: usize) -> Vec<usize> {
        (0..count)
            .map(|chunk| {
                let target = chunker.target();
                chunker.sent(chunk as f64 * 0.01, target);
                target
            })
            .collect()
    }

    #[test]
    fn each_mode_gives_its_own_sizes() {
        let fixed = Chunking::Fixed { frames: 5 };
        assert_eq!(targets(Chunker::new(&fixed, None), 3), [5, 5, 5]);
        assert_eq!(targets(Chunker::new(&fixed, Some(1)), 3), [1, 5, 5]);
        let ramp = Chunking::Ramp { sizes: vec![1, 2, 4] };
        assert_eq!(targets(Chunker::new(&ramp, None), 5), [1, 2, 4, 4, 4]);
        assert_eq!(targets(Chunker::new(&ramp, Some(3)), 3), [3, 2, 4]);
        let adaptive = Chunking::Adaptive(AdaptiveSettings {
            frame_audio_s: 0.08,
            first: 2,
            largest: 25,
            margin_s: 0.0,
            weight: 0.5,
        });
        assert_eq!(targets(Chunker::new(&adaptive, None), 4), [2, 2, 25, 25]);
        assert_eq!(Chunker::new(&adaptive, Some(7)).target(), 7);
    }

    #[test]
    fn a_chunk_is_due_at_its_target_or_at_the_end() {
        let chunker = Chunker::new(&Chunking::Fixed { frames: 4 }, None);
        assert_eq!(chunker.due(3, false), 0);
        assert_eq!(chunker.due(4, false), 4);
        assert_eq!(chunker.due(6, false), 4);
        assert_eq!(chunker.due(6, true), 4);
        assert_eq!(chunker.due(3, true), 3);
        assert_eq!(chunker.due(0, true), 0);
        let none = Chunker::new(&Chunking::Ramp { sizes: Vec::new() }, Some(0));
        assert_eq!(none.target(), 1);
    }
}
