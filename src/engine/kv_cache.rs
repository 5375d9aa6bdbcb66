//! The key/value cache of one decoder: for every layer a ring, for every sequence slot its own part of it.
//!
//! In: the network's shape and the plan's sizes. Out: keys and values of a (layer, sequence) as the kernels read them.
//! Invariant: allocated once, exactly the bytes `model::kv::kv_bytes` says; a slot's old contents are never seen,
//! because attention reads only positions its own sequence has written.

use super::kernels::KvShape;
use crate::base::{Bytes, Code, Problem};
use crate::model::card::DecoderSpec;
use crate::model::kv;
use crate::plan::Dtype;
use crate::sys::memory::Region;

/// Sizes of a cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KvSizes {
    /// Tokens a sequence may have.
    pub context: usize,
    /// Sequence slots.
    pub max_seqs: usize,
    /// Most rows of one sequence in a pass: what rings of sliding layers need beyond their window.
    pub prefill_batch: usize,
    /// Element type, `F32` or `F16`.
    pub dtype: Dtype,
}

/// Keys and values of all layers and sequences.
#[derive(Debug)]
pub struct KvCache {
    layers: Vec<LayerCache>,
    sizes: KvSizes,
}

/// One layer: keys and values, sequence after sequence.
#[derive(Debug)]
pub struct LayerCache {
    shape: KvShape,
    keys: Region,
    values: Region,
}

impl KvCache {
    /// Allocates a cache. Pages become resident when they are first written, small ones: every head of every layer
    /// grows on its own, so that in huge pages the first token of a small model would take hundreds of MiB.
    ///
    /// # Errors
    /// `model_unsupported` for value heads of another width than key heads or an element type the kernels lack;
    /// `memory_short` when the system refuses.
    pub fn new(spec: &DecoderSpec, sizes: KvSizes) -> Result<Self, Problem> {
        if spec.value_dim != spec.head_dim {
            return Err(Problem::new(
                Code::ModelUnsupported,
                format!(
                    "value heads are {} wide and key heads {}",
                    spec.value_dim, spec.head_dim
                ),
                "use a model whose key and value heads have the same width",
            ));
        }
        let too_large = || {
            Problem::new(
                Code::MemoryShort,
                format!(
                    "a cache for {} sequences of {} tokens is larger than memory can address",
                    sizes.max_seqs, sizes.context
                ),
                "lower `stages.decoder.context` or `stages.decoder.max_seqs`",
            )
        };
        let layers = kv::slots_by_layer(spec, sizes.context, sizes.prefill_batch)
            .into_iter()
            .map(|slots| {
                let shape = KvShape::new(spec.kv_heads, spec.head_dim, slots, sizes.dtype)?;
                let region = |bytes: usize| {
                    let all = bytes.checked_mul(sizes.max_seqs).ok_or_else(too_large)?;
                    Region::sparse(all)
                };
                Ok(LayerCache {
                    keys: region(shape.key_bytes())?,
                    values: region(shape.value_bytes())?,
                    shape,
                })
            })
            .collect::<Result<_, Problem>>()?;
        Ok(Self { layers, sizes })
    }

    /// Sizes it was made with.
    #[must_use]
    pub fn sizes(&self) -> KvSizes {
        self.sizes
    }

    /// Bytes allocated for keys and values.
    #[must_use]
    pub fn bytes(&self) -> Bytes {
        Bytes(
            self.layers
                .iter()
                .map(|layer| (layer.keys.len() + layer.values.len()) as u64)
                .sum(),
        )
    }

    /// The memory of keys and values.
    pub fn regions(&self) -> impl Iterator<Item = &Region> {
        self.layers.iter().flat_map(|layer| [&layer.keys, &layer.values])
    }

    /// Slots each layer has for a sequence.
    #[must_use]
    pub fn tokens_by_layer(&self) -> Vec<usize> {
        self.layers.iter().map(|layer| layer.shape.capacity()).collect()
    }

    /// One layer's part.
    ///
    /// # Panics
    /// If there is no such layer.
    pub fn layer(&mut self, layer: usize) -> &mut LayerCache {
        &mut self.layers[layer]
    }
}

impl LayerCache {
    /// Geometry of one sequence's part.
    #[must_use]
    pub fn shape(&self) -> KvShape {
        self.shape
    }

    /// Writes one position of a sequence; `k` (rotated) and `v` are `kv_heads × head_dim`.
    ///
    /// # Panics
    /// If the sequence is not below `max_seqs` or a length does not fit.
    pub fn store(&mut self, sequence: usize, position: usize, k: &[f32], v: &[f32]) {
        let shape = self.shape;
        let (keys, values) = (shape.key_bytes(), shape.value_bytes());
        shape.store(
            &mut self.keys.bytes_mut()[sequence * keys..(sequence + 1) * keys],
            &mut self.values.bytes_mut()[sequence * values..(sequence + 1) * values],
            position,
            k,
            v,
        );
    }

    /// Keys and values of a sequence.
    ///
    /// # Panics
    /// If the sequence is not below `max_seqs`.
    #[must_use]
    pub fn sequence(&self, sequence: usize) -> (&[u8], &[u8]) {
        let (keys, values) = (self.shape.key_bytes(), self.shape.value_bytes());
        (
            &self.keys.bytes()[sequence * keys..(sequence + 1) * keys],
            &self.values.bytes()[sequence * values..(sequence + 1) * values],
        )
    }
}
