//! The model families served: one row each.
//!
//! In: an architecture's name in GGUF or `config.json`. Out: its row: tensor names, defaults, default profile.
//! Invariant: a family of a known shape is added here (and as a profile and a fixture), nowhere else.

use super::card::{Activation, DecoderSpec, ModelFormat};
use crate::base::{Code, Problem};

/// What a tensor is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TensorRole {
    /// `[vocab, hidden]`
    TokenEmbedding,
    /// `[hidden]`
    OutputNorm,
    /// `[vocab, hidden]`; absent when the embedding is the head.
    Output,
    /// `[hidden]`
    AttnNorm,
    /// `[heads × head_dim, hidden]`
    Q,
    /// `[kv_heads × head_dim, hidden]`
    K,
    /// `[kv_heads × value_dim, hidden]`
    V,
    /// Rows of q, k and v in that order.
    Qkv,
    /// `[hidden, heads × value_dim]`
    AttnOutput,
    /// `[head_dim]`
    QNorm,
    /// `[head_dim]`
    KNorm,
    /// `[heads, hidden]`
    HeadGate,
    /// `[hidden]`, before the residual add.
    PostAttnNorm,
    /// `[hidden]`, before the feed-forward layer.
    FfnNorm,
    /// `[ffn, hidden]`
    Gate,
    /// `[ffn, hidden]`
    Up,
    /// `[hidden, ffn]`
    Down,
    /// `[hidden]`, before the residual add.
    PostFfnNorm,
    /// `[head_dim / 2]`, read into the rope facts on inspection.
    RopeFreqs,
}

/// Roles that stand once in a model.
pub const MODEL_ROLES: [TensorRole; 4] = [
    TensorRole::TokenEmbedding,
    TensorRole::OutputNorm,
    TensorRole::Output,
    TensorRole::RopeFreqs,
];

/// Roles that stand in every layer, as far as the family has them.
pub const LAYER_ROLES: [TensorRole; 15] = [
    TensorRole::AttnNorm,
    TensorRole::Q,
    TensorRole::K,
    TensorRole::V,
    TensorRole::Qkv,
    TensorRole::AttnOutput,
    TensorRole::QNorm,
    TensorRole::KNorm,
    TensorRole::HeadGate,
    TensorRole::PostAttnNorm,
    TensorRole::FfnNorm,
    TensorRole::Gate,
    TensorRole::Up,
    TensorRole::Down,
    TensorRole::PostFfnNorm,
];

/// Which layers see everything, where the file has no list of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WindowDefault {
    /// Every layer is full.
    AllFull,
    /// Sliding, except that layer i is full when `(i + 1) % period == 0`.
    FullEvery(usize),
}

/// One family.
#[derive(Clone, Copy, Debug)]
pub struct Family {
    /// The name in cards, plans and profiles; also GGUF's `general.architecture` and the prefix of its keys.
    pub name: &'static str,
    /// `model_type` values of `config.json`.
    pub model_types: &'static [&'static str],
    /// `architectures` values of `config.json`, looked at when `model_type` is absent.
    pub architectures: &'static [&'static str],
    /// Profile that serves it unless another is named.
    pub profile: &'static str,
    /// A speech model: several networks in a folder, none of them in GGUF (`speech_card.rs`).
    pub speech: bool,
    /// Safetensors names that differ from the common ones.
    pub hf_names: &'static [(TensorRole, &'static str)],
    /// Activation where the file does not say. GGUF never says.
    pub activation: Activation,
    /// Per-head norms of q and k.
    pub qk_norm: bool,
    /// Norms after attention and feed-forward.
    pub post_norms: bool,
    /// Gemma: embeddings times √hidden, safetensors norms stored as `w` of `1 + w`.
    pub gemma_scaling: bool,
    /// `head_gate` is there unless the configuration switches it off.
    pub head_gate: bool,
    /// Safetensors hold q, k and v as one matrix.
    pub fused_qkv: bool,
    /// GGUF rows of q and k are interleaved per head.
    pub gguf_interleaved: bool,
    /// `tie_word_embeddings` where `config.json` does not say.
    pub tied_default: bool,
    /// Rope base (of the full layers, where kinds differ) when the file does not say.
    /// Rope base (of the full layers, where kinds differ) when the file does not say.
    pub rope_base: f32,
    /// Rope base of sliding layers where the file does not say; `None` = as the full layers.
    pub rope_base_sliding: Option<f32>,
    /// RMSNorm epsilon where the file does not say.
    pub norm_eps: f32,
    /// Layer pattern where the file does not say.
    pub window: WindowDefault,
}

/// Every family served.
pub const FAMILIES: &[Family] = &[
    Family {
        name: "llama",
        model_types: &["llama"],
        architectures: &["LlamaForCausalLM"],
        profile: "llama",
        speech: false,
        hf_names: &[],
        activation: Activation::Silu,
        qk_norm: false,
        post_norms: false,
        gemma_scaling: false,
        head_gate: false,
        fused_qkv: false,
        gguf_interleaved: true,
        tied_default: false,
        rope_base: 1e4,
        rope_base_sliding: None,
        norm_eps: 1e-5,
        window: WindowDefault::AllFull,
    },
    Family {
        name: "qwen3",
        model_types: &["qwen3"],
        architectures: &["Qwen3ForCausalLM"],
        profile: "qwen3",
        speech: false,
        hf_names: &[],
        activation: Activation::Silu,
        qk_norm: true,
        post_norms: false,
        gemma_scaling: false,
        head_gate: false,
        fused_qkv: false,
        gguf_interleaved: false,
        tied_default: false,
        rope_base: 1e4,
        rope_base_sliding: None,
        norm_eps: 1e-6,
        window: WindowDefault::AllFull,
    },
    Family {
        name: "gemma3",
        model_types: &["gemma3_text", "gemma3"],
        architectures: &["Gemma3ForCausalLM", "Gemma3ForConditionalGeneration"],
        profile: "gemma3",
        speech: false,
        hf_names: &[
            (
                TensorRole::PostAttnNorm,
                "model.layers.{}.post_attention_layernorm.weight",
            ),
            (
                TensorRole::FfnNorm,
                "model.layers.{}.pre_feedforward_layernorm.weight",
            ),
            (
                TensorRole::PostFfnNorm,
                "model.layers.{}.post_feedforward_layernorm.weight",
            ),
        ],
        activation: Activation::GeluTanh,
        qk_norm: true,
        post_norms: true,
        gemma_scaling: true,
        head_gate: false,
        fused_qkv: false,
        gguf_interleaved: false,
        tied_default: true,
        rope_base: 1e6,
        rope_base_sliding: Some(1e4),
        norm_eps: 1e-6,
        window: WindowDefault::FullEvery(6),
    },
    Family {
        name: "spark2_5",
        model_types: &["spark2_5"],
        architectures: &["Spark2_5ForCausalLM"],
        profile: "spark2_5",
        speech: false,
        hf_names: &[
            (TensorRole::TokenEmbedding, "model.embedding.weight"),
            (TensorRole::Qkv, "model.layers.{}.self_attn.q_k_v_proj.weight"),
            (
                TensorRole::AttnOutput,
                "model.layers.{}.self_attn.out_proj.weight",
            ),
            (TensorRole::HeadGate, "model.layers.{}.self_attn.g_proj.weight"),
        ],
        activation: Activation::GeluErf,
        qk_norm: false,
        post_norms: false,
        gemma_scaling: false,
        head_gate: true,
        fused_qkv: true,
        gguf_interleaved: false,
        tied_default: true,
        rope_base: 1e4,
        rope_base_sliding: None,
        norm_eps: 1e-6,
        window: WindowDefault::AllFull,
    },
    // Names are those of the talker without its prefix; the code predictor has the same under another.
    Family {
        name: "qwen3_tts",
        model_types: &["qwen3_tts"],
        architectures: &["Qwen3TTSForConditionalGeneration"],
        profile: "qwen3_tts",
        speech: true,
        hf_names: &[
            (TensorRole::TokenEmbedding, "model.codec_embedding.weight"),
            (TensorRole::Output, "codec_head.weight"),
        ],
        activation: Activation::Silu,
        qk_norm: true,
        post_norms: false,
        gemma_scaling: false,
        head_gate: false,
        fused_qkv: false,
        gguf_interleaved: false,
        tied_default: false,
        rope_base: 1e6,
        rope_base_sliding: None,
        norm_eps: 1e-6,
        window: WindowDefault::AllFull,
    },
];

/// The family of this name.
#[must_use]
pub fn by_name(name: &str) -> Option<&'static Family> {
    FAMILIES.iter().find(|family| family.name == name)
}

/// The family of GGUF's `general.architecture`.
pub fn by_gguf_architecture(architecture: &str) -> Result<&'static Family, Problem> {
    by_name(architecture)
        .filter(|family| !family.speech)
        .ok_or_else(|| unknown(&format!("architecture `{architecture}`")))
}

/// The family of `config.json`'s `model_type`, or of its `architectures` when there is no type.
pub fn by_hf_config(model_type: Option<&str>, architectures: &[&str]) -> Result<&'static Family, Problem> {
    let found = match model_type {
        Some(kind) => FAMILIES.iter().find(|family| family.model_types.contains(&kind)),
        None => FAMILIES
            .iter()
            .find(|family| family.architectures.iter().any(|a| architectures.contains(a))),
    };
    found.ok_or_else(|| {
        unknown(&match (model_type, architectures) {
            (Some(kind), _) => format!("model_type `{kind}`"),
            (None, []) => "neither model_type nor architectures in config.json".to_owned(),
            (None, names) => format!("architectures `{}`", names.join("`, `")),
        })
    })
}

fn unknown(seen: &str) -> Problem {
    let served: Vec<&str> = FAMILIES.iter().map(|family| family.name).collect();
    Problem::new(
        Code::ModelUnsupported,
        format!("{seen} is not a model family that is served"),
        format!("use a model of one of these families: {}", served.join(", ")),
    )
    .why("its network and memory need cannot be known without its definition")
    .with(serde_json::json!({ "served": served }))
}

/// Name of a tensor in files of this format, or `None` if the family has no such tensor.
///
/// `layer` is not looked at for roles that stand once in a model.
#[must_use]
pub fn tensor_name(format: ModelFormat, family: &str, role: TensorRole, layer: usize) -> Option<String> {
    let family = by_name(family)?;
    let pattern = match format {
        ModelFormat::Gguf => gguf_pattern(family, role),
        ModelFormat::Safetensors => hf_pattern(family, role),
    }?;
    Some(pattern.replace("{}", &layer.to_string()))
}

/// Whether the family has tensors of this role in some file of this format.
fn has_role(family: &Family, role: TensorRole) -> bool {
    match role {
        TensorRole::QNorm | TensorRole::KNorm => family.qk_norm,
        TensorRole::PostAttnNorm | TensorRole::PostFfnNorm => family.post_norms,
        TensorRole::HeadGate => family.head_gate,
        TensorRole::Qkv => family.fused_qkv,
        _ => true,
    }
}

fn gguf_pattern(family: &Family, role: TensorRole) -> Option<&'static str> {
    has_role(family, role).then_some(match role {
        TensorRole::TokenEmbedding => "token_embd.weight",
        TensorRole::OutputNorm => "output_norm.weight",
        TensorRole::Output => "output.weight",
        TensorRole::AttnNorm => "blk.{}.attn_norm.weight",
        TensorRole::Q => "blk.{}.attn_q.weight",
        TensorRole::K => "blk.{}.attn_k.weight",
        TensorRole::V => "blk.{}.attn_v.weight",
        TensorRole::Qkv => "blk.{}.attn_qkv.weight",
        TensorRole::AttnOutput => "blk.{}.attn_output.weight",
        TensorRole::QNorm => "blk.{}.attn_q_norm.weight",
        TensorRole::KNorm => "blk.{}.attn_k_norm.weight",
        TensorRole::HeadGate => "blk.{}.attn_gate.weight",
        TensorRole::PostAttnNorm => "blk.{}.post_attention_norm.weight",
        TensorRole::FfnNorm => "blk.{}.ffn_norm.weight",
        TensorRole::Gate => "blk.{}.ffn_gate.weight",
        TensorRole::Up => "blk.{}.ffn_up.weight",
        TensorRole::Down => "blk.{}.ffn_down.weight",
        TensorRole::PostFfnNorm => "blk.{}.post_ffw_norm.weight",
        TensorRole::RopeFreqs => "rope_freqs.weight",
    })
}

fn hf_pattern(family: &Family, role: TensorRole) -> Option<&'static str> {
    if let Some((_, own)) = family.hf_names.iter().find(|(named, _)| *named == role) {
        return Some(own);
    }
    let separate_qkv = matches!(role, TensorRole::Q | TensorRole::K | TensorRole::V);
    if !has_role(family, role) || (family.fused_qkv && separate_qkv) {
        return None;
    }
    Some(match role {
        TensorRole::TokenEmbedding => "model.embed_tokens.weight",
        TensorRole::OutputNorm => "model.norm.weight",
        TensorRole::Output => "lm_head.weight",
        TensorRole::AttnNorm => "model.layers.{}.input_layernorm.weight",
        TensorRole::Q => "model.layers.{}.self_attn.q_proj.weight",
        TensorRole::K => "model.layers.{}.self_attn.k_proj.weight",
        TensorRole::V => "model.layers.{}.self_attn.v_proj.weight",
        TensorRole::AttnOutput => "model.layers.{}.self_attn.o_proj.weight",
        TensorRole::QNorm => "model.layers.{}.self_attn.q_norm.weight",
        TensorRole::KNorm => "model.layers.{}.self_attn.k_norm.weight",
        TensorRole::FfnNorm => "model.layers.{}.post_attention_layernorm.weight",
        TensorRole::Gate => "model.layers.{}.mlp.gate_proj.weight",
        TensorRole::Up => "model.layers.{}.mlp.up_proj.weight",
        TensorRole::Down => "model.layers.{}.mlp.down_proj.weight",
        // Families that have these name them in `hf_names`; nobody stores rope frequencies.
        TensorRole::Qkv
        | TensorRole::HeadGate
        | TensorRole::PostAttnNorm
        | TensorRole::PostFfnNorm
        | TensorRole::RopeFreqs => return None,
    })
}

/// Shape (outermost first) of a role's tensor in a network of this shape, or `None` if that network has no such
/// tensor. The products cannot overflow once `check::numbers` has passed.
#[must_use]
pub fn required_shape(role: TensorRole, spec: &DecoderSpec) -> Option<Vec<u64>> {
    let (hidden, ffn, vocab) = (spec.hidden as u64, spec.ffn as u64, spec.vocab as u64);
    let (heads, kv_heads) = (spec.heads as u64, spec.kv_heads as u64);
    let (head_dim, value_dim) = (spec.head_dim as u64, spec.value_dim as u64);
    let (q, k, v) = (heads * head_dim, kv_heads * head_dim, kv_heads * value_dim);
    let when = |present: bool, shape: &[u64]| present.then(|| shape.to_vec());
    match role {
        TensorRole::TokenEmbedding => Some(vec![vocab, hidden]),
        TensorRole::Output => when(!spec.tied_embeddings, &[vocab, hidden]),
        TensorRole::OutputNorm | TensorRole::AttnNorm | TensorRole::FfnNorm => Some(vec![hidden]),
        TensorRole::Q => when(!spec.fused_qkv, &[q, hidden]),
        TensorRole::K => when(!spec.fused_qkv, &[k, hidden]),
        TensorRole::V => when(!spec.fused_qkv, &[v, hidden]),
        TensorRole::Qkv => when(spec.fused_qkv, &[q + k + v, hidden]),
        TensorRole::AttnOutput => Some(vec![hidden, heads * value_dim]),
        TensorRole::QNorm | TensorRole::KNorm => when(spec.qk_norm, &[head_dim]),
        TensorRole::HeadGate => when(spec.head_gate.is_some(), &[heads, hidden]),
        TensorRole::PostAttnNorm | TensorRole::PostFfnNorm => when(spec.post_norms, &[hidden]),
        TensorRole::Gate | TensorRole::Up => Some(vec![ffn, hidden]),
        TensorRole::Down => Some(vec![hidden, ffn]),
        TensorRole::RopeFreqs => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_family_has_its_profile_and_is_found_by_each_of_its_names() {
        for family in FAMILIES {
            let profile = format!("{}/profiles/{}.yaml", env!("CARGO_MANIFEST_DIR"), family.profile);
            assert!(std::path::Path::new(&profile).exists(), "{profile}");
            assert_eq!(by_gguf_architecture(family.name).is_ok(), !family.speech);
            for kind in family.model_types {
                assert_eq!(by_hf_config(Some(kind), &[]).unwrap().name, family.name);
            }
            for architecture in family.architectures {
                assert_eq!(
                    by_hf_config(None, &["X", architecture]).unwrap().name,
                    family.name
                );
            }
        }
        let problem = by_hf_config(Some("rwkv"), &["LlamaForCausalLM"]).unwrap_err();
        assert_eq!(problem.code, Code::ModelUnsupported);
        assert_eq!(problem.details.unwrap()["served"][3], "spark2_5");
    }
}
