//! The memory ledger: every item that will be held, for any context and number of sequences.
//!
//! In: the model's facts, element types, batch and thread counts, policy. Out: items and their sums.
//! Invariant: sums count anonymous memory, which cannot be dropped; mapped file pages are listed and not counted,
//! because the kernel drops them when memory is short. A longer context or more sequences never need less.

use serde::{Deserialize, Serialize};

use super::weight_path::HeldWeights;
use crate::base::{Bytes, Dtype};
use crate::config::Policy;
use crate::model::card::{DecoderSpec, RopeSpec};
use crate::model::{ModelCard, kv};

/// Bytes for each entry of a tokenizer read from GGUF: its text, its place in the tables, its merge or score.
/// Measured: 54 for 49 152 byte-level entries, 26 for 262 144 sentence pieces.
const TOKENIZER_BYTES_PER_ENTRY: u64 = 64;
/// The same for `tokenizer.json`: an upper estimate, not measured.
const TOKENIZER_JSON_BYTES_PER_ENTRY: u64 = 256;
/// Touched stack and queues of one worker.
const WORKER_BYTES: u64 = 256 << 10;

/// Where the memory goes, itemised.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Ledger {
    /// Items, largest first.
    pub items: Vec<LedgerItem>,
    /// Sum of the anonymous items that stay.
    pub steady_bytes: Bytes,
    /// Largest anonymous total at any time, loading included.
    pub peak_bytes: Bytes,
    /// Mapped file pages while loading; the kernel can drop them, so they are not in the sums.
    pub mapped_bytes: Bytes,
    /// What may be used.
    pub available_bytes: Bytes,
    /// Kept free for the system, not counted in the sums.
    pub reserve_bytes: Bytes,
}

/// One item of the ledger.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LedgerItem {
    /// `weights`, `kv`, `activations`, `rope`, `tokenizer`, `process` or `source_mapping`.
    pub name: String,
    /// Size.
    pub bytes: Bytes,
    /// Anonymous memory (`true`) or pages of a mapped file (`false`).
    pub anonymous: bool,
    /// Stays after loading (`true`) or only while loading (`false`).
    pub steady: bool,
    /// How it was computed, with numbers.
    pub because: String,
}

/// Everything that memory depends on beside context and sequences.
#[derive(Clone, Debug)]
pub struct Demand<'a> {
    /// The model.
    pub card: &'a ModelCard,
    /// Its weights as held.
    pub held: &'a HeldWeights,
    /// Element type of the KV cache.
    pub kv_dtype: Dtype,
    /// Factor on the cache's computed size.
    pub kv_headroom: f64,
    /// Cache size somebody set, charged instead of the computed one.
    pub kv_pinned: Option<Bytes>,
    /// Tokens of prompt in one pass.
    pub prefill_batch: usize,
    /// Workers.
    pub threads: usize,
    /// Factor on the computed size of work buffers.
    pub activation_headroom: f64,
    /// The process beside all else.
    pub process: Bytes,
}

impl<'a> Demand<'a> {
    /// With the policy's factors.
    #[must_use]
    pub fn new(
        card: &'a ModelCard,
        held: &'a HeldWeights,
        policy: &Policy,
        kv_dtype: Dtype,
        threads: usize,
    ) -> Self {
        Self {
            card,
            held,
            kv_dtype,
            kv_headroom: policy.kv_headroom,
            kv_pinned: None,
            prefill_batch: policy.prefill_batch.max(1),
            threads,
            activation_headroom: policy.activation_headroom,
            process: policy.process_bytes,
        }
    }

    /// The context rounded up to whole blocks of the cache.
    #[must_use]
    pub fn rounded(&self, context: usize) -> usize {
        context.checked_next_multiple_of(kv::BLOCK).unwrap_or(usize::MAX)
    }

    /// Bytes of KV cache exactly as the engine allocates it.
    #[must_use]
    pub fn kv_computed(&self, context: usize, max_seqs: usize) -> Bytes {
        kv::kv_bytes(
            &self.card.decoder,
            context,
            max_seqs,
            self.kv_dtype.bytes(),
            self.prefill_batch,
        )
    }

    /// Bytes of KV cache that the ledger charges: what somebody set, else the computed size with headroom.
    #[must_use]
    pub fn kv(&self, context: usize, max_seqs: usize) -> Bytes {
        self.kv_pinned
            .unwrap_or_else(|| Bytes(scaled(self.kv_computed(context, max_seqs).0, self.kv_headroom)))
    }

    /// Rows of a pass at most: a full batch of prompt and a token for each other sequence.
    fn rows(&self, max_seqs: usize) -> u64 {
        (self.prefill_batch as u64).saturating_add(max_seqs as u64)
    }

    /// Work buffers of one pass.
    #[must_use]
    pub fn activations(&self, max_seqs: usize) -> Bytes {
        let spec = &self.card.decoder;
        // In f32, for each row: residual and normed; q, k and v; attention output; gate, up and their product.
        let queries = spec.heads * spec.head_dim;
        let row = 2 * spec.hidden
            + queries
            + spec.kv_heads * (spec.head_dim + spec.value_dim)
            + queries
            + 3 * spec.ffn;
        // The input of a product once more: values for float weights, 8-bit codes with scales for quantised ones.
        let widest = spec.hidden.max(spec.ffn).max(queries) as u64;
        let row_bytes = (row as u64)
            .saturating_mul(4)
            .saturating_add(widest.saturating_mul(6));
        // For each sequence: logits and the sampler's candidates (token and weight).
        let logits = (max_seqs as u64)
            .saturating_mul(spec.vocab as u64)
            .saturating_mul(4 + 8);
        let exact = self
            .rows(max_seqs)
            .saturating_mul(row_bytes)
            .saturating_add(logits);
        Bytes(scaled(exact, self.activation_headroom))
    }

    /// Bytes for each entry of the tokenizer.
    fn tokenizer_entry(&self) -> u64 {
        if self.card.tokenizer.kind == "tokenizer_json" {
            TOKENIZER_JSON_BYTES_PER_ENTRY
        } else {
            TOKENIZER_BYTES_PER_ENTRY
        }
    }

    fn tokenizer(&self) -> u64 {
        (self.card.tokenizer.vocab as u64).saturating_mul(self.tokenizer_entry())
    }

    /// Sine and cosine of the rows of a pass, for every distinct rotary embedding.
    #[must_use]
    pub fn rope(&self, max_seqs: usize) -> Bytes {
        let dims: u64 = distinct_ropes(&self.card.decoder)
            .iter()
            .map(|rope| rope.dims as u64)
            .sum();
        Bytes(dims.saturating_mul(self.rows(max_seqs)).saturating_mul(4))
    }

    /// All items for a context and a number of sequences, largest first.
    #[must_use]
    pub fn items(&self, context: usize, max_seqs: usize) -> Vec<LedgerItem> {
        let item = |name: &str, bytes: u64, anonymous, steady, because: String| LedgerItem {
            name: name.to_owned(),
            bytes: Bytes(bytes),
            anonymous,
            steady,
            because,
        };
        let spec = &self.card.decoder;
        let tokens = self.rounded(context);
        let full = kv::slots_by_layer(spec, tokens, self.prefill_batch)
            .iter()
            .filter(|&&slots| slots == tokens)
            .count();
        let kv_because = match self.kv_pinned {
            Some(_) => format!(
                "as pinned; {max_seqs} × {context} tokens use {} of it",
                self.kv_computed(context, max_seqs)
            ),
            None => format!(
                "{max_seqs} sequences × {tokens} tokens × {} KV heads × ({} + {}) × {} bytes on {full} of {} layers, less on those with a window{}",
                spec.kv_heads,
                spec.head_dim,
                spec.value_dim,
                self.kv_dtype.bytes(),
                spec.layers.len(),
                if self.kv_headroom > 1.0 {
                    format!(", × {} headroom", self.kv_headroom)
                } else {
                    ", no headroom: every sequence owns its slots".to_owned()
                }
            ),
        };
        let mut items = vec![
            item(
                "weights",
                self.held.bytes,
                true,
                true,
                format!(
                    "{} weights in {} tensors, in their stored blocks",
                    self.held.elements,
                    self.card.tensors.len()
                ),
            ),
            item("kv", self.kv(context, max_seqs).0, true, true, kv_because),
            item(
                "activations",
                self.activations(max_seqs).0,
                true,
                true,
                format!(
                    "work buffers for {} rows ({} of prompt, {max_seqs} of sequences), logits and candidates of {max_seqs} × {}; × {} headroom",
                    self.rows(max_seqs),
                    self.prefill_batch,
                    spec.vocab,
                    self.activation_headroom
                ),
            ),
            item(
                "rope",
                self.rope(max_seqs).0,
                true,
                true,
                format!(
                    "sine and cosine of {} rows for {} rotary embeddings",
                    self.rows(max_seqs),
                    distinct_ropes(spec).len()
                ),
            ),
            item(
                "tokenizer",
                self.tokenizer(),
                true,
                true,
                format!(
                    "{} entries × {} bytes",
                    self.card.tokenizer.vocab,
                    self.tokenizer_entry()
                ),
            ),
            item(
                "process",
                self.process
                    .0
                    .saturating_add((self.threads as u64).saturating_mul(WORKER_BYTES)),
                true,
                true,
                format!(
                    "{} for code and server, {} workers × {}",
                    self.process,
                    self.threads,
                    Bytes(WORKER_BYTES)
                ),
            ),
            item(
                "source_mapping",
                self.held.largest_source,
                false,
                false,
                format!(
                    "pages of the mapped weight files ({} in all) while one tensor is laid out straight into its place; given back after each",
                    self.card.file_bytes
                ),
            ),
        ];
        items.sort_by(|a, b| b.bytes.cmp(&a.bytes).then_with(|| a.name.cmp(&b.name)));
        items
    }

    /// The ledger against what may be used.
    #[must_use]
    pub fn ledger(&self, context: usize, max_seqs: usize, available: Bytes, reserve: Bytes) -> Ledger {
        let items = self.items(context, max_seqs);
        let sum = |wanted: &dyn Fn(&LedgerItem) -> bool| {
            items
                .iter()
                .filter(|i| wanted(i))
                .fold(0u64, |sum, i| sum.saturating_add(i.bytes.0))
        };
        let steady = sum(&|i| i.anonymous && i.steady);
        Ledger {
            steady_bytes: Bytes(steady),
            peak_bytes: Bytes(sum(&|i| i.anonymous)),
            mapped_bytes: Bytes(sum(&|i| !i.anonymous)),
            available_bytes: available,
            reserve_bytes: reserve,
            items,
        }
    }

    /// Largest anonymous total at any time. Weights are laid out straight from the mapped files, so loading needs no
    /// anonymous memory beyond what stays.
    #[must_use]
    pub fn peak(&self, context: usize, max_seqs: usize) -> Bytes {
        let workers = (self.threads as u64).saturating_mul(WORKER_BYTES);
        let parts = [
            self.held.bytes,
            self.tokenizer(),
            self.process.0,
            workers,
            self.kv(context, max_seqs).0,
            self.activations(max_seqs).0,
            self.rope(max_seqs).0,
        ];
        Bytes(parts.iter().fold(0u64, |sum, &n| sum.saturating_add(n)))
    }

    /// The longest context up to `limit` that fits with `max_seqs` sequences, or `None` if not even one block does.
    #[must_use]
    pub fn largest_context(&self, max_seqs: usize, limit: usize, room: Bytes) -> Option<usize> {
        largest(limit, |context| self.fits(context, max_seqs, room))
    }

    /// The most sequences up to `limit` that fit with this context.
    #[must_use]
    pub fn most_seqs(&self, context: usize, limit: usize, room: Bytes) -> Option<usize> {
        largest(limit, |seqs| self.fits(context, seqs, room))
    }

    /// Whether a context with so many sequences fits into `room`, and into the cache size somebody set.
    #[must_use]
    pub fn fits(&self, context: usize, max_seqs: usize, room: Bytes) -> bool {
        self.peak(context, max_seqs) <= room
            && self
                .kv_pinned
                .is_none_or(|pinned| self.kv_computed(context, max_seqs) <= pinned)
    }
}

/// The largest number in `1..=limit` that `fits`, given that fitting never comes back once lost.
pub(super) fn largest(limit: usize, fits: impl Fn(usize) -> bool) -> Option<usize> {
    if limit == 0 || !fits(1) {
        return None;
    }
    let (mut good, mut bad) = (1, limit.saturating_add(1));
    while bad - good > 1 {
        let middle = good + (bad - good) / 2;
        if fits(middle) { good = middle } else { bad = middle }
    }
    Some(good)
}

/// `bytes × factor`, rounded up; a factor that is not a number of at least 1 counts as 1.
fn scaled(bytes: u64, factor: f64) -> u64 {
    if factor.is_finite() && factor > 1.0 {
        (bytes as f64 * factor).ceil() as u64
    } else {
        bytes
    }
}

fn distinct_ropes(spec: &DecoderSpec) -> Vec<&RopeSpec> {
    let mut ropes: Vec<&RopeSpec> = Vec::new();
    for layer in &spec.layers {
        if !ropes.contains(&&layer.rope) {
            ropes.push(&layer.rope);
        }
    }
    ropes
}

/// What may be used and what of it is kept free. `credit` is what will be freed before loading.
#[must_use]
pub fn room(
    hardware: &crate::probe::Hardware,
    policy: &Policy,
    limit: Option<Bytes>,
    credit: Bytes,
) -> (Bytes, Bytes) {
    let memory = &hardware.memory;
    let credited = memory.available_bytes.0.saturating_add(credit.0);
    let mut available = Bytes(credited.min(memory.total_bytes.0.max(memory.available_bytes.0)));
    // Above the soft limit the kernel slows the whole group down, so it bounds the plan like a hard one.
    for bound in [memory.soft_limit_bytes, limit].into_iter().flatten() {
        available = available.min(bound);
    }
    let share = policy.reserve_share.clamp(0.0, 0.9);
    let reserve = policy
        .reserve_bytes
        .max(Bytes((available.0 as f64 * share) as u64));
    // On a very small machine a fixed reserve would leave nothing: at most half of what there is.
    (available, reserve.min(Bytes(available.0 / 2)))
}
