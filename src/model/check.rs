//! Holds a card to what its family needs: sane numbers, every tensor there, with the right shape, and no other.
//!
//! In: a network as data and the tensors found. Out: nothing, or one problem that lists every fault.
//! Invariant: what passes here can be loaded by the engine without meeting a missing or misshapen tensor.

use std::collections::{HashMap, HashSet};

use super::card::{AttentionKind, DecoderSpec, ModelCard, ModelFormat, TensorFact};
use super::families::{Family, LAYER_ROLES, MODEL_ROLES, TensorRole, required_shape, tensor_name};
use super::formats::listing;
use crate::base::{Code, Problem};

/// Largest count or width believed in a header: wide enough for any model known, small enough that products of
/// three of them fit `u64`.
const MAX_DIMENSION: usize = 1 << 20;
/// Most layers believed.
const MAX_LAYERS: usize = 1024;
/// Faults shown in one message.
const SHOWN: usize = 12;

/// Refuses numbers that no network can have. `layers` is checked before the per-layer list is built.
pub(crate) fn layer_count(name: &str, layers: u64) -> Result<usize, Problem> {
    usize::try_from(layers)
        .ok()
        .filter(|n| (1..=MAX_LAYERS).contains(n))
        .ok_or_else(|| {
            super::formats::malformed(
                name,
                format!("it claims {layers} layers; 1 to {MAX_LAYERS} are possible"),
            )
        })
}

/// Every number of the network within its range.
pub(crate) fn numbers(name: &str, spec: &DecoderSpec) -> Result<(), Problem> {
    let mut faults = Vec::new();
    for (what, value) in [
        ("vocabulary", spec.vocab),
        ("hidden width", spec.hidden),
        ("head count", spec.heads),
        ("key/value head count", spec.kv_heads),
        ("head width", spec.head_dim),
        ("value width", spec.value_dim),
        ("feed-forward width", spec.ffn),
    ] {
        if !(1..=MAX_DIMENSION).contains(&value) {
            faults.push(format!(
                "its {what} is {value}; 1 to {MAX_DIMENSION} are possible"
            ));
        }
    }
    if spec.kv_heads > 0 && !spec.heads.is_multiple_of(spec.kv_heads) {
        faults.push(format!(
            "its {} heads cannot share {} key/value heads evenly",
            spec.heads, spec.kv_heads
        ));
    }
    if spec.value_dim != spec.head_dim {
        faults.push(format!(
            "keys are {} wide and values {}; families served have them equal",
            spec.head_dim, spec.value_dim
        ));
    }
    if !(spec.norm_eps.is_finite() && spec.norm_eps > 0.0 && spec.norm_eps < 1.0) {
        faults.push(format!("its RMSNorm epsilon is {}", spec.norm_eps));
    }
    for (what, value) in [
        ("attention scale", spec.attention_scale),
        ("embedding scale", spec.embedding_scale),
        ("logit softcap", spec.logit_softcap.unwrap_or(1.0)),
    ] {
        if !(value.is_finite() && value > 0.0) {
            faults.push(format!("its {what} is {value}"));
        }
    }
    for (index, layer) in spec.layers.iter().enumerate() {
        let rope = &layer.rope;
        if !(2..=spec.head_dim).contains(&rope.dims) || !rope.dims.is_multiple_of(2) {
            faults.push(format!(
                "layer {index} rotates {} of {} dimensions; an even number of them is possible",
                rope.dims, spec.head_dim
            ));
        }
        let good = |x: f32| x.is_finite() && x > 0.0;
        if !good(rope.base) || !good(rope.position_divisor) {
            faults.push(format!(
                "layer {index} has rope base {} and position divisor {}",
                rope.base, rope.position_divisor
            ));
        }
        let divisors = &rope.frequency_divisors;
        if !divisors.is_empty() && (divisors.len() * 2 != rope.dims || !divisors.iter().all(|&x| good(x))) {
            faults.push(format!(
                "layer {index} has {} rope frequency divisors for {} dimensions, or one that is not positive",
                divisors.len(),
                rope.dims
            ));
        }
        if layer.attention == (AttentionKind::Sliding { window: 0 }) {
            faults.push(format!("layer {index} has an attention window of 0 tokens"));
        }
        if faults.len() > SHOWN {
            break;
        }
    }
    if faults.is_empty() {
        return Ok(());
    }
    Err(super::formats::malformed(name, faults_text(&faults)))
}

fn faults_text(faults: &[String]) -> String {
    let shown = faults.iter().take(SHOWN).cloned().collect::<Vec<_>>().join("; ");
    match faults.len().saturating_sub(SHOWN) {
        0 => shown,
        more => format!("{shown}; and {more} more"),
    }
}

/// Tensors of a checkpoint that hold nothing to load.
fn is_known_extra(name: &str) -> bool {
    name.ends_with(".rotary_emb.inv_freq") || name.ends_with(".self_attn.masked_bias")
}

/// Every tensor the network needs is there with its shape and a type that can be used, and the layers hold no other.
pub(crate) fn tensors(card: &ModelCard) -> Result<(), Problem> {
    let found: HashMap<&str, &TensorFact> = card.tensors.iter().map(|t| (t.name.as_str(), t)).collect();
    let spec = &card.decoder;
    let mut faults = Vec::new();
    let mut wanted = HashSet::new();
    let mut need = |role: TensorRole, layer: usize| {
        let Some(name) = tensor_name(card.format, &card.family, role, layer) else {
            return;
        };
        let Some(shape) = required_shape(role, spec) else {
            // The head of a tied model may be stored and is not used; rope frequencies are read on inspection.
            if matches!(role, TensorRole::Output | TensorRole::RopeFreqs) {
                wanted.insert(name);
            }
            return;
        };
        match found.get(name.as_str()) {
            None => faults.push(format!("`{name}` {shape:?} is missing")),
            Some(fact) if fact.shape != shape => {
                faults.push(format!("`{name}` has shape {:?}, needs {shape:?}", fact.shape));
            }
            Some(fact) if shape.len() == 1 && fact.dtype.block_len() != 1 => faults.push(format!(
                "`{name}` is a norm of type {}; F32, F16 or BF16 are possible",
                fact.dtype.as_str()
            )),
            Some(_) => {}
        }
        wanted.insert(name);
    };
    for role in MODEL_ROLES {
        need(role, 0);
    }
    for layer in 0..spec.layers.len() {
        for role in LAYER_ROLES {
            need(role, layer);
        }
    }
    if !faults.is_empty() {
        return Err(super::formats::malformed(
            &card.name,
            format!(
                "{} of the tensors that a {} model of {} layers needs {}: {}",
                faults.len(),
                card.family,
                spec.layers.len(),
                if faults.len() == 1 {
                    "is at fault"
                } else {
                    "are at fault"
                },
                faults_text(&faults)
            ),
        ));
    }
    let extra: Vec<String> = card
        .tensors
        .iter()
        .filter(|t| !wanted.contains(&t.name) && !is_known_extra(&t.name))
        .map(|t| format!("`{}`", t.name))
        .collect();
    if extra.is_empty() {
        return Ok(());
    }
    Err(Problem::new(
        Code::ModelUnsupported,
        format!(
            "`{}` has {} tensors that the {} family does not know: {}",
            card.name,
            extra.len(),
            card.family,
            listing(&extra)
        ),
        "use the model as its maker published it; adapters, biases and mixtures of experts are not served",
    )
    .why("leaving them out would give other answers than the model's own"))
}

/// Names of every tensor that the network needs.
pub(crate) fn names(format: ModelFormat, family: &Family, spec: &DecoderSpec) -> HashSet<String> {
    let needed = |role: TensorRole| required_shape(role, spec).is_some();
    let once = MODEL_ROLES
        .into_iter()
        .filter(|role| needed(*role))
        .map(|role| (role, 0));
    let layered = (0..spec.layers.len())
        .flat_map(|layer| LAYER_ROLES.into_iter().map(move |role| (role, layer)))
        .filter(|(role, _)| needed(*role));
    once.chain(layered)
        .filter_map(|(role, layer)| tensor_name(format, family.name, role, layer))
        .collect()
}
