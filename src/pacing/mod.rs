//! Pacing: when sound leaves in which portions, as arithmetic.
//!
//! In: measured rates, or times as they pass. Out: sizes of chunks, and what a listener heard.
//! Invariant: pure: no clock, no files; times are seconds since the request, passed in. Nothing here depends on how
//! sound is made, only on when frames are ready and how long they play.
//!
//! *Frame* = the smallest portion (80 ms), *chunk* = the frames sent together, *underrun* = a player has nothing left,
//! *slack* = how long a player can go on with what it has.

pub mod chunker;
pub mod controller;
pub mod playback;
pub mod schedule;
pub mod simulation;

pub use chunker::{Chunker, Chunking};
pub use controller::{Adaptive, AdaptiveSettings};
pub use playback::{Heard, Player};
pub use schedule::{Answer, solve};
pub use simulation::{Rates, simulate};

/// Largest chunk that is planned: two seconds.
pub const MAX_CHUNK: usize = 25;
