//! The memory ledger: every item that will be held, for any context and number of sequences.
//!
//! In: the model's facts, element types, batch and thread counts, policy. Out: items and their sums.
//! Invariant: sums count anonymous memory, which cannot be dropped; mapped file pages are listed and not counted,
//! because the kernel drops them when memory is short. A longer context or more sequences never need less.

use std::collections::HashMap;

use serde::{Deserialize, Serialize};

pub use super::room::{Room, room};
use super::weight_path::HeldWeights;
use crate::base::{Bytes, Dtype};
use crate::config::Policy;
use crate::model::card::{DecoderSpec, RopeSpec, TensorFact};
use crate::model::families::{TensorRole, tensor_name};
use crate::model::{ModelCard, Span, StageSpec, kv};

/// Bytes for each entry of a byte-level tokenizer read from GGUF: its text, its place in the tables, its merges.
/// Measured: 50 for 49 152 entries.
const TOKENIZER_BPE_BYTES_PER_ENTRY: u64 = 56;
/// The same for sentence pieces. Measured: 26 for 262 144.
const TOKENIZER_SPM_BYTES_PER_ENTRY: u64 = 28;
/// The same for `tokenizer.json`. Measured: 198 for 50 000 entries, 227 for 151 936.
const TOKENIZER_JSON_BYTES_PER_ENTRY: u64 = 256;
/// Tables of a tokenizer that do not grow with its entries. Measured: 0.2 MiB.
const TOKENIZER_BYTES: u64 = 512 << 10;
/// Anonymous bytes for each entry of a tokenizer while it is built from GGUF: references into the file.
const TOKENIZER_BUILD_BYTES_PER_ENTRY: u64 = 64;
/// The same for `tokenizer.json`, whose whole text is read and parsed. Measured: about 90 for 151 936 entries.
const TOKENIZER_JSON_BUILD_BYTES_PER_ENTRY: u64 = 128;
/// Touched stack and queues of one worker.
const WORKER_BYTES: u64 = 256 << 10;
/// Pages of the program and its libraries that running touches.
const PROGRAM_BYTES: u64 = 14 << 20;

/// Where the memory goes, itemised.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Ledger {
    /// Items, largest first.
    pub items: Vec<LedgerItem>,
    /// Anonymous memory when the first token is out: the cache holds one block of each head, no buffer has grown.
    #[serde(default)]
    pub loaded_bytes: Bytes,
    /// Sum of the anonymous items that stay, with every sequence's context full.
    pub steady_bytes: Bytes,
    /// Largest anonymous total at any time, loading included.
    pub peak_bytes: Bytes,
    /// Mapped file pages that stay: the program's own.
    #[serde(default)]
    pub mapped_steady_bytes: Bytes,
    /// Mapped file pages at most, while loading; the kernel can drop them, so they are not in the sums above.
    pub mapped_bytes: Bytes,
    /// What may be used.
    pub available_bytes: Bytes,
    /// Kept free for the system, not counted in the sums.
    pub reserve_bytes: Bytes,
}

/// One item of the ledger.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LedgerItem {
    /// `weights`, `kv`, `activations`, `rope`, `state`, `tokenizer`, `process` and `loading`; mapped: `program`,
    /// `header`, `source_mapping` and `mapped_rows`.
    pub name: String,
    /// The stage it belongs to; absent where all share it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stage: Option<String>,
    /// Size.
    pub bytes: Bytes,
    /// Anonymous memory (`true`) or pages of a mapped file (`false`).
    pub anonymous: bool,
    /// Stays after loading (`true`) or only while loading (`false`).
    pub steady: bool,
    /// How it was computed, with numbers.
    pub because: String,
}

impl Ledger {
    /// Whether items belong to more than one stage.
    #[must_use]
    pub fn several_stages(&self) -> bool {
        let mut stages = self.items.iter().filter_map(|item| item.stage.as_ref());
        let first = stages.next();
        stages.any(|stage| Some(stage) != first)
    }
}

impl LedgerItem {
    /// Its name, with its stage where there are several.
    #[must_use]
    pub fn label(&self, several_stages: bool) -> String {
        match &self.stage {
            Some(stage) if several_stages => format!("{stage} {}", self.name),
            _ => self.name.clone(),
        }
    }
}

/// Everything that memory depends on beside context and sequences.
#[derive(Clone, Debug)]
pub struct Demand<'a> {
    /// The model.
    pub card: &'a ModelCard,
    /// Its stages; the first is the one whose context is chosen.
    pub stages: Vec<StageDemand<'a>>,
    /// Factor on the caches' computed size.
    pub kv_headroom: f64,
    /// Factor on the computed size of work buffers.
    pub activation_headroom: f64,
    /// The process beside all else.
    pub process: Bytes,
}

/// What one stage's memory depends on.
#[derive(Clone, Debug)]
pub struct StageDemand<'a> {
    /// Its network.
    pub stage: StageSpec<'a>,
    /// Its weights as held.
    pub held: HeldWeights,
    /// Element type of its KV cache.
    pub kv_dtype: Dtype,
    /// Cache size somebody set, charged instead of the computed one.
    pub kv_pinned: Option<Bytes>,
    /// Rows of prompt (or frames) in one pass.
    pub prefill_batch: usize,
    /// Workers of its own team; 0 where it runs on another's.
    pub threads: usize,
}

impl StageDemand<'_> {
    /// Its context, given that of the first stage.
    #[must_use]
    pub fn context(&self, first: usize) -> usize {
        match self.stage.context {
            Span::Exactly(positions) => positions,
            Span::UpTo(most) => first.min(usize::try_from(most).unwrap_or(usize::MAX)),
        }
    }

    /// Bytes of KV cache exactly as the engine allocates it.
    #[must_use]
    pub fn kv_computed(&self, first: usize, max_seqs: usize) -> Bytes {
        self.stage.network.map_or(Bytes(0), |network| {
            kv::kv_bytes(
                network,
                self.context(first),
                max_seqs,
                self.kv_dtype.bytes(),
                self.prefill_batch,
            )
        })
    }

    /// Bytes of KV cache that the ledger charges: what somebody set, else the computed size with headroom.
    fn kv(&self, first: usize, max_seqs: usize, headroom: f64) -> Bytes {
        self.kv_pinned
            .unwrap_or_else(|| Bytes(scaled(self.kv_computed(first, max_seqs).0, headroom)))
    }

    /// Rows of a pass at most: a full batch of prompt and a token for each other sequence.
    fn rows(&self, max_seqs: usize) -> u64 {
        (self.prefill_batch as u64).saturating_add(max_seqs as u64)
    }

    /// Work buffers of one pass.
    fn activations(&self, max_seqs: usize, headroom: f64) -> Bytes {
        let mut row_bytes = self.stage.work_bytes_per_row.0;
        let mut logits = 0;
        if let Some(spec) = self.stage.network {
            // In f32, for each row: residual and normed; q, k, v and gates; attention output; gate, up and their product.
            let queries = spec.heads * spec.head_dim;
            let gates = spec.head_gate.map_or(0, |_| spec.heads);
            let row = 2 * spec.hidden
                + queries
                + spec.kv_heads * (spec.head_dim + spec.value_dim)
                + gates
                + queries
                + 3 * spec.ffn;
            let widest = spec.hidden.max(spec.ffn).max(queries) as u64;
            row_bytes = row_bytes
                .saturating_add((row as u64).saturating_mul(4))
                .saturating_add(widest.saturating_mul(input_bytes(&self.held, &self.stage.tensors)));
            // For each sequence: logits and the sampler's candidates (token and weight).
            logits = (max_seqs as u64)
                .saturating_mul(spec.vocab as u64)
                .saturating_mul(4 + 8);
        }
        let exact = self
            .rows(max_seqs)
            .saturating_mul(row_bytes)
            .saturating_add(logits);
        Bytes(scaled(exact, headroom))
    }

    /// Sine and cosine of the rows of a pass, for every distinct rotary embedding.
    #[must_use]
    pub fn rope(&self, max_seqs: usize) -> Bytes {
        let dims: u64 = distinct_ropes(self.stage.network)
            .iter()
            .map(|rope| rope.dims as u64)
            .sum();
        Bytes(dims.saturating_mul(self.rows(max_seqs)).saturating_mul(4))
    }

    fn state(&self, max_seqs: usize) -> Bytes {
        Bytes(self.stage.state_bytes_per_seq.0.saturating_mul(max_seqs as u64))
    }

    fn workers(&self) -> u64 {
        (self.threads as u64).saturating_mul(WORKER_BYTES)
    }

    /// Anonymous bytes of the stage after the first token: the cache holds a block of each head.
    fn loaded(&self, max_seqs: usize, demand: &Demand<'_>) -> u64 {
        let block = self
            .kv_computed(kv::BLOCK, 1)
            .min(self.kv(kv::BLOCK, max_seqs, demand.kv_headroom));
        self.held
            .bytes
            .saturating_add(block.0)
            .saturating_add(self.workers())
    }

    /// Anonymous bytes of the stage with everything full.
    fn peak(&self, first: usize, max_seqs: usize, demand: &Demand<'_>) -> u64 {
        [
            self.held.bytes,
            self.kv(first, max_seqs, demand.kv_headroom).0,
            self.activations(max_seqs, demand.activation_headroom).0,
            self.rope(max_seqs).0,
            self.state(max_seqs).0,
            self.workers(),
        ]
        .iter()
        .fold(0, |sum: u64, &bytes| sum.saturating_add(bytes))
    }

    /// Its items.
    fn items(&self, first: usize, max_seqs: usize, demand: &Demand<'_>) -> Vec<LedgerItem> {
        let item = |name: &str, bytes: Bytes, anonymous, because: String| LedgerItem {
            name: name.to_owned(),
            stage: Some(self.stage.name.to_owned()),
            bytes,
            anonymous,
            steady: anonymous,
            because,
        };
        let mut items = vec![
            item(
                "weights",
                Bytes(self.held.bytes),
                true,
                format!(
                    "{} weights in {} tensors, in their stored blocks",
                    self.held.elements,
                    self.stage.tensors.len()
                ),
            ),
            item(
                "source_mapping",
                largest_source(demand.card, &self.stage.tensors),
                false,
                format!(
                    "pages of the mapped weight files ({} in all) while one matrix is laid out straight into its place; given back after each",
                    demand.card.file_bytes
                ),
            ),
        ];
        let vocabulary = self
            .stage
            .network
            .map_or_else(String::new, |spec| format!(" × {}", spec.vocab));
        items.push(item(
            "activations",
            self.activations(max_seqs, demand.activation_headroom),
            true,
            format!(
                "work buffers for {} rows ({} of prompt, {max_seqs} of sequences), logits and candidates of {max_seqs}{vocabulary}; × {} headroom",
                self.rows(max_seqs),
                self.prefill_batch,
                demand.activation_headroom
            ),
        ));
        if let Some(spec) = self.stage.network {
            items.push(item(
                "kv",
                self.kv(first, max_seqs, demand.kv_headroom),
                true,
                self.kv_because(spec, first, max_seqs, demand.kv_headroom),
            ));
            items.push(item(
                "rope",
                self.rope(max_seqs),
                true,
                format!(
                    "sine and cosine of {} rows for {} rotary embeddings",
                    self.rows(max_seqs),
                    distinct_ropes(self.stage.network).len()
                ),
            ));
        }
        if self.stage.state_bytes_per_seq.0 > 0 {
            items.push(item(
                "state",
                self.state(max_seqs),
                true,
                format!(
                    "{max_seqs} sequences × {} carried from chunk to chunk",
                    self.stage.state_bytes_per_seq
                ),
            ));
        }
        let mapped: u64 = self.stage.mapped.iter().map(|tensor| tensor.bytes.0).sum();
        if mapped > 0 {
            let mut rows = item(
                "mapped_rows",
                Bytes(mapped),
                false,
                "tables whose rows are read from the mapped file as they are needed".to_owned(),
            );
            rows.steady = true;
            items.push(rows);
        }
        items
    }

    fn kv_because(&self, spec: &DecoderSpec, first: usize, max_seqs: usize, headroom: f64) -> String {
        if self.kv_pinned.is_some() {
            return format!(
                "as pinned; {max_seqs} × {} tokens use {} of it",
                self.context(first),
                self.kv_computed(first, max_seqs)
            );
        }
        let tokens = rounded(self.context(first));
        let full = kv::slots_by_layer(spec, tokens, self.prefill_batch)
            .iter()
            .filter(|&&slots| slots == tokens)
            .count();
        format!(
            "{max_seqs} sequences × {tokens} tokens × {} KV heads × ({} + {}) × {} bytes on {full} of {} layers, less on those with a window{}",
            spec.kv_heads,
            spec.head_dim,
            spec.value_dim,
            self.kv_dtype.bytes(),
            spec.layers.len(),
            if headroom > 1.0 {
                format!(", × {headroom} headroom")
            } else {
                ", no headroom: every sequence owns its slots".to_owned()
            }
        )
    }
}

impl<'a> Demand<'a> {
    /// With the policy's factors.
    #[must_use]
    pub fn new(card: &'a ModelCard, stages: Vec<StageDemand<'a>>, policy: &Policy) -> Self {
        Self {
            card,
            stages,
            kv_headroom: policy.kv_headroom,
            activation_headroom: policy.activation_headroom,
            process: policy.process_bytes,
        }
    }

    /// Bytes of KV cache of all stages, exactly as the engine allocates them.
    #[must_use]
    pub fn kv_computed(&self, context: usize, max_seqs: usize) -> Bytes {
        self.sum(|stage| stage.kv_computed(context, max_seqs).0)
    }

    /// Bytes of KV cache of all stages that the ledger charges.
    #[must_use]
    pub fn kv(&self, context: usize, max_seqs: usize) -> Bytes {
        self.sum(|stage| stage.kv(context, max_seqs, self.kv_headroom).0)
    }

    fn sum(&self, of: impl Fn(&StageDemand<'_>) -> u64) -> Bytes {
        Bytes(
            self.stages
                .iter()
                .fold(0u64, |sum, stage| sum.saturating_add(of(stage))),
        )
    }

    /// Bytes for each entry of the tokenizer.
    fn tokenizer_entry(&self) -> u64 {
        match self.card.tokenizer.kind.as_str() {
            "tokenizer_json" => TOKENIZER_JSON_BYTES_PER_ENTRY,
            "spm" => TOKENIZER_SPM_BYTES_PER_ENTRY,
            _ => TOKENIZER_BPE_BYTES_PER_ENTRY,
        }
    }

    fn tokenizer(&self) -> u64 {
        (self.card.tokenizer.vocab as u64)
            .saturating_mul(self.tokenizer_entry())
            .saturating_add(TOKENIZER_BYTES)
    }

    /// Bytes for each entry while the tokenizer is built.
    fn tokenizer_build_entry(&self) -> u64 {
        if self.card.tokenizer.kind == "tokenizer_json" {
            TOKENIZER_JSON_BUILD_BYTES_PER_ENTRY
        } else {
            TOKENIZER_BUILD_BYTES_PER_ENTRY
        }
    }

    /// Anonymous memory that only loading needs.
    fn loading(&self) -> u64 {
        (self.card.tokenizer.vocab as u64).saturating_mul(self.tokenizer_build_entry())
    }

    /// Bytes of the weight files outside their tensors.
    fn header(&self) -> u64 {
        let tensors = self
            .card
            .tensors
            .iter()
            .fold(0u64, |sum, tensor| sum.saturating_add(tensor.bytes.0));
        self.card.file_bytes.0.saturating_sub(tensors)
    }

    /// All items for a context and a number of sequences, largest first.
    #[must_use]
    pub fn items(&self, context: usize, max_seqs: usize) -> Vec<LedgerItem> {
        let item = |name: &str, bytes: u64, anonymous, steady, because: String| LedgerItem {
            name: name.to_owned(),
            stage: None,
            bytes: Bytes(bytes),
            anonymous,
            steady,
            because,
        };
        let shared = |name: &str, bytes: u64, because: String| item(name, bytes, true, true, because);
        let threads: usize = self.stages.iter().map(|stage| stage.threads).sum();
        let workers = Bytes(self.stages.iter().map(StageDemand::workers).sum());
        let mut items = vec![
            shared(
                "tokenizer",
                self.tokenizer(),
                format!(
                    "{} entries × {} bytes, and {} of tables",
                    self.card.tokenizer.vocab,
                    self.tokenizer_entry(),
                    Bytes(TOKENIZER_BYTES)
                ),
            ),
            shared(
                "process",
                self.process.0.saturating_add(workers.0),
                format!(
                    "{} for heap and server, {threads} workers × {}",
                    self.process,
                    Bytes(WORKER_BYTES)
                ),
            ),
            item(
                "loading",
                self.loading(),
                true,
                false,
                format!(
                    "while the tokenizer is built, before any weight is read: {} entries × {} bytes",
                    self.card.tokenizer.vocab,
                    self.tokenizer_build_entry()
                ),
            ),
            item(
                "program",
                PROGRAM_BYTES,
                false,
                true,
                "pages of the program's own file and its libraries".to_owned(),
            ),
            item(
                "header",
                self.header(),
                false,
                false,
                "pages of the weight files outside their tensors: names, numbers, vocabulary".to_owned(),
            ),
        ];
        for stage in &self.stages {
            items.extend(stage.items(context, max_seqs, self));
        }
        items.sort_by(|a, b| {
            (b.bytes.cmp(&a.bytes))
                .then_with(|| a.name.cmp(&b.name))
                .then_with(|| a.stage.cmp(&b.stage))
        });
        items
    }

    /// The ledger against what may be used.
    #[must_use]
    pub fn ledger(&self, context: usize, max_seqs: usize, room: &Room) -> Ledger {
        let items = self.items(context, max_seqs);
        let sum = |wanted: &dyn Fn(&LedgerItem) -> bool| {
            items
                .iter()
                .filter(|i| wanted(i))
                .fold(0u64, |sum, i| sum.saturating_add(i.bytes.0))
        };
        Ledger {
            loaded_bytes: self.loaded(max_seqs),
            steady_bytes: Bytes(sum(&|i| i.anonymous && i.steady)),
            peak_bytes: self.peak(context, max_seqs),
            mapped_steady_bytes: Bytes(sum(&|i| !i.anonymous && i.steady)),
            mapped_bytes: Bytes(sum(&|i| !i.anonymous)),
            available_bytes: room.available,
            reserve_bytes: room.reserve,
            items,
        }
    }

    /// Tokenizer and process, which neither stages nor sequences change.
    fn fixed(&self) -> u64 {
        self.tokenizer().saturating_add(self.process.0)
    }

    /// Anonymous memory after the first token.
    fn loaded(&self, max_seqs: usize) -> Bytes {
        let stages = self.sum(|stage| stage.loaded(max_seqs, self));
        Bytes(stages.0.saturating_add(self.fixed()))
    }

    /// Largest anonymous total at any time: when everything is full, or while loading. Weights are laid out straight
    /// from the mapped files, so of loading only the tokenizer's building needs memory that does not stay, and that is
    /// over before the first weight.
    #[must_use]
    pub fn peak(&self, context: usize, max_seqs: usize) -> Bytes {
        let full = self.sum(|stage| stage.peak(context, max_seqs, self));
        Bytes(full.0.max(self.loading()).saturating_add(self.fixed()))
    }

    /// Whether a context with so many sequences fits into `room`, and each stage's cache into the size somebody set.
    #[must_use]
    pub fn fits(&self, context: usize, max_seqs: usize, room: Bytes) -> bool {
        self.peak(context, max_seqs) <= room
            && self.stages.iter().all(|stage| {
                stage
                    .kv_pinned
                    .is_none_or(|pinned| stage.kv_computed(context, max_seqs) <= pinned)
            })
    }
}

/// A context rounded up to whole blocks of the cache.
fn rounded(context: usize) -> usize {
    context.checked_next_multiple_of(kv::BLOCK).unwrap_or(usize::MAX)
}

/// The input of a product once more: values for float weights, also rounded in pairs for BF16; 8-bit codes, scales and
/// sums for quantised ones. Bytes for each value, in all the forms that the matrices as held need.
fn input_bytes(held: &HeldWeights, tensors: &[&TensorFact]) -> u64 {
    let vectors = tensors.iter().filter(|tensor| tensor.shape.len() < 2);
    let vector_bytes: u64 = vectors
        .map(|tensor| tensor.shape.iter().product::<u64>().saturating_mul(4))
        .sum();
    let (mut floats, mut pairs, mut codes) = (0, 0, 0);
    for (&format, &bytes) in &held.by_format {
        match format {
            "BF16" => (floats, pairs) = (4, 2),
            // Vectors are held as F32 whatever the matrices are.
            "F32" if bytes <= vector_bytes => {}
            "F32" | "F16" => floats = 4,
            _ => codes = 3,
        }
    }
    floats + pairs + codes
}

/// Tensors that are laid out as one matrix and so are mapped at the same time.
const TOGETHER: [&[TensorRole]; 3] = [
    &[TensorRole::Q, TensorRole::K, TensorRole::V, TensorRole::HeadGate],
    &[TensorRole::Qkv, TensorRole::HeadGate],
    &[TensorRole::Gate, TensorRole::Up],
];

/// Bytes in the files of the largest matrix as it is laid out: one tensor, or several that become one.
fn largest_source(card: &ModelCard, tensors: &[&TensorFact]) -> Bytes {
    let sizes: HashMap<&str, u64> = tensors
        .iter()
        .map(|tensor| (tensor.name.as_str(), tensor.bytes.0))
        .collect();
    let bytes = |role, layer| {
        tensor_name(card.format, &card.family, role, layer)
            .and_then(|name| sizes.get(name.as_str()).copied())
            .unwrap_or(0)
    };
    let joined = (0..card.decoder.layers.len()).flat_map(|layer| {
        TOGETHER.map(|roles| {
            roles
                .iter()
                .fold(0u64, |sum, &role| sum.saturating_add(bytes(role, layer)))
        })
    });
    Bytes(joined.chain(sizes.values().copied()).max().unwrap_or(0))
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

fn distinct_ropes(network: Option<&DecoderSpec>) -> Vec<&RopeSpec> {
    let mut ropes: Vec<&RopeSpec> = Vec::new();
    for layer in network.iter().flat_map(|spec| &spec.layers) {
        if !ropes.contains(&&layer.rope) {
            ropes.push(&layer.rope);
        }
    }
    ropes
}
