//! Element types: of the arithmetic and of the KV cache.
//!
//! In: the model's tensor types, the processor's features, pins. Out: one type each.
//! Invariant: only types the engine computes in are chosen or accepted; a pin it cannot meet is refused by name.

use super::asked::Asked;
use super::decision::{Decision, Pin};
use crate::base::{Code, Dtype, Problem};
use crate::config::Priority;
use crate::model::StageSpec;
use crate::model::card::{TensorFact, TensorType};

/// Types of arithmetic outside the quantised products that the engine has.
pub const COMPUTE: &[Dtype] = &[Dtype::F32];
/// Element types of the KV cache that the engine has.
pub const KV: &[Dtype] = &[Dtype::F32, Dtype::F16];

/// Type of arithmetic outside the quantised dot products.
pub fn compute(
    stage: &StageSpec<'_>,
    isa: &[String],
    pin: Option<&Pin<Dtype>>,
) -> Result<Decision<Dtype>, Problem> {
    match pin {
        Some(pin) => accepted(pin, stage.name, "arithmetic", COMPUTE),
        None => Ok(computed(stage, isa)),
    }
}

/// The same without a pin.
#[must_use]
pub fn computed(stage: &StageSpec<'_>, isa: &[String]) -> Decision<Dtype> {
    let stored = main_type(&stage.tensors);
    let has_bf16 = isa
        .iter()
        .any(|f| f == "avx512_bf16" || f == "amx_bf16" || f == "bf16");
    let conversion = match stored {
        Some(TensorType::BF16) if !has_bf16 => {
            "; the BF16 weights are widened to f32 as they are multiplied, because the processor has no BF16 arithmetic"
        }
        Some(TensorType::BF16 | TensorType::F16) => "; 16-bit weights are widened as they are multiplied",
        _ => "",
    };
    Decision::derived(
        Dtype::F32,
        "dtype.compute",
        format!(
            "norms, attention and residual sums run in f32 on every processor, so the answer does not depend on it; weights are mostly {}{conversion}",
            stored.map_or("of no known type", TensorType::as_str)
        ),
    )
}

/// Element type of the KV cache.
pub fn kv(
    stage: &StageSpec<'_>,
    priority: Priority,
    pin: Option<&Pin<Dtype>>,
) -> Result<Decision<Dtype>, Problem> {
    match pin {
        Some(pin) => accepted(pin, stage.name, "the KV cache", KV),
        None => Ok(cached(stage, priority)),
    }
}

/// The same without a pin.
#[must_use]
pub fn cached(stage: &StageSpec<'_>, priority: Priority) -> Decision<Dtype> {
    if main_type(&stage.tensors) != Some(TensorType::F32) {
        return Decision::derived(
            Dtype::F16,
            "dtype.kv",
            "f16 halves the cache; its rounding is far below that of the weights",
        );
    }
    if priority == Priority::Fast {
        return Decision::derived(
            Dtype::F16,
            "dtype.kv",
            "`priority: fast` takes half the cache, although the weights are F32",
        );
    }
    Decision::derived(
        Dtype::F32,
        "dtype.kv",
        "the weights are F32, so the cache keeps full precision too",
    )
}

/// The type under a priority on fidelity: f32 where that `fits` without a shorter context or fewer sequences.
#[must_use]
pub fn exact(asked: &Asked, fits: bool) -> Decision<Dtype> {
    let by = asked
        .priority
        .as_ref()
        .map_or_else(|| "`priority`".to_owned(), Pin::named);
    if fits {
        Decision::derived(
            Dtype::F32,
            "dtype.kv",
            format!("{by} puts fidelity first, and an exact cache costs neither context nor sequences here"),
        )
    } else {
        Decision::derived(
            Dtype::F16,
            "dtype.kv",
            format!("{by} puts fidelity first, but an f32 cache would cost context or sequences here; the rounding of f16 is far below that of the weights"),
        )
        .bounded(Some("memory".to_owned()))
    }
}

/// The type that holds most of the weights.
#[must_use]
pub fn main_type(tensors: &[&TensorFact]) -> Option<TensorType> {
    let mut by_type = std::collections::BTreeMap::<TensorType, u64>::new();
    for tensor in tensors {
        let elements = tensor.shape.iter().fold(1u64, |n, &d| n.saturating_mul(d));
        let sum = by_type.entry(tensor.dtype).or_default();
        *sum = sum.saturating_add(elements);
    }
    by_type.into_iter().max_by_key(|&(_, n)| n).map(|(t, _)| t)
}

fn accepted(pin: &Pin<Dtype>, stage: &str, of: &str, known: &[Dtype]) -> Result<Decision<Dtype>, Problem> {
    if known.contains(&pin.value) {
        return Ok(Decision::pinned(pin, format!("set by {}", pin.layer)));
    }
    let names: Vec<&str> = known.iter().map(|d| d.as_str()).collect();
    Err(Problem::new(
        Code::PinUnmet,
        format!(
            "{} asks for {} in {of}, which stage `{stage}` cannot do",
            pin.named(),
            pin.value
        ),
        format!("use {}, or remove the key", names.join(" or ")),
    )
    .why("the engine has no kernels for it; another type in its place would be a silent change")
    .at(pin.place.clone()))
}
