//! `Effective`: what a running engine and its server really use.
//!
//! In: filled by the engine, the server and the launcher, each with what it holds and what the operating system says.
//! Out: compared with the plan by readback. Invariant: every field is measured, read back, or the very value that is
//! enforced; none is copied from the plan.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::{Dtype, SamplingPlan};
use crate::base::{Bytes, CpuSet, Millis};

/// What is really used.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Effective {
    /// The model as the engine opened it.
    pub model: EffectiveModel,
    /// By stage name.
    pub stages: BTreeMap<String, EffectiveStage>,
    /// The HTTP side; absent where nothing is served.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub server: Option<EffectiveServer>,
    /// Phases of the start; absent where nobody timed them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deadlines: Option<EffectiveDeadlines>,
    /// Memory as the kernel counts it.
    pub memory: EffectiveMemory,
}

/// The model as the engine opened it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct EffectiveModel {
    /// Name that is served.
    pub name: String,
    /// Family whose network runs.
    pub family: String,
    /// Files that were mapped.
    pub files: Vec<PathBuf>,
    /// Where the template in use comes from: `model` when it is the one in the file, `pinned` when it is another one
    /// that was given, `family` when none was given.
    pub chat_template: String,
}

/// One stage as it really runs.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct EffectiveStage {
    /// Worker threads alive.
    pub threads: usize,
    /// Affinity of each worker, read from `/proc/self/task/<tid>/status`.
    pub worker_cpus: Vec<CpuSet>,
    /// Kernel table in use, such as `x86_64-avx512_vnni`.
    pub kernels: String,
    /// Arithmetic type outside the quantised products.
    pub dtype: Dtype,
    /// How weights are held.
    pub weight_path: String,
    /// Element type of the KV cache as allocated.
    pub kv_dtype: Dtype,
    /// Tokens of context each sequence has room for.
    pub context: usize,
    /// Sequences there is room for.
    pub max_seqs: usize,
    /// Bytes of KV cache allocated.
    pub kv_bytes: Bytes,
    /// Bytes of it that are resident now (`mincore`); they grow as sequences do.
    pub kv_resident_bytes: Bytes,
    /// Tokens of a block that attention works on.
    pub kv_block: usize,
    /// Ring sizes of sliding layers and lengths of full ones, by layer.
    pub kv_tokens_by_layer: Vec<usize>,
    /// Page size and node of the cache's pages.
    pub kv_pages: EffectivePages,
    /// Tokens of prompt in one pass.
    pub prefill_batch: usize,
    /// Whether the kernel has every area of weights marked for huge pages (`hg` in `smaps`).
    pub huge_pages: bool,
    /// Bytes of weights held, by tensor format as held.
    pub weight_bytes_by_format: BTreeMap<String, Bytes>,
    /// Bytes of weights that are resident now (`mincore`), norms not counted.
    pub weight_resident_bytes: Bytes,
    /// Page size and node of the weights' pages.
    pub weight_pages: EffectivePages,
    /// Bytes of work buffers as they have grown; they grow to the largest pass.
    pub activation_bytes: Bytes,
    /// Bytes of sines and cosines as they have grown.
    pub rope_bytes: Bytes,
    /// Every tensor as it is held.
    pub tensors: Vec<EffectiveTensor>,
}

/// Pages of one kind of memory.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct EffectivePages {
    /// Bytes in transparent huge pages (`AnonHugePages`).
    pub huge_bytes: Bytes,
    /// Bytes by NUMA node; empty where the kernel does not say.
    pub nodes: BTreeMap<u32, Bytes>,
}

/// One tensor as it is held.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct EffectiveTensor {
    /// Its name in the file.
    pub name: String,
    /// Its type in the file.
    pub stored: String,
    /// How it is held.
    pub held: String,
    /// Bytes held.
    pub bytes: Bytes,
    /// Kernel table whose product multiplies it; absent for vectors.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kernel: Option<String>,
}

/// The HTTP side as it really is.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct EffectiveServer {
    /// Address the listening socket is bound to, by `getsockname`.
    pub host: String,
    /// Its port.
    pub port: u16,
    /// Whether requests without the key are refused.
    pub api_key_required: bool,
    /// Requests that may wait beyond those running.
    pub max_queue: usize,
    /// Largest request body taken.
    pub max_body_bytes: Bytes,
    /// Longest wait for a request's body.
    pub read_timeout_ms: Millis,
    /// Longest a request may take; 0 = no limit.
    pub request_timeout_ms: Millis,
    /// Tokens of a request that does not say.
    pub default_max_tokens: usize,
    /// Sampling of requests that do not say.
    pub sampling: Option<SamplingPlan>,
    /// Longest wait for a request's head; not planned.
    pub header_timeout_ms: Millis,
    /// Longest time a client may take nothing of its answer; not planned.
    pub write_timeout_ms: Millis,
    /// Connections held at once; not planned.
    pub max_connections: usize,
}

/// Phases of the start: the limits that were waited for, and what they took.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct EffectiveDeadlines {
    /// Limit on loading.
    pub load_ms: Millis,
    /// What loading took.
    pub load_took_ms: Millis,
    /// Limit on the first token.
    pub warmup_ms: Millis,
    /// What the first token took.
    pub warmup_took_ms: Millis,
    /// Grace for running answers; absent where nothing is served.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shutdown_ms: Option<Millis>,
}

/// Memory of the process and its children as the kernel counts it now.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct EffectiveMemory {
    /// `RssAnon`: heap, stacks, weights, caches.
    pub anonymous_bytes: Bytes,
    /// `RssFile`: pages of mapped files, the program's own among them.
    pub file_bytes: Bytes,
    /// `RssShmem`.
    pub shared_bytes: Bytes,
    /// `VmHWM`: the most that was ever resident, all kinds together.
    pub peak_bytes: Bytes,
    /// Bytes of heap in use; absent where the C library does not count.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub heap_bytes: Option<Bytes>,
    /// What is resident, by the ledger's names; `process` is what is left of `anonymous_bytes`.
    pub items: Vec<EffectiveItem>,
}

/// One item of the ledger as measured.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct EffectiveItem {
    /// Name of the ledger's item.
    pub name: String,
    /// Resident bytes.
    pub bytes: Bytes,
}

impl EffectiveMemory {
    /// Resident bytes of an item of the ledger, where it is known.
    #[must_use]
    pub fn item(&self, name: &str) -> Option<Bytes> {
        self.items
            .iter()
            .find(|item| item.name == name)
            .map(|item| item.bytes)
    }
}
