//! The safe, parallel operations of a network, on top of a kernel table.
//!
//! In: weights, activations, a team. Out: rows of `f32`.
//! Invariant: a token's result is the same bit for bit whatever the number of tokens, threads or turns.

use std::marker::PhantomData;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::activations::Activations;
use super::layout::TILE_ROWS;
use super::pack::{PackedMatrix, Segment};
use super::{Kernels, Run};
use crate::engine::team::Team;
use crate::model::card::Activation;

/// Tiles of one turn when a panel is narrow: with one token, the work of a turn is reading 8 tiles.
const TURN_TILES: usize = 8;
/// Multiply-adds below which waking the team takes longer than the work.
pub(super) const ALONE: usize = 1 << 17;
/// Elements below which an element-wise operation stays on its thread.
const ALONE_ELEMENTS: usize = 1 << 14;

impl Kernels {
    /// `out[t][r] = Σ_k matrix[r][k] · x[t][k]`; `out` is `x.tokens() × matrix.rows()`, row-major.
    ///
    /// # Panics
    /// If the shapes do not fit, or `x` was loaded without this matrix's needs.
    pub fn linear(&self, team: &Team, matrix: &PackedMatrix, x: &Activations, out: &mut [f32]) {
        assert_eq!(x.cols(), matrix.cols(), "columns of a product");
        assert_eq!(out.len(), x.tokens() * matrix.rows(), "size of a product");
        assert!(x.serves(matrix.needs()), "activations loaded for other formats");
        if out.is_empty() {
            return;
        }
        assert!(!x.windowed(), "windows for a convolution given to a product");
        let panels = x.panels();
        let rows = SharedRows::new(out, matrix.rows());
        let turns: Vec<(usize, &Segment)> = matrix
            .segments()
            .iter()
            .scan(0, |end, segment| {
                *end += segment.tiles().div_ceil(TURN_TILES);
                Some((*end, segment))
            })
            .collect();
        let tile_turns = turns.last().map_or(0, |(end, _)| *end);
        // Few tiles and many tokens: split the tokens too, so that every worker has several turns.
        let parts = (4 * team.threads())
            .div_ceil(tile_turns.max(1))
            .clamp(1, panels.len());
        let turn = |index: usize| {
            let (tile_turn, part) = (index / parts, index % parts);
            let at = turns.partition_point(|(end, _)| *end <= tile_turn);
            let (end, segment) = turns[at];
            let first = (tile_turn + segment.tiles().div_ceil(TURN_TILES) - end) * TURN_TILES;
            let count = TURN_TILES.min(segment.tiles() - first);
            let tiles = matrix.tiles(segment, first, count);
            let mut results = [0f32; TURN_TILES * super::activations::PANEL * TILE_ROWS];
            for panel in &panels[part * panels.len() / parts..(part + 1) * panels.len() / parts] {
                let results = &mut results[..count * panel.width * TILE_ROWS];
                let run = Run {
                    dtype: segment.dtype,
                    tiles,
                    count,
                    tile_bytes: segment.tile_bytes,
                    taps: 1,
                    dilation: 0,
                    cols: matrix.cols(),
                    panel,
                    first: 0,
                    tokens: panel.width,
                };
                (self.dot)(&run, results);
                let (results, _) = results.as_chunks::<TILE_ROWS>();
                for (index, result) in results.iter().enumerate() {
                    let (tile, token) = (first + index / panel.width, index % panel.width);
                    let row = tile * TILE_ROWS;
                    let real = TILE_ROWS.min(segment.rows - row);
                    // SAFETY: a (tile, panel) pair belongs to one turn and each turn is run once, so no two threads
                    // write the same columns of the same output row.
                    unsafe {
                        rows.write(panel.first + token, segment.first_row + row, &result[..real]);
                    }
                }
            }
        };
        let work = matrix.rows() * matrix.cols() * x.tokens();
        if work < ALONE {
            (0..tile_turns * parts).for_each(turn);
        } else {
            in_turns(team, tile_turns * parts, &turn);
        }
    }

    /// RMS norm of each row of `x` (rows of `w.len()`) into `out`: `x / sqrt(mean(x²) + eps) · w`.
    ///
    /// # Panics
    /// If lengths do not fit.
    pub fn rms_norm(&self, team: &Team, x: &[f32], w: &[f32], eps: f32, out: &mut [f32]) {
        assert_eq!(x.len(), out.len(), "length of a norm");
        let width = w.len().max(1);
        by_rows(team, out, width, &|first, rows| {
            rows.copy_from_slice(&x[first * width..first * width + rows.len()]);
            self.rms_norm_here(rows, w, eps);
        });
    }

    /// RMS norm of each row of `x` (rows of `w.len()`) in place, on the calling thread; for norms per head.
    ///
    /// # Panics
    /// If `x` is not whole rows.
    pub fn rms_norm_here(&self, x: &mut [f32], w: &[f32], eps: f32) {
        assert!(x.len().is_multiple_of(w.len().max(1)), "whole rows of a norm");
        for row in x.chunks_exact_mut(w.len().max(1)) {
            (self.vector.rms_norm)(row, w, eps);
        }
    }

    /// `x += y`.
    ///
    /// # Panics
    /// If lengths differ.
    pub fn add_assign(&self, team: &Team, x: &mut [f32], y: &[f32]) {
        assert_eq!(x.len(), y.len(), "length of a sum");
        by_rows(team, x, 1024, &|first, part| {
            (self.vector.add_assign)(part, &y[first * 1024..first * 1024 + part.len()]);
        });
    }

    /// `x = x · factor`.
    pub fn scale(&self, x: &mut [f32], factor: f32) {
        (self.vector.scale)(x, factor);
    }

    /// `x = tanh(x / cap) · cap`.
    pub fn softcap(&self, team: &Team, x: &mut [f32], cap: f32) {
        by_rows(team, x, 1024, &|_, part| (self.vector.softcap)(part, cap));
    }

    /// `out[t] = activation(gate[t]) · up[t]`, where row t of `gate_up` is gate‖up, each `ffn` wide.
    ///
    /// # Panics
    /// If lengths do not fit.
    pub fn gated(&self, team: &Team, activation: Activation, gate_up: &[f32], ffn: usize, out: &mut [f32]) {
        assert_eq!(gate_up.len(), 2 * out.len(), "length of gate and up");
        assert!(
            ffn > 0 && out.len().is_multiple_of(ffn),
            "whole rows of gate and up"
        );
        by_rows(team, out, ffn, &|first, rows| {
            for (index, row) in rows.chunks_exact_mut(ffn).enumerate() {
                let from = &gate_up[(first + index) * 2 * ffn..(first + index + 1) * 2 * ffn];
                (self.vector.gated)(activation, &from[..ffn], &from[ffn..], row);
            }
        });
    }

    /// `x = activation(x)`.
    pub fn activate(&self, team: &Team, activation: Activation, x: &mut [f32]) {
        by_rows(team, x, 1024, &|_, part| (self.vector.activate)(activation, part));
    }

    /// SnakeBeta: `out = x + inverse_beta · sin²(alpha · x)`; rows of `alpha.len()` channels.
    ///
    /// # Panics
    /// If lengths do not fit.
    pub fn snake(&self, team: &Team, x: &[f32], alpha: &[f32], inverse_beta: &[f32], out: &mut [f32]) {
        let channels = alpha.len();
        assert!(
            channels > 0 && inverse_beta.len() == channels && out.len().is_multiple_of(channels),
            "whole rows of channels"
        );
        assert_eq!(x.len(), out.len(), "length of an activation");
        by_rows(team, out, channels, &|first, rows| {
            let x = &x[first * channels..first * channels + rows.len()];
            (self.vector.snake)(x, alpha, inverse_beta, rows);
        });
    }

    /// Rotates each head of one token in place, NEOX pairing: dimensions (i, i + n) by angle i, n = `cos.len()`;
    /// dimensions from 2n on pass through.
    ///
    /// # Panics
    /// If `heads` is not whole heads or a head is narrower than 2n.
    pub fn rope(&self, heads: &mut [f32], head_dim: usize, cos: &[f32], sin: &[f32]) {
        assert!(
            cos.len() == sin.len() && head_dim >= 2 * cos.len() && head_dim > 0,
            "rotary dimensions"
        );
        assert!(heads.len().is_multiple_of(head_dim), "whole heads");
        for head in heads.chunks_exact_mut(head_dim) {
            (self.vector.rotate)(head, cos, sin);
        }
    }

    /// Index of the largest value, the first among equals; NaN is never the largest. `None` for no values.
    #[must_use]
    pub fn argmax(&self, x: &[f32]) -> Option<usize> {
        let mut best: Option<(usize, f32)> = None;
        for (index, &value) in x.iter().enumerate() {
            if best.is_none_or(|(_, most)| value > most || most.is_nan()) {
                best = Some((index, value));
            }
        }
        best.map(|(index, _)| index)
    }
}

/// Runs `turn(0..count)`, each once, workers taking the next as they finish.
pub(super) fn in_turns(team: &Team, count: usize, turn: &(dyn Fn(usize) + Sync)) {
    if team.threads() == 1 || count == 1 {
        (0..count).for_each(turn);
        return;
    }
    let next = AtomicUsize::new(0);
    team.run(&|_| {
        loop {
            let index = next.fetch_add(1, Ordering::Relaxed);
            if index >= count {
                return;
            }
            turn(index);
        }
    });
}

/// Calls `job(first row, rows)` on parts of `out`, in parallel when it is long.
fn by_rows(team: &Team, out: &mut [f32], width: usize, job: &(dyn Fn(usize, &mut [f32]) + Sync)) {
    if out.len() < ALONE_ELEMENTS {
        job(0, out);
        return;
    }
    let rows = out.len().div_ceil(width);
    let rows_each = rows.div_ceil(4 * team.threads());
    team.for_each_chunk(out, rows_each * width, &|index, part| {
        job(index * rows_each, part);
    });
}

/// A row-major matrix that several threads write, each its own places.
///
/// Type invariant: `start` is valid for writes of `len` values for the lifetime.
pub(super) struct SharedRows<'a> {
    start: *mut f32,
    len: usize,
    width: usize,
    lifetime: PhantomData<&'a mut [f32]>,
}

// SAFETY: the only access is `write` and `add`, whose callers keep threads to disjoint places.
unsafe impl Sync for SharedRows<'_> {}

impl<'a> SharedRows<'a> {
    pub fn new(out: &'a mut [f32], width: usize) -> Self {
        Self {
            start: out.as_mut_ptr(),
            len: out.len(),
            width,
            lifetime: PhantomData,
        }
    }

    pub fn rows(&self) -> usize {
        self.len / self.width
    }

    /// Writes `values` to row `row` from column `column`.
    ///
    /// # Safety
    /// No other thread may access the same places at the same time.
    pub unsafe fn write(&self, row: usize, column: usize, values: &[f32]) {
        let at = row * self.width + column;
        assert!(at + values.len() <= self.len, "a result outside its matrix");
        // SAFETY: inside the matrix (just checked); exclusive by this function's contract.
        unsafe {
            // A whole tile row has a length the compiler knows: one move instead of a call.
            if let Ok(tile) = <&[f32; TILE_ROWS]>::try_from(values) {
                self.start
                    .add(at)
                    .cast::<[f32; TILE_ROWS]>()
                    .write_unaligned(*tile);
            } else {
                std::ptr::copy_nonoverlapping(values.as_ptr(), self.start.add(at), values.len());
            }
        }
    }

    /// Adds `values` to row `row` from column `column`.
    ///
    /// # Safety
    /// As [`Self::write`].
    pub unsafe fn add(&self, row: usize, column: usize, values: &[f32]) {
        let at = row * self.width + column;
        assert!(at + values.len() <= self.len, "a result outside its matrix");
        // SAFETY: inside the matrix (just checked); exclusive by this function's contract.
        let places = unsafe { std::slice::from_raw_parts_mut(self.start.add(at), values.len()) };
        for (place, value) in places.iter_mut().zip(values) {
            *place += value;
        }
    }
}
