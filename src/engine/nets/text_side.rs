//! Text as a speech model's talker hears it: an embedding row read from the mapped file, then two layers.
//!
//! In: text ids. Out: vectors of the talker's width. Invariant: the embedding is never copied to memory as a whole.

use super::load::Loader;
use crate::base::{Code, Problem};
use crate::engine::kernels::dequant::{dequantise, row_bytes};
use crate::engine::kernels::{Activations, Kernels, PackedMatrix};
use crate::engine::team::Team;
use crate::model::speech::SpeechCard;
use crate::model::speech_tensors::{TEXT_EMBEDDING, TEXT_PROJECTION};
use crate::model::weights::{MappedTensor, Weights};

/// Embedding and projection.
#[derive(Debug)]
pub struct TextSide {
    table: MappedTensor,
    row_bytes: usize,
    first: Layer,
    second: Layer,
}

#[derive(Debug)]
struct Layer {
    weight: PackedMatrix,
    bias: Vec<f32>,
}

/// Buffers, kept from call to call.
#[derive(Debug, Default)]
pub struct TextBuffers {
    rows: Vec<f32>,
    inner: Vec<f32>,
    input: Activations,
}

impl Layer {
    fn load(loader: &mut Loader<'_, '_>, name: &str, rows: usize, cols: usize) -> Result<Self, Problem> {
        Ok(Self {
            weight: loader.named_matrix(&format!("{name}.weight"), rows, cols)?,
            bias: loader.named_vector(&format!("{name}.bias"), rows)?,
        })
    }

    /// `out[t] = W · x[t] + b`
    fn apply(&self, kernels: &Kernels, team: &Team, input: &mut Activations, x: &[f32], out: &mut [f32]) {
        let cols = self.weight.cols();
        input.load(kernels, team, x, x.len() / cols, cols, self.weight.needs());
        kernels.linear(team, &self.weight, input, out);
        for row in out.chunks_exact_mut(self.bias.len()) {
            for (value, bias) in row.iter_mut().zip(&self.bias) {
                *value += bias;
            }
        }
    }
}

impl TextSide {
    /// Packs the projection and keeps the embedding mapped; `loader` is the talker's.
    pub(super) fn load(
        loader: &mut Loader<'_, '_>,
        weights: &Weights,
        speech: &SpeechCard,
    ) -> Result<Self, Problem> {
        let (width, hidden) = (speech.text_hidden, loader.spec().hidden);
        let missing = |what: String| {
            Problem::new(
                Code::ModelMalformed,
                what,
                "fetch the model again as its maker published it",
            )
        };
        let table = weights
            .mapped(TEXT_EMBEDDING)
            .ok_or_else(|| missing(format!("the tensor `{TEXT_EMBEDDING}` is missing")))?;
        let row_bytes = row_bytes(table.dtype(), width)
            .filter(|bytes| bytes.checked_mul(speech.text_vocab) == Some(table.bytes().len()))
            .ok_or_else(|| {
                missing(format!(
                    "the tensor `{TEXT_EMBEDDING}` has another size than its shape"
                ))
            })?;
        let [first, second] = TEXT_PROJECTION;
        Ok(Self {
            table,
            row_bytes,
            first: Layer::load(loader, first, width, width)?,
            second: Layer::load(loader, second, hidden, width)?,
        })
    }

    /// Text ids that have a row.
    #[must_use]
    pub fn vocab(&self) -> usize {
        self.table.bytes().len() / self.row_bytes
    }

    /// Writes one vector for each id to `out`, `ids.len()` × the talker's width.
    ///
    /// # Errors
    /// For an id outside the table.
    pub fn project(
        &self,
        kernels: &Kernels,
        team: &Team,
        buffers: &mut TextBuffers,
        ids: &[u32],
        out: &mut [f32],
    ) -> Result<(), Problem> {
        let width = self.first.weight.cols();
        let TextBuffers { rows, inner, input } = buffers;
        rows.resize(ids.len() * width, 0.0);
        for (&id, row) in ids.iter().zip(rows.chunks_exact_mut(width)) {
            let start = id as usize * self.row_bytes;
            let bytes = self
                .table
                .bytes()
                .get(start..start + self.row_bytes)
                .ok_or_else(|| {
                    Problem::new(
                        Code::Internal,
                        format!("text id {id} is outside an embedding of {} rows", self.vocab()),
                        "report this with the request that caused it",
                    )
                })?;
            dequantise(self.table.dtype(), bytes, row)?;
        }
        inner.resize(rows.len(), 0.0);
        self.first.apply(kernels, team, input, rows, inner);
        for value in inner.iter_mut() {
            *value /= 1.0 + (-*value).exp();
        }
        self.second.apply(kernels, team, input, inner, out);
        Ok(())
    }

    /// Whether huge pages were asked for on every matrix.
    #[must_use]
    pub fn huge_pages(&self) -> bool {
        self.first.weight.huge_pages() && self.second.weight.huge_pages()
    }
}
