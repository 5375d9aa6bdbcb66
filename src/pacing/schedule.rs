//! The best schedule for measured rates: least time to first sound without an underrun, solved, not tabled.
//!
//! In: [`Rates`] (at the percentile one wants to be safe at), the largest chunk, frames to plan for. Out: [`Answer`].
//! Invariant: no schedule of chunks up to the largest has an earlier first sound without underrun; where none can do
//! without, the answer is the least head start, never a schedule that stutters.
//!
//! Backwards over frames: `latest[e]` is the latest time the chunk that ends at frame `e` may be ready so that the
//! rest can still arrive in time. A chunk that is ready earlier never makes a later one later, so this decides.

use super::simulation::{Rates, simulate};

/// What a machine can do.
#[derive(Clone, Debug, PartialEq)]
pub enum Answer {
    /// Sound can be played from the first chunk on.
    RealTime {
        /// Chunk sizes; the last repeats.
        sizes: Vec<usize>,
        /// First sound.
        ttfa_s: f64,
    },
    /// It cannot: the player has to wait, or the text be shorter.
    HeadStart {
        /// Chunk sizes; the last repeats.
        sizes: Vec<usize>,
        /// When playing may begin.
        start_s: f64,
        /// Computing over playing time in the long run; above 1 the head start grows with the text.
        real_time_factor: f64,
    },
}

/// Times closer than this are equal.
const ROUNDING_S: f64 = 1e-9;

/// Solves for `total` frames in chunks of at most `largest`; every chunk but the first arrives `margin_s` early.
///
/// # Panics
/// If `largest` or `total` is zero.
#[must_use]
pub fn solve(rates: &Rates, largest: usize, total: usize, margin_s: f64) -> Answer {
    assert!(largest > 0 && total > 0, "a schedule of no frames");
    let problem = Problem {
        rates,
        largest,
        total,
        margin_s,
    };
    let mut latest = vec![0.0; total + 1];
    for first in 1..=largest.min(total) {
        let ttfa_s = rates.first_ready_s(first);
        problem.latest(ttfa_s, &mut latest);
        if ttfa_s <= latest[first] + ROUNDING_S {
            return Answer::RealTime {
                sizes: problem.sizes(first, ttfa_s, ttfa_s, &latest),
                ttfa_s,
            };
        }
    }
    let (first, start_s) = problem.least_start(&mut latest);
    Answer::HeadStart {
        sizes: problem.sizes(first, rates.first_ready_s(first), start_s, &latest),
        start_s,
        real_time_factor: rates.real_time_factor(largest),
    }
}

struct Problem<'a> {
    rates: &'a Rates,
    largest: usize,
    total: usize,
    margin_s: f64,
}

impl Problem<'_> {
    /// The latest ready time of a chunk of `frames` behind `before`, if the player starts at `start_s`.
    fn due_s(&self, start_s: f64, before: usize, frames: usize, latest: &[f64]) -> f64 {
        let played = start_s + before as f64 * self.rates.frame_audio_s - self.margin_s;
        played.min(latest[before + frames])
    }

    /// Fills `latest` for a player that starts at `start_s`.
    fn latest(&self, start_s: f64, latest: &mut [f64]) {
        latest[self.total] = f64::INFINITY;
        for before in (1..self.total).rev() {
            let mut best = f64::NEG_INFINITY;
            for frames in 1..=self.largest.min(self.total - before) {
                let due = self.due_s(start_s, before, frames, latest);
                let decoded = due - self.rates.decode_s(frames, before);
                let made = frames as f64 * self.rates.frame_s;
                let previous = if self.rates.shared {
                    decoded - made
                } else if self.rates.prefill_s + (before + frames) as f64 * self.rates.frame_s
                    <= decoded + ROUNDING_S
                {
                    decoded
                } else {
                    f64::NEG_INFINITY
                };
                best = best.max(previous);
            }
            latest[before] = best;
        }
        latest[0] = f64::NEG_INFINITY;
    }

    /// The sizes from `first` on: always the largest chunk the rest allows, as larger ones cost less.
    fn sizes(&self, first: usize, ready_s: f64, start_s: f64, latest: &[f64]) -> Vec<usize> {
        let mut sizes = vec![first];
        let (mut before, mut ready) = (first, ready_s);
        while before < self.total {
            let late_s = |frames: usize| {
                let next = self.rates.ready_s(frames, before, ready);
                next - self.due_s(start_s, before, frames, latest)
            };
            let most = self.largest.min(self.total - before);
            // Within rounding of the bound every size may fail; then the one that is least late, or the loss would grow.
            let frames = (1..=most)
                .rev()
                .find(|&frames| late_s(frames) <= ROUNDING_S)
                .or_else(|| (1..=most).min_by(|&a, &b| late_s(a).total_cmp(&late_s(b))))
                .unwrap_or(1);
            ready = self.rates.ready_s(frames, before, ready);
            before += frames;
            sizes.push(frames);
        }
        self.shortened(sizes)
    }

    /// Drops what "the last repeats" says anyway, as long as the player hears no difference.
    fn shortened(&self, mut sizes: Vec<usize>) -> Vec<usize> {
        let stall = |sizes: &[usize]| {
            let heard = simulate(self.rates, sizes, self.total).heard();
            heard.map_or(0.0, |heard| heard.playback_start_s)
        };
        // The end of the text cuts the last chunk; the size it would have had is the one before.
        if let [.., before, last] = sizes[..]
            && last < before
        {
            sizes.pop();
        }
        let whole = stall(&sizes);
        while let [.., before, last] = sizes[..]
            && before == last
        {
            sizes.pop();
            if stall(&sizes) > whole + ROUNDING_S {
                sizes.push(last);
                break;
            }
        }
        sizes
    }

    /// The earliest start for which any schedule has no underrun, and its first chunk; leaves `latest` for it.
    fn least_start(&self, latest: &mut [f64]) -> (usize, f64) {
        let first_for = |start: f64, latest: &mut [f64]| {
            self.latest(start, latest);
            (1..=self.largest.min(self.total)).find(|&first| {
                let ready = self.rates.first_ready_s(first);
                ready <= start + ROUNDING_S && ready <= latest[first] + ROUNDING_S
            })
        };
        let mut low = 0.0;
        // Everything is ready by then, whatever the sizes.
        let all: f64 = (1..=self.total)
            .map(|_| self.rates.frame_s + self.rates.decode_s(1, usize::MAX))
            .sum();
        let mut high = self.rates.prefill_s + all + self.margin_s;
        for _ in 0..60 {
            let middle = f64::midpoint(low, high);
            if first_for(middle, latest).is_some() {
                high = middle;
            } else {
                low = middle;
            }
        }
        (
            first_for(high, latest).unwrap_or(self.largest.min(self.total)),
            high,
        )
    }
}

#[cfg(test)]
mod tests;
