//! The code predictor: a small decoder that completes a frame, codebook after codebook.
//!
//! In: the talker's state and codebook 0 of a frame, then each code as it is chosen. Out: logits of the next codebook.
//! Invariant: a stream's cache begins anew with every frame; all streams take each sub-step in one pass.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::body::{Body, BodyBuffers, Place};
use super::code_tables::CodeTables;
use super::load::{Held, Loader, Network, OnProgress};
use crate::base::{Bytes, Problem};
use crate::engine::kernels::{Activations, Kernels, PackedMatrix};
use crate::engine::kv_cache::KvCache;
use crate::engine::team::Team;
use crate::model::card::{DecoderSpec, ModelCard};
use crate::model::speech::{CODE_PREDICTOR, SpeechCard, TensorUse};
use crate::model::speech_tensors::{PREDICTOR_PREFIX, PREDICTOR_PROJECTION, predictor_head};
use crate::model::weights::Weights;

/// Rows of a stream in the first pass of a frame: the talker's state and codebook 0.
pub const FIRST_ROWS: usize = 2;

/// A loaded predictor: weights only, no state.
#[derive(Debug)]
pub struct CodePredictor {
    body: Body,
    /// Head of codebook i + 1.
    heads: Vec<PackedMatrix>,
    /// From the talker's width, where the widths or the release want it.
    projection: Option<Projection>,
    tables: Arc<CodeTables>,
    format_bytes: BTreeMap<String, Bytes>,
}

#[derive(Debug)]
struct Projection {
    weight: PackedMatrix,
    bias: Vec<f32>,
}

/// Buffers of a pass, kept from pass to pass.
#[derive(Debug)]
pub struct PredictorBuffers {
    body: BodyBuffers,
    places: Vec<Place>,
    /// Inputs at the talker's width.
    wide: Vec<f32>,
    /// Inputs at the predictor's width.
    narrow: Vec<f32>,
    input: Activations,
    logits: Vec<f32>,
}

impl CodePredictor {
    /// Packs the predictor's weights; `tables` are the talker's. `on_progress` is called after each tensor.
    ///
    /// # Errors
    /// Names the tensor that is missing, mis-shaped or of a type that cannot be used; `memory_short`.
    pub fn load(
        card: &ModelCard,
        speech: &SpeechCard,
        weights: &Weights,
        tables: Arc<CodeTables>,
        held: Held,
        on_progress: &mut OnProgress<'_>,
    ) -> Result<Self, Problem> {
        let spec = &speech.predictor;
        let network = Network {
            spec,
            format: card.format,
            family: &card.family,
            prefix: PREDICTOR_PREFIX,
        };
        let tensors = card
            .tensors
            .iter()
            .filter(|tensor| card.tensor_use(tensor) == Some((CODE_PREDICTOR, TensorUse::Held)));
        let total = Bytes(tensors.map(|tensor| tensor.bytes.0).sum());
        let mut loader = Loader::new(network, weights, held, total, on_progress);
        let body = Body::load(&mut loader)?;
        let heads = (0..speech.codebooks - 1)
            .map(|group| loader.named_matrix(&predictor_head(group), spec.vocab, spec.hidden))
            .collect::<Result<_, _>>()?;
        let projection = speech
            .predictor_projection
            .then(|| {
                let weight = format!("{PREDICTOR_PROJECTION}.weight");
                Ok(Projection {
                    weight: loader.named_matrix(&weight, spec.hidden, card.decoder.hidden)?,
                    bias: loader.named_vector(&format!("{PREDICTOR_PROJECTION}.bias"), spec.hidden)?,
                })
            })
            .transpose()?;
        Ok(Self {
            body,
            heads,
            projection,
            tables,
            format_bytes: loader.into_format_bytes(),
        })
    }

    /// The network's shape.
    #[must_use]
    pub fn spec(&self) -> &DecoderSpec {
        self.body.spec()
    }

    /// Bytes of weights held, by format as held; the tables count as the talker's.
    #[must_use]
    pub fn format_bytes(&self) -> &BTreeMap<String, Bytes> {
        &self.format_bytes
    }

    /// Whether huge pages were asked for on every matrix.
    #[must_use]
    pub fn huge_pages(&self) -> bool {
        self.body.huge_pages()
            && self.heads.iter().all(PackedMatrix::huge_pages)
            && self.projection.as_ref().is_none_or(|p| p.weight.huge_pages())
    }

    /// Begins a frame of every stream: `states` are the talker's (streams × its width), `codes` codebook 0.
    /// Returns logits of codebook 1, one row a stream.
    ///
    /// # Errors
    /// When a slot lies outside the cache or stands twice.
    #[expect(clippy::too_many_arguments, reason = "the parts of a pass, as of the body")]
    pub fn begin<'b>(
        &self,
        kernels: &Kernels,
        team: &Team,
        cache: &mut KvCache,
        buffers: &'b mut PredictorBuffers,
        slots: &[usize],
        states: &[f32],
        codes: &[u32],
    ) -> Result<&'b mut [f32], Problem> {
        let width = self.tables.width();
        buffers.places.clear();
        buffers.wide.resize(slots.len() * FIRST_ROWS * width, 0.0);
        let rows = buffers.wide.chunks_exact_mut(FIRST_ROWS * width);
        for (((&slot, state), &code), rows) in
            slots.iter().zip(states.chunks_exact(width)).zip(codes).zip(rows)
        {
            let (first, second) = rows.split_at_mut(width);
            first.copy_from_slice(state);
            self.tables.row(0, code, second);
            for position in 0..FIRST_ROWS {
                buffers.places.push(Place {
                    sequence: slot,
                    position,
                    wanted: position + 1 == FIRST_ROWS,
                });
            }
        }
        self.pass(kernels, team, cache, buffers, 0)
    }

    /// Goes on with the code of codebook `book` (1 to the last but one) of every stream. Returns logits of the next
    /// codebook, one row a stream.
    ///
    /// # Errors
    /// When a slot lies outside the cache or stands twice.
    #[expect(clippy::too_many_arguments, reason = "the parts of a pass, as of the body")]
    pub fn next<'b>(
        &self,
        kernels: &Kernels,
        team: &Team,
        cache: &mut KvCache,
        buffers: &'b mut PredictorBuffers,
        slots: &[usize],
        book: usize,
        codes: &[u32],
    ) -> Result<&'b mut [f32], Problem> {
        let width = self.tables.width();
        buffers.places.clear();
        buffers.wide.resize(slots.len() * width, 0.0);
        for ((&slot, &code), row) in slots.iter().zip(codes).zip(buffers.wide.chunks_exact_mut(width)) {
            self.tables.row(book, code, row);
            buffers.places.push(Place {
                sequence: slot,
                position: book + 1,
                wanted: true,
            });
        }
        self.pass(kernels, team, cache, buffers, book)
    }

    /// Runs the rows in `buffers.wide` and applies head `head`.
    fn pass<'b>(
        &self,
        kernels: &Kernels,
        team: &Team,
        cache: &mut KvCache,
        buffers: &'b mut PredictorBuffers,
        head: usize,
    ) -> Result<&'b mut [f32], Problem> {
        let spec = self.body.spec();
        let hidden = spec.hidden;
        let PredictorBuffers {
            body,
            places,
            wide,
            narrow,
            input,
            logits,
        } = buffers;
        let inputs: &[f32] = match &self.projection {
            None => wide,
            Some(projection) => {
                narrow.resize(places.len() * hidden, 0.0);
                let needs = projection.weight.needs();
                input.load(kernels, team, wide, places.len(), self.tables.width(), needs);
                kernels.linear(team, &projection.weight, input, narrow);
                for row in narrow.chunks_exact_mut(hidden) {
                    for (value, bias) in row.iter_mut().zip(&projection.bias) {
                        *value += bias;
                    }
                }
                narrow
            }
        };
        let fill = |row: usize, out: &mut [f32]| {
            out.copy_from_slice(&inputs[row * hidden..(row + 1) * hidden]);
        };
        let states = self.body.forward(kernels, team, cache, body, places, &fill)?;
        let head = &self.heads[head];
        let rows = states.len() / hidden;
        logits.resize(rows * spec.vocab, 0.0);
        input.load(kernels, team, states, rows, hidden, head.needs());
        kernels.linear(team, head, input, logits);
        Ok(logits)
    }
}

impl PredictorBuffers {
    /// Buffers for passes of `predictor`; they grow to the largest pass.
    #[must_use]
    pub fn new(predictor: &CodePredictor) -> Self {
        Self {
            body: BodyBuffers::new(&predictor.body),
            places: Vec::new(),
            wide: Vec::new(),
            narrow: Vec::new(),
            input: Activations::new(),
            logits: Vec::new(),
        }
    }
}
