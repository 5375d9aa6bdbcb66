//! The decoder: one network for every language-model family, described by [`DecoderSpec`].
//!
//! In: rows of (sequence, position, token), a [`KvCache`]. Out: logits of the rows that ask.
//! Invariant: as of its [`Body`]; a row's logits depend on nothing but its sequence.

use std::collections::BTreeMap;

use super::Row;
use super::body::{Body, BodyBuffers, Place, fit};
use super::load::{Held, HeldTensor, Loader, OnProgress};
use crate::base::{Bytes, Code, Problem};
use crate::engine::kernels::{Activations, Kernels, PackedMatrix};
use crate::engine::kv_cache::KvCache;
use crate::engine::team::Team;
use crate::model::card::{DecoderSpec, ModelCard};
use crate::model::families::TensorRole;
use crate::model::weights::Weights;
use crate::sys::memory::Region;

/// A loaded decoder: weights only, no state.
#[derive(Debug)]
pub struct Decoder {
    embedding: PackedMatrix,
    /// `None`: the embedding is the head.
    head: Option<PackedMatrix>,
    body: Body,
    format_bytes: BTreeMap<String, Bytes>,
    held: Vec<HeldTensor>,
}

/// Buffers of a pass, kept from pass to pass.
#[derive(Debug)]
pub struct Workspace {
    body: BodyBuffers,
    places: Vec<Place>,
    input: Activations,
    logits: Vec<f32>,
}

impl Decoder {
    /// Packs the weights of `card`'s network; `on_progress` is called after each tensor.
    ///
    /// # Errors
    /// Names the tensor that is missing, mis-shaped or of a type that cannot be used; `memory_short`.
    pub fn load(
        card: &ModelCard,
        weights: &Weights,
        held: Held,
        on_progress: &mut OnProgress<'_>,
    ) -> Result<Self, Problem> {
        let mut loader = Loader::of_card(card, weights, held, on_progress);
        let embedding = loader.matrix(&[TensorRole::TokenEmbedding], 0, None)?;
        let body = Body::load(&mut loader)?;
        let head = (!card.decoder.tied_embeddings)
            .then(|| loader.matrix(&[TensorRole::Output], 0, None))
            .transpose()?;
        Ok(Self {
            held: loader.take_held(),
            format_bytes: loader.into_format_bytes(),
            embedding,
            head,
            body,
        })
    }

    /// The network's shape.
    #[must_use]
    pub fn spec(&self) -> &DecoderSpec {
        self.body.spec()
    }

    /// Bytes of weights held, by format as held.
    #[must_use]
    pub fn format_bytes(&self) -> &BTreeMap<String, Bytes> {
        &self.format_bytes
    }

    /// Every tensor as it is held, in the order of loading.
    #[must_use]
    pub fn held(&self) -> &[HeldTensor] {
        &self.held
    }

    /// The memory of every matrix.
    pub fn regions(&self) -> impl Iterator<Item = &Region> {
        std::iter::once(self.embedding.region())
            .chain(self.head.as_ref().map(PackedMatrix::region))
            .chain(self.body.regions())
    }

    /// Runs one pass and returns one row of `vocab` logits for each row that asks, in row order.
    ///
    /// Rows of one sequence stand together with consecutive positions, at most the cache's `prefill_batch` of them.
    ///
    /// # Errors
    /// When a row lies outside the cache or the vocabulary, or rows do not stand as they must; nothing was written
    /// then.
    pub fn forward<'w>(
        &self,
        kernels: &Kernels,
        team: &Team,
        cache: &mut KvCache,
        workspace: &'w mut Workspace,
        rows: &[Row],
    ) -> Result<&'w mut [f32], Problem> {
        let spec = self.body.spec();
        if let Some(row) = rows.iter().find(|row| row.token as usize >= spec.vocab) {
            return Err(Problem::new(
                Code::Internal,
                format!("token {} is outside a vocabulary of {}", row.token, spec.vocab),
                "report this with the request that caused it",
            ));
        }
        let Workspace {
            body,
            places,
            input,
            logits,
        } = workspace;
        places.clear();
        places.extend(rows.iter().map(Row::place));
        let states = self
            .body
            .forward(kernels, team, cache, body, places, &|row, out| {
                self.embedding.row_f32(rows[row].token as usize, out);
                if spec.embedding_scale.to_bits() != 1f32.to_bits() {
                    kernels.scale(out, spec.embedding_scale);
                }
            })?;
        let head = self.head.as_ref().unwrap_or(&self.embedding);
        let tokens = states.len() / spec.hidden;
        fit(logits, tokens * spec.vocab);
        input.load(kernels, team, states, tokens, spec.hidden, head.needs());
        kernels.linear(team, head, input, logits);
        if let Some(cap) = spec.logit_softcap {
            kernels.softcap(team, logits, cap);
        }
        Ok(logits)
    }
}

impl Workspace {
    /// Buffers for passes of `decoder`; they grow to the largest pass.
    #[must_use]
    pub fn new(decoder: &Decoder) -> Self {
        Self {
            body: BodyBuffers::new(&decoder.body),
            places: Vec::new(),
            input: Activations::new(),
            logits: Vec::new(),
        }
    }
    /// Bytes of the buffers as they have grown, and of the rotations of a pass.
    #[must_use]
    pub fn bytes(&self) -> (Bytes, Bytes) {
        let (body, ropes) = self.body.bytes();
        let own = self.logits.capacity() * size_of::<f32>() + self.places.capacity() * size_of::<Place>();
        (Bytes(body.0 + self.input.bytes().0 + own as u64), ropes)
    }
}
