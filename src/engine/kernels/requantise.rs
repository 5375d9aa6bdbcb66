//! From float weights to the blocks of another type, for the weight paths that hold them smaller.
//!
//! In: a row of F32, F16 or BF16 values. Out: the same row in blocks of Q8_0, IQ4_NL or BF16.
//! Invariant: scales are chosen for the least squared error after rounding to f16, so no value of the block is read
//! back worse than by the plain rule (scale = largest value / largest code). Any bits of input give blocks.

use half::{bf16, f16};

use super::dequant::{IQ4_LEVELS, dequantise};
use crate::base::{Code, Problem};
use crate::model::card::TensorType;

/// Values of a block of Q8_0 and IQ4_NL.
const BLOCK: usize = 32;

/// Whether rows of type `from` can be held as `to`.
#[must_use]
pub fn converts(from: TensorType, to: TensorType) -> bool {
    from == to
        || matches!(from, TensorType::F32 | TensorType::F16 | TensorType::BF16)
            && matches!(to, TensorType::Q8_0 | TensorType::IQ4_NL | TensorType::BF16)
}

/// Rewrites one row. `values` is scratch of the row's length, `out` has exactly the bytes of the row in type `to`.
///
/// # Errors
/// `model_malformed` when the lengths do not match or the row holds what is not a finite number, which no block can.
pub(super) fn requantise(
    from: TensorType,
    row: &[u8],
    values: &mut [f32],
    to: TensorType,
    out: &mut [u8],
) -> Result<(), Problem> {
    dequantise(from, row, values)?;
    if to != TensorType::BF16 && values.iter().any(|value| !value.is_finite()) {
        return Err(Problem::new(
            Code::ModelMalformed,
            "a weight is infinite or not a number, and cannot be quantised",
            "fetch the model again; if it is so at its source, use the weight path `native`",
        ));
    }
    match to {
        TensorType::BF16 => {
            for (value, out) in values.iter().zip(out.as_chunks_mut::<2>().0) {
                *out = bf16::from_f32(*value).to_le_bytes();
            }
        }
        TensorType::Q8_0 => {
            let blocks = out.chunks_exact_mut(to.block_bytes());
            for (values, block) in values.as_chunks::<BLOCK>().0.iter().zip(blocks) {
                q8_0(values, block);
            }
        }
        _ => {
            let blocks = out.chunks_exact_mut(to.block_bytes());
            for (values, block) in values.as_chunks::<BLOCK>().0.iter().zip(blocks) {
                iq4_nl(values, block);
            }
        }
    }
    Ok(())
}

/// f16 scale, 32 signed codes.
fn q8_0(values: &[f32; BLOCK], block: &mut [u8]) {
    let scale = f16::from_f32(largest(values) / 127.0);
    let inverse = reciprocal(scale.to_f32());
    block[..2].copy_from_slice(&scale.to_le_bytes());
    for (value, code) in values.iter().zip(&mut block[2..]) {
        *code = (value * inverse).round_ties_even().clamp(-127.0, 127.0) as i8 as u8;
    }
}

/// Scales tried, as what the largest value is divided by: the table's ends (−127 and 113) and around them.
const DIVISORS: [f32; 9] = [-145.0, -136.0, -127.0, -118.0, -109.0, 101.0, 107.0, 113.0, 124.0];

/// f16 scale, 32 four-bit indices of [`IQ4_LEVELS`]: the first 16 values in low nibbles.
fn iq4_nl(values: &[f32; BLOCK], block: &mut [u8]) {
    let mut best = (f32::INFINITY, f16::ZERO, [8u8; BLOCK]);
    let extreme = values
        .iter()
        .copied()
        .max_by(|a, b| a.abs().total_cmp(&b.abs()))
        .unwrap_or(0.0);
    for divisor in DIVISORS {
        let codes = nearest(values, extreme / divisor);
        // For these codes the best scale is a quotient of two sums; codes are then chosen again for it.
        let (mut product, mut square) = (0.0f32, 0.0f32);
        for (value, code) in values.iter().zip(codes) {
            let level = f32::from(IQ4_LEVELS[usize::from(code)]);
            product += value * level;
            square += level * level;
        }
        let scale = f16::from_f32(product / square);
        let codes = nearest(values, scale.to_f32());
        let error: f32 = values
            .iter()
            .zip(codes)
            .map(|(value, code)| {
                let held = scale.to_f32() * f32::from(IQ4_LEVELS[usize::from(code)]);
                (value - held) * (value - held)
            })
            .sum();
        if error < best.0 {
            best = (error, scale, codes);
        }
    }
    let (_, scale, codes) = best;
    block[..2].copy_from_slice(&scale.to_le_bytes());
    for (index, byte) in block[2..].iter_mut().enumerate() {
        *byte = codes[index] | (codes[index + 16] << 4);
    }
}

/// The index of the level nearest to each value over `scale`.
fn nearest(values: &[f32; BLOCK], scale: f32) -> [u8; BLOCK] {
    let inverse = reciprocal(scale);
    values.map(|value| {
        let wanted = value * inverse;
        // Levels rise; count the midpoints below.
        IQ4_LEVELS
            .windows(2)
            .filter(|pair| wanted > f32::midpoint(f32::from(pair[0]), f32::from(pair[1])))
            .count() as u8
    })
}

fn largest(values: &[f32]) -> f32 {
    values.iter().fold(0.0, |most, value| most.max(value.abs()))
}

/// 1 / x, and 0 for the scale of a block whose values are too small for one.
fn reciprocal(x: f32) -> f32 {
    if x == 0.0 { 0.0 } else { 1.0 / x }
}

#[cfg(test)]
mod tests {
    use super::super::dequant::row_bytes;
    use super::*;

    /// Values like those of a trained matrix: a bell shape from sums of a linear congruential generator.
    fn bell(count: usize, seed: u64) -> Vec<f32> {
        let mut state = seed;
        let mut next = || {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            (state >> 40) as f32 / (1u64 << 24) as f32 - 0.5
        };
        (0..count)
            .map(|_| (0..6).map(|_| next()).sum::<f32>() * 0.03)
            .collect()
    }

    fn round_trip(values: &[f32], to: TensorType) -> Vec<f32> {
        let row: Vec<u8> = values.iter().flat_map(|x| x.to_le_bytes()).collect();
        let mut out = vec![0; row_bytes(to, values.len()).unwrap()];
        let mut scratch = vec![0.0; values.len()];
        requantise(TensorType::F32, &row, &mut scratch, to, &mut out).unwrap();
        dequantise(to, &out, &mut scratch).unwrap();
        scratch
    }

    /// Signal to noise, decibels.
    fn snr(values: &[f32], held: &[f32]) -> f32 {
        let signal: f32 = values.iter().map(|x| x * x).sum();
        let noise: f32 = values.iter().zip(held).map(|(x, y)| (x - y) * (x - y)).sum();
        10.0 * (signal / noise).log10()
    }

    #[test]
    fn bell_shaped_weights_keep_the_signal_to_noise_that_the_types_can_give() {
        let values = bell(32 * 512, 7);
        for (to, floor) in [
            (TensorType::BF16, 50.0),
            (TensorType::Q8_0, 43.0),
            (TensorType::IQ4_NL, 21.0),
        ] {
            let found = snr(&values, &round_trip(&values, to));
            assert!(found > floor, "{to:?}: {found} dB");
        }
    }

    #[test]
    fn a_search_for_the_scale_is_never_worse_than_the_plain_rule() {
        for seed in 0..64 {
            let values: [f32; BLOCK] = bell(BLOCK, seed).try_into().unwrap();
            let plain = f16::from_f32(largest(&values) / 127.0).to_f32();
            let error =
                |held: &[f32]| -> f32 { values.iter().zip(held).map(|(x, y)| (x - y) * (x - y)).sum() };
            let by_rule: Vec<f32> = nearest(&values, plain)
                .map(|code| plain * f32::from(IQ4_LEVELS[usize::from(code)]))
                .to_vec();
            let found = round_trip(&values, TensorType::IQ4_NL);
            assert!(error(&found) <= error(&by_rule) * 1.0001, "seed {seed}");
        }
    }

    #[test]
    fn extremes_give_blocks_and_what_is_no_number_is_refused() {
        for values in [
            [0.0; BLOCK],
            [-0.0; BLOCK],
            [1e-30; BLOCK],
            [60_000.0; BLOCK],
            [-3.0; BLOCK],
            std::array::from_fn(|i| if i == 5 { -1.0 } else { 0.0 }),
        ] {
            for to in [TensorType::Q8_0, TensorType::IQ4_NL, TensorType::BF16] {
                // IQ4_NL has no level at zero: 1 of 127 is the nearest.
                let bound = largest(&values) * 0.02 + 1e-6;
                for (value, held) in values.iter().zip(round_trip(&values, to)) {
                    assert!((value - held).abs() <= bound, "{to:?}: {value} held as {held}");
                }
            }
        }
        let mut scratch = [0.0; BLOCK];
        let row = [f32::NAN; BLOCK].map(f32::to_le_bytes).concat();
        for to in [TensorType::Q8_0, TensorType::IQ4_NL] {
            let mut out = vec![0; to.block_bytes()];
            let problem = requantise(TensorType::F32, &row, &mut scratch, to, &mut out).unwrap_err();
            assert_eq!(problem.code, Code::ModelMalformed);
        }
    }
}
