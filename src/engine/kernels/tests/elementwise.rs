//! Element-wise functions against f64.

use super::*;
use crate::model::card::Activation;

fn erfc(x: f64) -> f64 {
    // Continued fraction for large x, series for small: independent of the kernel's fit.
    if x < 0.0 {
        return 2.0 - erfc(-x);
    }
    if x < 2.5 {
        let (mut term, mut sum) = (x, x);
        for n in 1..200 {
            term *= -x * x / f64::from(n);
            sum += term / f64::from(2 * n + 1);
        }
        return 1.0 - sum * 2.0 / std::f64::consts::PI.sqrt();
    }
    let mut fraction = 0.0;
    for n in (1..200).rev() {
        fraction = f64::from(n) / 2.0 / (x + fraction);
    }
    (-x * x).exp() / std::f64::consts::PI.sqrt() / (x + fraction)
}

fn activation(kind: Activation, x: f64) -> f64 {
    match kind {
        Activation::Silu => x / (1.0 + (-x).exp()),
        Activation::GeluErf => 0.5 * x * erfc(-x / std::f64::consts::SQRT_2),
        Activation::GeluTanh => {
            let u = (2.0 / std::f64::consts::PI).sqrt() * (x + 0.044_715 * x * x * x);
            x / (1.0 + (-2.0 * u).exp())
        }
    }
}

#[test]
fn activations_are_close_to_exact() {
    let x: Vec<f32> = (-2000..=2000).map(|i| i as f32 * 0.004).collect();
    for table in tables() {
        for kind in [Activation::Silu, Activation::GeluErf, Activation::GeluTanh] {
            let up = vec![1.0; x.len()];
            let mut out = vec![0.0; x.len()];
            (table.vector.gated)(kind, &x, &up, &mut out);
            for (&x, &got) in x.iter().zip(&out) {
                let exact = activation(kind, f64::from(x));
                let error = (f64::from(got) - exact).abs();
                // gelu_tanh: the argument of e grows with x³ and its rounding with it.
                assert!(
                    error <= exact.abs() * 8e-6 && error <= 2e-6,
                    "{} {kind:?}({x}): {got} {exact}",
                    table.name()
                );
            }
            for wild in [f32::MAX, f32::MIN, f32::INFINITY] {
                let mut out = [0.0];
                (table.vector.gated)(kind, &[wild], &[1.0], &mut out);
                assert!(
                    if wild > 0.0 {
                        out[0].to_bits() == wild.to_bits()
                    } else {
                        out[0].abs() < 2.0
                    },
                    "{kind:?}({wild}) = {}",
                    out[0]
                );
            }
        }
    }
}

#[test]
fn softmax_of_blocks_equals_softmax_of_all() {
    let mut random = Random(10);
    for table in tables() {
        let scores: Vec<f32> = (0..256).map(|_| random.unit() * 30.0).collect();
        let (mut maximum, mut sum) = (f32::NEG_INFINITY, 0.0);
        let mut weights: Vec<f32> = Vec::new();
        for block in scores.chunks(64) {
            let mut block = block.to_vec();
            block[7] = f32::NEG_INFINITY;
            let correction = (table.vector.softmax_step)(&mut block, 0.5, &mut maximum, &mut sum);
            for weight in &mut weights {
                *weight *= correction;
            }
            weights.extend(block);
        }
        let exact: Vec<f64> = scores
            .iter()
            .enumerate()
            .map(|(i, &s)| {
                if i % 64 == 7 {
                    0.0
                } else {
                    (f64::from(s) * 0.5).exp()
                }
            })
            .collect();
        let total: f64 = exact.iter().sum();
        for (got, exact) in weights.iter().zip(exact) {
            let got = f64::from(*got) / f64::from(sum);
            assert!(
                (got - exact / total).abs() <= 1e-6 * (exact / total) + 1e-12,
                "{got} {}",
                exact / total
            );
        }
    }
}

#[test]
fn norms_rotations_and_sums_are_right() {
    let mut random = Random(11);
    let team = team(2);
    for table in tables() {
        for width in [1, 16, 100, 576] {
            let x = random.units(width * 40);
            let w = random.units(width);
            let mut out = vec![0.0; x.len()];
            table.rms_norm(&team, &x, &w, 1e-5, &mut out);
            let mut here = x.clone();
            table.rms_norm_here(&mut here, &w, 1e-5);
            assert!(same_bits(&out, &here));
            for (row, got) in x.chunks(width).zip(out.chunks(width)) {
                let square: f64 = row.iter().map(|v| f64::from(*v).powi(2)).sum::<f64>() / width as f64;
                for ((x, w), got) in row.iter().zip(&w).zip(got) {
                    let exact = f64::from(*x) / (square + 1e-5).sqrt() * f64::from(*w);
                    assert!((f64::from(*got) - exact).abs() <= 1e-6 * exact.abs() + 1e-12);
                }
            }
        }
        let mut heads = random.units(2 * 20);
        let before = heads.clone();
        let angles: Vec<f32> = random.units(8);
        let cos: Vec<f32> = angles.iter().map(|a| a.cos()).collect();
        let sin: Vec<f32> = angles.iter().map(|a| a.sin()).collect();
        table.rope(&mut heads, 20, &cos, &sin);
        for head in 0..2 {
            for i in 0..8 {
                let (a, b) = (before[head * 20 + i], before[head * 20 + 8 + i]);
                assert!((heads[head * 20 + i] - (a * cos[i] - b * sin[i])).abs() < 1e-6);
                assert!((heads[head * 20 + 8 + i] - (a * sin[i] + b * cos[i])).abs() < 1e-6);
            }
            assert!(same_bits(
                &heads[head * 20 + 16..head * 20 + 20],
                &before[head * 20 + 16..head * 20 + 20]
            ));
        }
        let mut sum = random.units(50_000);
        let (first, second) = (sum.clone(), random.units(50_000));
        table.add_assign(&team, &mut sum, &second);
        assert!(
            sum.iter()
                .zip(first.iter().zip(&second))
                .all(|(s, (a, b))| s.to_bits() == (a + b).to_bits())
        );
        let mut capped: Vec<f32> = sum.iter().map(|x| x * 60.0).collect();
        table.softcap(&team, &mut capped, 30.0);
        for (x, got) in sum.iter().zip(&capped) {
            let exact = (f64::from(x * 60.0) / 30.0).tanh() * 30.0;
            assert!((f64::from(*got) - exact).abs() < 1e-5, "{got} {exact}");
        }
    }
}

#[test]
fn gated_rows_split_gate_and_up() {
    let mut random = Random(12);
    let (tokens, ffn) = (9, 3000);
    let gate_up = random.units(tokens * 2 * ffn);
    let teams = [team(1), team(3)];
    for table in tables() {
        let [one, three] = teams.each_ref().map(|team| {
            let mut out = vec![0.0; tokens * ffn];
            table.gated(team, Activation::Silu, &gate_up, ffn, &mut out);
            out
        });
        assert!(same_bits(&one, &three));
        for (t, i) in [(0, 0), (8, 2999), (4, 17)] {
            let (gate, up) = (gate_up[t * 2 * ffn + i], gate_up[t * 2 * ffn + ffn + i]);
            let exact = activation(Activation::Silu, f64::from(gate)) * f64::from(up);
            assert!((f64::from(one[t * ffn + i]) - exact).abs() < 1e-6);
        }
    }
}

#[test]
fn argmax_takes_the_first_and_never_nan() {
    let kernels = select("best").unwrap();
    assert_eq!(kernels.argmax(&[]), None);
    assert_eq!(kernels.argmax(&[1.0, 3.0, 3.0, 2.0]), Some(1));
    assert_eq!(kernels.argmax(&[f32::NAN, -5.0, f32::NAN, -4.0]), Some(3));
    assert_eq!(kernels.argmax(&[f32::NEG_INFINITY; 3]), Some(0));
}

#[test]
fn snake_is_close_to_exact_over_its_range() {
    let mut random = Random(13);
    let team = team(2);
    for table in tables() {
        for channels in [1, 4, 96, 768] {
            let rows = 60;
            let alpha: Vec<f32> = (0..channels).map(|_| (random.unit() * 2.0).exp()).collect();
            let inverse_beta: Vec<f32> = (0..channels).map(|_| (random.unit() * 3.0).exp()).collect();
            for size in [0.01, 1.0, 30.0, 1000.0] {
                let x: Vec<f32> = (0..rows * channels).map(|_| random.unit() * size).collect();
                let mut out = vec![f32::NAN; x.len()];
                table.snake(&team, &x, &alpha, &inverse_beta, &mut out);
                for (at, (&x, &got)) in x.iter().zip(&out).enumerate() {
                    let (alpha, factor) = (alpha[at % channels], inverse_beta[at % channels]);
                    // The product is rounded to f32 before the sine, here as in every f32 implementation.
                    let exact = f64::from(x) + f64::from(x * alpha).sin().powi(2) * f64::from(factor);
                    let bound = 6e-7 * f64::from(factor) + 1.2e-7 * exact.abs();
                    assert!(
                        (f64::from(got) - exact).abs() <= bound,
                        "{} snake({x}, {alpha}, {factor}): {got} {exact}",
                        table.name()
                    );
                }
            }
        }
    }
}

#[test]
fn activations_in_place_are_the_gated_ones_with_a_gate_of_one() {
    let mut random = Random(14);
    let team = team(2);
    let x: Vec<f32> = (0..20_000).map(|_| random.unit() * 8.0).collect();
    let ones = vec![1.0; x.len()];
    for table in tables() {
        for kind in [Activation::Silu, Activation::GeluErf, Activation::GeluTanh] {
            let mut gated = vec![0.0; x.len()];
            (table.vector.gated)(kind, &x, &ones, &mut gated);
            let mut here = x.clone();
            table.activate(&team, kind, &mut here);
            assert!(same_bits(&here, &gated));
        }
    }
}
