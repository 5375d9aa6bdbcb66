//! What the engine has done and is doing, in numbers.
//!
//! In: counts and times as requests move. Out: [`Status`], a copy for `/metrics` and people.
//! Invariant: every request submitted is counted once as finished, failed, cancelled or still in the engine.

use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

/// Upper bounds of histogram buckets in milliseconds; one more bucket holds everything above.
pub const BUCKET_BOUNDS_MS: [f64; 16] = [
    1.0, 2.5, 5.0, 10.0, 25.0, 50.0, 100.0, 250.0, 500.0, 1000.0, 2500.0, 5000.0, 10_000.0, 30_000.0,
    60_000.0, 300_000.0,
];
/// Seconds over which rates are taken.
const RATE_SECONDS: usize = 10;

/// How often a duration fell between which bounds.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Histogram {
    /// Observations by bucket, not cumulative; the last is above every bound of [`BUCKET_BOUNDS_MS`].
    pub counts: [u64; BUCKET_BOUNDS_MS.len() + 1],
    /// Sum of all observations in milliseconds.
    pub sum_ms: f64,
}

impl Histogram {
    /// Adds one observation.
    pub fn observe(&mut self, duration: Duration) {
        let ms = duration.as_secs_f64() * 1e3;
        let bucket = BUCKET_BOUNDS_MS.partition_point(|&bound| bound < ms);
        self.counts[bucket] += 1;
        self.sum_ms += ms;
    }

    /// Observations in all.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }
}

/// The engine at one moment.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Status {
    /// Requests that wait for a sequence.
    pub queued: usize,
    /// Requests with a sequence.
    pub running: usize,
    /// Requests accepted since the start.
    pub accepted: u64,
    /// Requests refused because the queue was full.
    pub refused: u64,
    /// Requests that ended with an answer.
    pub finished: u64,
    /// Requests that ended with a problem.
    pub failed: u64,
    /// Requests whose caller left.
    pub cancelled: u64,
    /// Prompt tokens processed.
    pub prompt_tokens: u64,
    /// Tokens generated.
    pub completion_tokens: u64,
    /// Passes of the network.
    pub passes: u64,
    /// Prompt tokens a second over the last ten seconds.
    pub prompt_tokens_per_second: f64,
    /// Generated tokens a second over the last ten seconds.
    pub completion_tokens_per_second: f64,
    /// From submission to the first token.
    pub time_to_first_token: Histogram,
    /// Between two tokens of one answer.
    pub time_between_tokens: Histogram,
    /// From submission to a free sequence.
    pub queue_time: Histogram,
    /// The engine takes no more requests.
    pub stopping: bool,
}

/// The running record behind [`Status`].
#[derive(Debug)]
pub struct Record {
    started: Instant,
    /// Counters; the rates in here are filled in by [`Self::status`].
    pub totals: Status,
    /// Tokens by second: the second they belong to, prompt tokens, generated tokens.
    seconds: [(u64, u64, u64); RATE_SECONDS],
}

impl Record {
    /// An empty record that counts from `now`.
    #[must_use]
    pub fn new(now: Instant) -> Self {
        Self {
            started: now,
            totals: Status::default(),
            seconds: [(0, 0, 0); RATE_SECONDS],
        }
    }

    /// One pass: rows of prompt processed, tokens generated.
    pub fn passed(&mut self, now: Instant, prompt_tokens: usize, completion_tokens: usize) {
        self.totals.passes += 1;
        self.totals.prompt_tokens += prompt_tokens as u64;
        self.totals.completion_tokens += completion_tokens as u64;
        let second = now.saturating_duration_since(self.started).as_secs();
        let entry = &mut self.seconds[(second % RATE_SECONDS as u64) as usize];
        if entry.0 != second {
            *entry = (second, 0, 0);
        }
        entry.1 += prompt_tokens as u64;
        entry.2 += completion_tokens as u64;
    }

    /// The counters with rates as of `now`.
    #[must_use]
    pub fn status(&self, now: Instant) -> Status {
        let age = now.saturating_duration_since(self.started);
        let oldest = (age.as_secs() + 1).saturating_sub(RATE_SECONDS as u64);
        let recent = self.seconds.iter().filter(|entry| entry.0 >= oldest);
        let (prompt, completion) = recent.fold((0, 0), |sum, entry| (sum.0 + entry.1, sum.1 + entry.2));
        // The current second has only begun: the span is shorter than ten seconds by what is left of it.
        let span = (age.as_secs_f64() - oldest as f64).max(1e-3);
        Status {
            prompt_tokens_per_second: prompt as f64 / span,
            completion_tokens_per_second: completion as f64 / span,
            ..self.totals.clone()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn observations_fall_into_the_bucket_whose_bound_they_do_not_exceed() {
        let mut histogram = Histogram::default();
        for ms in [0, 1, 3, 300_000, 300_001] {
            histogram.observe(Duration::from_millis(ms));
        }
        assert_eq!(histogram.counts[0], 2);
        assert_eq!(histogram.counts[2], 1);
        assert_eq!(histogram.counts[15], 1);
        assert_eq!(histogram.counts[16], 1);
        assert_eq!(histogram.count(), 5);
    }

    #[test]
    fn rates_forget_what_is_old() {
        let start = Instant::now();
        let mut record = Record::new(start);
        let at = |s: f64| start + Duration::from_secs_f64(s);
        record.passed(at(0.5), 100, 10);
        record.passed(at(1.5), 0, 10);
        let status = record.status(at(2.0));
        assert!((status.completion_tokens_per_second - 10.0).abs() < 1e-9);
        assert!((status.prompt_tokens_per_second - 50.0).abs() < 1e-9);
        assert!(record.status(at(60.0)).completion_tokens_per_second.abs() < 1e-9);
        record.passed(at(60.5), 0, 19);
        let status = record.status(at(60.5));
        assert!(
            (status.completion_tokens_per_second - 2.0).abs() < 1e-9,
            "{status:?}"
        );
        assert_eq!(status.completion_tokens, 39);
    }
}
