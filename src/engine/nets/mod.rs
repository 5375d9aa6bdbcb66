//! Networks: whole models as maths over packed weights.
//!
//! In: rows of tokens, a KV cache. Out: logits. Invariant: nothing here knows of requests, threads' places or time.

pub mod body;
pub mod code_predictor;
pub mod code_tables;
pub mod codec_decoder;
pub mod codec_encoder;
pub mod decoder;
pub mod load;
pub mod speaker_encoder;
pub mod talker;
mod tensors;
pub mod text_side;

use body::Place;

/// One row of a pass: a token at a position of a sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Row {
    /// Sequence slot of the KV cache.
    pub sequence: usize,
    /// Position in the sequence, from 0. Rows of one sequence in a pass have consecutive positions, and every
    /// earlier position was in an earlier pass.
    pub position: usize,
    /// The token.
    pub token: u32,
    /// Whether logits of this row are wanted.
    pub logits: bool,
}

impl Row {
    /// Where it stands.
    #[must_use]
    pub fn place(&self) -> Place {
        Place {
            sequence: self.sequence,
            position: self.position,
            wanted: self.logits,
        }
    }
}
