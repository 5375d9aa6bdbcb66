//! The talker: the decoder of a speech model that says codebook 0 of every frame.
//!
//! In: vectors of prompt rows and frames, a KV cache. Out: normed states and logits over codes and control rows.
//! Invariant: as of its [`Body`]; rows of several streams share every pass through the weights.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::body::{Body, BodyBuffers, Observe, Place};
use super::code_tables::CodeTables;
use super::load::{Held, Loader, Network, OnProgress};
use super::text_side::{TextBuffers, TextSide};
use crate::base::{Bytes, Problem};
use crate::engine::kernels::{Activations, Kernels, PackedMatrix};
use crate::engine::kv_cache::KvCache;
use crate::engine::team::Team;
use crate::model::card::{DecoderSpec, ModelCard};
use crate::model::families::TensorRole;
use crate::model::speech::{SpeechCard, TALKER, TensorUse};
use crate::model::speech_tensors::TALKER_PREFIX;
use crate::model::weights::Weights;

/// A loaded talker: weights only, no state.
#[derive(Debug)]
pub struct Talker {
    body: Body,
    head: PackedMatrix,
    text: TextSide,
    tables: Arc<CodeTables>,
    format_bytes: BTreeMap<String, Bytes>,
}

/// Buffers of a pass, kept from pass to pass.
#[derive(Debug)]
pub struct TalkerBuffers {
    body: BodyBuffers,
    input: Activations,
    logits: Vec<f32>,
    text: TextBuffers,
}

/// What a pass gave: one row for each place that was wanted, in order.
#[derive(Debug)]
pub struct Heard<'b> {
    /// States behind the last norm, rows of `hidden`.
    pub states: &'b [f32],
    /// Logits, rows of `vocab`; free to use as scratch space.
    pub logits: &'b mut [f32],
}

impl Talker {
    /// Packs the talker's weights and the tables of codes; `on_progress` is called after each tensor.
    ///
    /// # Errors
    /// Names the tensor that is missing, mis-shaped or of a type that cannot be used; `memory_short`.
    pub fn load(
        card: &ModelCard,
        speech: &SpeechCard,
        weights: &Weights,
        held: Held,
        on_progress: &mut OnProgress<'_>,
    ) -> Result<Self, Problem> {
        let network = Network {
            spec: &card.decoder,
            format: card.format,
            family: &card.family,
            prefix: TALKER_PREFIX,
        };
        let tensors = card
            .tensors
            .iter()
            .filter(|tensor| card.tensor_use(tensor) == Some((TALKER, TensorUse::Held)));
        let total = Bytes(tensors.map(|tensor| tensor.bytes.0).sum());
        let mut loader = Loader::new(network, weights, held, total, on_progress);
        let tables = Arc::new(CodeTables::load(&mut loader, speech)?);
        let text = TextSide::load(&mut loader, weights, speech)?;
        let body = Body::load(&mut loader)?;
        let head = loader.matrix(&[TensorRole::Output], 0, None)?;
        Ok(Self {
            body,
            head,
            text,
            tables,
            format_bytes: loader.into_format_bytes(),
        })
    }

    /// The network's shape.
    #[must_use]
    pub fn spec(&self) -> &DecoderSpec {
        self.body.spec()
    }

    /// Embeddings of codes, which the predictor shares.
    #[must_use]
    pub fn tables(&self) -> &Arc<CodeTables> {
        &self.tables
    }

    /// Bytes of weights held, by format as held.
    #[must_use]
    pub fn format_bytes(&self) -> &BTreeMap<String, Bytes> {
        &self.format_bytes
    }

    /// Whether huge pages were asked for on every matrix.
    #[must_use]
    pub fn huge_pages(&self) -> bool {
        self.body.huge_pages() && self.head.huge_pages() && self.text.huge_pages() && self.tables.huge_pages()
    }

    /// Writes the vector of each text id to `out`, `ids.len()` × `hidden`.
    ///
    /// # Errors
    /// For an id outside the text embedding.
    pub fn text_rows(
        &self,
        kernels: &Kernels,
        team: &Team,
        buffers: &mut TalkerBuffers,
        ids: &[u32],
        out: &mut [f32],
    ) -> Result<(), Problem> {
        self.text.project(kernels, team, &mut buffers.text, ids, out)
    }

    /// Runs one pass over rows whose vectors stand in `inputs`, `places.len()` × `hidden`.
    ///
    /// # Errors
    /// When a row lies outside the cache or rows do not stand as they must; nothing was written then.
    pub fn forward<'b>(
        &self,
        kernels: &Kernels,
        team: &Team,
        cache: &mut KvCache,
        buffers: &'b mut TalkerBuffers,
        places: &[Place],
        inputs: &[f32],
    ) -> Result<Heard<'b>, Problem> {
        self.forward_observed(kernels, team, cache, buffers, places, inputs, &mut |_, _| {})
    }

    /// [`Self::forward`] that shows `observe` the rows that go into every layer.
    ///
    /// # Errors
    /// As [`Self::forward`].
    #[expect(clippy::too_many_arguments, reason = "as of the body")]
    pub fn forward_observed<'b>(
        &self,
        kernels: &Kernels,
        team: &Team,
        cache: &mut KvCache,
        buffers: &'b mut TalkerBuffers,
        places: &[Place],
        inputs: &[f32],
        observe: &mut Observe<'_>,
    ) -> Result<Heard<'b>, Problem> {
        let spec = self.body.spec();
        let hidden = spec.hidden;
        let TalkerBuffers {
            body, input, logits, ..
        } = buffers;
        let fill = |row: usize, out: &mut [f32]| {
            out.copy_from_slice(&inputs[row * hidden..(row + 1) * hidden]);
        };
        let states = self
            .body
            .forward_observed(kernels, team, cache, body, places, &fill, observe)?;
        let rows = states.len() / hidden;
        logits.resize(rows * spec.vocab, 0.0);
        input.load(kernels, team, states, rows, hidden, self.head.needs());
        kernels.linear(team, &self.head, input, logits);
        Ok(Heard { states, logits })
    }
}

impl TalkerBuffers {
    /// Buffers for passes of `talker`; they grow to the largest pass.
    #[must_use]
    pub fn new(talker: &Talker) -> Self {
        Self {
            body: BodyBuffers::new(&talker.body),
            input: Activations::new(),
            logits: Vec::new(),
            text: TextBuffers::default(),
        }
    }
}
