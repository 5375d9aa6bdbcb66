//! `Effective`: what a running engine really uses.
//!
//! In: filled by the engine from the operating system and its own structures. Out: compared with the plan by readback.
//! Invariant: every field is measured or read back, none is copied from the plan.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::Dtype;
use crate::base::{Bytes, CpuSet};

/// What the engine really uses, from the operating system and its own structures.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Effective {
    /// By stage name.
    pub stages: BTreeMap<String, EffectiveStage>,
}

/// One stage as it really runs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
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
    /// Ring sizes of sliding layers and lengths of full ones, by layer.
    pub kv_tokens_by_layer: Vec<usize>,
    /// Tokens of prompt in one pass.
    pub prefill_batch: usize,
    /// Huge pages asked for on weights and KV.
    pub huge_pages: bool,
    /// Bytes of weights held, by tensor format as held.
    pub weight_bytes_by_format: BTreeMap<String, Bytes>,
}
