//! `Asked`: what somebody pinned, and the policy, in the shape that the rules take.
//!
//! In: the merged configuration. Out: every pin with its key and place, the policy, the names that served.
//! Invariant: a key that is set is in here or refused; nothing is given a default.

use std::collections::BTreeMap;

use serde::de::DeserializeOwned;

use super::context::ContextPins;
use super::deadlines::DeadlinePins;
use super::decision::Pin;
use super::memory::Room;
use super::server::{SamplingPins, ServerPins};
use super::threads::ThreadPins;
use crate::base::{Bytes, CpuSet, Dtype, Place, Problem, Problems};
use crate::config::schema::{Device, Priority, Secret};
use crate::config::{Kin, Layered, Policy};
pub use crate::model::stages::DECODER;

/// How to go on where the machine and the wishes differ. Not configuration: given for one run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// Go on although the plan does not fit; a warning says the risk.
    pub force: bool,
    /// Memory that will be free before loading, such as that of a model being replaced.
    pub credit: Bytes,
}

/// What somebody pinned about one stage.
#[derive(Clone, Debug, Default)]
#[expect(missing_docs, reason = "each pin is that of the key of its name")]
pub struct StagePins {
    pub threads: Option<Pin<usize>>,
    pub cpus: Option<Pin<CpuSet>>,
    pub pin: Option<Pin<bool>>,
    pub confine: Option<Pin<bool>>,
    pub isa_cap: Option<Pin<String>>,
    pub dtype: Option<Pin<Dtype>>,
    pub weight_path: Option<Pin<String>>,
    pub kv_dtype: Option<Pin<Dtype>>,
    pub context: Option<Pin<usize>>,
    pub max_seqs: Option<Pin<usize>>,
    pub kv_bytes: Option<Pin<Bytes>>,
    pub kv_block: Option<Pin<usize>>,
    pub prefill_batch: Option<Pin<usize>>,
    pub huge_pages: Option<Pin<bool>>,
    pub device: Option<Pin<Device>>,
}

impl StagePins {
    /// Where one of them was set, if any was.
    #[must_use]
    pub fn any_place(&self) -> Option<Place> {
        fn of<T>(pin: Option<&Pin<T>>) -> Option<Place> {
            pin.map(|pin| pin.place.clone())
        }
        of(self.threads.as_ref())
            .or_else(|| of(self.cpus.as_ref()))
            .or_else(|| of(self.pin.as_ref()))
            .or_else(|| of(self.confine.as_ref()))
            .or_else(|| of(self.isa_cap.as_ref()))
            .or_else(|| of(self.dtype.as_ref()))
            .or_else(|| of(self.weight_path.as_ref()))
            .or_else(|| of(self.kv_dtype.as_ref()))
            .or_else(|| of(self.context.as_ref()))
            .or_else(|| of(self.max_seqs.as_ref()))
            .or_else(|| of(self.kv_bytes.as_ref()))
            .or_else(|| of(self.kv_block.as_ref()))
            .or_else(|| of(self.prefill_batch.as_ref()))
            .or_else(|| of(self.huge_pages.as_ref()))
            .or_else(|| of(self.device.as_ref()))
    }
}

/// Bounds on what is derived.
#[derive(Clone, Debug, Default)]
#[expect(
    missing_docs,
    reason = "each pin is that of the key of its name under `limits`"
)]
pub struct LimitPins {
    pub max_context: Option<Pin<usize>>,
    pub kv_cache_bytes: Option<Pin<Bytes>>,
    pub max_threads: Option<Pin<usize>>,
    pub memory_bytes: Option<Pin<Bytes>>,
}

/// What somebody pinned, and the policy.
#[derive(Clone, Debug)]
#[expect(missing_docs, reason = "each pin is that of the key of its name")]
pub struct Asked {
    /// The class's policy.
    pub policy: Policy,
    /// `policy.reserve_bytes` or `policy.reserve_share` as a person, and not the machine's class, set it; with its
    /// place.
    pub reserve: Option<String>,
    /// `policy.reserve_bytes`, where a person set it.
    pub reserve_bytes: Option<Pin<Bytes>>,
    /// Profiles that served, joined, or `none`.
    pub profile: String,
    pub name: Option<Pin<String>>,
    pub family: Option<Pin<String>>,
    pub chat_template: Option<Pin<String>>,
    pub priority: Option<Pin<Priority>>,
    /// `model.context`: for the first stage, unless that has its own.
    pub context: Option<Pin<usize>>,
    /// By stage name.
    pub stages: BTreeMap<String, StagePins>,
    pub limits: LimitPins,
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
            reserve: None,
            reserve_bytes: None,
            profile: "none".to_owned(),
            name: None,
            family: None,
            chat_template: None,
            priority: None,
            context: None,
            stages: BTreeMap::new(),
            limits: LimitPins::default(),
            sampling: SamplingPins::default(),
            server: ServerPins::default(),
            deadlines: DeadlinePins::default(),
        }
    }

    /// The pins of a stage.
    #[must_use]
    pub fn stage(&self, name: &str) -> StagePins {
        self.stages.get(name).cloned().unwrap_or_default()
    }

    /// What matters most.
    #[must_use]
    pub fn priority(&self) -> Priority {
        self.priority.as_ref().map(|pin| pin.value).unwrap_or_default()
    }

    /// How much stays free, and by whose word.
    #[must_use]
    pub fn kept(&self, room: &Room) -> String {
        match (&self.reserve, room.wanted_reserve) {
            (Some(by), _) => format!("{} of it stay free, as {by} sets it", room.reserve),
            (None, Some(wanted)) => format!(
                "{} of it stay free for the system: half, because the {wanted} that this class of machine keeps would leave too little",
                room.reserve
            ),
            (None, None) => format!("{} of it stay free for the system", room.reserve),
        }
    }

    /// The same with nothing set about workers.
    #[must_use]
    pub fn without_workers(&self) -> Self {
        let mut without = self.clone();
        for pins in without.stages.values_mut() {
            pins.threads = None;
            pins.cpus = None;
            pins.pin = None;
            pins.confine = None;
        }
        without
    }

    /// What was set about the workers of a stage.
    #[must_use]
    pub fn threads(&self, stage: &str, force: bool) -> ThreadPins {
        let pins = self.stage(stage);
        ThreadPins {
            threads: pins.threads,
            cpus: pins.cpus,
            pin: pins.pin,
            confine: pins.confine,
            max_threads: self.limits.max_threads.clone(),
            force,
        }
    }

    /// What was set about context and sequences of the first stage.
    #[must_use]
    pub fn context(&self, stage: &str, force: bool) -> ContextPins {
        let pins = self.stage(stage);
        ContextPins {
            // A stage's own context goes before the model's.
            context: pins.context.or_else(|| self.context.clone()),
            max_seqs: pins.max_seqs,
            kv_bytes: pins.kv_bytes,
            max_context: self.limits.max_context.clone(),
            kv_limit: self.limits.kv_cache_bytes.clone(),
            caches: self.each(|pins| pins.kv_bytes.as_ref()),
            batches: self.each(|pins| pins.prefill_batch.as_ref()),
            memory_limit: self.limits.memory_bytes.clone(),
            reserve_bytes: self.reserve_bytes.clone(),
            reserve_by: self.reserve.clone(),
            priority: self.priority(),
            force,
        }
    }

    /// One pin of each stage that has it.
    fn each<T: Clone>(&self, pin: impl Fn(&StagePins) -> Option<&Pin<T>>) -> BTreeMap<String, Pin<T>> {
        let stages = self.stages.iter();
        stages
            .filter_map(|(name, pins)| Some((name.clone(), pin(pins)?.clone())))
            .collect()
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

    fn stage(&mut self, name: &str) -> StagePins {
        let key = |knob: &str| format!("stages.{name}.{knob}");
        StagePins {
            threads: self.get(&key("threads")),
            cpus: self.get(&key("cpus")),
            pin: self.get(&key("pin")),
            confine: self.get(&key("confine")),
            isa_cap: self.get(&key("isa_cap")),
            dtype: self.get(&key("dtype")),
            weight_path: self.get(&key("weight_path")),
            kv_dtype: self.get(&key("kv_dtype")),
            context: self.get(&key("context")),
            max_seqs: self.get(&key("max_seqs")),
            kv_bytes: self.get(&key("kv_bytes")),
            kv_block: self.get(&key("kv_block")),
            prefill_batch: self.get(&key("prefill_batch")),
            huge_pages: self.get(&key("huge_pages")),
            device: self.get(&key("device")),
        }
    }
}

impl Asked {
    /// Everything that the merged configuration says.
    pub fn from_layered(layered: &Layered) -> Result<Self, Problems> {
        let mut pins = Pins {
            layered,
            problems: Vec::new(),
        };
        fn by_a_person<T>(pin: Option<Pin<T>>) -> Option<Pin<T>> {
            let class = [Kin::BuiltIn, Kin::Class].map(Kin::as_str);
            pin.filter(|pin| !class.contains(&pin.layer.as_str()))
        }
        let reserve_bytes = by_a_person(pins.get::<Bytes>("policy.reserve_bytes"));
        let reserve_share = by_a_person(pins.get::<f64>("policy.reserve_share"));
        let reserve =
            (reserve_bytes.as_ref().map(Pin::named)).or_else(|| reserve_share.as_ref().map(Pin::named));
        let names: Vec<&String> = layered.profile.stages.keys().collect();
        let stages = names
            .into_iter()
            .map(|name| (name.clone(), pins.stage(name)))
            .collect();
        let asked = Self {
            policy: layered.policy,
            reserve,
            reserve_bytes,
            profile: if layered.profile_names.is_empty() {
                "none".to_owned()
            } else {
                layered.profile_names.join(" + ")
            },
            name: pins.get("model.name"),
            family: pins.get("model.family"),
            chat_template: pins.get("model.chat_template"),
            priority: pins.get("priority"),
            context: pins.get("model.context"),
            stages,
            limits: LimitPins {
                max_context: pins.get("limits.max_context"),
                kv_cache_bytes: pins.get("limits.kv_cache_bytes"),
                max_threads: pins.get("limits.max_threads"),
                memory_bytes: pins.get("limits.memory_bytes"),
            },
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
        if pins.problems.is_empty() {
            Ok(asked)
        } else {
            Err(Problems(pins.problems))
        }
    }
}
