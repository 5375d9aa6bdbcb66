//! A stream of sound played out on paper: rates and chunk sizes in, arrivals out.
//!
//! In: [`Rates`], a schedule. Out: when each chunk is ready, as the virtual player sees it.
//! Invariant: frames are made one after another; a chunk is decoded when its last frame is made and the chunk before
//! is decoded. On shared CPUs decoding stops the making of frames.

use super::playback::Player;

/// How fast a machine makes sound, in seconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rates {
    /// Sound of one frame.
    pub frame_audio_s: f64,
    /// From the request to the start of the first frame.
    pub prefill_s: f64,
    /// Making one frame of codes.
    pub frame_s: f64,
    /// Decoding a chunk, whatever its size.
    pub decode_chunk_s: f64,
    /// Decoding one frame.
    pub decode_frame_s: f64,
    /// Frames decoded again before each chunk; 0 for a decoder that carries its state.
    pub context_frames: usize,
    /// Decoding and making frames share CPUs.
    pub shared: bool,
}

impl Rates {
    /// Decoding `frames` when `before` were decoded earlier.
    #[must_use]
    pub fn decode_s(&self, frames: usize, before: usize) -> f64 {
        let again = self.context_frames.min(before);
        self.decode_chunk_s + self.decode_frame_s * (frames + again) as f64
    }

    /// When the first chunk is ready.
    #[must_use]
    pub fn first_ready_s(&self, frames: usize) -> f64 {
        self.prefill_s + frames as f64 * self.frame_s + self.decode_s(frames, 0)
    }

    /// When a chunk of `frames` behind `before` is ready, if the one before it was at `previous_s`.
    #[must_use]
    pub fn ready_s(&self, frames: usize, before: usize, previous_s: f64) -> f64 {
        let made = if self.shared {
            previous_s + frames as f64 * self.frame_s
        } else {
            (self.prefill_s + (before + frames) as f64 * self.frame_s).max(previous_s)
        };
        made + self.decode_s(frames, before)
    }

    /// Computing over playing time in the long run, in chunks of `frames`.
    #[must_use]
    pub fn real_time_factor(&self, frames: usize) -> f64 {
        let decode = self.decode_s(frames, usize::MAX) / frames as f64;
        let each = if self.shared {
            self.frame_s + decode
        } else {
            self.frame_s.max(decode)
        };
        each / self.frame_audio_s
    }
}

/// Size of chunk `index` of a schedule whose last size repeats.
#[must_use]
pub fn size_at(sizes: &[usize], index: usize) -> usize {
    sizes.get(index).or(sizes.last()).copied().unwrap_or(1).max(1)
}

/// Plays `total` frames in chunks of `sizes`, the last of which repeats.
#[must_use]
pub fn simulate(rates: &Rates, sizes: &[usize], total: usize) -> Player {
    let mut player = Player::default();
    let (mut emitted, mut ready) = (0, 0.0);
    for index in 0.. {
        if emitted >= total {
            break;
        }
        let frames = size_at(sizes, index).min(total - emitted);
        ready = if emitted == 0 {
            rates.first_ready_s(frames)
        } else {
            rates.ready_s(frames, emitted, ready)
        };
        player.arrive(ready, frames as f64 * rates.frame_audio_s);
        emitted += frames;
    }
    player
}
