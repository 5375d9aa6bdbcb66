//! The virtual player: what a listener hears who starts with the first chunk.
//!
//! In: arrivals of chunks. Out: [`Heard`], and slack at any time.
//! Invariant: a player that has run dry goes on when the next chunk arrives, later by as much as it waited.

use std::collections::VecDeque;

/// Differences of arrival times below this are rounding.
const ROUNDING_S: f64 = 1e-9;

/// A player that starts at the first chunk.
#[derive(Clone, Debug, Default)]
pub struct Player {
    first_s: Option<f64>,
    last_s: f64,
    /// Sound received.
    audio_s: f64,
    /// When everything received will have been played.
    end_s: f64,
    start_s: f64,
    stalled_s: f64,
    longest_s: f64,
    stalls: usize,
    chunks: usize,
    /// Recent chunks (arrival, sound), for slack at a time that is not the last.
    recent: VecDeque<(f64, f64)>,
    forgotten_s: f64,
}

/// Chunks kept for [`Player::slack_s`]: a stream's own bookkeeping asks about now.
const RECENT: usize = 64;

/// What was heard.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Heard {
    /// First sound.
    pub ttfa_s: f64,
    /// The earliest start after which nothing would have been missing.
    pub playback_start_s: f64,
    /// Silence in all for a player that starts at the first sound.
    pub stall_s: f64,
    /// The longest silence.
    pub longest_stall_s: f64,
    /// Silences.
    pub stalls: usize,
    /// Sound received.
    pub audio_s: f64,
    /// Arrival of the last chunk over the sound received.
    pub real_time_factor: f64,
    /// Chunks received.
    pub chunks: usize,
}

impl Heard {
    /// Whether no silence was longer than `tolerance_ms`: C50, C100 and C200 are this at 50, 100 and 200.
    #[must_use]
    pub fn continuous(&self, tolerance_ms: f64) -> bool {
        self.longest_stall_s * 1000.0 <= tolerance_ms + ROUNDING_S
    }
}

impl Player {
    /// A chunk with `audio_s` of sound arrives. Chunks arrive in order of time.
    pub fn arrive(&mut self, at_s: f64, audio_s: f64) {
        if self.first_s.is_none() {
            self.first_s = Some(at_s);
            self.end_s = at_s;
            self.start_s = at_s;
        }
        let late = at_s - self.end_s;
        if late > ROUNDING_S {
            self.stalls += 1;
            self.stalled_s += late;
            self.longest_s = self.longest_s.max(late);
            self.end_s = at_s;
        }
        self.start_s = self.start_s.max(at_s - self.audio_s);
        self.last_s = at_s;
        self.audio_s += audio_s;
        self.end_s += audio_s;
        self.chunks += 1;
        self.recent.push_back((at_s, audio_s));
        if self.recent.len() > RECENT
            && let Some((_, audio)) = self.recent.pop_front()
        {
            self.forgotten_s += audio;
        }
    }

    /// Sound received until `now_s` minus the time since the first chunk: how long a player that never waited could
    /// still go on. Negative after an underrun; 0 before the first chunk.
    #[must_use]
    pub fn slack_s(&self, now_s: f64) -> f64 {
        let Some(first) = self.first_s else {
            return 0.0;
        };
        let arrived = self.recent.iter().filter(|(at, _)| *at <= now_s);
        self.forgotten_s + arrived.map(|(_, audio)| audio).sum::<f64>() - (now_s - first).max(0.0)
    }

    /// What was heard so far; `None` before the first chunk.
    #[must_use]
    pub fn heard(&self) -> Option<Heard> {
        Some(Heard {
            ttfa_s: self.first_s?,
            playback_start_s: self.start_s,
            stall_s: self.stalled_s,
            longest_stall_s: self.longest_s,
            stalls: self.stalls,
            audio_s: self.audio_s,
            real_time_factor: if self.audio_s > 0.0 {
                self.last_s / self.audio_s
            } else {
                0.0
            },
            chunks: self.chunks,
        })
    }
}

/// Whether another request's prefill has to wait: this stream's slack would not last until its next chunk and leave
/// `margin_s`.
#[must_use]
pub fn prefill_waits(slack_s: f64, next_chunk_in_s: f64, margin_s: f64) -> bool {
    slack_s - next_chunk_in_s < margin_s
}

#[cfg(test)]
mod tests {
    use super::*;

    fn near(a: f64, b: f64) -> bool {
        (a - b).abs() < 1e-9
    }

    #[test]
    fn slack_follows_sound_and_time() {
        let mut player = Player::default();
        assert!(near(player.slack_s(5.0), 0.0));
        player.arrive(0.030, 0.080);
        player.arrive(0.190, 2.0);
        for (now, slack) in [(0.030, 0.080), (0.110, 0.0), (0.150, -0.040), (0.190, 1.920)] {
            assert!(near(player.slack_s(now), slack), "{now}");
        }
    }

    #[test]
    fn stalls_shift_the_player_and_the_start_that_avoids_them_is_found() {
        let mut player = Player::default();
        assert_eq!(player.heard(), None);
        // Played 1.0–1.1, silent until 1.25, played to 1.35, silent until 1.4.
        for (at, audio) in [(1.0, 0.1), (1.25, 0.1), (1.4, 0.5), (1.5, 0.5)] {
            player.arrive(at, audio);
        }
        let heard = player.heard().unwrap();
        assert!(near(heard.ttfa_s, 1.0));
        assert!(near(heard.stall_s, 0.2));
        assert!(near(heard.longest_stall_s, 0.15));
        assert_eq!((heard.stalls, heard.chunks), (2, 4));
        // 1.4 − 0.2 of sound before it.
        assert!(near(heard.playback_start_s, 1.2));
        assert!(near(heard.real_time_factor, 1.5 / 1.2));
        assert!(!heard.continuous(50.0) && !heard.continuous(100.0) && heard.continuous(200.0));
    }

    #[test]
    fn slack_stays_right_when_old_chunks_are_forgotten() {
        let mut player = Player::default();
        for chunk in 0..1000 {
            player.arrive(f64::from(chunk) * 0.05, 0.08);
        }
        assert!((player.slack_s(50.0) - (80.0 - 50.0)).abs() < 1e-6);
        assert!(player.recent.len() <= RECENT);
    }

    #[test]
    fn prefill_waits_strictly_below_the_margin() {
        assert!(!prefill_waits(0.5, 0.3, 0.2));
        assert!(prefill_waits(0.499, 0.3, 0.2));
    }
}
