//! From values to the bytes of a weight format: what weights computed at load (folded, reordered) are held as.
//!
//! In: `f32` values, a format. Out: bytes as a file of that format has them, ready for packing.
//! Invariant: F32 is exact; BF16 and F16 round to nearest even; Q8_0 has the scale max|x| / 127 of every 32 values.

use half::{bf16, f16};

use crate::model::card::TensorType;

/// Values of a Q8_0 block.
const BLOCK: usize = 32;

/// The bytes of `values` in format `dtype`; `None` where this format is only read, or the values are no whole blocks.
#[must_use]
pub fn encode(dtype: TensorType, values: &[f32]) -> Option<Vec<u8>> {
    let bytes = match dtype {
        TensorType::F32 => bytemuck::cast_slice(values).to_vec(),
        TensorType::F16 => values
            .iter()
            .flat_map(|&x| f16::from_f32(x).to_le_bytes())
            .collect(),
        TensorType::BF16 => values
            .iter()
            .flat_map(|&x| bf16::from_f32(x).to_le_bytes())
            .collect(),
        TensorType::Q8_0 => {
            let (blocks, []) = values.as_chunks::<BLOCK>() else {
                return None;
            };
            let mut bytes = Vec::with_capacity(blocks.len() * (2 + BLOCK));
            for block in blocks {
                q8_block(block, &mut bytes);
            }
            bytes
        }
        _ => return None,
    };
    Some(bytes)
}

fn q8_block(block: &[f32; BLOCK], bytes: &mut Vec<u8>) {
    let largest = block.iter().fold(0f32, |most, x| most.max(x.abs()));
    let scale = f16::from_f32(largest / 127.0);
    // The codes are those of the scale as stored, not of the one it was rounded from.
    let inverse = if scale == f16::ZERO {
        0.0
    } else {
        1.0 / scale.to_f32()
    };
    bytes.extend_from_slice(&scale.to_le_bytes());
    bytes.extend(
        block
            .iter()
            .map(|x| ((x * inverse).round_ties_even().clamp(-127.0, 127.0) as i8).cast_unsigned()),
    );
}

#[cfg(test)]
mod tests {
    use super::super::dequant::dequantise;
    use super::*;

    #[test]
    fn every_written_format_reads_back_within_its_rounding() {
        let values: Vec<f32> = (0..96)
            .map(|i| (i as f32 * 0.7).sin() * (1.0 + i as f32))
            .collect();
        for (dtype, relative) in [
            (TensorType::F32, 0.0),
            (TensorType::F16, 5e-4),
            (TensorType::BF16, 4e-3),
            (TensorType::Q8_0, 4.1e-3),
        ] {
            let bytes = encode(dtype, &values).unwrap();
            let mut back = vec![0.0; values.len()];
            dequantise(dtype, &bytes, &mut back).unwrap();
            for (block, back) in values.chunks(32).zip(back.chunks(32)) {
                let largest = block.iter().fold(0f32, |most, x| most.max(x.abs()));
                for (x, y) in block.iter().zip(back) {
                    assert!((x - y).abs() <= largest * relative, "{dtype:?}: {x} {y}");
                }
            }
        }
        assert!(encode(TensorType::Q8_0, &values[..33]).is_none());
        assert!(encode(TensorType::Q4_K, &values).is_none());
        let zeros = encode(TensorType::Q8_0, &[0.0; 32]).unwrap();
        assert!(zeros.iter().all(|&byte| byte == 0));
    }
}
