//! Matrix products: tables against each other, against f64, and against themselves in other passes and teams.

use super::*;

const TOKENS: [usize; 6] = [1, 2, 3, 7, 16, 33];

fn product(kernels: &Kernels, team: &Team, matrix: &PackedMatrix, x: &[f32], tokens: usize) -> Vec<f32> {
    let mut input = Activations::new();
    input.load(kernels, team, x, tokens, matrix.cols(), matrix.needs());
    let mut out = vec![f32::NAN; tokens * matrix.rows()];
    kernels.linear(team, matrix, &input, &mut out);
    out
}

/// Largest relative error of rounding to 8 significant bits.
const BF16_ROUNDING: f32 = 1.0 / 512.0;

fn is_float(dtype: TensorType) -> bool {
    dtype.block_len() == 1
}

#[test]
fn tables_agree_with_scalar() {
    let mut random = Random(3);
    let alone = team(1);
    let scalar = select("scalar").unwrap();
    for dtype in TensorType::ALL {
        for rows in [1, 16, 53, 160] {
            let cols = some_cols(dtype);
            let (matrix, values) = matrix(&mut random, dtype, rows, cols);
            for tokens in TOKENS {
                let x = random.units(tokens * cols);
                let expected = product(scalar, &alone, &matrix, &x, tokens);
                assert!(expected.iter().all(|v| v.is_finite()));
                for table in tables() {
                    let got = product(table, &alone, &matrix, &x, tokens);
                    if !is_float(dtype) {
                        assert!(
                            same_bits(&got, &expected),
                            "{} {dtype:?} {rows}×{cols} T={tokens}",
                            table.name()
                        );
                        continue;
                    }
                    for (at, (got, expected)) in got.iter().zip(&expected).enumerate() {
                        let (token, row) = (at / rows, at % rows);
                        let size: f32 = (0..cols)
                            .map(|c| (values[row * cols + c] * x[token * cols + c]).abs())
                            .sum();
                        let rounded = table.bf16_pairs && dtype == TensorType::BF16;
                        let bound =
                            size * (cols as f32 * f32::EPSILON + if rounded { BF16_ROUNDING } else { 0.0 });
                        assert!(
                            (got - expected).abs() <= bound,
                            "{} {dtype:?}: {got} {expected}",
                            table.name()
                        );
                    }
                }
            }
        }
    }
}

#[test]
fn products_are_right_where_activations_are_exact() {
    let mut random = Random(4);
    let alone = team(1);
    for dtype in TensorType::ALL {
        let (rows, cols, tokens) = (21, some_cols(dtype), 3);
        let (matrix, values) = matrix(&mut random, dtype, rows, cols);
        // Whole numbers with one ±127 in every 32: their codes are themselves.
        let x: Vec<f32> = (0..tokens * cols)
            .map(|at| {
                if at % cols % 32 == 5 {
                    127.0
                } else {
                    (random.next() % 255) as f32 - 127.0
                }
            })
            .collect();
        for table in tables() {
            let got = product(table, &alone, &matrix, &x, tokens);
            for (at, got) in got.iter().enumerate() {
                let (token, row) = (at / rows, at % rows);
                let terms =
                    (0..cols).map(|c| f64::from(values[row * cols + c]) * f64::from(x[token * cols + c]));
                let (sum, size) = terms.fold((0.0, 0.0), |(s, a), t| (s + t, a + t.abs()));
                // Each group adds a few roundings of the size of its part; mins cancel against scales.
                let bound = size * 4.0 * cols as f64 * f64::from(f32::EPSILON) + 1e-30;
                assert!(
                    (f64::from(*got) - sum).abs() <= bound,
                    "{} {dtype:?}: {got} {sum}",
                    table.name()
                );
            }
        }
    }
}

#[test]
fn passes_and_teams_do_not_change_a_bit() {
    let mut random = Random(5);
    let teams: Vec<Team> = [1, 2, 3].map(team).into_iter().collect();
    for dtype in TensorType::ALL {
        // Large enough for the team to be woken.
        let (rows, cols, tokens) = (131, some_cols(dtype), 33);
        let (matrix, _) = matrix(&mut random, dtype, rows, cols);
        let x = random.units(tokens * cols);
        for table in tables() {
            let whole = product(table, &teams[0], &matrix, &x, tokens);
            for team in &teams[1..] {
                assert!(
                    same_bits(&product(table, team, &matrix, &x, tokens), &whole),
                    "{dtype:?}"
                );
            }
            for (first, count) in [(0, 1), (5, 1), (32, 1), (3, 2), (9, 7), (1, 19)] {
                let part = product(
                    table,
                    &teams[1],
                    &matrix,
                    &x[first * cols..(first + count) * cols],
                    count,
                );
                let same = same_bits(&part, &whole[first * rows..(first + count) * rows]);
                assert!(same, "{} {dtype:?} tokens {first}+{count}", table.name());
            }
        }
    }
}

#[test]
fn bf16_tables_round_activations_of_bf16_weights_and_nothing_else() {
    let rounding: Vec<&Kernels> = tables().iter().filter(|table| table.bf16_pairs).collect();
    if rounding.is_empty() {
        eprintln!("SKIPPED bf16_tables_round_activations: this CPU has no BF16 products");
    }
    let mut random = Random(10);
    let alone = team(1);
    for table in rounding {
        for dtype in [TensorType::BF16, TensorType::F16, TensorType::F32] {
            // The odd last column is a pair with nothing.
            let (rows, cols, tokens) = (37, 301, 5);
            let (matrix, values) = matrix(&mut random, dtype, rows, cols);
            let x = random.units(tokens * cols);
            let got = product(table, &alone, &matrix, &x, tokens);
            for (at, got) in got.iter().enumerate() {
                let (token, row) = (at / rows, at % rows);
                let sum_of = |meets: &dyn Fn(f32) -> f32| -> (f64, f64) {
                    let terms = (0..cols)
                        .map(|c| f64::from(values[row * cols + c]) * f64::from(meets(x[token * cols + c])));
                    terms.fold((0.0, 0.0), |(s, a), t| (s + t, a + t.abs()))
                };
                let (exact, size) = sum_of(&|x| x);
                let (rounded, _) = sum_of(&|x| half::bf16::from_f32(x).to_f32());
                let sums = size * cols as f64 * f64::from(f32::EPSILON);
                let near = |to: f64, bound: f64| (f64::from(*got) - to).abs() <= bound;
                if dtype == TensorType::BF16 {
                    assert!(near(rounded, sums), "{}: {got} {rounded}", table.name());
                    assert!(near(exact, sums + size * f64::from(BF16_ROUNDING)));
                } else {
                    assert!(near(exact, sums), "{} {dtype:?}: {got} {exact}", table.name());
                }
            }
        }
    }
}

#[test]
fn several_types_in_one_matrix_multiply_as_apart() {
    let mut random = Random(6);
    let cols = 256;
    let types = [
        TensorType::Q4_K,
        TensorType::Q6_K,
        TensorType::F16,
        TensorType::BF16,
        TensorType::Q8_0,
    ];
    let bytes: Vec<Vec<u8>> = types.iter().map(|&t| random.blocks(t, 40 * cols)).collect();
    let sources: Vec<PackSource<'_>> = types
        .iter()
        .zip(&bytes)
        .map(|(&dtype, bytes)| PackSource {
            dtype,
            held: dtype,
            rows: 40,
            cols,
            bytes,
            row_order: None,
        })
        .collect();
    let together = PackedMatrix::pack(&sources, false).unwrap();
    let x = random.units(5 * cols);
    let team = team(2);
    for table in tables() {
        let all = product(table, &team, &together, &x, 5);
        for (part, source) in sources.iter().enumerate() {
            let alone = PackedMatrix::pack(&[*source], false).unwrap();
            let rows = product(table, &team, &alone, &x, 5);
            for token in 0..5 {
                let from = token * together.rows() + part * 40;
                assert!(same_bits(
                    &all[from..from + 40],
                    &rows[token * 40..(token + 1) * 40]
                ));
            }
        }
    }
}

#[test]
fn extremes_neither_panic_nor_differ() {
    let mut random = Random(7);
    let alone = team(1);
    let scalar = select("scalar").unwrap();
    for dtype in TensorType::ALL.into_iter().filter(|&t| !is_float(t)) {
        let (rows, cols) = (16, dtype.block_len() * 2);
        // All bits set in the codes, then random bytes everywhere (NaN and infinite scales).
        for wild in [false, true] {
            let mut bytes = random.blocks(dtype, rows * cols);
            for byte in &mut bytes {
                if wild {
                    *byte = random.next() as u8;
                }
            }
            let source = PackSource {
                dtype,
                held: dtype,
                rows,
                cols,
                bytes: &bytes,
                row_order: None,
            };
            let matrix = PackedMatrix::pack(&[source], false).unwrap();
            for value in [0.0, -0.0, 1e-44, 1e-36, 3e38, -3e38, 1.0] {
                let x = vec![value; cols];
                let expected = product(scalar, &alone, &matrix, &x, 1);
                for table in tables() {
                    let got = product(table, &alone, &matrix, &x, 1);
                    assert!(same_bits(&got, &expected), "{} {dtype:?} {value}", table.name());
                }
            }
            for value in [f32::NAN, f32::INFINITY] {
                let mut x = vec![1.0; cols];
                x[3] = value;
                for table in tables() {
                    product(table, &alone, &matrix, &x, 1);
                }
            }
        }
    }
}

#[test]
fn activations_are_the_same_in_every_table() {
    let mut random = Random(8);
    let scalar = select("scalar").unwrap();
    for _ in 0..200 {
        let scale = 10f32.powi((random.next() % 20) as i32 - 10);
        let x: [f32; 32] = std::array::from_fn(|_| random.unit() * scale);
        let mut expected = [0i8; 32];
        let of_scalar = (scalar.vector.quantise)(&x, &mut expected);
        let largest = x.iter().fold(0f32, |a, b| a.max(b.abs()));
        for (x, code) in x.iter().zip(expected) {
            assert!((x - of_scalar.0 * f32::from(code)).abs() <= 0.501 * largest / 127.0);
        }
        assert_eq!(
            of_scalar.1[0],
            expected[..16].iter().map(|&c| i32::from(c)).sum::<i32>()
        );
        for table in tables() {
            let mut codes = [0i8; 32];
            assert_eq!((table.vector.quantise)(&x, &mut codes), of_scalar);
            assert_eq!(codes, expected);
        }
    }
}

#[test]
#[should_panic(expected = "activations loaded for other formats")]
fn activations_of_another_format_are_a_bug() {
    let (matrix, _) = matrix(&mut Random(9), TensorType::Q4_0, 16, 32);
    let kernels = select("best").unwrap();
    let mut x = Activations::new();
    x.load(kernels, &team(1), &[1.0; 32], 1, 32, Needs::of(TensorType::F32));
    kernels.linear(&team(1), &matrix, &x, &mut [0.0; 16]);
}
