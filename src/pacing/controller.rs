//! The adaptive chunk controller: sizes from what is measured while a stream runs.
//!
//! In: when frames were made and chunks sent. Out: how many frames the next chunk should have.
//! Invariant: sizes never fall within a stream, even when the player has run dry: smaller chunks cost more a frame, and
//! a machine that is behind would fall further behind. They grow only as far as the next chunk still arrives before
//! what was sent has been played, less a margin.

/// Settings of the controller.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AdaptiveSettings {
    /// Sound of one frame, seconds.
    pub frame_audio_s: f64,
    /// The first chunk, frames.
    pub first: usize,
    /// The largest chunk, frames.
    pub largest: usize,
    /// How early a chunk is to arrive, seconds.
    pub margin_s: f64,
    /// Weight of the newest sample in the moving average, 0..1.
    pub weight: f64,
}

/// The controller of one stream.
#[derive(Clone, Debug)]
pub struct Adaptive {
    settings: AdaptiveSettings,
    /// Seconds a frame, decoding included; `None` until the second chunk.
    frame_s: Option<f64>,
    target: usize,
    emitted: usize,
    first_emit_s: f64,
    last_emit_s: f64,
}

impl Adaptive {
    /// A stream that has sent nothing. Sizes of zero count as one.
    #[must_use]
    pub fn new(settings: AdaptiveSettings) -> Self {
        let largest = settings.largest.max(1);
        Self {
            target: settings.first.clamp(1, largest),
            settings: AdaptiveSettings { largest, ..settings },
            frame_s: None,
            emitted: 0,
            first_emit_s: 0.0,
            last_emit_s: 0.0,
        }
    }

    /// Frames the next chunk should have.
    #[must_use]
    pub fn target(&self) -> usize {
        self.target
    }

    /// Seconds a frame, as measured so far.
    #[must_use]
    pub fn frame_s(&self) -> Option<f64> {
        self.frame_s
    }

    /// A chunk of `frames` (all that were ready, perhaps more than the target) was sent at `now_s`.
    pub fn sent(&mut self, now_s: f64, frames: usize) {
        if self.emitted == 0 {
            self.first_emit_s = now_s;
        } else if frames > 0 {
            let sample = (now_s - self.last_emit_s).max(0.0) / frames as f64;
            let weight = self.settings.weight.clamp(0.0, 1.0);
            self.frame_s = Some(
                self.frame_s
                    .map_or(sample, |average| average + weight * (sample - average)),
            );
        }
        self.emitted += frames;
        self.last_emit_s = now_s;
        let played = now_s - self.first_emit_s;
        let left = self.emitted as f64 * self.settings.frame_audio_s - played - self.settings.margin_s;
        if let Some(frame) = self.frame_s {
            let affordable = if frame > 0.0 {
                (left.max(0.0) / frame).floor()
            } else {
                f64::INFINITY
            };
            // Saturates, also from infinity.
            self.target = self.target.max(affordable as usize).min(self.settings.largest);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::simulation::Rates;
    use super::super::{MAX_CHUNK, Player};
    use super::*;

    fn settings(first: usize) -> AdaptiveSettings {
        AdaptiveSettings {
            frame_audio_s: 0.08,
            first,
            largest: MAX_CHUNK,
            margin_s: 0.05,
            weight: 0.3,
        }
    }

    /// Sizes the controller chose, and what was heard.
    fn play(rates: &Rates, first: usize, total: usize) -> (Vec<usize>, Player) {
        let mut controller = Adaptive::new(settings(first));
        let mut player = Player::default();
        let mut sizes = Vec::new();
        let (mut emitted, mut ready) = (0, 0.0);
        while emitted < total {
            let frames = controller.target().min(total - emitted);
            ready = if emitted == 0 {
                rates.first_ready_s(frames)
            } else {
                rates.ready_s(frames, emitted, ready)
            };
            player.arrive(ready, frames as f64 * rates.frame_audio_s);
            controller.sent(ready, frames);
            sizes.push(frames);
            emitted += frames;
        }
        (sizes, player)
    }

    fn rates(frame_s: f64) -> Rates {
        Rates {
            frame_audio_s: 0.08,
            prefill_s: 0.15,
            frame_s,
            decode_chunk_s: 0.004,
            decode_frame_s: 0.004,
            context_frames: 0,
            shared: true,
        }
    }

    #[test]
    fn sizes_grow_to_the_largest_without_an_underrun() {
        for frame_ms in [10, 20, 30, 40, 50, 60, 65] {
            let (sizes, player) = play(&rates(f64::from(frame_ms) / 1000.0), 2, 600);
            let heard = player.heard().unwrap();
            assert!(heard.stall_s < 1e-9, "{frame_ms} ms: {heard:?} {sizes:?}");
            assert!(sizes[..sizes.len() - 1].is_sorted(), "{sizes:?}");
            assert!(sizes[sizes.len() - 2] > 2, "{frame_ms} ms: {sizes:?}");
        }
    }

    #[test]
    fn sizes_never_fall_even_when_the_player_ran_dry() {
        let mut controller = Adaptive::new(settings(4));
        let mut now = 1.0;
        let mut targets = Vec::new();
        for step in 0..40 {
            controller.sent(now, controller.target());
            targets.push(controller.target());
            // Fast, then three times slower than playing.
            now += controller.target() as f64 * if step < 5 { 0.03 } else { 0.24 };
        }
        assert!(targets.is_sorted(), "{targets:?}");
        assert!(targets[5] > 4);
    }

    #[test]
    fn the_second_chunk_has_the_size_of_the_first_because_nothing_is_measured_yet() {
        let mut controller = Adaptive::new(settings(3));
        controller.sent(0.5, 3);
        assert_eq!(controller.target(), 3);
        assert_eq!(controller.frame_s(), None);
        controller.sent(0.56, 3);
        assert!((controller.frame_s().unwrap() - 0.02).abs() < 1e-9);
        // 6 frames of sound, 60 ms played, 50 ms margin: 370 ms are 18 frames.
        assert_eq!(controller.target(), 18);
    }
}
