//! Attention against f64, over rings, windows and both element types; the same bits in every pass.

use super::*;
use crate::plan::Dtype;

struct Case {
    heads: usize,
    kv_heads: usize,
    dim: usize,
    window: Option<usize>,
    dtype: Dtype,
}

const SCALE: f32 = 0.2;

/// Attention of `total` positions in passes of `pass` tokens; rows of heads × dim.
fn run(
    kernels: &Kernels,
    team: &Team,
    case: &Case,
    q: &[f32],
    k: &[f32],
    v: &[f32],
    pass: usize,
) -> Vec<f32> {
    let total = q.len() / (case.heads * case.dim);
    let slots = case.window.map_or(total, |window| window + pass - 1);
    let shape = KvShape::new(case.kv_heads, case.dim, slots, case.dtype).unwrap();
    let (mut keys, mut values) = (vec![0u8; shape.key_bytes()], vec![0u8; shape.value_bytes()]);
    let spec = AttentionSpec {
        shape,
        heads: case.heads,
        window: case.window,
        scale: SCALE,
    };
    let (width, kv_width) = (case.heads * case.dim, case.kv_heads * case.dim);
    let mut out = vec![f32::NAN; q.len()];
    for first in (0..total).step_by(pass) {
        let tokens = pass.min(total - first);
        for position in first..first + tokens {
            let at = position * kv_width..(position + 1) * kv_width;
            shape.store(&mut keys, &mut values, position, &k[at.clone()], &v[at]);
        }
        let input = AttentionInput {
            keys: &keys,
            values: &values,
            position: first,
            tokens,
            row: 0,
        };
        let rows = first * width..(first + tokens) * width;
        kernels.attention(team, &spec, &[input], &q[rows.clone()], width, &mut out[rows]);
    }
    out
}

fn round(x: f32, dtype: Dtype) -> f64 {
    match dtype {
        Dtype::F16 => half::f16::from_f32(x).to_f64(),
        _ => f64::from(x),
    }
}

fn exact(case: &Case, q: &[f32], k: &[f32], v: &[f32]) -> Vec<f64> {
    let (width, kv_width, dim) = (case.heads * case.dim, case.kv_heads * case.dim, case.dim);
    let stored = |x: &[f32]| -> Vec<f64> { x.iter().map(|&x| round(x, case.dtype)).collect() };
    let (k, v) = (stored(k), stored(v));
    let mut out = vec![0.0; q.len()];
    for position in 0..q.len() / width {
        for head in 0..case.heads {
            let kv = head / (case.heads / case.kv_heads);
            let first = case.window.map_or(0, |w| (position + 1).saturating_sub(w));
            let scores: Vec<f64> = (first..=position)
                .map(|j| {
                    (0..dim)
                        .map(|d| {
                            f64::from(q[position * width + head * dim + d]) * k[j * kv_width + kv * dim + d]
                        })
                        .sum::<f64>()
                        * f64::from(SCALE)
                })
                .collect();
            let most = scores.iter().fold(f64::MIN, |a, &b| a.max(b));
            let total: f64 = scores.iter().map(|s| (s - most).exp()).sum();
            for (j, score) in (first..=position).zip(&scores) {
                for d in 0..dim {
                    out[position * width + head * dim + d] +=
                        (score - most).exp() / total * v[j * kv_width + kv * dim + d];
                }
            }
        }
    }
    out
}

#[test]
fn attention_is_right_and_the_same_in_every_pass() {
    let mut random = Random(20);
    let shapes = [
        (4, 4, 16),
        (6, 2, 64),
        (3, 1, 24),
        (8, 1, 128),
        (4, 1, 80),
        (2, 1, 256),
    ];
    let teams = [team(1), team(2)];
    for (index, (heads, kv_heads, dim)) in shapes.into_iter().enumerate() {
        for window in [None, Some(30)] {
            let dtype = if index % 2 == 0 { Dtype::F16 } else { Dtype::F32 };
            let case = Case {
                heads,
                kv_heads,
                dim,
                window,
                dtype,
            };
            let total = 70;
            let q: Vec<f32> = random
                .units(total * heads * dim)
                .iter()
                .map(|x| x * 3.0)
                .collect();
            let k: Vec<f32> = random
                .units(total * kv_heads * dim)
                .iter()
                .map(|x| x * 3.0)
                .collect();
            let v = random.units(total * kv_heads * dim);
            let exact = exact(&case, &q, &k, &v);
            for table in tables() {
                let one = run(table, &teams[0], &case, &q, &k, &v, 1);
                // Scores reach 100: their rounding alone moves a weight by 1e-5.
                for (got, exact) in one.iter().zip(&exact) {
                    assert!(
                        (f64::from(*got) - exact).abs() < 3e-5,
                        "{} {got} {exact}",
                        table.name()
                    );
                }
                for pass in [7, 70] {
                    let many = run(table, &teams[pass % 2], &case, &q, &k, &v, pass);
                    assert!(
                        same_bits(&many, &one),
                        "{} dim {dim} window {window:?} pass {pass}",
                        table.name()
                    );
                }
            }
        }
    }
}

#[test]
fn several_sequences_do_not_mix() {
    let mut random = Random(21);
    let team = team(2);
    let case = Case {
        heads: 4,
        kv_heads: 2,
        dim: 32,
        window: None,
        dtype: Dtype::F16,
    };
    let shape = KvShape::new(2, 32, 64, Dtype::F16).unwrap();
    let lengths = [3usize, 9, 1];
    let data: Vec<[Vec<f32>; 3]> = lengths
        .iter()
        .map(|&n| [random.units(n * 128), random.units(n * 64), random.units(n * 64)])
        .collect();
    for table in tables() {
        let caches: Vec<(Vec<u8>, Vec<u8>)> = data
            .iter()
            .zip(lengths)
            .map(|([_, k, v], n)| {
                let mut cache = (vec![0; shape.key_bytes()], vec![0; shape.value_bytes()]);
                for p in 0..n {
                    let at = p * 64..(p + 1) * 64;
                    shape.store(&mut cache.0, &mut cache.1, p, &k[at.clone()], &v[at]);
                }
                cache
            })
            .collect();
        // The last token of each, its query in a wider row.
        let mut queries = vec![0.0; 3 * 200];
        for (row, ([q, ..], n)) in data.iter().zip(lengths).enumerate() {
            queries[row * 200..row * 200 + 128].copy_from_slice(&q[(n - 1) * 128..]);
        }
        let inputs: Vec<AttentionInput<'_>> = caches
            .iter()
            .zip(lengths)
            .enumerate()
            .map(|(row, ((keys, values), n))| AttentionInput {
                keys,
                values,
                position: n - 1,
                tokens: 1,
                row,
            })
            .collect();
        let spec = AttentionSpec {
            shape,
            heads: 4,
            window: None,
            scale: SCALE,
        };
        let mut out = vec![0.0; 3 * 128];
        table.attention(&team, &spec, &inputs, &queries, 200, &mut out);
        for (row, ([q, k, v], n)) in data.iter().zip(lengths).enumerate() {
            let alone = run(table, &team, &case, q, k, v, n);
            assert!(same_bits(
                &out[row * 128..(row + 1) * 128],
                &alone[(n - 1) * 128..]
            ));
        }
    }
}

#[test]
fn impossible_caches_are_refused() {
    for (heads, dim, positions, dtype) in [
        (0, 64, 64, Dtype::F16),
        (1, 64, 0, Dtype::F16),
        (1, 64, 64, Dtype::Bf16),
        (1, 64, usize::MAX, Dtype::F32),
        (usize::MAX, 64, 64, Dtype::F32),
    ] {
        assert!(KvShape::new(heads, dim, positions, dtype).is_err());
    }
    assert_eq!(
        KvShape::new(1, 20, 65, Dtype::F16).unwrap().value_bytes(),
        128 * 32 * 2
    );
}
