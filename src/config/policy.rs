//! `Policy`: what a class of machine allows; inputs to derivation, never a knob of the plan itself.
//!
//! In: the built-in values (`policy.yaml`) and a class file above them. Out: every value, none missing.
//! Invariant: `policy.yaml` sets every field, so un-pinning a key falls back to its built-in value.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::base::{Bytes, Millis};

/// What the machine's class allows.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Policy {
    /// Memory kept free for the rest of the system.
    pub reserve_bytes: Bytes,
    /// Share of the available memory kept free; the larger of this and `reserve_bytes` holds.
    #[schemars(range(min = 0, max = 0.9))]
    pub reserve_share: f64,
    /// Anonymous memory of the process itself beside weights, caches and buffers.
    pub process_bytes: Bytes,
    /// Factor on the computed size of work buffers.
    #[schemars(range(min = 1, max = 4))]
    pub activation_headroom: f64,
    /// Factor on the computed size of the KV cache.
    #[schemars(range(min = 1, max = 4))]
    pub kv_headroom: f64,
    /// Most sequences at once that are derived.
    #[schemars(range(min = 1, max = 4096))]
    pub max_seqs: usize,
    /// Longest context that is derived, in tokens. A pin may be longer, up to the model's own.
    #[schemars(range(min = 1))]
    pub context_cap: usize,
    /// Shortest context worth serving, in tokens. If even this does not fit, the plan is refused.
    #[schemars(range(min = 1))]
    pub context_floor: usize,
    /// Tokens of a prompt processed in one pass.
    #[schemars(range(min = 1, max = 65536))]
    pub prefill_batch: usize,
    /// Most worker threads that are derived; decoding is bound by memory bandwidth beyond it.
    #[schemars(range(min = 1, max = 4096))]
    pub max_threads: usize,
    /// Physical cores left to the server and the system.
    #[schemars(range(min = 0, max = 4096))]
    pub io_cpus: usize,
    /// Cores are left free only where at least this many may be used.
    #[schemars(range(min = 1, max = 4096))]
    pub io_cpus_from: usize,
    /// Whether weights ask for transparent huge pages; the KV cache, which fills up bit by bit, never does.
    pub huge_pages: bool,
    /// How fast storage is assumed to deliver weights, in bytes per second.
    pub read_bytes_per_s: Bytes,
    /// How fast weights are assumed to be laid out, and read again by a first pass, in bytes per second.
    pub pack_bytes_per_s: Bytes,
    /// Factor on the computed times of loading and of the first token that gives their deadlines.
    #[schemars(range(min = 1, max = 100))]
    pub load_margin: f64,
    /// Shortest load deadline.
    pub load_min_ms: Millis,
    /// Shortest deadline for the first tokens after loading.
    pub warmup_ms: Millis,
    /// Deadline for finishing what runs after a request to stop.
    pub shutdown_ms: Millis,
}
