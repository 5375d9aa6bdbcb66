//! `Asked`: what somebody pinned, and the policy, in the shape that the rules take.
//!
//! In: the merged configuration. Out: every pin with its key and place, the policy, the names that served.
//! Invariant: a key that is set is in here or refused; nothing is given a default.

use super::context::ContextPins;
use super::deadlines::DeadlinePins;
use super::decision::Pin;
use super::server::{SamplingPins, ServerPins};
use super::threads::ThreadPins;
use serde::de::DeserializeOwned;

use crate::base::{Bytes, Code, Dtype, Problem, Problems};
use crate::config::schema::{Device, Priority, Secret};
use crate::config::{Layered, Policy};

/// The stage of a language model.
pub const DECODER: &str = "decoder";

/// How to go on where the machine and the wishes differ. Not configuration: given for one run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// Go on although the plan does not fit; a warning says the risk.
    pub force: bool,
    /// Memory that will be free before loading, such as that of a model being replaced.
    pub credit: Bytes,
}

/// What somebody pinned, and the policy.
#[derive(Clone, Debug)]
#[expect(missing_docs, reason = "each pin is that of the key of its name")]
pub struct Asked {
    /// The class's policy.
    pub policy: Policy,
    /// Profiles that served, joined, or `none`.
    pub profile: String,
    pub name: Option<Pin<String>>,
    pub family: Option<Pin<String>>,
    pub chat_template: Option<Pin<String>>,
    pub priority: Option<Pin<Priority>>,
    pub threads: ThreadPins,
    pub isa_cap: Option<Pin<String>>,
    pub dtype: Option<Pin<Dtype>>,
    pub weight_path: Option<Pin<String>>,
    pub kv_dtype: Option<Pin<Dtype>>,
    pub context: ContextPins,
    pub kv_block: Option<Pin<usize>>,
    pub prefill_batch: Option<Pin<usize>>,
    pub huge_pages: Option<Pin<bool>>,
    pub device: Option<Pin<Device>>,
    /// `limits.memory_bytes`.
    pub memory_limit: Option<Pin<Bytes>>,
    pub sampling: SamplingPins,
    pub server: ServerPins,
    pub deadlines: DeadlinePins,
}

impl Asked {
    /// Nothing pinned.
    #[must_use]
    pub fn nothing(policy: Policy) -> Self {
        Self {
            policy,
            profile: "none".to_owned(),
            name: None,
            family: None,
            chat_template: None,
            priority: None,
            threads: ThreadPins::default(),
            isa_cap: None,
            dtype: None,
            weight_path: None,
            kv_dtype: None,
            context: ContextPins::default(),
            kv_block: None,
            prefill_batch: None,
            huge_pages: None,
            device: None,
            memory_limit: None,
            sampling: SamplingPins::default(),
            server: ServerPins::default(),
            deadlines: DeadlinePins::default(),
        }
    }
}

/// Reads every pin out of the merged configuration.
struct Pins<'a> {
    layered: &'a Layered,
    problems: Vec<Problem>,
}

impl Pins<'_> {
    fn get<T: DeserializeOwned>(&mut self, key: &str) -> Option<Pin<T>> {
        match self.layered.pin::<T>(key) {
            Ok(pin) => pin.map(|pin| Pin {
                value: pin.value,
                key: key.to_owned(),
                layer: pin.layer,
                // With the excerpt, for refusals.
                place: self.layered.shown(key, "set here").unwrap_or(pin.place),
            }),
            Err(problem) => {
                self.problems.push(problem);
                None
            }
        }
    }

    fn stage<T: DeserializeOwned>(&mut self, knob: &str) -> Option<Pin<T>> {
        self.get(&format!("stages.{DECODER}.{knob}"))
    }
}

impl Asked {
    /// Everything that the merged configuration says.
    pub fn from_layered(layered: &Layered) -> Result<Self, Problems> {
        let mut pins = Pins {
            layered,
            problems: Vec::new(),
        };
        let priority = pins.get("priority");
        let context = ContextPins {
            // A stage's own context goes before the model's.
            context: pins.stage("context").or_else(|| pins.get("model.context")),
            max_seqs: pins.stage("max_seqs"),
            kv_bytes: pins.stage("kv_bytes"),
            max_context: pins.get("limits.max_context"),
            kv_limit: pins.get("limits.kv_cache_bytes"),
            priority: priority
                .as_ref()
                .map(|pin: &Pin<Priority>| pin.value)
                .unwrap_or_default(),
            force: false,
        };
        let asked = Self {
            policy: layered.policy,
            profile: if layered.profile_names.is_empty() {
                "none".to_owned()
            } else {
                layered.profile_names.join(" + ")
            },
            name: pins.get("model.name"),
            family: pins.get("model.family"),
            chat_template: pins.get("model.chat_template"),
            priority,
            threads: ThreadPins {
                threads: pins.stage("threads"),
                cpus: pins.stage("cpus"),
                pin: pins.stage("pin"),
                max_threads: pins.get("limits.max_threads"),
                force: false,
            },
            isa_cap: pins.stage("isa_cap"),
            dtype: pins.stage("dtype"),
            weight_path: pins.stage("weight_path"),
            kv_dtype: pins.stage("kv_dtype"),
            context,
            kv_block: pins.stage("kv_block"),
            prefill_batch: pins.stage("prefill_batch"),
            huge_pages: pins.stage("huge_pages"),
            device: pins.stage("device"),
            memory_limit: pins.get("limits.memory_bytes"),
            sampling: SamplingPins {
                temperature: pins.get("sampling.temperature"),
                top_p: pins.get("sampling.top_p"),
                top_k: pins.get("sampling.top_k"),
                min_p: pins.get("sampling.min_p"),
                repetition_penalty: pins.get("sampling.repetition_penalty"),
            },
            server: ServerPins {
                host: pins.get("server.host"),
                port: pins.get("server.port"),
                // Only that a key is set goes on; the key stays behind.
                api_key: pins.get::<Secret>("server.api_key").map(|pin| Pin {
                    value: true,
                    key: pin.key,
                    layer: pin.layer,
                    place: pin.place,
                }),
                max_queue: pins.get("server.max_queue"),
                max_body_bytes: pins.get("server.max_body_bytes"),
                read_timeout: pins.get("server.read_timeout_ms"),
                request_timeout: pins.get("server.request_timeout_ms"),
                default_max_tokens: pins.get("server.default_max_tokens"),
                request_limit: pins.get("limits.request_timeout_s"),
            },
            deadlines: DeadlinePins {
                load: pins.get("deadlines.load_ms"),
                warmup: pins.get("deadlines.warmup_ms"),
                shutdown: pins.get("deadlines.shutdown_ms"),
            },
        };
        let other: Vec<&str> = layered
            .profile
            .stages
            .keys()
            .map(String::as_str)
            .filter(|name| *name != DECODER)
            .collect();
        if !other.is_empty() {
            pins.problems.push(Problem::new(
                Code::PinUnmet,
                format!(
                    "the configuration pins the stages {}, which this model does not have",
                    other.join(", ")
                ),
                format!("a language model has one stage, `{DECODER}`: remove the others"),
            ));
        }
        if pins.problems.is_empty() {
            Ok(asked)
        } else {
            Err(Problems(pins.problems))
        }
    }
}
