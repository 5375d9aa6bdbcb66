//! AVX-VNNI: 256-bit registers with the four-products-a-lane instruction, for CPUs without AVX-512.
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

vector_for!("avx2,fma,f16c,avxvnni");
ymm_kernels!("avx2,fma,f16c,avxvnni");

/// The table, if this CPU has every feature named on its functions.
pub(super) fn table() -> Option<Kernels> {
    let has = is_x86_feature_detected!("avx2")
        && is_x86_feature_detected!("fma")
        && is_x86_feature_detected!("f16c")
        && is_x86_feature_detected!("avxvnni");
    has.then_some(Kernels {
        name: "x86_64-avx_vnni",
        cap: "avx_vnni",
        dot,
        accumulate,
        extends: None,
        bf16_pairs: false,
        vector: VECTOR,
    })
}

/// `fold + Σ codes · x` over quads `first..last` for 8 rows.
///
/// # Safety
/// `x` holds 8 groups of four codes.
#[inline]
#[target_feature(enable = "avx2,fma,f16c,avxvnni")]
unsafe fn sum_of_quads(
    _packing: Packing,
    codes: &[__m256i; 8],
    x: *const i32,
    first: usize,
    last: usize,
    fold: i32,
) -> __m256i {
    let mut sum = _mm256_set1_epi32(fold);
    for quad in first..last {
        // SAFETY: quad < 8.
        let x = _mm256_set1_epi32(unsafe { x.add(quad).read_unaligned() });
        sum = _mm256_dpbusd_avx_epi32(sum, codes[quad], x);
    }
    sum
}
