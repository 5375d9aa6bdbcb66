//! Convolutions over time as matrix products: a tap is a block of columns, its input the rows it sees.
//!
//! In: windows loaded by [`Activations::load_windows`], a matrix whose columns are tap after tap. Out: one row a token.
//! Invariant: nothing is unfolded: a row is prepared once for all taps. A token's result is the same bit for bit
//! whatever the number of tokens, panels or threads: taps are added oldest first, each in the order of its columns.

use super::activations::Activations;
use super::layout::TILE_ROWS;
use super::ops::{ALONE, SharedRows, in_turns};
use super::pack::PackedMatrix;
use super::{Kernels, Run};
use crate::engine::team::Team;

/// Tiles of one turn: in 8 bits, those of 768 channels and 7 taps fill 700 KiB and stay in the second-level cache from
/// span to span.
const TURN_TILES: usize = 8;
/// Tokens multiplied together.
const SPAN: usize = 16;

/// A convolution: `y[t] = bias + Σ_tap W[tap] · x[t + tap · dilation]`, x counted from the first row of the halo.
#[derive(Clone, Copy, Debug)]
pub struct ConvSpec<'a> {
    /// Rows are output channels; columns tap after tap, the oldest first, each `x.cols()` wide.
    pub weights: &'a PackedMatrix,
    /// One value an output channel, or empty.
    pub bias: &'a [f32],
    /// Taps.
    pub taps: usize,
    /// Rows from tap to tap.
    pub dilation: usize,
}

/// What happens to the values a result is written over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Store {
    /// They are replaced.
    Replace,
    /// The result is added to them.
    Add,
}

impl Kernels {
    /// Runs a convolution; `out` is `x.tokens() × weights.rows()`, row-major.
    ///
    /// # Panics
    /// If shapes do not fit, `x` holds no windows, or was loaded without this matrix's needs.
    pub fn conv(&self, team: &Team, conv: &ConvSpec<'_>, x: &Activations, out: &mut [f32], store: Store) {
        let (cols, rows) = (x.cols(), conv.weights.rows());
        assert!(x.windowed(), "a convolution reads windows");
        assert!(
            conv.taps > 0 && cols * conv.taps == conv.weights.cols(),
            "columns of a convolution"
        );
        assert_eq!(x.halo(), (conv.taps - 1) * conv.dilation, "halo of a convolution");
        assert_eq!(out.len(), x.tokens() * rows, "size of a convolution");
        assert!(
            conv.bias.is_empty() || conv.bias.len() == rows,
            "bias of a convolution"
        );
        assert!(
            x.serves(conv.weights.needs()),
            "activations loaded for other formats"
        );
        let [segment] = conv.weights.segments() else {
            panic!("a convolution has one matrix");
        };
        if out.is_empty() {
            return;
        }
        let panels = x.panels();
        let tile_turns = segment.tiles().div_ceil(TURN_TILES);
        let shared = SharedRows::new(out, rows);
        let turn = |index: usize| {
            let (panel, tile_turn) = (&panels[index / tile_turns], index % tile_turns);
            let first_tile = tile_turn * TURN_TILES;
            let count = TURN_TILES.min(segment.tiles() - first_tile);
            let tiles = conv.weights.tiles(segment, first_tile, count);
            let tokens = panel.width - x.halo();
            let mut sums = [0f32; TURN_TILES * SPAN * TILE_ROWS];
            for from in (0..tokens).step_by(SPAN) {
                let tokens = SPAN.min(tokens - from);
                let run = Run {
                    dtype: segment.dtype,
                    tiles,
                    count,
                    tile_bytes: segment.tile_bytes,
                    taps: conv.taps,
                    dilation: conv.dilation,
                    cols,
                    panel,
                    first: from,
                    tokens,
                };
                let sums = &mut sums[..tokens * count * TILE_ROWS];
                (self.dot)(&run, sums);
                let (results, _) = sums.as_chunks_mut::<TILE_ROWS>();
                for (index, result) in results.iter_mut().enumerate() {
                    let (tile, token) = (first_tile + index / tokens, index % tokens);
                    let row = tile * TILE_ROWS;
                    let real = TILE_ROWS.min(rows - row);
                    if let Some(bias) = conv.bias.get(row..row + real) {
                        for (sum, bias) in result.iter_mut().zip(bias) {
                            *sum += bias;
                        }
                    }
                    let place = (panel.first + from + token, row);
                    // SAFETY: a (tile, panel) pair belongs to one turn and each turn is run once, so no two threads
                    // touch the same columns of the same output row.
                    unsafe {
                        match store {
                            Store::Replace => shared.write(place.0, place.1, &result[..real]),
                            Store::Add => shared.add(place.0, place.1, &result[..real]),
                        }
                    }
                }
            }
        };
        let turns = panels.len() * tile_turns;
        if rows * conv.weights.cols() * x.tokens() < ALONE {
            (0..turns).for_each(turn);
        } else {
            in_turns(team, turns, &turn);
        }
    }
}
