//! AVX-512 with BF16: two products a lane and instruction for BF16 weights; all else is the VNNI table's.
//!
//! In: runs of BF16 tiles and a panel with its values rounded to BF16, two columns to a word. Out: `[tile][token][16 rows]`.
//! Invariant: each (row, token) has one f32 accumulator fed pair by pair in rising order, whatever `NT` and `NR` are.
//! Checkpoints in BF16 were trained with BF16 activations, so this rounding is the models' own; weights of other types
//! never meet it.

use std::arch::x86_64::*;

use super::super::{Kernels, Run};
use super::avx512_vnni::{self, Product};
use crate::model::card::TensorType;

/// The table, if this CPU has every feature of the VNNI table and BF16 products.
pub(super) fn table() -> Option<Kernels> {
    let base = avx512_vnni::table()?;
    is_x86_feature_detected!("avx512bf16").then_some(Kernels {
        name: "x86_64-avx512_bf16",
        cap: "avx512_bf16",
        dot,
        extends: Some(base.name),
        bf16_pairs: true,
        ..base
    })
}

fn dot(run: &Run<'_>, out: &mut [f32]) {
    if run.dtype != TensorType::BF16 {
        return avx512_vnni::dot(run, out);
    }
    run.check(out.len());
    assert!(
        run.panel.holds_pairs(run.cols),
        "activations loaded by another kernel table"
    );
    // SAFETY: reachable only through `table()`, which checked the features; the bounds were just proved.
    unsafe { avx512_vnni::by_width::<Pairs>(run, out.as_mut_ptr()) }
}

/// BF16 weights times BF16 activations, two columns at a time.
struct Pairs;

impl Product for Pairs {
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx512bf16,avx2,fma,f16c")]
    unsafe fn products<const NT: usize, const NR: usize>(
        run: &Run<'_>,
        tile: *const u8,
        token: usize,
    ) -> [[__m512; NT]; NR] {
        let mut acc = [[_mm512_setzero_ps(); NT]; NR];
        let width = run.panel.width;
        let pairs = run.panel.pairs.as_ptr();
        for tap in 0..run.taps {
            // SAFETY: a tile holds `taps` parts of `tap_bytes`.
            let tile = unsafe { tile.add(tap * run.tap_bytes()) };
            let token = token + tap * run.dilation;
            for step in 0..run.cols.div_ceil(2) {
                for (r, acc) in acc.iter_mut().enumerate() {
                    // SAFETY: a tile holds 64 bytes for each pair of columns (checked), `pairs` one word for each pair and
                    // token (checked); a register of 32 BF16 numbers and one of 16 words are the same 64 bytes.
                    unsafe {
                        let weights = _mm512_loadu_si512(tile.add(r * run.tile_bytes + step * 64).cast());
                        let weights = std::mem::transmute::<__m512i, __m512bh>(weights);
                        for (t, acc) in acc.iter_mut().enumerate() {
                            let x = _mm512_set1_epi32((*pairs.add(step * width + token + t)).cast_signed());
                            let x = std::mem::transmute::<__m512i, __m512bh>(x);
                            *acc = _mm512_dpbf16_ps(*acc, weights, x);
                        }
                    }
                }
            }
        }
        acc
    }
}
