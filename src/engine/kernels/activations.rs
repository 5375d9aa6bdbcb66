//! `Activations`: the input of matrix products, in the form the kernels read.
//!
//! In: `tokens × cols` values. Out: panels of up to 16 tokens, each with what the matrices at hand need:
//! values for float weights (also rounded to BF16, for tables that multiply BF16 weights so); 8-bit codes with a scale for every 32 values, and folded sums, for quantised weights.
//! Invariant: a token's codes and scales never depend on the other tokens of the pass.

use half::bf16;

use super::Kernels;
use super::layout::{GROUP, Packing};
use crate::base::Bytes;
use crate::engine::team::Team;
use crate::model::card::TensorType;

/// Widest panel: 16 tokens fill the accumulators of a 32-register machine.
pub(super) const PANEL: usize = 16;

/// Which formats of weights the input will meet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Needs(u32);

impl Needs {
    /// What weights of type `dtype` need.
    #[must_use]
    pub fn of(dtype: TensorType) -> Self {
        Self(1 << dtype as u32)
    }

    /// What both need.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    fn packings(self) -> impl Iterator<Item = Packing> {
        TensorType::ALL
            .into_iter()
            .filter(move |&dtype| self.0 & Self::of(dtype).0 != 0)
            .filter_map(Packing::of)
    }

    fn floats(self) -> bool {
        TensorType::ALL
            .into_iter()
            .any(|dtype| self.0 & Self::of(dtype).0 != 0 && Packing::of(dtype).is_none())
    }
}

/// Input of matrix products. Buffers are kept between loads.
#[derive(Debug, Default)]
pub struct Activations {
    panels: Vec<Panel>,
    used: usize,
    tokens: usize,
    cols: usize,
    /// Rows each token sees before its own; set by [`Activations::load_windows`].
    halo: Option<usize>,
    needs: Needs,
}

/// Tokens of a panel of windows: with a halo of 54 rows, three in ten rows are prepared twice, and a panel of 96
/// channels in f32 stays in the second-level cache.
pub(super) const WINDOW_PANEL: usize = 128;

/// −offset · Σ codes, to start an integer accumulator with.
#[derive(Debug)]
struct Fold {
    offset: i32,
    halves: bool,
    values: Vec<i32>,
}

/// Up to 16 tokens, or [`WINDOW_PANEL`] and their halo. Index of group `g`, token `t` in a panel of width `w`: `g·w + t`; per half `h`: `(2g + h)·w + t`.
#[derive(Debug, Default)]
pub(super) struct Panel {
    /// First token.
    pub first: usize,
    /// Tokens; with windows, rows, which are the halo's more than tokens.
    pub width: usize,
    /// Column-major values: `k·w + t`.
    pub values: Vec<f32>,
    /// Values rounded to BF16 (to nearest, ties to even), columns 2p (low half) and 2p + 1 (0 beyond the last):
    /// `p·w + t`. Empty unless BF16 weights are expected and the table that loads reads this.
    pub pairs: Vec<u32>,
    /// 32 codes for each group and token.
    pub codes: Vec<i8>,
    /// Scale of each group and token.
    pub scales: Vec<f32>,
    /// scale · Σ codes of each group and token.
    pub sums: Vec<f32>,
    /// The same for each half of a group.
    pub half_sums: Vec<f32>,
    folds: Vec<Fold>,
}

impl Activations {
    /// An empty buffer.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Tokens loaded.
    #[must_use]
    pub fn tokens(&self) -> usize {
        self.tokens
    }

    /// Columns loaded.
    #[must_use]
    pub fn cols(&self) -> usize {
        self.cols
    }

    /// Loads `tokens × cols` values, `x` row-major, in the forms `needs` asks for.
    ///
    /// # Panics
    /// If `x` is not `tokens × cols` long, or `cols` is not a multiple of 32 and quantised weights are expected.
    pub fn load(
        &mut self,
        kernels: &Kernels,
        team: &Team,
        x: &[f32],
        tokens: usize,
        cols: usize,
        needs: Needs,
    ) {
        assert_eq!(x.len(), tokens * cols, "activations of {tokens} × {cols}");
        self.halo = None;
        self.lay_out(tokens, 0, panel_width);
        self.fill(kernels, team, x, cols, needs);
    }

    /// Loads the windows of a convolution: `x` is `(halo + tokens) × cols` values, row-major, and token `t` sees rows
    /// `t ..= t + halo`.
    ///
    /// # Panics
    /// As [`Self::load`].
    #[expect(clippy::too_many_arguments, reason = "a matrix, its window and what reads it")]
    pub fn load_windows(
        &mut self,
        kernels: &Kernels,
        team: &Team,
        x: &[f32],
        tokens: usize,
        halo: usize,
        cols: usize,
        needs: Needs,
    ) {
        assert_eq!(
            x.len(),
            (tokens + halo) * cols,
            "windows of {halo} + {tokens} rows × {cols}"
        );
        self.halo = Some(halo);
        self.lay_out(tokens, halo, |left| left.min(WINDOW_PANEL));
        self.fill(kernels, team, x, cols, needs);
    }

    /// Cuts tokens into panels.
    fn lay_out(&mut self, tokens: usize, halo: usize, width: impl Fn(usize) -> usize) {
        self.tokens = tokens;
        self.used = 0;
        let mut first = 0;
        while first < tokens {
            let width = width(tokens - first);
            if self.used == self.panels.len() {
                self.panels.push(Panel::default());
            }
            let panel = &mut self.panels[self.used];
            panel.first = first;
            panel.width = width + halo;
            self.used += 1;
            first += width;
        }
    }

    fn fill(&mut self, kernels: &Kernels, team: &Team, x: &[f32], cols: usize, needs: Needs) {
        let quantised = needs.packings().next().is_some();
        assert!(
            !quantised || cols.is_multiple_of(GROUP),
            "{cols} columns do not meet quantised weights"
        );
        self.cols = cols;
        self.needs = needs;
        let fill = |_: usize, panels: &mut [Panel]| {
            for panel in panels {
                let rows = &x[panel.first * cols..(panel.first + panel.width) * cols];
                panel.fill(kernels, rows, cols, needs, quantised);
            }
        };
        let panels = &mut self.panels[..self.used];
        // Below this, waking the team takes longer than the work.
        if self.tokens * cols < 1 << 15 {
            fill(0, panels);
        } else {
            team.for_each_chunk(panels, 1, &fill);
        }
    }

    /// Bytes of the buffers as they have grown.
    #[must_use]
    pub fn bytes(&self) -> Bytes {
        Bytes(self.panels.iter().map(Panel::bytes).sum::<usize>() as u64)
    }

    pub(super) fn panels(&self) -> &[Panel] {
        &self.panels[..self.used]
    }

    /// Whether these are windows, to be read by [`Kernels::conv`].
    pub(super) fn windowed(&self) -> bool {
        self.halo.is_some()
    }

    /// Rows each token sees before its own.
    pub(super) fn halo(&self) -> usize {
        self.halo.unwrap_or(0)
    }

    pub(super) fn serves(&self, needs: Needs) -> bool {
        self.needs.and(needs) == self.needs
    }
}

fn panel_width(left: usize) -> usize {
    [PANEL, 8, 4, 2]
        .into_iter()
        .find(|&width| width <= left)
        .unwrap_or(1)
}

impl Panel {
    fn bytes(&self) -> usize {
        let folds: usize = self.folds.iter().map(|fold| fold.values.capacity()).sum();
        let words = self.values.capacity()
            + self.pairs.capacity()
            + self.scales.capacity()
            + self.sums.capacity()
            + self.half_sums.capacity()
            + folds;
        words * 4 + self.codes.capacity()
    }

    fn fill(&mut self, kernels: &Kernels, rows: &[f32], cols: usize, needs: Needs, quantised: bool) {
        let width = self.width;
        if needs.floats() {
            self.values.resize(width * cols, 0.0);
            for (token, row) in rows.chunks_exact(cols.max(1)).enumerate() {
                for (value, slot) in row.iter().zip(self.values[token..].iter_mut().step_by(width)) {
                    *slot = *value;
                }
            }
        }
        self.pairs.clear();
        if kernels.bf16_pairs && needs.and(Needs::of(TensorType::BF16)) == needs {
            self.pairs.resize(cols.div_ceil(2) * width, 0);
            for (token, row) in rows.chunks_exact(cols.max(1)).enumerate() {
                let slots = self.pairs[token..].iter_mut().step_by(width);
                for (pair, slot) in row.chunks(2).zip(slots) {
                    let bits = |at: usize| pair.get(at).map_or(0, |&x| bf16::from_f32(x).to_bits());
                    *slot = u32::from(bits(0)) | (u32::from(bits(1)) << 16);
                }
            }
        }
        if !quantised {
            return;
        }
        let groups = cols / GROUP;
        let count = groups * width;
        self.codes.resize(count * GROUP, 0);
        self.scales.resize(count, 0.0);
        self.sums.resize(count, 0.0);
        self.half_sums.resize(2 * count, 0.0);
        let mut wanted: Vec<(i32, bool)> = Vec::new();
        for packing in needs.packings() {
            let key = (packing.offset, packing.halves());
            if !wanted.contains(&key) {
                wanted.push(key);
            }
        }
        self.folds.truncate(wanted.len());
        while self.folds.len() < wanted.len() {
            self.folds.push(Fold {
                offset: 0,
                halves: false,
                values: Vec::new(),
            });
        }
        for (fold, (offset, halves)) in self.folds.iter_mut().zip(wanted) {
            fold.offset = offset;
            fold.halves = halves;
            fold.values.resize(if halves { 2 * count } else { count }, 0);
        }
        for (token, row) in rows.chunks_exact(cols).enumerate() {
            for (group, values) in row.as_chunks::<GROUP>().0.iter().enumerate() {
                let at = group * width + token;
                let halves = [2 * group * width + token, (2 * group + 1) * width + token];
                let (codes, _) = self.codes.as_chunks_mut::<GROUP>();
                let (scale, sums) = (kernels.vector.quantise)(values, &mut codes[at]);
                self.scales[at] = scale;
                self.sums[at] = scale * (sums[0] + sums[1]) as f32;
                for (slot, sum) in halves.into_iter().zip(sums) {
                    self.half_sums[slot] = scale * sum as f32;
                }
                for fold in &mut self.folds {
                    if fold.halves {
                        for (slot, sum) in halves.into_iter().zip(sums) {
                            fold.values[slot] = -fold.offset * sum;
                        }
                    } else {
                        fold.values[at] = -fold.offset * (sums[0] + sums[1]);
                    }
                }
            }
        }
    }

    /// Whether everything weights of type `dtype` with `cols` columns read is there.
    pub fn holds(&self, dtype: TensorType, cols: usize) -> bool {
        let Some(packing) = Packing::of(dtype) else {
            return self.values.len() == cols * self.width;
        };
        let count = cols / GROUP * self.width;
        let parts = if packing.halves() { 2 } else { 1 };
        cols.is_multiple_of(GROUP)
            && self.codes.len() == count * GROUP
            && self.scales.len() == count
            && self.sums.len() == count
            && self.half_sums.len() == 2 * count
            && self.fold(packing).len() == parts * count
    }

    /// Whether the pairs for `cols` columns are there.
    #[cfg_attr(
        not(target_arch = "x86_64"),
        expect(dead_code, reason = "read by a table of x86-64 only")
    )]
    pub fn holds_pairs(&self, cols: usize) -> bool {
        self.pairs.len() == cols.div_ceil(2) * self.width
    }

    /// −offset · Σ codes for a format with this offset.
    pub fn fold(&self, packing: Packing) -> &[i32] {
        self.folds
            .iter()
            .find(|fold| fold.offset == packing.offset && fold.halves == packing.halves())
            .map_or(&[], |fold| &fold.values)
    }
}
