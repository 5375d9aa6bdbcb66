//! The stages a model runs as, each with what planning needs to know of its network.
//!
//! In: a [`ModelCard`]. Out: [`StageSpec`]s in the order that data flows through them.
//! Invariant: the first stage is the one whose context and sequences are chosen; each tensor belongs to one stage at
//! most, so that its bytes are counted once.

use super::card::{DecoderSpec, ModelCard, TensorFact};
use crate::base::Bytes;

/// The one stage of a language model.
pub const DECODER: &str = "decoder";

/// One worker of the pipeline.
#[derive(Clone, Debug)]
pub struct StageSpec<'a> {
    /// Its name in profiles and plans.
    pub name: &'static str,
    /// The transformer whose layers keep keys and values; `None` for a network that keeps none.
    pub network: Option<&'a DecoderSpec>,
    /// How far back a step can see.
    pub context: Span,
    /// When it runs.
    pub rhythm: Rhythm,
    /// Rows of its longest pass, where the network sets that; else planning chooses.
    pub longest_pass: Option<usize>,
    /// Tensors it multiplies with, which are laid out anew in memory.
    pub tensors: Vec<&'a TensorFact>,
    /// Tensors it reads rows of, which stay in the mapped file.
    pub mapped: Vec<&'a TensorFact>,
    /// What each sequence keeps beside keys and values.
    pub state_bytes_per_seq: Bytes,
    /// Work buffers of one row that do not follow from `network`.
    pub work_bytes_per_row: Bytes,
    /// Multiplications for one step of the pipeline (a token; a frame of sound). Shares CPUs out between stages.
    pub work_per_step: u64,
}

/// How far back a step of a stage can see.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Span {
    /// Planning chooses, up to what the stage was trained for.
    UpTo(u64),
    /// The network has exactly so many positions.
    Exactly(usize),
}

/// When a stage runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rhythm {
    /// Beside the other stages, on a team of its own.
    Own,
    /// Inside each step of the stage named, on that stage's team.
    Within(&'static str),
}

impl ModelCard {
    /// The stages, first to last. Never empty.
    #[must_use]
    pub fn stages(&self) -> Vec<StageSpec<'_>> {
        vec![StageSpec {
            name: DECODER,
            network: Some(&self.decoder),
            context: Span::UpTo(self.context_train),
            rhythm: Rhythm::Own,
            longest_pass: None,
            tensors: self.tensors.iter().collect(),
            mapped: Vec::new(),
            state_bytes_per_seq: Bytes(0),
            work_bytes_per_row: Bytes(0),
            work_per_step: self.parameters,
        }]
    }
}
