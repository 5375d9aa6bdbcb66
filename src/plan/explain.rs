//! Why each knob has its value.
//!
//! In: decisions. Out: per key the value, where it came from, the rule with its numbers, how to verify.
//! Invariant: every knob of the plan has an entry (a test lists them).

use serde::{Deserialize, Serialize};

use crate::base::Place;

/// One knob explained.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Explanation {
    /// The value, as JSON.
    pub value: serde_json::Value,
    /// Where it came from.
    pub origin: Origin,
    /// The rule or reason, with its numbers.
    pub because: String,
    /// What bounded it, if anything did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bounded_by: Option<String>,
    /// How to see that it took effect.
    pub verify: String,
}

/// Where a value came from.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Origin {
    /// A layer of configuration pinned it.
    Pinned {
        /// Name of the layer: `built-in`, `class`, `profile`, `user file`, `environment`, `--set`, `command line`.
        layer: String,
        /// File and line, variable or flag.
        place: Place,
    },
    /// A rule computed it.
    Derived {
        /// Name of the rule.
        rule: String,
    },
    /// A measurement on this machine chose it.
    Measured {
        /// Which record.
        record: String,
    },
}
