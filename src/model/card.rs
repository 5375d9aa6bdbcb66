//! `ModelCard`: what a model is, without its weights. `DecoderSpec`: its network as data.
//!
//! In: GGUF metadata or `config.json`. Out: one description for deciding (memory, context) and for running.
//! Invariant: all per-layer lists have `layers` entries; adding a family of a known shape adds no field here.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::speech::{self, SpeechCard, TensorUse};
use super::stages::DECODER;
use crate::base::Bytes;

/// What is known of a model from its headers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ModelCard {
    /// Short name: file stem or folder name.
    pub name: String,
    /// Row of `families.rs`: `llama`, `qwen3`, `gemma3`, `spark2_5`, `qwen3_tts`.
    pub family: String,
    /// Container.
    pub format: ModelFormat,
    /// Every file that holds weights, in order. Empty in an embedded card whose file is not fetched yet.
    pub files: Vec<PathBuf>,
    /// Sum of the weight files' sizes.
    pub file_bytes: Bytes,
    /// Total weights.
    pub parameters: u64,
    /// Network shape.
    pub decoder: DecoderSpec,
    /// Every tensor, in file order.
    pub tensors: Vec<TensorFact>,
    /// Kind of tokenizer and its size.
    pub tokenizer: TokenizerFact,
    /// Jinja chat template, if the model ships one.
    pub chat_template: Option<String>,
    /// The model's own sampling defaults, where it states them.
    pub sampling: SamplingDefaults,
    /// The context the model was trained for, in tokens.
    pub context_train: u64,
    /// The rest of a speech model, whose talker is `decoder`; `None` for a model of text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub speech: Option<Box<SpeechCard>>,
}

impl ModelCard {
    /// Rows of the table that text is looked up in.
    #[must_use]
    pub fn text_rows(&self) -> usize {
        self.speech
            .as_ref()
            .map_or(self.decoder.vocab, |speech| speech.text_vocab)
    }

    /// The stage that reads a tensor, and how; `None` for one that nobody reads.
    #[must_use]
    pub fn tensor_use(&self, tensor: &TensorFact) -> Option<(&'static str, TensorUse)> {
        match &self.speech {
            Some(_) => speech::tensor_use(tensor),
            None => Some((DECODER, TensorUse::Held)),
        }
    }
}

/// Container format.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ModelFormat {
    /// One GGUF file or a split set.
    Gguf,
    /// A folder with `config.json` and safetensors.
    Safetensors,
}

/// A decoder-only transformer as data (spec: `docs/concepts/decoder.md`).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DecoderSpec {
    /// Rows of the embedding table.
    pub vocab: usize,
    /// Width of the residual stream (E).
    pub hidden: usize,
    /// Query heads (H).
    pub heads: usize,
    /// Key/value heads (KV); divides `heads`.
    pub kv_heads: usize,
    /// Width of a query or key head (D). `heads × head_dim` need not equal `hidden`.
    pub head_dim: usize,
    /// Width of a value head; equals `head_dim` in every family served.
    pub value_dim: usize,
    /// Width of the feed-forward layer (F).
    pub ffn: usize,
    /// One entry a layer.
    pub layers: Vec<LayerSpec>,
    /// Epsilon of every RMSNorm, inside the square root.
    pub norm_eps: f32,
    /// Added to every stored norm weight (1.0 for Gemma in safetensors, else 0.0).
    pub norm_weight_offset: f32,
    /// The embedding row is multiplied by this (√E for Gemma, else 1.0).
    pub embedding_scale: f32,
    /// Queries are multiplied by this before the dot product (usually D^-0.5).
    pub attention_scale: f32,
    /// Activation on the gate branch.
    pub activation: Activation,
    /// RMSNorm per head on q and k before RoPE.
    pub qk_norm: bool,
    /// Norms after attention and after the feed-forward layer, before the residual add (Gemma).
    pub post_norms: bool,
    /// Per-head gate on the attention output from the same normed input (Spark).
    pub head_gate: Option<GateActivation>,
    /// q, k and v come as one matrix, rows q‖k‖v.
    pub fused_qkv: bool,
    /// Rows of q and k are stored interleaved (GGUF `llama`): undo at load, then pair as NEOX.
    pub qk_rows_interleaved: bool,
    /// The output head is the embedding table.
    pub tied_embeddings: bool,
    /// `tanh(x / c) · c` on the logits.
    pub logit_softcap: Option<f32>,
}

/// What one layer does.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LayerSpec {
    /// Which keys a query sees.
    pub attention: AttentionKind,
    /// Rotary embedding of this layer.
    pub rope: RopeSpec,
}

/// Which keys a query sees.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AttentionKind {
    /// All earlier ones and itself.
    Full,
    /// The last `window` including itself.
    Sliding {
        /// Keys seen, itself included.
        window: usize,
    },
}

/// Rotary embedding, NEOX pairing (dimension i with i + dims/2).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RopeSpec {
    /// Base frequency.
    pub base: f32,
    /// Rotated dimensions of each head (R ≤ D, even); the rest pass through.
    pub dims: usize,
    /// Positions are divided by this (HF "linear" scaling; 1.0 = none).
    pub position_divisor: f32,
    /// Per-frequency divisors, `dims / 2` entries (Llama 3 scaling), or empty.
    pub frequency_divisors: Vec<f32>,
}

/// Activation on the gate branch of the feed-forward layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Activation {
    /// x·σ(x)
    Silu,
    /// Exact GELU.
    GeluErf,
    /// GELU by tanh.
    GeluTanh,
}

/// Activation of the per-head output gate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum GateActivation {
    /// σ(x)
    Sigmoid,
    /// x·σ(x)
    Silu,
}

/// One tensor's header facts.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TensorFact {
    /// Name in the file.
    pub name: String,
    /// Element or block type.
    pub dtype: TensorType,
    /// `[out, in]` order (outermost first), as safetensors has it; GGUF's order is reversed on reading.
    pub shape: Vec<u64>,
    /// Size in the file.
    pub bytes: Bytes,
    /// Index into [`ModelCard::files`].
    pub file: usize,
    /// Absolute offset in that file.
    pub offset: u64,
}

/// Element and block types of tensors as stored (ggml names).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[expect(non_camel_case_types, reason = "the formats' own names")]
#[expect(missing_docs, reason = "the formats' own names")]
pub enum TensorType {
    F32,
    F16,
    BF16,
    Q4_0,
    Q4_1,
    Q5_0,
    Q5_1,
    Q8_0,
    Q2_K,
    Q3_K,
    Q4_K,
    Q5_K,
    Q6_K,
    IQ4_NL,
    IQ4_XS,
    MXFP4,
}

impl TensorType {
    /// Every type; entry i has discriminant i.
    pub const ALL: [Self; 16] = [
        Self::F32,
        Self::F16,
        Self::BF16,
        Self::Q4_0,
        Self::Q4_1,
        Self::Q5_0,
        Self::Q5_1,
        Self::Q8_0,
        Self::Q2_K,
        Self::Q3_K,
        Self::Q4_K,
        Self::Q5_K,
        Self::Q6_K,
        Self::IQ4_NL,
        Self::IQ4_XS,
        Self::MXFP4,
    ];

    /// Elements in one block.
    #[must_use]
    pub fn block_len(self) -> usize {
        match self {
            Self::F32 | Self::F16 | Self::BF16 => 1,
            Self::Q2_K | Self::Q3_K | Self::Q4_K | Self::Q5_K | Self::Q6_K | Self::IQ4_XS => 256,
            _ => 32,
        }
    }

    /// Bytes of one block.
    #[must_use]
    pub fn block_bytes(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::F16 | Self::BF16 => 2,
            Self::Q4_0 | Self::IQ4_NL => 18,
            Self::Q4_1 => 20,
            Self::Q5_0 => 22,
            Self::Q5_1 => 24,
            Self::Q8_0 => 34,
            Self::Q2_K => 84,
            Self::Q3_K => 110,
            Self::Q4_K => 144,
            Self::Q5_K => 176,
            Self::Q6_K => 210,
            Self::IQ4_XS => 136,
            Self::MXFP4 => 17,
        }
    }

    /// The formats' own name.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::F32 => "F32",
            Self::F16 => "F16",
            Self::BF16 => "BF16",
            Self::Q4_0 => "Q4_0",
            Self::Q4_1 => "Q4_1",
            Self::Q5_0 => "Q5_0",
            Self::Q5_1 => "Q5_1",
            Self::Q8_0 => "Q8_0",
            Self::Q2_K => "Q2_K",
            Self::Q3_K => "Q3_K",
            Self::Q4_K => "Q4_K",
            Self::Q5_K => "Q5_K",
            Self::Q6_K => "Q6_K",
            Self::IQ4_NL => "IQ4_NL",
            Self::IQ4_XS => "IQ4_XS",
            Self::MXFP4 => "MXFP4",
        }
    }
}

const _: () = {
    let mut i = 0;
    while i < TensorType::ALL.len() {
        assert!(TensorType::ALL[i] as usize == i, "declaration order");
        i += 1;
    }
};

/// Where the tokenizer comes from and how large it is.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TokenizerFact {
    /// `bpe` (byte-level), `spm`, `tokenizer_json` or `vocab_merges` (byte-level, from `vocab.json` and `merges.txt`).
    pub kind: String,
    /// Pre-tokenizer name for `bpe` (`smollm`, `qwen2`, …).
    pub pre: Option<String>,
    /// Entries.
    pub vocab: usize,
    /// Tokens that end generation.
    pub stop_ids: Vec<u32>,
    /// Beginning-of-sequence token, if the model uses one.
    pub bos_id: Option<u32>,
    /// Whether plain completions get the BOS token in front.
    pub add_bos: bool,
}

/// Sampling defaults the model states.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the field's own terms")]
pub struct SamplingDefaults {
    pub temperature: Option<f32>,
    pub top_p: Option<f32>,
    pub top_k: Option<u32>,
    #[serde(default)]
    pub repetition_penalty: Option<f32>,
}
