//! Convolutions over time, on rows of channels: plain, strided and transposed, all as one matrix product.
//!
//! In: weights as checkpoints have them. Out: [`Conv`], which reads `halo + T` rows and writes T.
//! Invariant: nothing looks ahead. A strided convolution reads `stride` rows as one wide row; a transposed one writes
//! `stride` rows as one wide row; so both are plain convolutions, and what a stream carries is always the last `halo`
//! input rows.

use std::collections::BTreeMap;

use crate::base::{Bytes, Code, Problem};
use crate::engine::kernels::{Activations, ConvSpec, Kernels, PackSource, PackedMatrix, Store};
use crate::engine::team::Team;
use crate::model::card::TensorType;
use crate::model::weight_path::WeightPath;
use crate::sys::memory::Region;

/// A convolution ready to run.
#[derive(Debug)]
pub struct Conv {
    weights: PackedMatrix,
    bias: Vec<f32>,
    taps: usize,
    dilation: usize,
}

/// How weights are to be held.
#[derive(Clone, Copy, Debug)]
pub struct Held {
    /// By which rule.
    pub path: WeightPath,
    /// Ask for huge pages.
    pub huge_pages: bool,
}

impl Held {
    /// The type a matrix with `cols` columns a tap is held in: F32 where the path's cannot be cut at every tap.
    fn for_columns(self, cols: usize) -> TensorType {
        match self.path.held(TensorType::F32, cols as u64, false) {
            // Two columns share a word.
            TensorType::BF16 if !cols.is_multiple_of(2) => TensorType::F32,
            held => held,
        }
    }
}

impl Conv {
    /// A convolution with stride 1; `values` are `[out][input][taps]`, `bias` one value an output channel or empty.
    ///
    /// # Errors
    /// `model_malformed` when lengths do not fit, `memory_short`.
    pub fn new(
        values: &[f32],
        bias: &[f32],
        (out, input, taps): (usize, usize, usize),
        dilation: usize,
        held: Held,
    ) -> Result<Self, Problem> {
        Self::strided(values, bias, (out, input, taps), 1, held).map(|conv| Self { dilation, ..conv })
    }

    /// A product with a matrix `[out][input]`.
    ///
    /// # Errors
    /// As [`Self::new`].
    pub fn linear(
        values: &[f32],
        bias: &[f32],
        (out, input): (usize, usize),
        held: Held,
    ) -> Result<Self, Problem> {
        Self::new(values, bias, (out, input, 1), 1, held)
    }

    /// A convolution that gives one row for every `stride` rows; `kernel` is a multiple of `stride`. Its input rows
    /// are `stride · input` wide: pass rows of `input` channels as they are, a whole number of strides of them.
    ///
    /// # Errors
    /// As [`Self::new`].
    pub fn strided(
        values: &[f32],
        bias: &[f32],
        (out, input, kernel): (usize, usize, usize),
        stride: usize,
        held: Held,
    ) -> Result<Self, Problem> {
        check(values, bias, (out, input, kernel), stride, out)?;
        // [out][input][kernel] → [out][kernel][input]: tap after tap, in each the rows of a stride.
        let mut rows = vec![0.0; values.len()];
        for (from, to) in values
            .chunks_exact(input * kernel)
            .zip(rows.chunks_exact_mut(input * kernel))
        {
            for (channel, taps) in from.chunks_exact(kernel).enumerate() {
                for (tap, value) in taps.iter().enumerate() {
                    to[tap * input + channel] = *value;
                }
            }
        }
        Self::pack(&rows, bias.to_vec(), (out, stride * input, kernel / stride), held)
    }

    /// A transposed convolution that gives `stride` rows for every row; `values` are `[input][out][kernel]` with
    /// `kernel` a multiple of `stride`. Its output rows are `stride · out` wide: `stride` rows of `out` channels.
    /// Outputs that only later inputs complete are not given, as in every causal use.
    ///
    /// # Errors
    /// As [`Self::new`].
    pub fn transposed(
        values: &[f32],
        bias: &[f32],
        (input, out, kernel): (usize, usize, usize),
        stride: usize,
        held: Held,
    ) -> Result<Self, Problem> {
        check(values, bias, (input, out, kernel), stride, out)?;
        let taps = kernel / stride;
        // y[t·stride + i] = Σ_tap W[:, :, tap·stride + i] · x[t − tap]: the oldest row meets the last part.
        let mut rows = vec![0.0; values.len()];
        for (channel, from) in values.chunks_exact(out * kernel).enumerate() {
            for (output, from) in from.chunks_exact(kernel).enumerate() {
                for (at, value) in from.iter().enumerate() {
                    let (tap, phase) = (taps - 1 - at / stride, at % stride);
                    rows[(phase * out + output) * taps * input + tap * input + channel] = *value;
                }
            }
        }
        Self::pack(&rows, bias.repeat(stride), (stride * out, input, taps), held)
    }

    fn pack(
        values: &[f32],
        bias: Vec<f32>,
        (rows, cols, taps): (usize, usize, usize),
        held: Held,
    ) -> Result<Self, Problem> {
        let source = PackSource {
            dtype: TensorType::F32,
            held: held.for_columns(cols),
            rows,
            cols: cols * taps,
            bytes: bytemuck::cast_slice(values),
            row_order: None,
        };
        Ok(Self {
            weights: PackedMatrix::pack(&[source], held.huge_pages)?,
            bias,
            taps,
            dilation: 1,
        })
    }

    /// Rows read before the first row of the output's own.
    #[must_use]
    pub fn halo(&self) -> usize {
        (self.taps - 1) * self.dilation
    }

    /// Width of an input row.
    #[must_use]
    pub fn input(&self) -> usize {
        self.weights.cols() / self.taps
    }

    /// Width of an output row.
    #[must_use]
    pub fn output(&self) -> usize {
        self.weights.rows()
    }

    /// Values of the rows that a stream carries.
    #[must_use]
    pub fn history(&self) -> usize {
        self.halo() * self.input()
    }

    /// Memory of the weights.
    #[must_use]
    pub fn region(&self) -> &Region {
        self.weights.region()
    }

    /// Whether huge pages were asked for.
    #[must_use]
    pub fn huge_pages(&self) -> bool {
        self.weights.huge_pages()
    }

    /// Adds the bytes held, by format as held.
    pub fn add_bytes(&self, formats: &mut BTreeMap<String, Bytes>) {
        for (format, bytes) in self.weights.format_bytes() {
            formats.entry(format).or_default().0 += bytes.0;
        }
        formats.entry("F32".to_owned()).or_default().0 += (self.bias.len() * 4) as u64;
    }

    /// Convolves `(halo + tokens)` rows of `x` into `tokens` rows of `out`.
    ///
    /// # Panics
    /// If lengths do not fit.
    pub fn run(&self, run: &mut ConvRun<'_>, x: &[f32], out: &mut [f32], store: Store) {
        let tokens = out.len() / self.output();
        run.input.load_windows(
            run.kernels,
            run.team,
            x,
            tokens,
            self.halo(),
            self.input(),
            self.weights.needs(),
        );
        let spec = ConvSpec {
            weights: &self.weights,
            bias: &self.bias,
            taps: self.taps,
            dilation: self.dilation,
        };
        run.kernels.conv(run.team, &spec, run.input, out, store);
    }

    /// The same for a part of a stream: `fill` writes the new input rows behind those carried in `history`, which then
    /// holds the last rows for the next part. `padded` is scratch.
    ///
    /// # Panics
    /// If lengths do not fit.
    pub fn stream(
        &self,
        run: &mut ConvRun<'_>,
        history: &mut [f32],
        padded: &mut Vec<f32>,
        fill: impl FnOnce(&mut [f32]),
        out: &mut [f32],
        store: Store,
    ) {
        let new = out.len() / self.output() * self.input();
        padded.resize(history.len() + new, 0.0);
        padded[..history.len()].copy_from_slice(history);
        fill(&mut padded[history.len()..]);
        history.copy_from_slice(&padded[new..]);
        self.run(run, padded, out, store);
    }
}

/// What running a convolution takes beside its rows.
#[derive(Debug)]
pub struct ConvRun<'a> {
    /// Kernel table.
    pub kernels: &'a Kernels,
    /// Threads.
    pub team: &'a Team,
    /// Prepared input, kept from run to run.
    pub input: &'a mut Activations,
}

fn check(
    values: &[f32],
    bias: &[f32],
    (first, second, kernel): (usize, usize, usize),
    stride: usize,
    out: usize,
) -> Result<(), Problem> {
    let size = first.checked_mul(second).and_then(|n| n.checked_mul(kernel));
    let fits = size == Some(values.len()) && !values.is_empty();
    if fits && stride > 0 && kernel.is_multiple_of(stride) && (bias.is_empty() || bias.len() == out) {
        return Ok(());
    }
    Err(Problem::new(
        Code::ModelMalformed,
        format!(
            "a convolution of {first} × {second} × {kernel} with stride {stride} cannot be made of {} weights and {} \
             biases",
            values.len(),
            bias.len()
        ),
        "fetch the model again, or use another conversion of it",
    ))
}

#[cfg(test)]
mod tests;
