//! The kernel table without SIMD: runs everywhere, and is the oracle the other tables are tested against.
//!
//! In: tiles and a panel. Out: products. Compilers vectorise the lane loops where they can.
//! Invariant: the integer part is exact; each (row, token) has one accumulator, fed group by group in order with fused
//! multiply-adds, which is what every other table does too, so quantised products agree bit for bit.

use half::{bf16, f16};

use super::attention::Accumulate;
use super::layout::{GROUP, Packing, TILE_ROWS, code, scale_min};
use super::vector::{self, Vector};
use super::{Kernels, Run};
use crate::model::card::TensorType;

/// The table; needs nothing.
pub(super) fn table() -> Kernels {
    Kernels {
        name: concat_name(),
        cap: "scalar",
        dot,
        accumulate,
        extends: None,
        bf16_pairs: false,
        vector: Vector {
            quantise: vector::quantise,
            rms_norm: vector::rms_norm::<false>,
            add_assign: vector::add_assign,
            scale: vector::scale,
            softcap: vector::softcap::<false>,
            gated: vector::gated::<false>,
            activate: vector::activate::<false>,
            snake: vector::snake::<false>,
            rotate: vector::rotate::<false>,
            softmax_step: vector::softmax_step::<false>,
        },
    }
}

const fn concat_name() -> &'static str {
    if cfg!(target_arch = "x86_64") {
        "x86_64-scalar"
    } else if cfg!(target_arch = "aarch64") {
        "aarch64-scalar"
    } else {
        "generic-scalar"
    }
}

fn dot(run: &Run<'_>, out: &mut [f32]) {
    run.check(out.len());
    let tiles = run.tiles.chunks_exact(run.tile_bytes);
    let tokens = run.tokens.max(1);
    for (tile, out) in tiles.zip(out.chunks_exact_mut(tokens * TILE_ROWS)) {
        out.fill(0.0);
        for (tap, tile) in tile.chunks_exact(run.tap_bytes()).enumerate() {
            let first = run.first + tap * run.dilation;
            match Packing::of(run.dtype) {
                Some(packing) => quantised(packing, run, tile, first, out),
                None => float(run, tile, first, out),
            }
        }
    }
}

fn quantised(packing: Packing, run: &Run<'_>, tile: &[u8], first: usize, out: &mut [f32]) {
    let panel = run.panel;
    let width = panel.width;
    let halves = if packing.halves() { 2 } else { 1 };
    let fold = panel.fold(packing);
    let sums = if packing.halves() {
        &panel.half_sums
    } else {
        &panel.sums
    };
    let mut index = 0;
    for record in tile.chunks_exact(packing.record_bytes()) {
        let (head, groups) = record.split_at(packing.head_bytes());
        for group in groups.chunks_exact(packing.group_bytes()) {
            for lane in 0..TILE_ROWS {
                let mut row = [0i32; GROUP];
                for (column, slot) in row.iter_mut().enumerate() {
                    *slot = i32::from(code(packing, group, lane, column));
                }
                for half in 0..halves {
                    let (scale, min) = scale_min(packing, head, group, lane, half);
                    let columns = if halves == 2 {
                        16 * half..16 * half + 16
                    } else {
                        0..GROUP
                    };
                    for token in 0..run.tokens {
                        let at = index * width + first + token;
                        let codes = &panel.codes[at * GROUP..(at + 1) * GROUP];
                        let folded = (index * halves + half) * width + first + token;
                        let mut sum = fold[folded];
                        for column in columns.clone() {
                            sum += row[column] * i32::from(codes[column]);
                        }
                        let slot = &mut out[token * TILE_ROWS + lane];
                        *slot = (scale * panel.scales[at]).mul_add(sum as f32, *slot);
                        if packing.has_min() {
                            *slot = min.mul_add(sums[folded], *slot);
                        }
                    }
                }
            }
            index += 1;
        }
    }
}

fn float(run: &Run<'_>, tile: &[u8], first: usize, out: &mut [f32]) {
    let width = run.panel.width;
    let (out, _) = out.as_chunks_mut::<TILE_ROWS>();
    for column in 0..run.cols {
        let weights = float_column(run.dtype, tile, column);
        let values = &run.panel.values[column * width + first..][..run.tokens];
        for (out, value) in out.iter_mut().zip(values) {
            for (out, weight) in out.iter_mut().zip(weights) {
                *out += weight * value;
            }
        }
    }
}

fn float_column(dtype: TensorType, tile: &[u8], column: usize) -> [f32; TILE_ROWS] {
    let two = |at: usize| [tile[at], tile[at + 1]];
    std::array::from_fn(|lane| match dtype {
        TensorType::F32 => {
            let at = 64 * column + 4 * lane;
            f32::from_le_bytes([tile[at], tile[at + 1], tile[at + 2], tile[at + 3]])
        }
        TensorType::F16 => f16::from_le_bytes(two(32 * column + 2 * lane)).to_f32(),
        _ => bf16::from_le_bytes(two(64 * (column / 2) + 4 * lane + 2 * (column % 2))).to_f32(),
    })
}

fn accumulate(job: &Accumulate<'_>, acc: &mut [f32]) {
    for query in 0..job.queries {
        for vector in 0..job.vectors {
            let slot = query * job.acc_stride + 16 * vector;
            let acc = &mut acc[slot..slot + 16];
            for n in 0..job.count {
                let factor = job.factors[query * job.factor_stride + n];
                let row = &job.rows[n * job.row_stride + vector * job.vector_stride..];
                for (lane, acc) in acc.iter_mut().enumerate() {
                    *acc += factor * job.value(row, lane);
                }
            }
        }
    }
}
