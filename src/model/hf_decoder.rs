//! From `config.json` to the network as data.
//!
//! In: the configuration of one of the families served. Out: [`DecoderSpec`].
//! Invariant: what would change the network's results and is not served is refused, not passed over.

use serde_json::{Map, Value};

use super::card::{Activation, AttentionKind, DecoderSpec, GateActivation, LayerSpec, RopeSpec};
use super::check;
use super::families::{Family, WindowDefault};
use super::formats::hf_config::HfConfig;
use crate::base::Problem;

/// Defaults of Gemma 3's text part, which checkpoints of the wrapped model leave out.
const NESTED_HEADS: usize = 8;
const NESTED_KV_HEADS: usize = 4;
const GEMMA_HEAD_DIM: usize = 256;
const NESTED_WINDOW: usize = 4096;

/// The network that `config` describes. `embedding_rows` is the height of the stored embedding table.
pub(crate) fn decoder(
    config: &HfConfig,
    family: &Family,
    embedding_rows: usize,
) -> Result<DecoderSpec, Problem> {
    refuse_what_is_not_served(config)?;
    let gemma_defaults = family.gemma_scaling && config.nested;
    let or_default = |key: &str, default: usize| -> Result<usize, Problem> {
        match config.size(key)? {
            Some(n) => Ok(n),
            None if gemma_defaults => Ok(default),
            None => config.required_size(key),
        }
    };
    let layers = check::layer_count(config.name(), config.required_size("num_hidden_layers")? as u64)?;
    let hidden = config.required_size("hidden_size")?;
    let heads = or_default("num_attention_heads", NESTED_HEADS)?;
    let kv_heads = match config.size("num_key_value_heads")? {
        Some(n) => n,
        None if gemma_defaults => NESTED_KV_HEADS,
        None => heads,
    };
    let head_dim = match config.size("head_dim")? {
        Some(n) => n,
        None if family.gemma_scaling => GEMMA_HEAD_DIM,
        None => hidden.checked_div(heads).unwrap_or(0),
    };
    let scale = match config
        .real("query_pre_attn_scalar")?
        .filter(|_| family.gemma_scaling)
    {
        Some(width) => (1.0 / width.sqrt()) as f32,
        None => super::attention_scale(family, hidden, heads, head_dim, layers),
    };
    Ok(DecoderSpec {
        vocab: config.size("vocab_size")?.unwrap_or(embedding_rows),
        hidden,
        heads,
        kv_heads,
        head_dim,
        value_dim: head_dim,
        ffn: config.required_size("intermediate_size")?,
        layers: layer_list(config, family, layers, head_dim)?,
        norm_eps: config
            .real("rms_norm_eps")?
            .map_or(family.norm_eps, |eps| eps as f32),
        norm_weight_offset: if family.gemma_scaling { 1.0 } else { 0.0 },
        embedding_scale: super::embedding_scale(family, hidden),
        attention_scale: scale,
        activation: activation(config, family)?,
        qk_norm: family.qk_norm,
        post_norms: family.post_norms,
        head_gate: head_gate(config, family)?,
        fused_qkv: family.fused_qkv,
        qk_rows_interleaved: false,
        tied_embeddings: config.flag("tie_word_embeddings")?.unwrap_or(family.tied_default),
        logit_softcap: config.real("final_logit_softcapping")?.map(|cap| cap as f32),
    })
}

fn refuse_what_is_not_served(config: &HfConfig) -> Result<(), Problem> {
    if let Some(cap) = config.real("attn_logit_softcapping")? {
        return Err(config.refuse(
            format!("its attention scores are soft-capped (attn_logit_softcapping {cap})"),
            "use a model without it",
        ));
    }
    for (key, means) in [
        ("use_bidirectional_attention", "tokens see those after them"),
        ("attention_bias", "its attention projections have biases"),
        ("mlp_bias", "its feed-forward projections have biases"),
    ] {
        if config.flag(key)? == Some(true) {
            return Err(config
                .refuse(
                    format!("{means} (`{key}` is true), which the engine does not compute"),
                    "use a model of this family without it",
                )
                .why("leaving it out would give other answers than the model's own"));
        }
    }
    Ok(())
}

fn activation(config: &HfConfig, family: &Family) -> Result<Activation, Problem> {
    let said = match config.text("hidden_activation")? {
        Some(name) => Some(name),
        None => config.text("hidden_act")?,
    };
    Ok(match said {
        None => family.activation,
        Some("silu" | "swish") => Activation::Silu,
        Some("gelu") => Activation::GeluErf,
        Some("gelu_pytorch_tanh" | "gelu_new" | "gelu_fast") => Activation::GeluTanh,
        Some(other) => {
            return Err(config.refuse(
                format!("its activation is `{other}`"),
                "use a model with silu, gelu or gelu_pytorch_tanh",
            ));
        }
    })
}

fn head_gate(config: &HfConfig, family: &Family) -> Result<Option<GateActivation>, Problem> {
    if !family.head_gate || config.flag("headwise_attn_output_gate")? == Some(false) {
        return Ok(None);
    }
    match config.text("gate_attn_act_mode")? {
        None | Some("sigmoid") => Ok(Some(GateActivation::Sigmoid)),
        Some("silu") => Ok(Some(GateActivation::Silu)),
        Some(other) => Err(config.refuse(
            format!("its attention gate is `{other}`"),
            "use a model with a sigmoid or silu gate",
        )),
    }
}

fn layer_list(
    config: &HfConfig,
    family: &Family,
    layers: usize,
    head_dim: usize,
) -> Result<Vec<LayerSpec>, Problem> {
    let sliding = sliding_layers(config, family, layers)?;
    let window = match config.size("sliding_window")? {
        Some(window) => window,
        None if family.gemma_scaling && config.nested => NESTED_WINDOW,
        None if sliding.contains(&true) => config.required_size("sliding_window")?,
        None => 0,
    };
    let full_rope = rope(config, family, false, head_dim)?;
    let sliding_rope = rope(config, family, true, head_dim)?;
    let layer = |sliding| LayerSpec {
        attention: if sliding {
            AttentionKind::Sliding { window }
        } else {
            AttentionKind::Full
        },
        rope: if sliding {
            sliding_rope.clone()
        } else {
            full_rope.clone()
        },
    };
    Ok(sliding.into_iter().map(layer).collect())
}

/// Which layers slide: `layer_types`, else a period, else Qwen's switch, else the family's rule.
fn sliding_layers(config: &HfConfig, family: &Family, layers: usize) -> Result<Vec<bool>, Problem> {
    if let Some(types) = config.texts("layer_types")? {
        if types.len() != layers {
            return Err(config.fault(format!(
                "`layer_types` has {} entries for {layers} layers",
                types.len()
            )));
        }
        let is_sliding = |kind: &&str| match *kind {
            "sliding_attention" => Ok(true),
            "full_attention" => Ok(false),
            other => Err(config.refuse(
                format!("it has layers of type `{other}`"),
                "use a model with full and sliding attention only",
            )),
        };
        return types.iter().map(is_sliding).collect();
    }
    let period = match config.size("sliding_window_pattern")? {
        Some(period) => Some(period),
        None => config.size("_sliding_window_pattern")?,
    };
    let by_period = |period: usize| (0..layers).map(|i| !(i + 1).is_multiple_of(period)).collect();
    match (period, family.window) {
        (Some(0), _) => Err(config.fault("`sliding_window_pattern` is 0")),
        (Some(period), WindowDefault::FullEvery(_)) | (None, WindowDefault::FullEvery(period)) => {
            Ok(by_period(period))
        }
        (_, WindowDefault::AllFull) => {
            let first_sliding = if config.flag("use_sliding_window")? == Some(true) {
                config.size("max_window_layers")?.unwrap_or(0)
            } else {
                layers
            };
            Ok((0..layers).map(|i| i >= first_sliding).collect())
        }
    }
}

/// Rope of the full or of the sliding layers, from `rope_parameters` (per type or flat) or from the older keys.
fn rope(config: &HfConfig, family: &Family, sliding: bool, head_dim: usize) -> Result<RopeSpec, Problem> {
    let kind = if sliding {
        "sliding_attention"
    } else {
        "full_attention"
    };
    let parameters = config.object("rope_parameters")?;
    let per_type = parameters
        .and_then(|all| all.get(kind))
        .and_then(Value::as_object);
    let has_types = parameters.is_some_and(|all| all.values().any(Value::is_object));
    // Gemma's sliding layers have their own base and no scaling unless given per type.
    let own_sliding_base = family.rope_base_sliding.filter(|_| sliding);
    let (source, inherited_base) = match (per_type, own_sliding_base) {
        (Some(own), _) => (Some(own), None),
        (None, Some(default)) => (
            None,
            Some(config.real("rope_local_base_freq")?.unwrap_or(default.into())),
        ),
        (None, None) => (
            parameters
                .filter(|_| !has_types)
                .or(config.object("rope_scaling")?),
            config.real("rope_theta")?,
        ),
    };
    let empty = Map::new();
    let source = source.unwrap_or(&empty);
    let number = |key: &str| -> Result<Option<f64>, Problem> {
        match source.get(key).filter(|value| !value.is_null()) {
            None => Ok(None),
            Some(value) => value
                .as_f64()
                .map(Some)
                .ok_or_else(|| config.fault(format!("the rope parameter `{key}` is {value}, not a number"))),
        }
    };
    let base = number("rope_theta")?
        .or(inherited_base)
        .unwrap_or(family.rope_base.into());
    let partial = match number("partial_rotary_factor")? {
        Some(factor) => factor,
        None => config.real("partial_rotary_factor")?.unwrap_or(1.0),
    };
    if !(partial > 0.0 && partial <= 1.0) {
        return Err(config.fault(format!(
            "`partial_rotary_factor` is {partial}; 0 to 1 is possible"
        )));
    }
    let dims = (head_dim as f64 * partial) as usize;
    let mut spec = RopeSpec {
        base: base as f32,
        dims,
        position_divisor: 1.0,
        frequency_divisors: Vec::new(),
    };
    let scaling = source
        .get("rope_type")
        .or(source.get("type"))
        .and_then(Value::as_str);
    let required =
        |key: &str| number(key)?.ok_or_else(|| config.fault(format!("its rope scaling has no `{key}`")));
    match scaling {
        None | Some("default") => {}
        Some("linear") => spec.position_divisor = required("factor")? as f32,
        Some("llama3") => {
            spec.frequency_divisors = llama3_divisors(
                base,
                dims,
                required("factor")?,
                required("low_freq_factor")?,
                required("high_freq_factor")?,
                required("original_max_position_embeddings")?,
            );
        }
        Some(other) => {
            return Err(config.refuse(
                format!("its rope scaling is `{other}`; linear and llama3 are served"),
                "remove the scaling from config.json to use the model's original context",
            ));
        }
    }
    Ok(spec)
}

/// Llama 3's divisors of the rope frequencies: 1 for short waves, `factor` for long ones, between them smooth.
/// `low` and `high` bound the number of turns a wave makes over the original context.
fn llama3_divisors(base: f64, dims: usize, factor: f64, low: f64, high: f64, context: f64) -> Vec<f32> {
    let divisor = |i: usize| {
        let frequency = base.powf(-2.0 * i as f64 / dims as f64);
        let turns = context * frequency / std::f64::consts::TAU;
        if turns > high {
            1.0
        } else if turns < low {
            factor
        } else {
            let smooth = (turns - low) / (high - low);
            1.0 / ((1.0 - smooth) / factor + smooth)
        }
    };
    (0..dims / 2).map(|i| divisor(i) as f32).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn llama3_divisors_are_those_of_the_published_formula() {
        // Llama 3.2 1B: theta 500000, D 64, factor 32, 1 and 4, context 8192.
        let divisors = llama3_divisors(5e5, 64, 32.0, 1.0, 4.0, 8192.0);
        assert_eq!(divisors.len(), 32);
        assert_eq!((divisors[0], divisors[31]), (1.0, 32.0));
        assert!(divisors.windows(2).all(|pair| pair[0] <= pair[1]));
        // The one in the middle, by hand: i = 16: frequency 500000^-0.5 = 1.41421e-3, wave 4442.9 tokens,
        // turns 1.84383, smooth 0.281275, 1 / (0.718725 / 32 + 0.281275) = 3.29233.
        assert!((divisors[16] - 3.292_33).abs() < 1e-3, "{}", divisors[16]);
    }
}
