//! Stages: a network with its state, its threads and its place on the machine.
//!
//! In: a stage's plan. Out: implementations of [`crate::engine::stage::Stage`]. Invariant: no maths in here.

pub mod code2wav;
pub mod decoder;
pub mod talker;

pub use code2wav::Code2wavStage;
pub use decoder::DecoderStage;
pub use talker::TalkerStage;
