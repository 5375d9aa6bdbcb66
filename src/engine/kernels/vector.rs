//! Element-wise mathematics, written once over fixed-width lanes and compiled per instruction set.
//!
//! In: slices. Out: slices. `FMA` says whether the instruction set fuses multiply and add.
//! Invariant: every sum has one fixed order, so a result never depends on how many rows are processed together.
//! Bounds: `exp` 2e-7 relative, the activations 2e-6 relative, `sine` 3e-7 absolute within ±8192 (checked against f64
//! in the tests).

#![allow(
    clippy::inline_always,
    reason = "bodies must become part of the `target_feature` function that wraps them"
)]
#![allow(
    clippy::excessive_precision,
    reason = "published coefficients, digit for digit"
)]

use super::layout::GROUP;
use crate::model::card::Activation;

/// Lanes of a step: the widest registers.
const LANES: usize = 16;

/// Values, codes; returns scale and code sums.
type Quantise = fn(&[f32; GROUP], &mut [i8; GROUP]) -> (f32, [i32; 2]);
/// Scores, factor, running maximum, running sum; returns the correction of what was accumulated before.
type SoftmaxStep = fn(&mut [f32], f32, &mut f32, &mut f32) -> f32;

/// Rows, two factors a channel, results.
type Snake = fn(&[f32], &[f32], &[f32], &mut [f32]);

/// The entries of a kernel table that are compiled from this file.
#[derive(Clone, Copy)]
pub(super) struct Vector {
    /// 32 values to codes with scale `max|x| / 127`; returns the scale and the code sums of both halves.
    pub quantise: Quantise,
    /// `x / sqrt(mean(x²) + eps) · w` of one row.
    pub rms_norm: fn(&mut [f32], &[f32], f32),
    /// `x += y`.
    pub add_assign: fn(&mut [f32], &[f32]),
    /// `x = x · factor`.
    pub scale: fn(&mut [f32], f32),
    /// `x = tanh(x / cap) · cap`.
    pub softcap: fn(&mut [f32], f32),
    /// `out = activation(gate) · up`.
    pub gated: fn(Activation, &[f32], &[f32], &mut [f32]),
    /// `x = activation(x)`.
    pub activate: fn(Activation, &mut [f32]),
    /// Rows of channels: see [`snake`].
    pub snake: Snake,
    /// NEOX rotation of one head: pairs (i, i + n) with n = cos.len().
    pub rotate: fn(&mut [f32], &[f32], &[f32]),
    /// One block of an online softmax: see [`softmax_step`].
    pub softmax_step: SoftmaxStep,
}

#[inline(always)]
fn fused<const FMA: bool>(a: f32, b: f32, c: f32) -> f32 {
    if FMA { a.mul_add(b, c) } else { a * b + c }
}

/// e^x for x in −87.3..=88.3; beyond, the value at the end of the range.
#[inline(always)]
fn exp<const FMA: bool>(x: f32) -> f32 {
    let x = x.clamp(-87.3, 88.3);
    // Adding and subtracting 1.5·2^23 rounds to the nearest whole number.
    const ROUND: f32 = 12_582_912.0;
    let shifted = fused::<FMA>(x, std::f32::consts::LOG2_E, ROUND);
    let n = shifted - ROUND;
    // ln 2 in two parts: the first has few enough bits that n · part is exact.
    let r = fused::<FMA>(n, -0.693_359_4, x);
    let r = fused::<FMA>(n, 2.121_944_4e-4, r);
    // Taylor coefficients up to r^7/7!: |r| ≤ 0.347 leaves 2e-9.
    let mut p = 1.0 / 5040.0;
    for c in [1.0 / 720.0, 1.0 / 120.0, 1.0 / 24.0, 1.0 / 6.0, 0.5, 1.0, 1.0] {
        p = fused::<FMA>(p, r, c);
    }
    let power = (shifted.to_bits() << 23).wrapping_add(0x3f80_0000);
    p * f32::from_bits(power)
}

#[inline(always)]
fn silu<const FMA: bool>(x: f32) -> f32 {
    x / (1.0 + exp::<FMA>(-x))
}

#[inline(always)]
fn gelu_tanh<const FMA: bool>(x: f32) -> f32 {
    // 0.5 (1 + tanh u) = 1 / (1 + e^(−2u)), which loses no digits for negative u.
    let u = 0.797_884_6 * x * fused::<FMA>(0.044_715 * x, x, 1.0);
    x / (1.0 + exp::<FMA>(-2.0 * u))
}

#[inline(always)]
fn gelu_erf<const FMA: bool>(x: f32) -> f32 {
    // erfc(z) = t · e^(−z² + P(t)), t = 1 / (1 + z/2): the Chebyshev fit of Press et al., 1.2e-7 relative for z ≥ 0.
    // Beyond 30 the tail is 0 in f32; the bound keeps the infinite from becoming NaN.
    let size = x.abs().min(30.0);
    let z = size * std::f32::consts::FRAC_1_SQRT_2;
    let t = 1.0 / (1.0 + 0.5 * z);
    let mut p = 0.170_872_77;
    for c in [
        -0.822_152_23,
        1.488_515_87,
        -1.135_203_98,
        0.278_868_07,
        -0.186_288_06,
        0.096_784_18,
        0.374_091_96,
        1.000_023_68,
        -1.265_512_23,
    ] {
        p = fused::<FMA>(p, t, c);
    }
    // e^(−z²) with z² = x²/2 split so that its rounding error does not grow with z.
    let high = f32::from_bits(size.to_bits() & 0xffff_f000);
    let low = size - high;
    let tail = -0.5 * low * (2.0 * high + low);
    let erfc = t * exp::<FMA>(-0.5 * high * high) * exp::<FMA>(p + tail);
    let upper = if x < 0.0 { 0.5 * erfc } else { 1.0 - 0.5 * erfc };
    x * upper
}

#[inline(always)]
fn tanh<const FMA: bool>(y: f32) -> f32 {
    let e = exp::<FMA>(-2.0 * y.abs());
    ((1.0 - e) / (1.0 + e)).copysign(y)
}

/// sin x up to its sign, which a square forgets.
#[inline(always)]
fn sine<const FMA: bool>(x: f32) -> f32 {
    const ROUND: f32 = 12_582_912.0;
    let n = fused::<FMA>(x, std::f32::consts::FRAC_1_PI, ROUND) - ROUND;
    // pi in three parts; the first two have 11 bits, so that n times them is exact for |n| < 2^13.
    let r = fused::<FMA>(n, -3.140_625, x);
    let r = fused::<FMA>(n, -9.675_025_939_941_406e-4, r);
    let r = fused::<FMA>(n, -1.509_958_025_280_866_4e-7, r);
    // (sin r - r) / r^3 as a polynomial in r^2, interpolated at Chebyshev nodes of |r| <= pi/2: 4e-8.
    let u = r * r;
    let mut p = 2.634_756_356_201_251e-6;
    for c in [
        -1.982_273_970_497_772e-4,
        8.333_242_498_338_223e-3,
        -0.166_666_656_732_559_2,
    ] {
        p = fused::<FMA>(p, u, c);
    }
    fused::<FMA>(r * u, p, r)
}

/// `out = x + inverse_beta · sin²(alpha · x)`, one factor of each kind a channel, rows of channels.
#[inline(always)]
pub(super) fn snake<const FMA: bool>(x: &[f32], alpha: &[f32], inverse_beta: &[f32], out: &mut [f32]) {
    let channels = alpha.len().max(1);
    for (x, out) in x.chunks_exact(channels).zip(out.chunks_exact_mut(channels)) {
        for ((x, out), (alpha, factor)) in x.iter().zip(out).zip(alpha.iter().zip(inverse_beta)) {
            let sine = sine::<FMA>(x * alpha);
            *out = fused::<FMA>(sine * sine, *factor, *x);
        }
    }
}

#[inline(always)]
pub(super) fn activate<const FMA: bool>(activation: Activation, x: &mut [f32]) {
    match activation {
        Activation::Silu => x.iter_mut().for_each(|x| *x = silu::<FMA>(*x)),
        Activation::GeluTanh => x.iter_mut().for_each(|x| *x = gelu_tanh::<FMA>(*x)),
        Activation::GeluErf => x.iter_mut().for_each(|x| *x = gelu_erf::<FMA>(*x)),
    }
}

#[inline(always)]
pub(super) fn quantise(x: &[f32; GROUP], codes: &mut [i8; GROUP]) -> (f32, [i32; 2]) {
    let mut largest = [0f32; LANES];
    let (lanes, _) = x.as_chunks::<LANES>();
    for part in lanes {
        for (largest, x) in largest.iter_mut().zip(part) {
            *largest = largest.max(x.abs());
        }
    }
    let largest = largest.iter().fold(0f32, |a, &b| a.max(b));
    // Below this 127 / largest would overflow; such a group is zero for every practical purpose.
    if largest < 1e-35 {
        codes.fill(0);
        return (0.0, [0, 0]);
    }
    let inverse = 127.0 / largest;
    const ROUND: f32 = 12_582_912.0;
    for (code, x) in codes.iter_mut().zip(x) {
        // Round to nearest, ties to even, by the position of the unit bit; the low byte is the code.
        *code = (x * inverse + ROUND).to_bits() as i8;
    }
    let sum = |half: &[i8]| half.iter().map(|&code| i32::from(code)).sum();
    let (low, high) = codes.split_at(16);
    (largest / 127.0, [sum(low), sum(high)])
}

#[inline(always)]
pub(super) fn rms_norm<const FMA: bool>(x: &mut [f32], w: &[f32], eps: f32) {
    let mut squares = [0f32; LANES];
    let (lanes, rest) = x.as_chunks::<LANES>();
    for part in lanes {
        for (sum, x) in squares.iter_mut().zip(part) {
            *sum = fused::<FMA>(*x, *x, *sum);
        }
    }
    let mut total = sum_lanes(squares);
    for x in rest {
        total = fused::<FMA>(*x, *x, total);
    }
    let factor = 1.0 / (total / x.len() as f32 + eps).sqrt();
    for (x, w) in x.iter_mut().zip(w) {
        *x = *x * factor * w;
    }
}

#[inline(always)]
fn sum_lanes(mut lanes: [f32; LANES]) -> f32 {
    let mut width = LANES / 2;
    while width > 0 {
        for i in 0..width {
            lanes[i] += lanes[i + width];
        }
        width /= 2;
    }
    lanes[0]
}

#[inline(always)]
pub(super) fn add_assign(x: &mut [f32], y: &[f32]) {
    for (x, y) in x.iter_mut().zip(y) {
        *x += y;
    }
}

#[inline(always)]
pub(super) fn scale(x: &mut [f32], factor: f32) {
    for x in x {
        *x *= factor;
    }
}

#[inline(always)]
pub(super) fn softcap<const FMA: bool>(x: &mut [f32], cap: f32) {
    for x in x {
        *x = tanh::<FMA>(*x / cap) * cap;
    }
}

#[inline(always)]
pub(super) fn gated<const FMA: bool>(activation: Activation, gate: &[f32], up: &[f32], out: &mut [f32]) {
    let all = gate.iter().zip(up).zip(out.iter_mut());
    match activation {
        Activation::Silu => all.for_each(|((gate, up), out)| *out = silu::<FMA>(*gate) * up),
        Activation::GeluTanh => all.for_each(|((gate, up), out)| *out = gelu_tanh::<FMA>(*gate) * up),
        Activation::GeluErf => all.for_each(|((gate, up), out)| *out = gelu_erf::<FMA>(*gate) * up),
    }
}

#[inline(always)]
pub(super) fn rotate<const FMA: bool>(head: &mut [f32], cos: &[f32], sin: &[f32]) {
    let (first, second) = head.split_at_mut(cos.len());
    let pairs = first.iter_mut().zip(second.iter_mut());
    for ((a, b), (cos, sin)) in pairs.zip(cos.iter().zip(sin)) {
        let (x, y) = (*a, *b);
        *a = fused::<FMA>(x, *cos, -(y * sin));
        *b = fused::<FMA>(x, *sin, y * cos);
    }
}

/// Turns a block of scores into weights relative to the running maximum and updates maximum and sum.
///
/// In: scores times `factor`, −∞ where masked. Out: `e^(score − maximum)`, 0 where masked; returns by how much what
/// was accumulated before must be multiplied. `scores.len()` is a multiple of 16.
#[inline(always)]
pub(super) fn softmax_step<const FMA: bool>(
    scores: &mut [f32],
    factor: f32,
    maximum: &mut f32,
    sum: &mut f32,
) -> f32 {
    let mut largest = [f32::NEG_INFINITY; LANES];
    let (lanes, _) = scores.as_chunks_mut::<LANES>();
    for part in lanes.iter_mut() {
        for (largest, score) in largest.iter_mut().zip(part) {
            *score *= factor;
            *largest = largest.max(*score);
        }
    }
    let block = largest.iter().fold(f32::NEG_INFINITY, |a, &b| a.max(b));
    let new = maximum.max(block);
    let correction = if *maximum == f32::NEG_INFINITY {
        0.0
    } else {
        exp::<FMA>(*maximum - new)
    };
    let mut sums = [0f32; LANES];
    for part in lanes {
        for (sum, score) in sums.iter_mut().zip(part) {
            let weight = exp::<FMA>(*score - new);
            *score = if *score == f32::NEG_INFINITY { 0.0 } else { weight };
            *sum += *score;
        }
    }
    *sum = fused::<FMA>(*sum, correction, sum_lanes(sums));
    *maximum = new;
    correction
}

/// Compiles this file's functions for a set of CPU features; the result is reachable only through a `table()` that
/// has checked them.
#[allow(
    unused_macros,
    reason = "used by the files of the target's own instruction sets"
)]
macro_rules! vector_for {
    ($features:literal) => {
        vector_for!(@function $features, quantise, (x: &[f32; 32], codes: &mut [i8; 32]) -> (f32, [i32; 2]), quantise);
        vector_for!(@function $features, rms_norm, (x: &mut [f32], w: &[f32], eps: f32) -> (), rms_norm::<true>);
        vector_for!(@function $features, add_assign, (x: &mut [f32], y: &[f32]) -> (), add_assign);
        vector_for!(@function $features, scale, (x: &mut [f32], factor: f32) -> (), scale);
        vector_for!(@function $features, softcap, (x: &mut [f32], cap: f32) -> (), softcap::<true>);
        vector_for!(@function $features, gated,
            (activation: $crate::model::card::Activation, gate: &[f32], up: &[f32], out: &mut [f32]) -> (),
            gated::<true>);
        vector_for!(@function $features, activate,
            (activation: $crate::model::card::Activation, x: &mut [f32]) -> (), activate::<true>);
        vector_for!(@function $features, snake,
            (x: &[f32], alpha: &[f32], inverse_beta: &[f32], out: &mut [f32]) -> (), snake::<true>);
        vector_for!(@function $features, rotate, (head: &mut [f32], cos: &[f32], sin: &[f32]) -> (), rotate::<true>);
        vector_for!(@function $features, softmax_step,
            (scores: &mut [f32], factor: f32, maximum: &mut f32, sum: &mut f32) -> f32,
            softmax_step::<true>);
        const VECTOR: $crate::engine::kernels::vector::Vector = $crate::engine::kernels::vector::Vector {
            quantise, rms_norm, add_assign, scale, softcap, gated, activate, snake, rotate, softmax_step,
        };
    };
    (@function $features:literal, $name:ident, ($($arg:ident: $kind:ty),*) -> $out:ty, $($body:tt)+) => {
        fn $name($($arg: $kind),*) -> $out {
            #[target_feature(enable = $features)]
            fn compiled($($arg: $kind),*) -> $out {
                $crate::engine::kernels::vector::$($body)+($($arg),*)
            }
            // SAFETY: reachable only through `table()`, which checked the features.
            unsafe { compiled($($arg),*) }
        }
    };
}
#[allow(
    unused_imports,
    reason = "used by the files of the target's own instruction sets"
)]
pub(super) use vector_for;
