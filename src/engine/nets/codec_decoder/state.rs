//! What a stream of the codec's decoder carries from part to part.
//!
//! In: the network. Out: [`CodecState`]: zeros, as before the first frame.
//! Invariant: allocated once; holds the last rows every convolution has seen and the keys and values of the window.

use super::transformer::AttentionState;
use super::{CodecDecoder, DEPTHWISE_TAPS};
use crate::base::{Bytes, Problem};

/// Everything one stream carries.
#[derive(Debug)]
pub struct CodecState {
    /// The last input rows of each convolution, in the order they run.
    pub(super) histories: Vec<Vec<f32>>,
    pub(super) attention: AttentionState,
    /// Frames decoded so far.
    pub(super) position: usize,
}

impl CodecState {
    /// The state before the first frame.
    ///
    /// # Errors
    /// `memory_short` when the system refuses.
    pub fn new(decoder: &CodecDecoder) -> Result<Self, Problem> {
        let mut lengths = vec![decoder.pre_conv.history()];
        for upsampler in &decoder.upsamplers {
            lengths.push(upsampler.expand.history());
            lengths.push((DEPTHWISE_TAPS - 1) * upsampler.depthwise_bias.len());
        }
        lengths.push(decoder.first.history());
        for block in &decoder.blocks {
            lengths.push(block.expand.history());
            lengths.extend(block.units.iter().map(|unit| unit.dilated.history()));
        }
        lengths.push(decoder.last.history());
        Ok(Self {
            histories: lengths.into_iter().map(|length| vec![0.0; length]).collect(),
            attention: AttentionState::new(&decoder.spec)?,
            position: 0,
        })
    }

    /// Back to before the first frame, for the next stream.
    pub fn reset(&mut self) {
        for rows in &mut self.histories {
            rows.fill(0.0);
        }
        // Attention reads only positions written since.
        self.position = 0;
    }

    /// Frames decoded since the start.
    #[must_use]
    pub fn frames(&self) -> usize {
        self.position
    }

    /// Bytes held.
    #[must_use]
    pub fn bytes(&self) -> Bytes {
        let floats: usize = self.histories.iter().map(Vec::len).sum();
        Bytes((floats * 4) as u64 + self.attention.bytes())
    }
}
