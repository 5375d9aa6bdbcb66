//! The stages a model runs as, each with what planning needs to know of its network.
//!
//! In: a [`ModelCard`]. Out: [`StageSpec`]s in the order that data flows through them.
//! Invariant: the first stage is the one whose context and sequences are chosen; each tensor belongs to one stage at
//! most, so that its bytes are counted once.

use super::card::{DecoderSpec, ModelCard, TensorFact};
use super::speech::{
    CODE_PREDICTOR, CODE2WAV, CODEC_PASS_FRAMES, SpeechCard, TALKER, TensorUse, predictor_positions,
};
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
        if let Some(speech) = &self.speech {
            return self.speech_stages(speech);
        }
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

    /// Talker, code predictor and codec. The predictor completes a frame within each step of the talker, which waits
    /// for it; the codec makes sound of one frame while the next is spoken.
    fn speech_stages<'a>(&'a self, speech: &'a SpeechCard) -> Vec<StageSpec<'a>> {
        let of = |stage: &'static str, how: TensorUse| -> Vec<&'a TensorFact> {
            let tensors = self.tensors.iter();
            tensors
                .filter(|tensor| self.tensor_use(tensor) == Some((stage, how)))
                .collect()
        };
        // Tables of embeddings are looked up, not multiplied.
        let multiplied = |tensors: &[&TensorFact]| -> u64 {
            let weights = tensors
                .iter()
                .filter(|tensor| !tensor.name.contains("codec_embedding"));
            weights.map(|tensor| tensor.shape.iter().product::<u64>()).sum()
        };
        let [talker, predictor, codec] =
            [TALKER, CODE_PREDICTOR, CODE2WAV].map(|stage| of(stage, TensorUse::Held));
        let plain = StageSpec {
            name: TALKER,
            network: Some(&self.decoder),
            context: Span::UpTo(self.context_train),
            rhythm: Rhythm::Own,
            longest_pass: None,
            work_per_step: multiplied(&talker),
            tensors: talker,
            mapped: of(TALKER, TensorUse::Mapped),
            state_bytes_per_seq: Bytes(0),
            work_bytes_per_row: Bytes(0),
        };
        let passes = speech.codebooks.saturating_sub(1) as u64;
        let completing = StageSpec {
            name: CODE_PREDICTOR,
            network: Some(&speech.predictor),
            context: Span::Exactly(predictor_positions(speech.codebooks)),
            rhythm: Rhythm::Within(TALKER),
            longest_pass: Some(2),
            // Every pass reads the layers; every head is read once.
            work_per_step: multiplied(&predictor).saturating_mul(passes),
            tensors: predictor,
            mapped: Vec::new(),
            ..plain.clone()
        };
        let sounding = StageSpec {
            name: CODE2WAV,
            network: None,
            context: Span::Exactly(speech.codec.window),
            rhythm: Rhythm::Own,
            longest_pass: Some(CODEC_PASS_FRAMES),
            work_per_step: speech.codec.work_per_frame(),
            tensors: codec,
            mapped: Vec::new(),
            state_bytes_per_seq: Bytes(speech.codec.stream_bytes()),
            work_bytes_per_row: Bytes(speech.codec.work_bytes_per_frame()),
        };
        vec![plain, completing, sounding]
    }
}
