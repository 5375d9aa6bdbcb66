//! Reference dequantisers: the meaning of every block format, plainly.
//!
//! In: bytes of whole blocks as a model file holds them. Out: `f32` values.
//! Invariant: any bytes of the right length give values, never a panic; packing must reproduce these bit for bit.

use half::{bf16, f16};

use crate::base::{Code, Problem};
use crate::model::card::TensorType;

/// The 16 levels of IQ4_NL and IQ4_XS.
pub(super) const IQ4_LEVELS: [i8; 16] = [
    -127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113,
];
/// The 16 levels of MXFP4, doubled so that they are whole.
pub(super) const MXFP4_LEVELS: [i8; 16] = [0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12];

/// Bytes of a row of `cols` values, or `None` when `cols` is not a whole number of blocks or overflows.
#[must_use]
pub fn row_bytes(dtype: TensorType, cols: usize) -> Option<usize> {
    cols.is_multiple_of(dtype.block_len())
        .then(|| (cols / dtype.block_len()).checked_mul(dtype.block_bytes()))
        .flatten()
}

/// Dequantises whole blocks: `out.len()` values from exactly as many bytes as they take.
///
/// # Errors
/// `model_malformed` when the lengths do not match.
pub fn dequantise(dtype: TensorType, bytes: &[u8], out: &mut [f32]) -> Result<(), Problem> {
    if row_bytes(dtype, out.len()) != Some(bytes.len()) {
        return Err(Problem::new(
            Code::ModelMalformed,
            format!(
                "{} bytes of {} cannot hold {} values",
                bytes.len(),
                dtype.as_str(),
                out.len()
            ),
            "the file is damaged; fetch it again",
        ));
    }
    let blocks = bytes.chunks_exact(dtype.block_bytes());
    for (block, out) in blocks.zip(out.chunks_exact_mut(dtype.block_len())) {
        one_block(dtype, block, out);
    }
    Ok(())
}

/// Little-endian f16 at byte `at`.
pub(super) fn half_at(block: &[u8], at: usize) -> f32 {
    f16::from_le_bytes([block[at], block[at + 1]]).to_f32()
}

/// 2^(e − 128), exact also where it is a denormal.
pub(super) fn e8m0_halved(e: u8) -> f32 {
    if e < 2 {
        f32::from_bits(0x0020_0000 << e)
    } else {
        f32::from_bits((u32::from(e) - 1) << 23)
    }
}

/// Scale and min of sub-block `j` (0..8) from the 12 packed bytes of Q4_K and Q5_K.
pub(super) fn k_scale_min(s: &[u8], j: usize) -> (u8, u8) {
    if j < 4 {
        (s[j] & 63, s[j + 4] & 63)
    } else {
        (
            (s[j + 4] & 15) | ((s[j - 4] >> 6) << 4),
            (s[j + 4] >> 4) | ((s[j] >> 6) << 4),
        )
    }
}

/// Signed scale (−32..31) of the 16 columns `j` (0..16) from the 12 packed bytes of Q3_K.
pub(super) fn q3_scale(s: &[u8], j: usize) -> i8 {
    let low = if j < 8 { s[j] & 15 } else { s[j - 8] >> 4 };
    let high = (s[8 + j % 4] >> (2 * (j / 4))) & 3;
    (low | (high << 4)) as i8 - 32
}

/// Signed scale (−32..31) of sub-block `j` (0..8) of an IQ4_XS block.
pub(super) fn iq4_xs_scale(block: &[u8], j: usize) -> i8 {
    let high = u16::from_le_bytes([block[2], block[3]]);
    let low = (block[4 + j / 2] >> (4 * (j & 1))) & 15;
    (low | ((((high >> (2 * j)) & 3) as u8) << 4)) as i8 - 32
}

fn one_block(dtype: TensorType, b: &[u8], out: &mut [f32]) {
    let nibble = |qs: usize, i: usize| {
        if i < 16 {
            b[qs + i] & 15
        } else {
            b[qs + i - 16] >> 4
        }
    };
    let fifth = |at: usize, i: usize| {
        let high = u32::from_le_bytes([b[at], b[at + 1], b[at + 2], b[at + 3]]);
        (((high >> i) & 1) << 4) as u8
    };
    match dtype {
        TensorType::F32 => out[0] = f32::from_le_bytes([b[0], b[1], b[2], b[3]]),
        TensorType::F16 => out[0] = half_at(b, 0),
        TensorType::BF16 => out[0] = bf16::from_le_bytes([b[0], b[1]]).to_f32(),
        TensorType::Q4_0 => fill(out, |i| half_at(b, 0) * (f32::from(nibble(2, i)) - 8.0)),
        TensorType::Q4_1 => fill(out, |i| half_at(b, 0) * f32::from(nibble(4, i)) + half_at(b, 2)),
        TensorType::Q5_0 => fill(out, |i| {
            half_at(b, 0) * (f32::from(nibble(6, i) | fifth(2, i)) - 16.0)
        }),
        TensorType::Q5_1 => fill(out, |i| {
            half_at(b, 0) * f32::from(nibble(8, i) | fifth(4, i)) + half_at(b, 2)
        }),
        TensorType::Q8_0 => fill(out, |i| half_at(b, 0) * f32::from(b[2 + i] as i8)),
        TensorType::IQ4_NL => fill(out, |i| {
            half_at(b, 0) * f32::from(IQ4_LEVELS[usize::from(nibble(2, i))])
        }),
        TensorType::MXFP4 => fill(out, |i| {
            e8m0_halved(b[0]) * f32::from(MXFP4_LEVELS[usize::from(nibble(1, i))])
        }),
        TensorType::Q2_K => fill(out, |i| {
            let (d, dmin, s) = (half_at(b, 80), half_at(b, 82), b[i / 16]);
            let q = (b[16 + 32 * (i / 128) + i % 32] >> (2 * (i % 128 / 32))) & 3;
            d * f32::from(s & 15) * f32::from(q) - dmin * f32::from(s >> 4)
        }),
        TensorType::Q3_K => fill(out, |i| {
            let q = (b[32 + 32 * (i / 128) + i % 32] >> (2 * (i % 128 / 32))) & 3;
            let below = if (b[i % 32] >> (i / 32)) & 1 == 1 {
                0.0
            } else {
                4.0
            };
            let scale = half_at(b, 108) * f32::from(q3_scale(&b[96..108], i / 16));
            scale * (f32::from(q) - below)
        }),
        TensorType::Q4_K => fill(out, |i| {
            let (sc, mn) = k_scale_min(&b[4..16], i / 32);
            let byte = b[16 + 32 * (i / 64) + i % 32];
            let q = if (i / 32) % 2 == 0 { byte & 15 } else { byte >> 4 };
            half_at(b, 0) * f32::from(sc) * f32::from(q) - half_at(b, 2) * f32::from(mn)
        }),
        TensorType::Q5_K => fill(out, |i| {
            let (sc, mn) = k_scale_min(&b[4..16], i / 32);
            let byte = b[48 + 32 * (i / 64) + i % 32];
            let low = if (i / 32) % 2 == 0 { byte & 15 } else { byte >> 4 };
            let q = low | (((b[16 + i % 32] >> (i / 32)) & 1) << 4);
            half_at(b, 0) * f32::from(sc) * f32::from(q) - half_at(b, 2) * f32::from(mn)
        }),
        TensorType::Q6_K => fill(out, |i| {
            let (half, k, l) = (i / 128, i % 128 / 32, i % 32);
            let byte = b[64 * half + l + 32 * (k & 1)];
            let low = if k < 2 { byte & 15 } else { byte >> 4 };
            let q = low | (((b[128 + 32 * half + l] >> (2 * k)) & 3) << 4);
            half_at(b, 208) * f32::from(b[192 + i / 16] as i8) * (f32::from(q) - 32.0)
        }),
        TensorType::IQ4_XS => fill(out, |i| {
            let scale = half_at(b, 0) * f32::from(iq4_xs_scale(b, i / 32));
            let byte = b[8 + 16 * (i / 32) + i % 16];
            let q = if i % 32 < 16 { byte & 15 } else { byte >> 4 };
            scale * f32::from(IQ4_LEVELS[usize::from(q)])
        }),
    }
}

fn fill(out: &mut [f32], value: impl Fn(usize) -> f32) {
    for (i, out) in out.iter_mut().enumerate() {
        *out = value(i);
    }
}
