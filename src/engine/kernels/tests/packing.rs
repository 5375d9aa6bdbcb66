//! Packing loses nothing, and bad sources are refused.

use super::*;

#[test]
fn every_type_unpacks_to_the_reference_bit_for_bit() {
    let mut random = Random(1);
    for dtype in TensorType::ALL {
        for rows in [1, 16, 37] {
            let cols = some_cols(dtype);
            // Random bytes, NaN and infinite scales included.
            let bytes: Vec<u8> = (0..rows * dequant::row_bytes(dtype, cols).unwrap())
                .map(|_| random.next() as u8)
                .collect();
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
            let packed = PackedMatrix::pack(&[source], rows == 16).unwrap();
            let mut row = vec![0.0; cols];
            for (index, expected) in values.chunks_exact(cols).enumerate() {
                packed.row_f32(index, &mut row);
                assert!(same_bits(&row, expected), "{dtype:?} row {index} of {rows}");
            }
        }
    }
}

#[test]
fn dequantisers_agree_with_an_independent_implementation() {
    fn bytes(hex: &str) -> Vec<u8> {
        let digits = hex.as_bytes().as_chunks::<2>().0.iter();
        digits
            .map(|pair| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap())
            .collect()
    }
    let text = include_str!("reference_blocks.txt");
    let mut seen = Vec::new();
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        let mut fields = line.split(' ');
        let name = fields.next().unwrap();
        let dtype = TensorType::ALL.into_iter().find(|t| t.as_str() == name).unwrap();
        let blocks = bytes(fields.next().unwrap());
        let expected = bytes(fields.next().unwrap());
        let expected: Vec<f32> = expected
            .as_chunks::<4>()
            .0
            .iter()
            .map(|b| f32::from_le_bytes(*b))
            .collect();
        let mut got = vec![f32::NAN; expected.len()];
        dequant::dequantise(dtype, &blocks, &mut got).unwrap();
        for (at, (got, expected)) in got.iter().zip(&expected).enumerate() {
            // The sign of a zero is not part of the formats.
            let equal = got.to_bits() == expected.to_bits() || (got.abs() + expected.abs()).to_bits() == 0;
            assert!(equal, "{name} value {at}: {got} {expected}");
        }
        seen.push(dtype);
    }
    assert_eq!(seen, TensorType::ALL[1..], "every type but F32");
}

#[test]
fn parts_stack_and_row_orders_apply() {
    let mut random = Random(2);
    let cols = 256;
    let parts = [
        (TensorType::Q4_K, 20),
        (TensorType::Q6_K, 5),
        (TensorType::F32, 33),
    ];
    let bytes: Vec<Vec<u8>> = parts
        .iter()
        .map(|&(dtype, rows)| random.blocks(dtype, rows * cols))
        .collect();
    let order: Vec<u32> = (0..20).rev().collect();
    let sources: Vec<PackSource<'_>> = parts
        .iter()
        .zip(&bytes)
        .map(|(&(dtype, rows), bytes)| PackSource {
            dtype,
            held: dtype,
            rows,
            cols,
            bytes,
            row_order: (rows == 20).then_some(&order[..]),
        })
        .collect();
    let packed = PackedMatrix::pack(&sources, false).unwrap();
    assert_eq!((packed.rows(), packed.cols()), (58, 256));
    assert_eq!(
        packed.format_bytes().keys().collect::<Vec<_>>(),
        ["F32 (R16)", "Q4_K (R16)", "Q6_K (R16)"]
    );
    let mut first = 0;
    let mut row = vec![0.0; cols];
    for (&(dtype, rows), bytes) in parts.iter().zip(&bytes) {
        let mut values = vec![0.0; rows * cols];
        dequant::dequantise(dtype, bytes, &mut values).unwrap();
        for index in 0..rows {
            packed.row_f32(first + index, &mut row);
            let from = if rows == 20 { 19 - index } else { index };
            assert!(same_bits(&row, &values[from * cols..(from + 1) * cols]));
        }
        first += rows;
    }
}

#[test]
fn bad_sources_are_refused() {
    let bytes = vec![0u8; 18 * 4];
    let good = PackSource {
        dtype: TensorType::Q4_0,
        held: TensorType::Q4_0,
        rows: 2,
        cols: 64,
        bytes: &bytes,
        row_order: None,
    };
    assert!(PackedMatrix::pack(&[good], false).is_ok());
    let bad = [
        PackSource { cols: 63, ..good },
        PackSource { rows: 3, ..good },
        PackSource {
            rows: 0,
            bytes: &[],
            ..good
        },
        PackSource {
            cols: 0,
            bytes: &[],
            ..good
        },
        PackSource {
            row_order: Some(&[0, 2]),
            ..good
        },
        PackSource {
            row_order: Some(&[0]),
            ..good
        },
        PackSource {
            dtype: TensorType::Q4_K,
            held: TensorType::Q4_K,
            ..good
        },
        PackSource {
            rows: usize::MAX,
            ..good
        },
    ];
    for source in bad {
        let refused = PackedMatrix::pack(&[source], false).unwrap_err();
        assert_eq!(refused.code, Code::ModelMalformed, "{source:?}");
    }
    assert!(PackedMatrix::pack(&[], false).is_err());
    let narrow = PackSource {
        cols: 32,
        rows: 4,
        ..good
    };
    assert!(PackedMatrix::pack(&[good, narrow], false).is_err());
    assert!(dequant::dequantise(TensorType::Q4_0, &bytes, &mut [0.0; 33]).is_err());
    assert_eq!(dequant::row_bytes(TensorType::F32, usize::MAX), None);
}
