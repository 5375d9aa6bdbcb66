//! `Plan`: every knob resolved; the only thing that crosses from deciding to running.
//!
//! In: a `derive::Draft`. Out: values without `Option`, each with its explanation, and a digest.
//! Invariant: the engine and the server read nothing but this; what the plan says is read back after start.

pub mod diff;
pub mod document;
pub mod effective;
pub mod explain;
pub mod knobs;
pub mod readback;
pub mod settle;
pub mod summary;

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

pub use crate::base::Dtype;
use crate::base::{Bytes, CpuSet, KeyPath, Millis, Problem};
pub use crate::derive::{Ledger, LedgerItem};
use crate::model::ModelCard;
pub use effective::{
    Effective, EffectiveDeadlines, EffectiveItem, EffectiveMemory, EffectiveModel, EffectivePages,
    EffectiveServer, EffectiveStage, EffectiveTensor,
};
pub use explain::{Explanation, Origin};

/// Version of the JSON form of [`Plan`].
pub const SCHEMA: u32 = 1;

/// Everything resolved.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Plan {
    /// Version of this document, [`SCHEMA`].
    pub schema: u32,
    /// 16 hex digits over every knob (not over reasons or warnings).
    pub digest: String,
    /// The model as planned for.
    pub model: ModelPlan,
    /// `x86_cpu`, …
    pub hardware_class: String,
    /// The probe's fingerprint.
    pub fingerprint: String,
    /// Stages by name; a language model has one, `decoder`.
    pub stages: BTreeMap<String, StagePlan>,
    /// HTTP side.
    pub server: ServerPlan,
    /// Phase deadlines.
    pub deadlines: Deadlines,
    /// Where the memory goes.
    pub memory: Ledger,
    /// Why each knob has its value.
    pub explanations: BTreeMap<KeyPath, Explanation>,
    /// What a person should know.
    pub warnings: Vec<Problem>,
}

/// The model as planned for.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ModelPlan {
    /// Name that `/v1/models` lists; requests may also say `default`.
    pub name: String,
    /// Row of `model/families.rs`.
    pub family: String,
    /// Profile that served.
    pub profile: String,
    /// Weight files.
    pub files: Vec<PathBuf>,
    /// Network, sampling defaults, tokenizer facts. Not shown twice in JSON.
    #[serde(skip)]
    pub card: Option<Box<ModelCard>>,
    /// Where the chat template in `card` comes from: `model`, `pinned` or `family` (the usual one of its family).
    pub chat_template: String,
    /// Sampling defaults for requests that do not say.
    pub sampling: SamplingPlan,
}

/// Sampling defaults for requests that do not say.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the field's own terms")]
pub struct SamplingPlan {
    pub temperature: f32,
    pub top_p: f32,
    /// 0 = off.
    pub top_k: u32,
    pub min_p: f32,
    pub repetition_penalty: f32,
}

/// One stage of the pipeline.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct StagePlan {
    /// Worker threads, including the one that leads.
    pub threads: usize,
    /// The CPUs chosen, one for each worker unless somebody named more. Worker i is pinned to the i-th when `pin`.
    pub cpus: CpuSet,
    /// Pin each worker to one CPU.
    pub pin: bool,
    /// Without `pin`: keep every worker within `cpus` (somebody named them). Without both the kernel places freely.
    pub confine: bool,
    /// Best kernel table allowed: `scalar`, `avx2`, `avx512_vnni`, `avx512_bf16`, … or `best`.
    pub isa_cap: String,
    /// Type of arithmetic outside the quantised dot products.
    pub dtype: Dtype,
    /// How weights are held and multiplied: `native` for now.
    pub weight_path: String,
    /// Element type of the KV cache.
    pub kv_dtype: Dtype,
    /// Tokens of context each sequence may use.
    pub context: usize,
    /// Sequences running at once; more wait in the queue.
    pub max_seqs: usize,
    /// Bytes of KV cache for all sequences.
    pub kv_bytes: Bytes,
    /// KV is sized in blocks of this many tokens.
    pub kv_block: usize,
    /// Tokens of prompt processed in one pass.
    pub prefill_batch: usize,
    /// Ask for transparent huge pages on weights and KV.
    pub huge_pages: bool,
}

impl StagePlan {
    /// CPUs that worker `index` is to be bound to, or `None` where the kernel places it.
    #[must_use]
    pub fn affinity(&self, index: usize) -> Option<CpuSet> {
        if self.pin {
            self.cpus.iter().nth(index).map(|cpu| CpuSet::range(cpu, cpu))
        } else {
            self.confine.then(|| self.cpus.clone())
        }
    }
}

/// HTTP side.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ServerPlan {
    /// Address to bind; loopback unless said.
    pub host: String,
    /// Port to bind; 0 = any free one.
    pub port: u16,
    /// Whether clients must send a key. The key itself never enters the plan.
    pub api_key_required: bool,
    /// Requests waiting beyond those running; more get 429.
    pub max_queue: usize,
    /// Largest request body.
    pub max_body_bytes: Bytes,
    /// Longest wait for a request's body to arrive.
    pub read_timeout_ms: Millis,
    /// Longest a request may take in all.
    pub request_timeout_ms: Millis,
    /// Most tokens a request gets when it does not say.
    pub default_max_tokens: usize,
}

/// Phase deadlines.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Deadlines {
    /// Reading and preparing weights.
    pub load_ms: Millis,
    /// First tokens after load.
    pub warmup_ms: Millis,
    /// Finishing what runs after SIGTERM.
    pub shutdown_ms: Millis,
}

#[cfg(test)]
mod tests;
