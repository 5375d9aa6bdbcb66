//! Convolutions against their definitions, and streams against the whole.

use super::*;
use crate::base::CpuSet;
use crate::engine::kernels;

const EXACT: Held = Held {
    path: WeightPath::Native,
    huge_pages: false,
};

fn noise(count: usize, seed: u32) -> Vec<f32> {
    let mut state = seed;
    std::iter::repeat_with(|| {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 8) as f32 / (1 << 23) as f32 - 1.0
    })
    .take(count)
    .collect()
}

fn run(kernels: &Kernels, threads: usize, conv: &Conv, x: &[f32], tokens: usize) -> Vec<f32> {
    let team = Team::new("conv", &CpuSet::new(), threads, false).unwrap();
    let mut out = vec![f32::NAN; tokens * conv.output()];
    let mut run = ConvRun {
        kernels,
        team: &team,
        input: &mut Activations::new(),
    };
    conv.run(&mut run, x, &mut out, Store::Replace);
    out
}

fn close(got: &[f32], wanted: &[f64], bound: f64) {
    assert_eq!(got.len(), wanted.len());
    for (at, (got, wanted)) in got.iter().zip(wanted).enumerate() {
        assert!((f64::from(*got) - wanted).abs() <= bound, "{at}: {got} {wanted}");
    }
}

#[test]
fn plain_convolutions_follow_the_definition_in_every_table_and_team() {
    for (out, input, taps, dilation, tokens) in [
        (5, 3, 7, 1, 9),
        (33, 4, 7, 9, 150),
        (1, 6, 7, 3, 200),
        (16, 32, 1, 1, 1),
    ] {
        let w = noise(out * input * taps, 1);
        let bias = noise(out, 2);
        let conv = Conv::new(&w, &bias, (out, input, taps), dilation, EXACT).unwrap();
        assert_eq!(conv.halo(), (taps - 1) * dilation);
        let x = noise((tokens + conv.halo()) * input, 3);
        let wanted: Vec<f64> = (0..tokens * out)
            .map(|at| {
                let (t, o) = (at / out, at % out);
                let mut sum = f64::from(bias[o]);
                for c in 0..input {
                    for j in 0..taps {
                        let weight = f64::from(w[(o * input + c) * taps + j]);
                        sum += weight * f64::from(x[(t + j * dilation) * input + c]);
                    }
                }
                sum
            })
            .collect();
        let mut first: Option<Vec<f32>> = None;
        for name in kernels::available() {
            let kernels = kernels::select(name).unwrap();
            let one = run(kernels, 1, &conv, &x, tokens);
            close(&one, &wanted, 2e-5);
            assert_eq!(one, run(kernels, 3, &conv, &x, tokens), "{name}");
            first.get_or_insert(one);
        }
    }
}

#[test]
fn strided_and_transposed_convolutions_follow_their_definitions() {
    let kernels = kernels::select("best").unwrap();
    let (out, input, stride, tokens) = (6, 5, 4, 11);
    let kernel = 2 * stride;
    let w = noise(out * input * kernel, 4);
    let bias = noise(out, 5);
    let strided = Conv::strided(&w, &bias, (out, input, kernel), stride, EXACT).unwrap();
    // The halo is one wide row: `stride` rows of zeros on the left, as causal padding has them.
    let mut x = vec![0.0; stride * input];
    x.extend(noise(tokens * stride * input, 6));
    let wanted: Vec<f64> = (0..tokens * out)
        .map(|at| {
            let (t, o) = (at / out, at % out);
            let terms = (0..input * kernel).map(|n| {
                let (c, j) = (n / kernel, n % kernel);
                f64::from(w[(o * input + c) * kernel + j]) * f64::from(x[(t * stride + j) * input + c])
            });
            f64::from(bias[o]) + terms.sum::<f64>()
        })
        .collect();
    close(&run(kernels, 2, &strided, &x, tokens), &wanted, 2e-5);

    for kernel in [stride, 2 * stride] {
        let w = noise(input * out * kernel, 7);
        let conv = Conv::transposed(&w, &bias, (input, out, kernel), stride, EXACT).unwrap();
        let halo = kernel / stride - 1;
        let mut x = vec![0.0; halo * input];
        x.extend(noise(tokens * input, 8));
        let mut wanted = vec![0.0; (tokens + 1) * stride * out];
        for t in 0..tokens {
            for c in 0..input {
                for o in 0..out {
                    for j in 0..kernel {
                        wanted[(t * stride + j) * out + o] +=
                            f64::from(w[(c * out + o) * kernel + j]) * f64::from(x[(halo + t) * input + c]);
                    }
                }
            }
        }
        wanted.truncate(tokens * stride * out);
        for (at, value) in wanted.iter_mut().enumerate() {
            *value += f64::from(bias[at % out]);
        }
        close(&run(kernels, 1, &conv, &x, tokens), &wanted, 2e-5);
    }
}

#[test]
fn a_stream_in_any_parts_is_the_whole_bit_for_bit() {
    let team = Team::single().unwrap();
    let (out, input, taps, dilation, tokens) = (48, 64, 7, 3, 70);
    for path in WeightPath::ALL {
        let held = Held {
            path,
            huge_pages: false,
        };
        let conv = Conv::new(
            &noise(out * input * taps, 9),
            &noise(out, 10),
            (out, input, taps),
            dilation,
            held,
        )
        .unwrap();
        let x = noise(tokens * input, 11);
        for name in kernels::available() {
            let kernels = kernels::select(name).unwrap();
            let mut prepared = Activations::new();
            let mut run = ConvRun {
                kernels,
                team: &team,
                input: &mut prepared,
            };
            let mut decode = |parts: &[usize]| {
                let mut history = vec![0.0; conv.history()];
                let mut padded = Vec::new();
                let mut all = Vec::new();
                let mut at = 0;
                for &part in parts.iter().cycle() {
                    let part = part.min(tokens - at);
                    if part == 0 {
                        break;
                    }
                    let mut rows = vec![f32::NAN; part * out];
                    let new = &x[at * input..(at + part) * input];
                    let fill = |rows: &mut [f32]| rows.copy_from_slice(new);
                    conv.stream(
                        &mut run,
                        &mut history,
                        &mut padded,
                        fill,
                        &mut rows,
                        Store::Replace,
                    );
                    all.extend(rows);
                    at += part;
                }
                all
            };
            let whole = decode(&[tokens]);
            for parts in [&[1][..], &[7, 2], &[19, 33, 1]] {
                assert_eq!(decode(parts), whole, "{name} {path:?} {parts:?}");
            }
        }
    }
}

#[test]
fn lower_precision_stays_near_and_is_really_lower() {
    let (out, input, taps, tokens) = (48, 64, 7, 40);
    let (w, x) = (noise(out * input * taps, 12), noise((tokens + 6) * input, 13));
    let kernels = kernels::select("best").unwrap();
    let by = |path| {
        let held = Held {
            path,
            huge_pages: false,
        };
        let conv = Conv::new(&w, &[], (out, input, taps), 1, held).unwrap();
        run(kernels, 1, &conv, &x, tokens)
    };
    let exact = by(WeightPath::Native);
    let power: f32 = exact.iter().map(|x| x * x).sum();
    for (path, least, most) in [
        (WeightPath::Bf16, 45.0, 70.0),
        (WeightPath::W8a8, 38.0, 60.0),
        (WeightPath::W4a8, 15.0, 30.0),
    ] {
        let noise: f32 = exact.iter().zip(by(path)).map(|(a, b)| (a - b) * (a - b)).sum();
        let decibels = 10.0 * (power / noise).log10();
        assert!((least..most).contains(&decibels), "{path:?}: {decibels} dB");
    }
}

#[test]
fn a_format_that_cannot_cut_the_columns_is_not_used_and_that_is_reported() {
    let held = Held {
        path: WeightPath::W8a8,
        huge_pages: false,
    };
    let conv = Conv::new(&noise(4 * 20 * 3, 14), &[], (4, 20, 3), 1, held).unwrap();
    let mut formats = BTreeMap::new();
    conv.add_bytes(&mut formats);
    assert!(formats.contains_key("F32 (R16)") && !formats.contains_key("Q8_0 (R16)"));
    assert!(Conv::new(&[0.0; 5], &[], (1, 2, 3), 1, EXACT).is_err());
    assert!(Conv::strided(&[0.0; 6], &[], (1, 2, 3), 2, EXACT).is_err());
    assert!(Conv::new(&[0.0; 6], &[0.0; 2], (1, 2, 3), 1, EXACT).is_err());
}
