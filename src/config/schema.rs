//! The profile language: every key a person may write, as types.
//!
//! In: doc comments, field types and ranges. Out: `Profile` (pins, all optional), and through schemars the shape
//! that values are checked against, the JSON schema and the reference page. `policy:` is in `policy.rs`.
//! Invariant: a key exists here or it is refused; a doc comment here is the key's documentation everywhere.

use std::collections::BTreeMap;
use std::fmt;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::policy::Policy;
use crate::base::{Bytes, CpuSet, Dtype, Millis};

/// Version of the profile language. A file that declares a newer one gets warnings, not errors, for unknown keys.
pub const SCHEMA: u32 = 1;

/// Stages that the model families have. A stage name outside this list is an unknown key.
pub const STAGES: &[&str] = &["code2wav", "code_predictor", "decoder", "talker"];

/// Names of the weight paths. Kept here because reading a profile knows nothing of models; a test of derivation holds
/// them against what the engine has.
pub const WEIGHT_PATHS: &[&str] = &["native", "bf16", "w8a8", "w4a8"];

/// Names that cap the instruction set, alone and as a running engine shows them. Held against the engine's as above.
pub const ISA_CAPS: &[&str] = &[
    "best",
    "scalar",
    "avx2",
    "avx_vnni",
    "avx512_vnni",
    "avx512_bf16",
    "x86_64-scalar",
    "x86_64-avx2",
    "x86_64-avx_vnni",
    "x86_64-avx512_vnni",
    "x86_64-avx512_bf16",
    "aarch64-scalar",
];

/// Top-level keys that belong into a class file.
pub const CLASS_KEYS: &[&str] = &["schema", "policy"];

/// Top-level keys that belong into a profile.
pub const PROFILE_KEYS: &[&str] = &[
    "schema",
    "extends",
    "priority",
    "model",
    "sampling",
    "stages",
    "server",
    "limits",
    "deadlines",
];

/// How a model is served: only what somebody pinned; everything absent is derived from the machine and the model.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Profile {
    /// Version of the profile language the file was written for. Unknown keys of a newer version are warnings.
    #[schemars(range(min = 1))]
    pub schema: Option<u32>,
    /// Name of one parent profile. Its keys apply below this file's own.
    pub extends: Option<String>,
    /// What matters most where a choice has to be made.
    pub priority: Option<Priority>,
    /// The model: its names and overall limits.
    pub model: ModelProfile,
    /// Sampling for requests that do not say. Absent values come from the model's own files.
    pub sampling: SamplingProfile,
    /// Workers of the pipeline by name. A language model has one, `decoder`.
    #[schemars(schema_with = "stages_schema")]
    pub stages: BTreeMap<String, StageProfile>,
    /// The HTTP side.
    pub server: ServerProfile,
    /// Upper bounds for what is derived. A pin above a bound is refused.
    pub limits: Limits,
    /// How long each phase may take.
    pub deadlines: DeadlineProfile,
}

/// The model: its names and overall limits.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct ModelProfile {
    /// Name that `/v1/models` lists and requests use.
    pub name: Option<String>,
    /// Model family the profile is meant for, such as `llama` or `qwen3`. Another model's family is refused.
    pub family: Option<String>,
    /// Languages the model serves, as language codes.
    pub languages: Option<Vec<String>>,
    /// Language used when a request does not name one. One of `languages`, where those are given.
    pub default_language: Option<String>,
    /// Revision of the model repository (branch, tag or commit). Always text: `1e5` stays `1e5`.
    pub revision: Option<String>,
    /// Version of the model as its maker writes it. Always text: `12.10` stays `12.10`.
    pub version: Option<String>,
    /// Tokens of context for every stage that does not say otherwise; 0 is the model's own maximum.
    #[schemars(range(min = 0))]
    pub context: Option<usize>,
    /// Jinja chat template, instead of the model's own.
    pub chat_template: Option<String>,
}

/// Sampling for requests that do not say.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct SamplingProfile {
    /// Randomness; 0 takes the most likely token.
    #[schemars(range(min = 0, max = 5))]
    pub temperature: Option<f32>,
    /// Keep the most likely tokens whose probabilities sum to this; 1 keeps all.
    #[schemars(range(min = 0, max = 1))]
    pub top_p: Option<f32>,
    /// Keep this many most likely tokens; 0 keeps all.
    pub top_k: Option<u32>,
    /// Drop tokens less likely than this share of the most likely one; 0 drops none.
    #[schemars(range(min = 0, max = 1))]
    pub min_p: Option<f32>,
    /// Weakens tokens already used; 1 changes nothing.
    #[schemars(range(min = 0.1, max = 10))]
    pub repetition_penalty: Option<f32>,
}

/// Pins of one stage.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct StageProfile {
    /// Worker threads, including the one that leads.
    #[schemars(range(min = 1, max = 4096))]
    pub threads: Option<usize>,
    /// CPUs the workers may run on, as the kernel numbers them, such as `0-3,8`.
    pub cpus: Option<CpuSet>,
    /// Whether each worker is pinned to one CPU.
    pub pin: Option<bool>,
    /// Whether workers that are not pinned stay within `cpus`; without it the kernel may place them on any allowed
    /// CPU. Follows from whether `cpus` is set.
    pub confine: Option<bool>,
    /// Best instruction set allowed, such as `avx2` or `scalar`; `best` for no limit. Lowers the choice, never raises it.
    #[schemars(schema_with = "isa_caps_schema")]
    pub isa_cap: Option<String>,
    /// Type of arithmetic outside the quantised dot products.
    pub dtype: Option<Dtype>,
    /// How weights are held and multiplied: `native` as the file stores them; `bf16`, `w8a8` (8-bit blocks) and `w4a8`
    /// (4-bit blocks) hold float weights smaller. Weights that are quantised already stay as they are on every path.
    #[schemars(schema_with = "weight_paths_schema")]
    pub weight_path: Option<String>,
    /// Element type of the KV cache.
    pub kv_dtype: Option<Dtype>,
    /// Tokens of context each sequence may use; 0 is the model's own maximum. Goes before `model.context`.
    #[schemars(range(min = 0))]
    pub context: Option<usize>,
    /// Sequences running at once; more wait in the queue.
    #[schemars(range(min = 1, max = 4096))]
    pub max_seqs: Option<usize>,
    /// Bytes of KV cache for all sequences together.
    pub kv_bytes: Option<Bytes>,
    /// The KV cache is sized in blocks of this many tokens.
    #[schemars(range(min = 1, max = 4096))]
    pub kv_block: Option<usize>,
    /// Tokens of a prompt processed in one pass.
    #[schemars(range(min = 1, max = 65536))]
    pub prefill_batch: Option<usize>,
    /// Whether weights ask for transparent huge pages; the KV cache, which fills up bit by bit, never does.
    pub huge_pages: Option<bool>,
    /// Kind of device the stage runs on.
    pub device: Option<Device>,
}

/// The HTTP side.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct ServerProfile {
    /// Address to bind. `0.0.0.0` listens on every interface.
    pub host: Option<String>,
    /// Port to bind; 0 takes any free one.
    #[schemars(range(min = 0, max = 65535))]
    pub port: Option<u16>,
    /// Key that clients must send. Never shown or written out again.
    pub api_key: Option<Secret>,
    /// Requests waiting beyond those running; more are answered 429.
    pub max_queue: Option<usize>,
    /// Largest request body.
    pub max_body_bytes: Option<Bytes>,
    /// Longest wait for a request's body to arrive.
    pub read_timeout_ms: Option<Millis>,
    /// Longest a request may take in all.
    pub request_timeout_ms: Option<Millis>,
    /// Most tokens a request gets when it does not say.
    #[schemars(range(min = 1))]
    pub default_max_tokens: Option<usize>,
}

/// Upper bounds for what is derived.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Limits {
    /// Longest a request may take, in seconds. Bounds `server.request_timeout_ms`.
    #[schemars(range(min = 1))]
    pub request_timeout_s: Option<u64>,
    /// Most bytes that the KV caches of all stages may take together.
    pub kv_cache_bytes: Option<Bytes>,
    /// Longest context of any stage, in tokens.
    #[schemars(range(min = 1))]
    pub max_context: Option<usize>,
    /// Most worker threads of all stages together.
    #[schemars(range(min = 1, max = 4096))]
    pub max_threads: Option<usize>,
    /// Most memory that weights, caches and everything else may take together.
    pub memory_bytes: Option<Bytes>,
}

/// How long each phase may take.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct DeadlineProfile {
    /// Reading and preparing the weights.
    pub load_ms: Option<Millis>,
    /// The first tokens after loading.
    pub warmup_ms: Option<Millis>,
    /// Finishing what runs after a request to stop.
    pub shutdown_ms: Option<Millis>,
}

/// What matters most where a choice has to be made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Priority {
    /// Fidelity: weights as the file has them, activations never rounded to BF16, and an f32 KV cache where that costs
    /// neither context nor sequences.
    Quality,
    /// Weights as the file has them, and an f16 KV cache unless the weights are F32.
    #[default]
    Balanced,
    /// Speed and memory: float weights are held as 8-bit blocks, and the KV cache is f16 always.
    Fast,
    /// Long contexts and exact tool calls: fidelity as with `quality`, and one sequence with all the context that fits.
    Agentic,
}

/// Kind of device a stage runs on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[expect(missing_docs, reason = "each name is the device's own")]
pub enum Device {
    Cpu,
    Gpu,
    Npu,
}

/// A text that is never shown: `Debug` and serialisation print a placeholder.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

impl Secret {
    /// What stands in place of the text.
    pub const PLACEHOLDER: &'static str = "(set, not shown)";

    /// The text itself.
    #[must_use]
    pub fn reveal(&self) -> &str {
        &self.0
    }
}

impl From<String> for Secret {
    fn from(text: String) -> Self {
        Self(text)
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(Self::PLACEHOLDER)
    }
}

impl Serialize for Secret {
    fn serialize<S: Serializer>(&self, out: S) -> Result<S::Ok, S::Error> {
        out.serialize_str(Self::PLACEHOLDER)
    }
}

impl<'de> Deserialize<'de> for Secret {
    fn deserialize<D: Deserializer<'de>>(input: D) -> Result<Self, D::Error> {
        String::deserialize(input).map(Self)
    }
}

impl JsonSchema for Secret {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Secret".into()
    }
    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({"type": "string", "description": "a text that is never shown"})
    }
}

/// Keys whose values are never shown.
pub const SECRETS: &[&str] = &["server.api_key"];

/// The JSON schema of everything a person may write: `Profile` and, beside it, `policy`.
#[must_use]
pub fn root_schema() -> Schema {
    let mut generator = SchemaGenerator::default();
    let policy = generator.subschema_for::<Policy>();
    let mut root = generator.into_root_schema_for::<Profile>();
    if let Some(properties) = root
        .ensure_object()
        .get_mut("properties")
        .and_then(|p| p.as_object_mut())
    {
        properties.insert("policy".into(), policy.to_value());
    }
    root
}

/// `stages` as an object of the known names, so that a wrong one is found like any unknown key.
fn stages_schema(generator: &mut SchemaGenerator) -> Schema {
    let stage = generator.subschema_for::<StageProfile>();
    let properties: serde_json::Map<String, serde_json::Value> = STAGES
        .iter()
        .map(|name| ((*name).to_owned(), stage.clone().to_value()))
        .collect();
    json_schema!({"type": "object", "properties": properties, "additionalProperties": false})
}

fn isa_caps_schema(_: &mut SchemaGenerator) -> Schema {
    json_schema!({"type": "string", "enum": ISA_CAPS})
}

fn weight_paths_schema(_: &mut SchemaGenerator) -> Schema {
    json_schema!({"type": "string", "enum": WEIGHT_PATHS})
}
