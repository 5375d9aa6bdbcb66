//! The engine through its public interface: against golden logits, against itself under every way of dividing the
//! work, and under many requests at once.

mod code2wav;
mod codec;
mod codec_speed;
mod division;
mod formats;
mod golden;
pub mod serving;
pub mod speech;
pub mod speech_pipeline;
mod support;
