//! `SpeechCard`: what a speech model is beside its talker, without its weights.
//!
//! In: the configuration files of a Qwen3-TTS folder. Out: networks as data, special ids, voices, defaults.
//! Invariant: every id lies inside the table it is looked up in; geometry agrees with the tensors found.
//!
//! The talker itself is [`ModelCard::decoder`](super::ModelCard): its vocabulary is the codec's (codes and control
//! rows), not the text's.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::card::{DecoderSpec, TensorFact};
use super::kv;

/// Control rows at the end of the talker's vocabulary; the rows before them are codes.
pub const CONTROL_ROWS: usize = 1024;
/// Kind of a tokenizer in `vocab.json` and `merges.txt`, for [`TokenizerFact::kind`](super::card::TokenizerFact).
pub const TOKENIZER_KIND: &str = "vocab_merges";

/// A speech model beside its talker.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SpeechCard {
    /// What kinds of voices it has.
    pub variant: SpeechVariant,
    /// The release's size as its file says: `0b6`, `1b7`.
    pub size: String,
    /// Rows of the text embedding.
    pub text_vocab: usize,
    /// Width of the text embedding.
    pub text_hidden: usize,
    /// The code predictor; its `vocab` is the size of one codebook.
    pub predictor: DecoderSpec,
    /// The predictor's inputs go through a projection from the talker's width.
    pub predictor_projection: bool,
    /// Codebooks of a frame: one from the talker, the others from the predictor.
    pub codebooks: usize,
    /// Special ids.
    pub ids: SpeechIds,
    /// Codec id of each language, dialects included; names in lower case.
    pub languages: BTreeMap<String, u32>,
    /// Built-in voices; names in lower case. Empty unless the variant is `custom_voice`.
    pub speakers: BTreeMap<String, Speaker>,
    /// The talker's sampling where a request says nothing.
    pub talker_sampling: SpeechSampling,
    /// The predictor's.
    pub predictor_sampling: SpeechSampling,
    /// Most codebook-0 picks, the last of which gives no frame.
    pub max_new_tokens: usize,
    /// Codes to sound.
    pub codec: CodecSpec,
    /// Sound to codes, for cloning.
    pub codec_encoder: Option<CodecEncoderSpec>,
    /// Sound to a voice vector, for cloning.
    pub speaker_encoder: Option<SpeakerEncoderSpec>,
}

/// What kinds of voices a release has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SpeechVariant {
    /// Named voices.
    CustomVoice,
    /// A voice described in words.
    VoiceDesign,
    /// A voice cloned from a recording.
    Base,
}

impl SpeechVariant {
    /// The name in `config.json`.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::CustomVoice => "custom_voice",
            Self::VoiceDesign => "voice_design",
            Self::Base => "base",
        }
    }
}

/// Ids with a meaning, of the text vocabulary and of the talker's own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SpeechIds {
    /// Text: a turn begins.
    pub im_start: u32,
    /// Text: a turn ends.
    pub im_end: u32,
    /// Text: the word that names the speaking role.
    pub assistant: u32,
    /// Text: nothing more is said.
    pub tts_pad: u32,
    /// Text: speech begins.
    pub tts_bos: u32,
    /// Text: the text ends.
    pub tts_eos: u32,
    /// Codec: no frame.
    pub codec_pad: u32,
    /// Codec: frames begin.
    pub codec_bos: u32,
    /// Codec: frames end.
    pub codec_eos: u32,
    /// Codec: a language follows.
    pub think: u32,
    /// Codec: no language follows.
    pub nothink: u32,
    /// Codec: tags begin.
    pub think_bos: u32,
    /// Codec: tags end.
    pub think_eos: u32,
}

/// A built-in voice.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Speaker {
    /// Row of the talker's embedding.
    pub id: u32,
    /// Key of [`SpeechCard::languages`] that is used when the language is automatic or Chinese.
    pub dialect: Option<String>,
}

/// How one of the two networks chooses codes.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the field's own terms")]
pub struct SpeechSampling {
    /// `false`: always the most likely code.
    pub sample: bool,
    pub temperature: f32,
    /// 0 = off.
    pub top_k: u32,
    /// 1 = off.
    pub top_p: f32,
    /// 1 = off. Only the talker has one.
    pub repetition_penalty: f32,
}

/// Most frames the codec's decoder takes in one pass; its weights are read once for this many.
pub const CODEC_PASS_FRAMES: usize = 4;

/// The codec's decoder (code2wav).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CodecSpec {
    /// Samples a second.
    pub sample_rate: u32,
    /// Samples of one frame: the product of all upsampling.
    pub samples_per_frame: usize,
    /// Codebooks; the first is quantised by itself.
    pub codebooks: usize,
    /// Rows of every codebook.
    pub codebook_size: usize,
    /// Width of a codebook row.
    pub code_dim: usize,
    /// Width after the quantiser's output projection.
    pub quantized: usize,
    /// Width between the transformer and the upsampling.
    pub latent: usize,
    /// Width of the transformer.
    pub hidden: usize,
    /// Its layers.
    pub layers: usize,
    /// Its heads; keys and values have as many.
    pub heads: usize,
    /// Width of a head.
    pub head_dim: usize,
    /// Width of its feed-forward layer.
    pub ffn: usize,
    /// Frames a query sees, itself included.
    pub window: usize,
    /// Base of its rotary embedding.
    pub rope_base: f32,
    /// Epsilon of its RMSNorms.
    pub norm_eps: f32,
    /// Factors of the transposed convolutions that do not overlap, in order.
    pub upsampling_ratios: Vec<usize>,
    /// Channels of the first convolution of the sound part; halved by each of its blocks.
    pub decoder_dim: usize,
    /// Factors of the sound part's blocks, in order.
    pub upsample_rates: Vec<usize>,
}

/// The codec's encoder (sound to codes).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CodecEncoderSpec {
    /// Samples a second of its input.
    pub sample_rate: u32,
    /// Samples of one frame.
    pub samples_per_frame: usize,
    /// Channels of the first convolution; doubled by each block.
    pub filters: usize,
    /// Width of the first convolution's kernel.
    pub kernel: usize,
    /// Of the residual convolutions.
    pub residual_kernel: usize,
    /// Of the last one.
    pub last_kernel: usize,
    /// Residual units have this fraction of their block's channels.
    pub compress: usize,
    /// Factors of the strided convolutions in the order they are applied.
    pub strides: Vec<usize>,
    /// Width of the transformer.
    pub hidden: usize,
    /// Its layers.
    pub layers: usize,
    /// Its heads.
    pub heads: usize,
    /// Width of a head.
    pub head_dim: usize,
    /// Width of its feed-forward layer.
    pub ffn: usize,
    /// Epsilon of its LayerNorms.
    pub norm_eps: f32,
    /// Base of its rotary embedding.
    pub rope_base: f32,
    /// Positions a query sees, as the file says.
    pub window: usize,
    /// Stride of the convolution behind the transformer.
    pub downsample: usize,
    /// Codebooks used; the first is quantised by itself.
    pub codebooks: usize,
    /// Codebooks stored.
    pub stored_codebooks: usize,
    /// Rows of every codebook.
    pub codebook_size: usize,
    /// Width of a codebook row.
    pub code_dim: usize,
}

/// The network that makes a voice vector (ECAPA-TDNN).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SpeakerEncoderSpec {
    /// Samples a second of its input.
    pub sample_rate: u32,
    /// Mel bands.
    pub mel: usize,
    /// Channels of the first convolution, the three blocks, and their aggregation.
    pub channels: Vec<usize>,
    /// Kernel widths of the same.
    pub kernels: Vec<usize>,
    /// Dilations of the same.
    pub dilations: Vec<usize>,
    /// Width inside the attentive pooling.
    pub attention: usize,
    /// Groups of a block's residual convolutions.
    pub scale: usize,
    /// Width inside squeeze and excitation.
    pub squeeze: usize,
    /// Width of the result: the talker's.
    pub output: usize,
}

/// Positions of the predictor's cache: the talker's state, then every code of a frame but the last.
#[must_use]
pub fn predictor_positions(codebooks: usize) -> usize {
    codebooks
}

/// What becomes of a tensor when a stage loads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TensorUse {
    /// Packed and held, and read in every pass.
    Held,
    /// Read row by row from the mapped file.
    Mapped,
}

/// Name of the stage that predicts codebook 0.
pub const TALKER: &str = "talker";
/// Name of the stage that predicts the other codebooks.
pub const CODE_PREDICTOR: &str = "code_predictor";
/// Name of the stage that makes sound of codes.
pub const CODE2WAV: &str = "code2wav";

impl CodecSpec {
    /// Channels and positions a frame of the sound part, block after block, the input of the first included.
    fn levels(&self) -> Vec<(usize, usize)> {
        let mut positions = self.upsampling_ratios.iter().product();
        let mut channels = self.decoder_dim;
        let mut levels = vec![(channels, positions)];
        for &rate in &self.upsample_rates {
            channels /= 2;
            positions *= rate;
            levels.push((channels, positions));
        }
        levels
    }

    /// Multiplications for one frame.
    #[must_use]
    pub fn work_per_frame(&self) -> u64 {
        let inner = self.heads * self.head_dim;
        let mut work = 2 * self.quantized * self.code_dim + 3 * self.latent * self.quantized;
        work += 2 * self.latent * self.hidden;
        work +=
            self.layers * (4 * self.hidden * inner + 3 * self.hidden * self.ffn + 2 * self.window * inner);
        let mut positions = 1;
        for &ratio in &self.upsampling_ratios {
            work += positions * ratio * self.latent * self.latent;
            positions *= ratio;
            work += positions * self.latent * (7 + 8 * self.latent);
        }
        work += positions * 7 * self.latent * self.decoder_dim;
        for pair in self.levels().windows(2) {
            let ((wide, before), (narrow, after)) = (pair[0], pair[1]);
            // A kernel of twice the rate: two taps for each output; then three units of a kernel of 7 and one of 1.
            work += after / before * before * 2 * wide * narrow;
            work += after * 3 * 8 * narrow * narrow;
        }
        let (channels, positions) = self.levels().last().copied().unwrap_or_default();
        (work + 7 * channels * positions) as u64
    }

    /// Bytes of work buffers for one frame: a few copies of the widest level, in f32.
    #[must_use]
    pub fn work_bytes_per_frame(&self) -> u64 {
        let levels = self.levels();
        let widest = levels.iter().map(|&(channels, positions)| channels * positions);
        4 * 4 * widest.max().unwrap_or(0) as u64
    }

    /// Bytes of the exact carried state of one stream, in f32: a ring of keys and values that holds the window and a
    /// pass, in whole blocks, and the history of every convolution at its own input.
    #[must_use]
    pub fn stream_bytes(&self) -> u64 {
        let product = |numbers: &[usize]| numbers.iter().fold(1u64, |all, &n| all.saturating_mul(n as u64));
        let positions = self.window.saturating_add(CODEC_PASS_FRAMES - 1);
        let positions = positions.div_ceil(kv::BLOCK).saturating_mul(kv::BLOCK);
        // Values are padded to whole vectors.
        let dims = self
            .head_dim
            .saturating_add(self.head_dim.div_ceil(16).saturating_mul(16));
        let keys_and_values = product(&[self.layers, positions, self.heads, dims]);
        let mut floats = keys_and_values
            .saturating_add(product(&[2, self.quantized]))
            .saturating_add(product(&[self.upsampling_ratios.len(), 6, self.latent]))
            .saturating_add(product(&[6, self.latent]));
        let mut channels = self.decoder_dim;
        for _ in &self.upsample_rates {
            // The transposed convolution's last row, then kernels of 7 with dilations 1, 3 and 9.
            floats = floats.saturating_add(channels as u64);
            channels /= 2;
            floats = floats.saturating_add(product(&[6 * (1 + 3 + 9), channels]));
        }
        floats.saturating_add(product(&[6, channels])).saturating_mul(4)
    }
}

/// The stage that reads a tensor of a speech model, and how.
#[must_use]
pub fn tensor_use(tensor: &TensorFact) -> Option<(&'static str, TensorUse)> {
    let name = tensor.name.as_str();
    if name.starts_with("talker.code_predictor.") {
        return Some((CODE_PREDICTOR, TensorUse::Held));
    }
    if name == super::speech_tensors::TEXT_EMBEDDING {
        return Some((TALKER, TensorUse::Mapped));
    }
    if name.starts_with("talker.") {
        return Some((TALKER, TensorUse::Held));
    }
    // The networks that read a voice to be cloned run where sound is made.
    let sound = [
        super::speech_tensors::CODEC_DECODER,
        "encoder.",
        "speaker_encoder.",
    ];
    sound
        .iter()
        .any(|prefix| name.starts_with(prefix))
        .then_some((CODE2WAV, TensorUse::Held))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn state_and_work_are_the_published_ones() {
        let codec = CodecSpec {
            sample_rate: 24_000,
            samples_per_frame: 1920,
            codebooks: 16,
            codebook_size: 2048,
            code_dim: 256,
            quantized: 512,
            latent: 1024,
            hidden: 512,
            layers: 8,
            heads: 16,
            head_dim: 64,
            ffn: 1024,
            window: 72,
            rope_base: 1e4,
            norm_eps: 1e-5,
            upsampling_ratios: vec![2, 2],
            decoder_dim: 1536,
            upsample_rates: vec![8, 5, 4, 3],
        };
        // 8 layers × 128 positions × 2 × 1024, and convolution histories.
        assert_eq!(codec.stream_bytes(), (2_097_152 + 135_232) * 4);
        // Published: 2481 million a frame.
        assert_eq!((codec.work_per_frame() + 500_000) / 1_000_000, 2481);
    }
}
