//! AVX-512 with VNNI: 16 rows in a register, four 8-bit products a lane and instruction.
//!
//! In: runs of R16 tiles and a panel. Out: `[tile][token][16 rows]`.
//! Invariant: per (row, token) the operations and their order are those of the scalar table, whatever `NT` and `NR` are.

use std::arch::x86_64::*;

use super::super::attention::Accumulate;
use super::super::layout::{Codes, GROUP, Packing, Scales, TILE_ROWS};
use super::super::vector::vector_for;
use super::super::{Kernels, Run};
use crate::model::card::TensorType;

vector_for!("avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c");

/// The table, if this CPU has every feature named on the functions below.
pub(super) fn table() -> Option<Kernels> {
    let has = is_x86_feature_detected!("avx512f")
        && is_x86_feature_detected!("avx512bw")
        && is_x86_feature_detected!("avx512vl")
        && is_x86_feature_detected!("avx512dq")
        && is_x86_feature_detected!("avx512vnni")
        && is_x86_feature_detected!("avx2")
        && is_x86_feature_detected!("fma")
        && is_x86_feature_detected!("f16c");
    has.then_some(Kernels {
        name: "x86_64-avx512_vnni",
        cap: "avx512_vnni",
        dot,
        accumulate,
        extends: None,
        bf16_pairs: false,
        vector: VECTOR,
    })
}

pub(super) fn dot(run: &Run<'_>, out: &mut [f32]) {
    run.check(out.len());
    // SAFETY: reachable only through `table()`, which checked the features; `check` proved the bounds.
    unsafe { dot_here(run, out.as_mut_ptr()) }
}

/// # Safety
/// `run.check` must have passed for the length of `out`.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
unsafe fn dot_here(run: &Run<'_>, out: *mut f32) {
    // SAFETY: passed on from the caller.
    unsafe {
        match run.dtype {
            TensorType::F32 => by_width::<Format<{ TensorType::F32 as u8 }>>(run, out),
            TensorType::F16 => by_width::<Format<{ TensorType::F16 as u8 }>>(run, out),
            TensorType::BF16 => by_width::<Format<{ TensorType::BF16 as u8 }>>(run, out),
            TensorType::Q4_0 => by_width::<Format<{ TensorType::Q4_0 as u8 }>>(run, out),
            TensorType::Q4_1 => by_width::<Format<{ TensorType::Q4_1 as u8 }>>(run, out),
            TensorType::Q5_0 => by_width::<Format<{ TensorType::Q5_0 as u8 }>>(run, out),
            TensorType::Q5_1 => by_width::<Format<{ TensorType::Q5_1 as u8 }>>(run, out),
            TensorType::Q8_0 => by_width::<Format<{ TensorType::Q8_0 as u8 }>>(run, out),
            TensorType::Q2_K => by_width::<Format<{ TensorType::Q2_K as u8 }>>(run, out),
            TensorType::Q3_K => by_width::<Format<{ TensorType::Q3_K as u8 }>>(run, out),
            TensorType::Q4_K => by_width::<Format<{ TensorType::Q4_K as u8 }>>(run, out),
            TensorType::Q5_K => by_width::<Format<{ TensorType::Q5_K as u8 }>>(run, out),
            TensorType::Q6_K => by_width::<Format<{ TensorType::Q6_K as u8 }>>(run, out),
            TensorType::IQ4_NL => by_width::<Format<{ TensorType::IQ4_NL as u8 }>>(run, out),
            TensorType::IQ4_XS => by_width::<Format<{ TensorType::IQ4_XS as u8 }>>(run, out),
            TensorType::MXFP4 => by_width::<Format<{ TensorType::MXFP4 as u8 }>>(run, out),
        }
    }
}

/// The products of `NR` tiles with `NT` tokens: what differs between formats. The rest of this file is the same for all.
pub(super) trait Product {
    /// One accumulator for each (tile, token), over all taps; the operations do not depend on `NT` and `NR`.
    ///
    /// # Safety
    /// The CPU has the features of the implementing table; `run` has passed its table's checks and is of the format
    /// that is multiplied; `tile` is the first of `NR` tiles inside the run; `token` is counted from the panel's
    /// first, and the run covers `token .. token + NT`.
    unsafe fn products<const NT: usize, const NR: usize>(
        run: &Run<'_>,
        tile: *const u8,
        token: usize,
    ) -> [[__m512; NT]; NR];
}

/// Weights of the type with discriminant `F`, multiplied as every table does.
struct Format<const F: u8>;

impl<const F: u8> Product for Format<F> {
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
    unsafe fn products<const NT: usize, const NR: usize>(
        run: &Run<'_>,
        tile: *const u8,
        token: usize,
    ) -> [[__m512; NT]; NR] {
        // SAFETY: passed on from the caller.
        unsafe {
            match const { Packing::of_index(F) } {
                Some(_) if F == TensorType::Q8_0 as u8 && NT >= 8 => {
                    let mut acc = [[_mm512_setzero_ps(); NT]; NR];
                    for (r, acc) in acc.iter_mut().enumerate() {
                        let tile = tile.add(r * run.tile_bytes);
                        for (part, acc) in acc.as_chunks_mut::<8>().0.iter_mut().enumerate() {
                            bytes(run, tile, token + 8 * part, acc);
                        }
                    }
                    acc
                }
                Some(_) => quantised::<F, NT, NR>(run, tile, token),
                None => float::<F, NT, NR>(run, tile, token),
            }
        }
    }
}

/// Cuts tokens into blocks of 16, 8, 4, 2, 1 and tiles so that 4 to 16 accumulators hide the latency of their chain.
///
/// # Safety
/// `run.check` must have passed for the length of `out`, and what [`Product::products`] of `P` asks for holds.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
pub(super) unsafe fn by_width<P: Product>(run: &Run<'_>, out: *mut f32) {
    let mut token = 0;
    while token < run.tokens {
        // SAFETY: tokens token..token + NT are below `run.tokens` in every arm.
        unsafe {
            token += match run.tokens - token {
                16.. => block::<P, 16, 1>(run, token, out),
                8.. => block::<P, 8, 1>(run, token, out),
                4.. => block::<P, 4, 2>(run, token, out),
                2.. => block::<P, 2, 4>(run, token, out),
                _ => block::<P, 1, 4>(run, token, out),
            };
        }
    }
}

/// All tiles of the run for `NT` tokens from `token`, `NR` tiles at a time. Returns `NT`.
///
/// # Safety
/// As [`by_width`]; `token + NT ≤ run.tokens`.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
unsafe fn block<P: Product, const NT: usize, const NR: usize>(
    run: &Run<'_>,
    token: usize,
    out: *mut f32,
) -> usize {
    let whole = run.count - run.count % NR;
    // SAFETY: tiles first..first + NR lie inside the run.
    unsafe {
        for first in (0..whole).step_by(NR) {
            tiles::<P, NT, NR>(run, first, token, out);
        }
        for first in whole..run.count {
            tiles::<P, NT, 1>(run, first, token, out);
        }
    }
    NT
}

/// # Safety
/// As [`block`]; `first + NR ≤ run.count`.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
unsafe fn tiles<P: Product, const NT: usize, const NR: usize>(
    run: &Run<'_>,
    first: usize,
    token: usize,
    out: *mut f32,
) {
    // SAFETY: inside `run.tiles`, which `check` measured.
    let tile = unsafe { run.tiles.as_ptr().add(first * run.tile_bytes) };
    let place = |r: usize, t: usize| ((first + r) * run.tokens + token + t) * TILE_ROWS;
    // SAFETY: passed on from the caller; the panel holds the run's tokens from `run.first` on, for every tap.
    let acc = unsafe { P::products::<NT, NR>(run, tile, run.first + token) };
    for (r, acc) in acc.iter().enumerate() {
        for (t, acc) in acc.iter().enumerate() {
            // SAFETY: (first + r) < count and token + t < run.tokens, so the 16 values lie inside `out`.
            unsafe { _mm512_storeu_ps(out.add(place(r, t)), *acc) };
        }
    }
}

/// # Safety
/// As [`Product::products`].
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
unsafe fn quantised<const F: u8, const NT: usize, const NR: usize>(
    run: &Run<'_>,
    tile: *const u8,
    token: usize,
) -> [[__m512; NT]; NR] {
    let mut acc = [[_mm512_setzero_ps(); NT]; NR];
    let Some(packing) = (const { Packing::of_index(F) }) else {
        return acc;
    };
    let panel = run.panel;
    let width = panel.width;
    let parts = if packing.halves() { 2 } else { 1 };
    let fold = panel.fold(packing).as_ptr();
    let sums = if packing.halves() {
        panel.half_sums.as_ptr()
    } else {
        panel.sums.as_ptr()
    };
    let records = run.cols / GROUP / packing.groups_per_head();
    for tap in 0..run.taps {
        // SAFETY: a tile holds `taps` parts of `tap_bytes`.
        let tile = unsafe { tile.add(tap * run.tap_bytes()) };
        let token = token + tap * run.dilation;
        for record in 0..records {
            for inner in 0..packing.groups_per_head() {
                let index = record * packing.groups_per_head() + inner;
                for (r, acc) in acc.iter_mut().enumerate() {
                    // SAFETY: every record lies inside its tile (tile_bytes = records × record_bytes, checked); panel
                    // arrays hold `width` entries for each group, `2 · width` where halves count (checked).
                    unsafe {
                        let head = tile.add(r * run.tile_bytes + record * packing.record_bytes());
                        let group = head.add(packing.head_bytes() + inner * packing.group_bytes());
                        let codes = codes(packing, group);
                        let (scale, min) = scales(packing, head, group);
                        for (t, acc) in acc.iter_mut().enumerate() {
                            let at = index * width + token + t;
                            let x = panel.codes.as_ptr().add(at * GROUP).cast::<i32>();
                            let factor = _mm512_set1_ps(*panel.scales.as_ptr().add(at));
                            for part in 0..parts {
                                let folded = (index * parts + part) * width + token + t;
                                let mut sum = if packing.offset == 0 {
                                    _mm512_setzero_si512()
                                } else {
                                    _mm512_set1_epi32(*fold.add(folded))
                                };
                                for quad in part * 4..part * 4 + 8 / parts {
                                    let x = _mm512_set1_epi32(x.add(quad).read_unaligned());
                                    sum = _mm512_dpbusd_epi32(sum, codes[quad], x);
                                }
                                let scaled = _mm512_mul_ps(scale[part], factor);
                                *acc = _mm512_fmadd_ps(scaled, _mm512_cvtepi32_ps(sum), *acc);
                                if packing.has_min() {
                                    let sum = _mm512_set1_ps(*sums.add(folded));
                                    *acc = _mm512_fmadd_ps(min[part], sum, *acc);
                                }
                            }
                        }
                    }
                }
            }
        }
    }
    acc
}

/// The products of one tile of Q8_0 with 8 tokens, added to `acc`: what [`quantised`] computes, quad by quad for all
/// tokens, so that 8 sums and 8 accumulators stay in registers and 8 chains hide the latency of each other.
///
/// # Safety
/// As [`Product::products`] for `NT` = 8 and `NR` = 1.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
unsafe fn bytes(run: &Run<'_>, tile: *const u8, token: usize, acc: &mut [__m512; 8]) {
    let Some(packing) = (const { Packing::of(TensorType::Q8_0) }) else {
        return;
    };
    let panel = run.panel;
    let fold = panel.fold(packing).as_ptr();
    for tap in 0..run.taps {
        // SAFETY: a tile holds `taps` parts of `tap_bytes`.
        let tile = unsafe { tile.add(tap * run.tap_bytes()) };
        let token = token + tap * run.dilation;
        for index in 0..run.cols / GROUP {
            let at = index * panel.width + token;
            // SAFETY: every record lies inside its tile (tile_bytes = records × record_bytes, checked); panel arrays hold
            // `width` entries for each group (checked), of which `token .. token + 8` are ours.
            unsafe {
                let group = tile.add(index * packing.record_bytes());
                let x = panel.codes.as_ptr().add(at * GROUP).cast::<i32>();
                let mut sums = [_mm512_setzero_si512(); 8];
                for (t, sum) in sums.iter_mut().enumerate() {
                    *sum = _mm512_set1_epi32(*fold.add(at + t));
                }
                for quad in 0..8 {
                    let codes = _mm512_loadu_si512(group.add(64 * quad).cast());
                    for (t, sum) in sums.iter_mut().enumerate() {
                        let x = _mm512_set1_epi32(x.add(8 * t + quad).read_unaligned());
                        *sum = _mm512_dpbusd_epi32(*sum, codes, x);
                    }
                }
                let scale = _mm512_cvtph_ps(_mm256_loadu_si256(group.add(packing.code_bytes()).cast()));
                for (t, (sum, acc)) in sums.iter().zip(acc.iter_mut()).enumerate() {
                    let scaled = _mm512_mul_ps(scale, _mm512_set1_ps(*panel.scales.as_ptr().add(at + t)));
                    *acc = _mm512_fmadd_ps(scaled, _mm512_cvtepi32_ps(*sum), *acc);
                }
            }
        }
    }
}

/// The 8 quads of a group: 16 rows × 4 columns of unsigned codes each.
///
/// # Safety
/// `group` holds `packing.group_bytes()` bytes.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
unsafe fn codes(packing: Packing, group: *const u8) -> [__m512i; 8] {
    // SAFETY: each format's code bytes cover the lines it reads.
    let line = |n: usize| unsafe { _mm512_loadu_si512(group.add(64 * n).cast()) };
    let mut quads = [_mm512_setzero_si512(); 8];
    if packing.codes == Codes::Eight {
        for (n, quad) in quads.iter_mut().enumerate() {
            *quad = line(n);
        }
        return quads;
    }
    let low = _mm512_set1_epi8(15);
    for n in 0..4 {
        let both = line(n);
        quads[n] = _mm512_and_si512(both, low);
        quads[n + 4] = _mm512_and_si512(_mm512_srli_epi16::<4>(both), low);
    }
    match packing.codes {
        Codes::Table(table) => {
            // SAFETY: the table has 16 bytes.
            let table = unsafe { _mm_loadu_si128(table.as_ptr().cast()) };
            let table = _mm512_broadcast_i32x4(table);
            for quad in &mut quads {
                *quad = _mm512_shuffle_epi8(table, *quad);
            }
        }
        Codes::Five => {
            // Bit `quad` of each byte moves to bit 4 and joins the nibble: (moved & 16) | nibble.
            let plane = line(4);
            let bit = _mm512_set1_epi8(16);
            let moved = [
                _mm512_slli_epi16::<4>(plane),
                _mm512_slli_epi16::<3>(plane),
                _mm512_slli_epi16::<2>(plane),
                _mm512_slli_epi16::<1>(plane),
                plane,
                _mm512_srli_epi16::<1>(plane),
                _mm512_srli_epi16::<2>(plane),
                _mm512_srli_epi16::<3>(plane),
            ];
            for (quad, moved) in quads.iter_mut().zip(moved) {
                *quad = _mm512_ternarylogic_epi32::<0xea>(moved, bit, *quad);
            }
        }
        Codes::Six => {
            let bits = _mm512_set1_epi8(0x30);
            for half in 0..2 {
                let plane = line(4 + half);
                let moved = [
                    _mm512_slli_epi16::<4>(plane),
                    _mm512_slli_epi16::<2>(plane),
                    plane,
                    _mm512_srli_epi16::<2>(plane),
                ];
                for (quad, moved) in quads[4 * half..].iter_mut().zip(moved) {
                    *quad = _mm512_ternarylogic_epi32::<0xea>(moved, bits, *quad);
                }
            }
        }
        Codes::Nibble | Codes::Eight => {}
    }
    quads
}

/// Scale and min of 16 rows for both halves of a group; the second pair is used only where halves differ.
///
/// # Safety
/// `head` and `group` hold `packing.head_bytes()` and `packing.group_bytes()` bytes.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
unsafe fn scales(packing: Packing, head: *const u8, group: *const u8) -> ([__m512; 2], [__m512; 2]) {
    // SAFETY: each format's head and scale bytes cover what it reads.
    unsafe {
        let at = group.add(packing.code_bytes());
        let halves = |p: *const u8| _mm512_cvtph_ps(_mm256_loadu_si256(p.cast()));
        let bytes = |n: usize| _mm_loadu_si128(at.add(16 * n).cast());
        let unsigned = |b: __m128i| _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(b));
        let signed = |b: __m128i| _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(b));
        let negated = |v: __m512| {
            _mm512_castsi512_ps(_mm512_xor_si512(
                _mm512_castps_si512(v),
                _mm512_set1_epi32(i32::MIN),
            ))
        };
        let none = _mm512_setzero_ps();
        match packing.scales {
            Scales::D => ([halves(at); 2], [none; 2]),
            Scales::Dm => ([halves(at); 2], [halves(at.add(32)); 2]),
            Scales::E8m0 => {
                let e = _mm512_cvtepu8_epi32(bytes(0));
                let normal = _mm512_slli_epi32::<23>(_mm512_sub_epi32(e, _mm512_set1_epi32(1)));
                let tiny = _mm512_sllv_epi32(_mm512_set1_epi32(0x0020_0000), e);
                let is_tiny = _mm512_cmplt_epi32_mask(e, _mm512_set1_epi32(2));
                let power = _mm512_mask_blend_epi32(is_tiny, normal, tiny);
                ([_mm512_castsi512_ps(power); 2], [none; 2])
            }
            Scales::Bytes => (
                [_mm512_mul_ps(halves(head), unsigned(bytes(0))); 2],
                [_mm512_mul_ps(negated(halves(head.add(32))), unsigned(bytes(1))); 2],
            ),
            Scales::Signed => ([_mm512_mul_ps(halves(head), signed(bytes(0))); 2], [none; 2]),
            Scales::SignedHalves => {
                let d = halves(head);
                (
                    [
                        _mm512_mul_ps(d, signed(bytes(0))),
                        _mm512_mul_ps(d, signed(bytes(1))),
                    ],
                    [none; 2],
                )
            }
            Scales::NibbleHalves => {
                let d = halves(head);
                let dmin = negated(halves(head.add(32)));
                let low = |b| unsigned(_mm_and_si128(b, _mm_set1_epi8(15)));
                let high = |b| unsigned(_mm_and_si128(_mm_srli_epi16::<4>(b), _mm_set1_epi8(15)));
                (
                    [_mm512_mul_ps(d, low(bytes(0))), _mm512_mul_ps(d, low(bytes(1)))],
                    [
                        _mm512_mul_ps(dmin, high(bytes(0))),
                        _mm512_mul_ps(dmin, high(bytes(1))),
                    ],
                )
            }
        }
    }
}

/// # Safety
/// As [`Product::products`].
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
unsafe fn float<const F: u8, const NT: usize, const NR: usize>(
    run: &Run<'_>,
    tile: *const u8,
    token: usize,
) -> [[__m512; NT]; NR] {
    let mut acc = [[_mm512_setzero_ps(); NT]; NR];
    let width = run.panel.width;
    let values = run.panel.values.as_ptr();
    let pairs = F == TensorType::BF16 as u8;
    let steps = if pairs { run.cols.div_ceil(2) } else { run.cols };
    let step_bytes = if F == TensorType::F16 as u8 { 32 } else { 64 };
    for tap in 0..run.taps {
        // SAFETY: a tile holds `taps` parts of `tap_bytes`.
        let tile = unsafe { tile.add(tap * run.tap_bytes()) };
        let token = token + tap * run.dilation;
        for step in 0..steps {
            for (r, acc) in acc.iter_mut().enumerate() {
                // SAFETY: step < steps, and a tile holds `steps · step_bytes` bytes (checked); `values` holds
                // `cols · width` values (checked).
                unsafe {
                    let p = tile.add(r * run.tile_bytes + step * step_bytes);
                    let x = |column: usize, t: usize| _mm512_set1_ps(*values.add(column * width + token + t));
                    if pairs {
                        let both = _mm512_loadu_si512(p.cast());
                        let even = _mm512_castsi512_ps(_mm512_slli_epi32::<16>(both));
                        let odd = _mm512_castsi512_ps(_mm512_and_si512(
                            both,
                            _mm512_set1_epi32(0xffff_0000_u32 as i32),
                        ));
                        for (t, acc) in acc.iter_mut().enumerate() {
                            *acc = _mm512_fmadd_ps(even, x(2 * step, t), *acc);
                            if 2 * step + 1 < run.cols {
                                *acc = _mm512_fmadd_ps(odd, x(2 * step + 1, t), *acc);
                            }
                        }
                    } else {
                        let weights = if F == TensorType::F16 as u8 {
                            _mm512_cvtph_ps(_mm256_loadu_si256(p.cast()))
                        } else {
                            _mm512_loadu_ps(p.cast())
                        };
                        for (t, acc) in acc.iter_mut().enumerate() {
                            *acc = _mm512_fmadd_ps(weights, x(step, t), *acc);
                        }
                    }
                }
            }
        }
    }
    acc
}

fn accumulate(job: &Accumulate<'_>, acc: &mut [f32]) {
    assert!(job.in_bounds(acc.len()), "attention outside its slices");
    // SAFETY: reachable only through `table()`, which checked the features; the bounds were just checked.
    unsafe {
        match (job.queries, job.element) {
            (1, 2) => by_vectors::<1, true>(job, acc),
            (2, 2) => by_vectors::<2, true>(job, acc),
            (3, 2) => by_vectors::<3, true>(job, acc),
            (_, 2) => by_vectors::<4, true>(job, acc),
            (1, _) => by_vectors::<1, false>(job, acc),
            (2, _) => by_vectors::<2, false>(job, acc),
            (3, _) => by_vectors::<3, false>(job, acc),
            (_, _) => by_vectors::<4, false>(job, acc),
        }
    }
}

/// # Safety
/// `job.in_bounds` holds for `acc`; `NQ` is `job.queries`; `HALF` says whether elements are f16.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
unsafe fn by_vectors<const NQ: usize, const HALF: bool>(job: &Accumulate<'_>, acc: &mut [f32]) {
    // SAFETY: passed on from the caller.
    unsafe {
        match job.vectors {
            1 => add_rows::<NQ, 1, HALF>(job, acc),
            2 => add_rows::<NQ, 2, HALF>(job, acc),
            3 => add_rows::<NQ, 3, HALF>(job, acc),
            _ => add_rows::<NQ, 4, HALF>(job, acc),
        }
    }
}

/// # Safety
/// As [`by_vectors`]; `NV` is `job.vectors`.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
unsafe fn add_rows<const NQ: usize, const NV: usize, const HALF: bool>(
    job: &Accumulate<'_>,
    acc: &mut [f32],
) {
    let mut sums = [[_mm512_setzero_ps(); NV]; NQ];
    // SAFETY: `in_bounds` covers every (query, vector), (row, vector) and (query, row) touched here.
    unsafe {
        for (q, sums) in sums.iter_mut().enumerate() {
            for (v, sum) in sums.iter_mut().enumerate() {
                *sum = _mm512_loadu_ps(acc.as_ptr().add(q * job.acc_stride + 16 * v));
            }
        }
        for n in 0..job.count {
            let row = job.rows.as_ptr().add(n * job.row_stride);
            let mut lanes = [_mm512_setzero_ps(); NV];
            for (v, lanes) in lanes.iter_mut().enumerate() {
                let p = row.add(v * job.vector_stride);
                *lanes = if HALF {
                    _mm512_cvtph_ps(_mm256_loadu_si256(p.cast()))
                } else {
                    _mm512_loadu_ps(p.cast())
                };
            }
            for (q, sums) in sums.iter_mut().enumerate() {
                let factor = _mm512_set1_ps(*job.factors.as_ptr().add(q * job.factor_stride + n));
                for (sum, lanes) in sums.iter_mut().zip(lanes) {
                    *sum = _mm512_fmadd_ps(lanes, factor, *sum);
                }
            }
        }
        for (q, sums) in sums.iter().enumerate() {
            for (v, sum) in sums.iter().enumerate() {
                _mm512_storeu_ps(acc.as_mut_ptr().add(q * job.acc_stride + 16 * v), *sum);
            }
        }
    }
}
