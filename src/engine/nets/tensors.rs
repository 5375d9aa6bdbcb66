//! Tensors of a checkpoint by name, as values: for networks whose weights are reordered or folded at load.
//!
//! In: opened weights. Out: `f32` values of the shape asked for; bytes held, by format, for read-back.
//! Invariant: a tensor's pages go back to the system once it is read; a missing or mis-shaped one is named.

use std::collections::BTreeMap;

use super::load::{LoadProgress, OnProgress};
use crate::base::{Bytes, Code, Problem};
use crate::engine::nn::conv::{Conv, Held};
use crate::model::card::TensorType;
use crate::model::weights::Weights;

/// Usage below which a codebook row counts as never used.
pub(super) const LEAST_USAGE: f32 = 1e-5;

/// Multiplies each row of `cols` values by its factor.
pub(super) fn scale_rows(values: &mut [f32], factors: &[f32], cols: usize) {
    for (row, factor) in values.chunks_exact_mut(cols).zip(factors) {
        for value in row {
            *value *= factor;
        }
    }
}

/// Reads tensors under one prefix.
pub(super) struct Tensors<'a, 'p> {
    weights: &'a Weights,
    prefix: &'static str,
    held: Held,
    on_progress: &'a mut OnProgress<'p>,
    progress: LoadProgress,
    formats: BTreeMap<String, Bytes>,
    huge_pages: bool,
}

impl<'a, 'p> Tensors<'a, 'p> {
    /// A reader of tensors named `prefix…`, `total` bytes of them, for matrices held as `held`.
    pub(super) fn new(
        weights: &'a Weights,
        prefix: &'static str,
        total: Bytes,
        held: Held,
        on_progress: &'a mut OnProgress<'p>,
    ) -> Self {
        Self {
            weights,
            prefix,
            held,
            on_progress,
            progress: LoadProgress {
                done: Bytes(0),
                total,
            },
            formats: BTreeMap::new(),
            huge_pages: true,
        }
    }

    /// What is held so far, by format as held, and whether huge pages were asked for on every matrix.
    pub(super) fn into_held(self) -> (BTreeMap<String, Bytes>, bool) {
        (self.formats, self.huge_pages)
    }

    /// The values of a tensor that is kept as it is.
    pub(super) fn vector(&mut self, name: &str, shape: &[usize]) -> Result<Vec<f32>, Problem> {
        let values = self.read(name, shape)?;
        self.keep(values.len());
        Ok(values)
    }

    /// Counts `values` F32 values as held.
    pub(super) fn keep(&mut self, values: usize) {
        self.formats.entry("F32".to_owned()).or_default().0 += (values * 4) as u64;
    }

    /// The values of a tensor that becomes part of something else.
    pub(super) fn read(&mut self, name: &str, shape: &[usize]) -> Result<Vec<f32>, Problem> {
        let name = format!("{}{name}", self.prefix);
        let Some(view) = self.weights.tensor(&name) else {
            return Err(unfit(format!(
                "the tensor `{name}` of shape {shape:?} is missing"
            )));
        };
        if !view.shape.iter().copied().eq(shape.iter().map(|&n| n as u64)) {
            return Err(unfit(format!(
                "the tensor `{name}` has the shape {:?}; the network needs {shape:?}",
                view.shape
            )));
        }
        let pairs = || view.bytes.as_chunks::<2>().0.iter();
        let values: Vec<f32> = match view.dtype {
            TensorType::F32 => {
                let words = view.bytes.as_chunks::<4>().0.iter();
                words.map(|&b| f32::from_le_bytes(b)).collect()
            }
            TensorType::F16 => pairs().map(|&b| half::f16::from_le_bytes(b).to_f32()).collect(),
            TensorType::BF16 => pairs().map(|&b| half::bf16::from_le_bytes(b).to_f32()).collect(),
            other => {
                return Err(Problem::new(
                    Code::ModelUnsupported,
                    format!("the tensor `{name}` is stored as {}", other.as_str()),
                    "use a release whose sound networks are F32, F16 or BF16, as published",
                ));
            }
        };
        if let Err(error) = self.weights.release(&name) {
            // The system keeps the pages until it needs them: more memory for a while, nothing wrong.
            tracing::warn!(tensor = name, %error, "could not give back file pages");
        }
        self.progress.done.0 += view.bytes.len() as u64;
        (self.on_progress)(self.progress);
        Ok(values)
    }

    /// Values `NAME.weight` and, where `biased`, `NAME.bias` (else none).
    pub(super) fn weight(
        &mut self,
        name: &str,
        shape: &[usize],
        bias: Option<usize>,
    ) -> Result<(Vec<f32>, Vec<f32>), Problem> {
        let weight = self.read(&format!("{name}.weight"), shape)?;
        let bias = match bias {
            Some(length) => self.read(&format!("{name}.bias"), &[length])?,
            None => Vec::new(),
        };
        Ok((weight, bias))
    }

    /// A convolution with stride 1 and a bias.
    pub(super) fn conv(
        &mut self,
        name: &str,
        (out, input, taps): (usize, usize, usize),
        dilation: usize,
    ) -> Result<Conv, Problem> {
        let (weight, bias) = self.weight(name, &[out, input, taps], Some(out))?;
        let conv = Conv::new(&weight, &bias, (out, input, taps), dilation, self.held)?;
        Ok(self.held_conv(conv))
    }

    /// A product with a matrix, with a bias where the checkpoint has one.
    pub(super) fn linear(
        &mut self,
        name: &str,
        (out, input): (usize, usize),
        biased: bool,
    ) -> Result<Conv, Problem> {
        let (weight, bias) = self.weight(name, &[out, input], biased.then_some(out))?;
        self.packed(&weight, &bias, (out, input))
    }

    /// A product with values that are already at hand.
    pub(super) fn packed(
        &mut self,
        weight: &[f32],
        bias: &[f32],
        shape: (usize, usize),
    ) -> Result<Conv, Problem> {
        let conv = Conv::linear(weight, bias, shape, self.held)?;
        Ok(self.held_conv(conv))
    }

    /// A transposed convolution with a bias.
    pub(super) fn transposed(
        &mut self,
        name: &str,
        (input, out, kernel): (usize, usize, usize),
        stride: usize,
    ) -> Result<Conv, Problem> {
        let weight = self.read(&format!("{name}.weight"), &[input, out, kernel])?;
        let bias = self.read(&format!("{name}.bias"), &[out])?;
        let conv = Conv::transposed(&weight, &bias, (input, out, kernel), stride, self.held)?;
        Ok(self.held_conv(conv))
    }

    /// A strided convolution, with a bias where the checkpoint has one.
    pub(super) fn strided(
        &mut self,
        name: &str,
        (out, input, kernel): (usize, usize, usize),
        stride: usize,
        biased: bool,
    ) -> Result<Conv, Problem> {
        let (weight, bias) = self.weight(name, &[out, input, kernel], biased.then_some(out))?;
        let conv = Conv::strided(&weight, &bias, (out, input, kernel), stride, self.held)?;
        Ok(self.held_conv(conv))
    }

    fn held_conv(&mut self, conv: Conv) -> Conv {
        conv.add_bytes(&mut self.formats);
        self.huge_pages &= conv.huge_pages();
        conv
    }
}

fn unfit(what: String) -> Problem {
    Problem::new(
        Code::ModelMalformed,
        what,
        "fetch the model again, or use another conversion of it",
    )
    .why("the network cannot be computed without it")
}
