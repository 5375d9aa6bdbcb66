//! The weight path: how weights are held and multiplied, and how many bits they really take.
//!
//! In: every tensor's type and shape. Out: the path's name with bits per weight from the bytes as held.
//! Invariant: only a path with kernels can be chosen; sizes come from the tensors, never from a format's name.

use std::collections::BTreeMap;

use super::decision::{Decision, Pin};
use super::dtype;
use crate::base::{Bytes, Code, Problem};
use crate::config::Priority;
use crate::model::card::{TensorFact, TensorType};
use crate::model::weight_path::{WeightPath, is_table};
use crate::model::{ModelCard, StageSpec};

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

/// Bytes of a tensor when the engine holds its matrix as `held`.
#[must_use]
pub fn held_bytes(tensor: &TensorFact, held: TensorType) -> u64 {
    let elements = tensor.shape.iter().fold(1u64, |n, &d| n.saturating_mul(d));
    let Some((&columns, outer)) = tensor.shape.split_last().filter(|(_, outer)| !outer.is_empty()) else {
        // Vectors (norm weights) are held in f32.
        return elements.saturating_mul(4);
    };
    let rows = outer.iter().fold(1u64, |n, &d| n.saturating_mul(d));
    let rows = rows.checked_next_multiple_of(TILE_ROWS).unwrap_or(u64::MAX);
    let blocks = columns.div_ceil(held.block_len().max(1) as u64);
    rows.saturating_mul(blocks)
        .saturating_mul(held_block_bytes(held) as u64)
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

/// Sums the tensors of a stage as `path` holds them; a card without tensors is charged by its file size.
#[must_use]
pub fn held_weights(stage: &StageSpec<'_>, card: &ModelCard, path: WeightPath) -> HeldWeights {
    let mut held = HeldWeights::default();
    for tensor in &stage.tensors {
        let kind = match tensor.shape.as_slice() {
            [.., _, columns] => path.held(tensor.dtype, *columns, is_table(&tensor.name)),
            _ => TensorType::F32,
        };
        let bytes = held_bytes(tensor, kind);
        held.bytes = held.bytes.saturating_add(bytes);
        held.largest_source = held.largest_source.max(tensor.bytes.0);
        let sum = held.by_format.entry(kind.as_str()).or_default();
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

/// The path for a stage: the pin's, or that of [`derived`].
pub fn choose(
    stage: &StageSpec<'_>,
    priority: Priority,
    pin: Option<&Pin<String>>,
) -> Result<WeightPath, Problem> {
    let Some(pin) = pin else {
        return Ok(derived(stage, priority));
    };
    WeightPath::parse(&pin.value).ok_or_else(|| {
        Problem::new(
            Code::BadValue,
            format!(
                "{} asks for the weight path `{}`, which stage `{}` has no kernels for",
                pin.named(),
                pin.value,
                stage.name
            ),
            format!(
                "use one of: {}; or remove the key",
                WeightPath::ALL.map(WeightPath::name).join(", ")
            ),
        )
        .at(pin.place.clone())
    })
}

/// The path without a pin. Only who asks for speed gets weights that differ from the file's, as long as nothing has
/// measured what that costs this model.
#[must_use]
pub fn derived(stage: &StageSpec<'_>, priority: Priority) -> WeightPath {
    let floats = matches!(
        dtype::main_type(&stage.tensors),
        Some(TensorType::F32 | TensorType::F16 | TensorType::BF16)
    );
    if priority == Priority::Fast && floats {
        WeightPath::W8a8
    } else {
        WeightPath::Native
    }
}

/// `path` as a decision, with what it holds and what stands behind the products of `kernels`.
#[must_use]
pub fn decision(
    path: WeightPath,
    held: &HeldWeights,
    kernels: &str,
    pin: Option<&Pin<String>>,
) -> Decision<String> {
    let because = format!("{}; {}", description(path, held), evidence(kernels));
    match pin {
        Some(pin) if pin.value == path.name() => Decision::pinned(pin, because),
        _ if path == WeightPath::Native => {
            Decision::derived(path.name().to_owned(), "weight_path.native", because)
        }
        _ => Decision::derived(
            path.name().to_owned(),
            "weight_path.smaller",
            format!("`priority: fast` trades the last digits of float weights for speed: {because}"),
        ),
    }
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
fn description(path: WeightPath, held: &HeldWeights) -> String {
    let how = match path {
        WeightPath::Native => "weights stay in the blocks they are stored in",
        WeightPath::Bf16 => "float weights are rounded to BF16",
        WeightPath::W8a8 => "float weights are held as 8-bit blocks of 32",
        WeightPath::W4a8 => "float weights are held as 4-bit blocks of 32, embedding and head as 8-bit ones",
    };
    if held.elements == 0 {
        return how.to_owned();
    }
    let mut formats: Vec<_> = held.by_format.iter().collect();
    formats.sort_by_key(|&(_, bytes)| std::cmp::Reverse(*bytes));
    let listed: Vec<String> = formats
        .iter()
        .map(|(name, bytes)| format!("{name} {}", Bytes(**bytes)))
        .collect();
    format!(
        "{how}: {:.2} bits a weight ({} for {} weights{}{})",
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::schema::WEIGHT_PATHS;

    #[test]
    fn reading_a_profile_takes_exactly_the_paths_that_there_are() {
        assert_eq!(WEIGHT_PATHS, WeightPath::ALL.map(WeightPath::name));
    }
}
