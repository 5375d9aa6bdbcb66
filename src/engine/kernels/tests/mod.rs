//! Every table this CPU can run, against the scalar one and against plain f64 arithmetic.
//!
//! In: random blocks from a fixed seed. Out: bitwise equality where arithmetic is exact, stated bounds elsewhere.
//! Invariant: a token's result never depends on the pass, the team or the table (quantised types).

mod attention;
mod elementwise;
mod packing;
mod products;

use super::*;
use crate::base::CpuSet;
use crate::engine::team::Team;

/// SplitMix64: enough randomness for tests, the same on every machine.
pub(super) struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// −1..1.
    pub fn unit(&mut self) -> f32 {
        (self.next() >> 40) as f32 / (1u32 << 23) as f32 - 1.0
    }

    pub fn units(&mut self, count: usize) -> Vec<f32> {
        (0..count).map(|_| self.unit()).collect()
    }

    /// Blocks of `dtype` with random codes and tame scales.
    pub fn blocks(&mut self, dtype: TensorType, values: usize) -> Vec<u8> {
        let mut bytes = Vec::new();
        for _ in 0..values / dtype.block_len() {
            let start = bytes.len();
            bytes.extend((0..dtype.block_bytes()).map(|_| 0u8));
            let block = &mut bytes[start..];
            for byte in block.iter_mut() {
                *byte = self.next() as u8;
            }
            let fields: &[usize] = match dtype {
                TensorType::F16
                | TensorType::Q4_0
                | TensorType::Q5_0
                | TensorType::Q8_0
                | TensorType::IQ4_NL
                | TensorType::IQ4_XS => &[0],
                TensorType::Q4_1 | TensorType::Q5_1 | TensorType::Q4_K | TensorType::Q5_K => &[0, 2],
                TensorType::Q2_K => &[80, 82],
                TensorType::Q3_K => &[108],
                TensorType::Q6_K => &[208],
                TensorType::F32 | TensorType::BF16 | TensorType::MXFP4 => &[],
            };
            for &at in fields {
                let value = half::f16::from_f32(self.unit());
                block[at..at + 2].copy_from_slice(&value.to_le_bytes());
            }
            match dtype {
                TensorType::F32 => block.copy_from_slice(&self.unit().to_le_bytes()),
                TensorType::BF16 => {
                    block.copy_from_slice(&half::bf16::from_f32(self.unit()).to_le_bytes());
                }
                TensorType::MXFP4 => block[0] = 120 + (self.next() % 12) as u8,
                _ => {}
            }
        }
        bytes
    }
}

pub(super) fn team(threads: usize) -> Team {
    Team::new("test", &CpuSet::new(), threads, false).unwrap()
}

/// A matrix of random blocks and its values.
pub(super) fn matrix(
    random: &mut Random,
    dtype: TensorType,
    rows: usize,
    cols: usize,
) -> (PackedMatrix, Vec<f32>) {
    let bytes = random.blocks(dtype, rows * cols);
    let mut values = vec![0.0; rows * cols];
    dequant::dequantise(dtype, &bytes, &mut values).unwrap();
    let source = PackSource {
        dtype,
        held: dtype,
        rows,
        cols,
        bytes: &bytes,
        row_order: None,
    };
    (PackedMatrix::pack(&[source], false).unwrap(), values)
}

/// A number of columns that gives every kernel a tail where the type allows one.
pub(super) fn some_cols(dtype: TensorType) -> usize {
    match dtype.block_len() {
        1 => 51,
        32 => 96,
        _ => 512,
    }
}

pub(super) fn same_bits(a: &[f32], b: &[f32]) -> bool {
    a.len() == b.len()
        && a.iter()
            .zip(b)
            .all(|(a, b)| a.to_bits() == b.to_bits() || (a.is_nan() && b.is_nan()))
}

#[test]
fn caps_lower_and_never_raise() {
    let names = available();
    assert!(names[0].ends_with("-scalar"));
    assert_eq!(select("best").unwrap().name(), *names.last().unwrap());
    assert_eq!(select("scalar").unwrap().name(), names[0]);
    for name in &names {
        assert_eq!(select(name).unwrap().name(), *name);
    }
    for (index, cap) in CAPS.iter().enumerate() {
        let got = select(cap).unwrap();
        assert!(CAPS.iter().position(|c| *c == got.cap).unwrap() <= index);
    }
    assert_eq!(select("avx1024").unwrap_err().code, Code::BadValue);
}
