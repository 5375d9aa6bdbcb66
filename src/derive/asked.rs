//! `Asked`: what somebody pinned, and the policy, in the shape that the rules take.
//!
//! In: the merged configuration. Out: every pin with its key and place, the policy, the names that served.
//! Invariant: a key that is set is in here or refused; nothing is given a default.

use super::context::ContextPins;
use super::deadlines::DeadlinePins;
use super::decision::Pin;
use super::server::{SamplingPins, ServerPins};
use super::threads::ThreadPins;
use crate::base::{Bytes, Dtype};
use crate::config::Policy;
use crate::config::schema::{Device, Priority};

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
