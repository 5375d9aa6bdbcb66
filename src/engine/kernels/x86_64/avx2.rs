//! AVX2 with FMA and F16C: 8-bit products in pairs, added up as 16-bit numbers as long as those cannot overflow.
//!
//! In: runs of R16 tiles and a panel. Out: `[tile][token][16 rows]`.
//! Invariant: the same results as the scalar table.

use std::arch::x86_64::*;

use super::super::attention::Accumulate;
use super::super::layout::{Codes, GROUP, Packing, Scales, TILE_ROWS};
use super::super::vector::vector_for;
use super::super::{Kernels, Run};
use super::ymm::ymm_kernels;
use crate::model::card::TensorType;

vector_for!("avx2,fma,f16c");
ymm_kernels!("avx2,fma,f16c");

/// The table, if this CPU has every feature named on its functions.
pub(super) fn table() -> Option<Kernels> {
    let has = is_x86_feature_detected!("avx2")
        && is_x86_feature_detected!("fma")
        && is_x86_feature_detected!("f16c");
    has.then_some(Kernels {
        name: "x86_64-avx2",
        cap: "avx2",
        dot,
        accumulate,
        extends: None,
        bf16_pairs: false,
        vector: VECTOR,
    })
}

/// `fold + Σ codes · x` over quads `first..last` for 8 rows.
///
/// A pair of products is at most 2 · code · 127: 3 810 for nibbles, 7 874 for 5 bits, 16 002 for 6, so 8, 4 and 2
/// pairs fit 16 signed bits. 8-bit codes do not; with offset 128 they are signed numbers w, and
/// w · x = |w| · (x with the sign of w) fits: 2 · 128 · 127 = 32 512. The fold then has nothing to take away.
///
/// # Safety
/// `x` holds 8 groups of four codes.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn sum_of_quads(
    packing: Packing,
    codes: &[__m256i; 8],
    x: *const i32,
    first: usize,
    last: usize,
    fold: i32,
) -> __m256i {
    let ones = _mm256_set1_epi16(1);
    // SAFETY: quad < 8 wherever this is called.
    let values = |quad: usize| _mm256_set1_epi32(unsafe { x.add(quad).read_unaligned() });
    if packing.offset == 128 {
        let mut sum = _mm256_setzero_si256();
        for quad in first..last {
            let weights = _mm256_xor_si256(codes[quad], _mm256_set1_epi8(-128));
            let pairs =
                _mm256_maddubs_epi16(_mm256_abs_epi8(weights), _mm256_sign_epi8(values(quad), weights));
            sum = _mm256_add_epi32(sum, _mm256_madd_epi16(pairs, ones));
        }
        return sum;
    }
    let at_once = match packing.codes {
        Codes::Nibble => 8,
        // MXFP4: codes up to 24.
        Codes::Five | Codes::Table(_) => 4,
        Codes::Six | Codes::Eight => 2,
    };
    let mut sum = _mm256_set1_epi32(fold);
    let mut from = first;
    while from < last {
        let to = last.min(from + at_once);
        let mut pairs = _mm256_setzero_si256();
        for quad in from..to {
            pairs = _mm256_add_epi16(pairs, _mm256_maddubs_epi16(codes[quad], values(quad)));
        }
        sum = _mm256_add_epi32(sum, _mm256_madd_epi16(pairs, ones));
        from = to;
    }
    sum
}
