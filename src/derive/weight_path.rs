//! The weight path: how weights are held and multiplied, and how many bits they really take.
//!
//! In: every tensor's type and shape. Out: the path's name with bits per weight from the bytes as held.
//! Invariant: only a path with kernels can be chosen; sizes come from the tensors, never from a format's name.

use std::collections::BTreeMap;

use super::decision::{Decision, Pin};
use crate::base::{Bytes, Code, Problem};
use crate::model::card::{TensorFact, TensorType};
use crate::model::{ModelCard, StageSpec};

/// Weights stay in the blocks they are stored in.
pub const NATIVE: &str = "native";
/// Paths that have kernels.
pub const PATHS: &[&str] = &[NATIVE];

/// Kernel tables whose products the tests compare with the portable reference, on processors that have them.
const COMPARED: &[&str] = &["scalar", "avx2", "avx_vnni", "avx512_vnni", "avx512_bf16"];

/// Rows that the engine lays out side by side; the last tile is filled up.
const TILE_ROWS: u64 = 16;

/// Bytes of one block of one row as the engine holds it.
///
/// The layout keeps the codes at their stored width and the scales per 32 columns in whole bytes. That costs nothing
/// for most formats, a byte or two per 256 columns for those with packed 6-bit scales, and widens codes of less than
/// 4 bits to 4, so that one product kernel serves them.
#[must_use]
pub fn held_block_bytes(kind: TensorType) -> usize {
    match kind {
        TensorType::Q2_K | TensorType::Q4_K => 148,
        TensorType::Q3_K => 146,
        TensorType::Q5_K => 180,
        TensorType::IQ4_XS => 138,
        other => other.block_bytes(),
    }
}

/// Bytes of a tensor as the engine holds it.
#[must_use]
pub fn held_bytes(tensor: &TensorFact) -> u64 {
    let elements = tensor.shape.iter().fold(1u64, |n, &d| n.saturating_mul(d));
    let Some((&columns, outer)) = tensor.shape.split_last().filter(|(_, outer)| !outer.is_empty()) else {
        // Vectors (norm weights) are held in f32.
        return elements.saturating_mul(4);
    };
    let rows = outer.iter().fold(1u64, |n, &d| n.saturating_mul(d));
    let rows = rows.checked_next_multiple_of(TILE_ROWS).unwrap_or(u64::MAX);
    let blocks = columns.div_ceil(tensor.dtype.block_len().max(1) as u64);
    rows.saturating_mul(blocks)
        .saturating_mul(held_block_bytes(tensor.dtype) as u64)
}

/// All weights as the engine holds them.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct HeldWeights {
    /// Sum.
    pub bytes: u64,
    /// The largest single tensor, in the file.
    pub largest_source: u64,
    /// By format name.
    pub by_format: BTreeMap<&'static str, u64>,
    /// Elements in all tensors.
    pub elements: u64,
}

/// Sums the tensors of a stage; a card without tensors is charged by its file size.
#[must_use]
pub fn held_weights(stage: &StageSpec<'_>, card: &ModelCard) -> HeldWeights {
    let mut held = HeldWeights::default();
    for tensor in &stage.tensors {
        let bytes = held_bytes(tensor);
        held.bytes = held.bytes.saturating_add(bytes);
        held.largest_source = held.largest_source.max(tensor.bytes.0);
        let sum = held.by_format.entry(tensor.dtype.as_str()).or_default();
        *sum = sum.saturating_add(bytes);
        let elements = tensor.shape.iter().fold(1u64, |n, &d| n.saturating_mul(d));
        held.elements = held.elements.saturating_add(elements);
    }
    if card.tensors.is_empty() {
        held.bytes = card.file_bytes.0;
        held.elements = card.parameters;
    }
    held
}

/// The path for a stage, whose products `kernels` compute.
pub fn choose(
    held: &HeldWeights,
    stage: &str,
    kernels: &str,
    pin: Option<&Pin<String>>,
) -> Result<Decision<String>, Problem> {
    match pin {
        None => Ok(derived(held, kernels)),
        Some(pin) if PATHS.contains(&pin.value.as_str()) => Ok(Decision::pinned(
            pin,
            format!("{}; {}", description(held), evidence(kernels)),
        )),
        Some(pin) => Err(Problem::new(
            Code::PinUnmet,
            format!(
                "{} asks for the weight path `{}`, which stage `{stage}` has no kernels for",
                pin.named(),
                pin.value
            ),
            format!("use one of: {}; or remove the key", PATHS.join(", ")),
        )
        .at(pin.place.clone())),
    }
}

/// The same without a pin. There is one path that has kernels; every priority takes it, and what the file holds
/// decides between size and fidelity.
#[must_use]
pub fn derived(held: &HeldWeights, kernels: &str) -> Decision<String> {
    Decision::derived(
        NATIVE.to_owned(),
        "weight_path.native",
        format!("{}; {}", description(held), evidence(kernels)),
    )
}

/// What stands behind the products of a kernel table.
fn evidence(kernels: &str) -> String {
    let bare = kernels.rsplit('-').next().unwrap_or(kernels);
    if COMPARED.contains(&bare) {
        format!(
            "verified: the products of `{kernels}` are compared with the portable reference for every format"
        )
    } else {
        format!("not verified: the products of `{kernels}` were not run by us")
    }
}

/// Formats with their bytes and the bits per weight that follow.
fn description(held: &HeldWeights) -> String {
    if held.elements == 0 {
        return "weights stay as the file stores them".to_owned();
    }
    let mut formats: Vec<_> = held.by_format.iter().collect();
    formats.sort_by_key(|&(_, bytes)| std::cmp::Reverse(*bytes));
    let listed: Vec<String> = formats
        .iter()
        .map(|(name, bytes)| format!("{name} {}", Bytes(**bytes)))
        .collect();
    format!(
        "weights stay in the blocks they are stored in: {:.2} bits a weight ({} for {} weights{}{})",
        bits_per_weight(held),
        Bytes(held.bytes),
        held.elements,
        if listed.is_empty() { "" } else { ": " },
        listed.join(", ")
    )
}

/// Bits per weight as held.
#[must_use]
pub fn bits_per_weight(held: &HeldWeights) -> f64 {
    if held.elements == 0 {
        return 0.0;
    }
    held.bytes as f64 * 8.0 / held.elements as f64
}
