//! `Decision`: a value together with why it is what it is; `Pin`: a value that somebody set.
//!
//! In: rules and configuration. Out: what the plan's explanations are made of.
//! Invariant: a decision without a reason cannot be built; a pin carries the place where it was set.

use serde::{Deserialize, Serialize};

use crate::base::Place;

/// Where a value came from.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Origin {
    /// A layer of configuration pinned it.
    Pinned {
        /// Name of the layer, as configuration names it.
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

/// A value that a layer of configuration set.
#[derive(Clone, Debug, PartialEq)]
pub struct Pin<T> {
    /// The value.
    pub value: T,
    /// The key it was set under, such as `stages.decoder.threads`.
    pub key: String,
    /// Name of the layer.
    pub layer: String,
    /// File and line, variable or flag.
    pub place: Place,
}

impl<T> Pin<T> {
    /// `key (place)`, as messages name a pin.
    #[must_use]
    pub fn named(&self) -> String {
        format!("`{}` ({})", self.key, self.place)
    }

    /// How the same pin is written with another value, where it was written: the flag, the variable, `--set`, or the
    /// key in its file.
    #[must_use]
    pub fn written(&self, value: impl std::fmt::Display) -> String {
        let source = &self.place.source;
        match self.layer.as_str() {
            "command line" => format!("`{source} {value}`"),
            "--set" => format!("`--set {}={value}`", self.key),
            "environment" => format!("`{source}={value}`"),
            _ => format!("`{}: {value}` in {}", self.key, self.place),
        }
    }

    /// As the origin of a decision. Without the excerpt, which only a refusal shows.
    #[must_use]
    pub fn origin(&self) -> Origin {
        Origin::Pinned {
            layer: self.layer.clone(),
            place: Place {
                snippet: None,
                ..self.place.clone()
            },
        }
    }
}

/// A knob's value with its reason.
#[derive(Clone, Debug, PartialEq)]
pub struct Decision<T> {
    /// The value.
    pub value: T,
    /// The rule or reason, with its numbers.
    pub because: String,
    /// What bounded it, if anything did.
    pub bounded_by: Option<String>,
    /// Where it came from.
    pub origin: Origin,
}

impl<T> Decision<T> {
    /// A value that `rule` computed.
    #[must_use]
    pub fn derived(value: T, rule: &str, because: impl Into<String>) -> Self {
        Self {
            value,
            because: because.into(),
            bounded_by: None,
            origin: Origin::Derived {
                rule: rule.to_owned(),
            },
        }
    }

    /// A value that somebody set, kept as it is.
    #[must_use]
    pub fn pinned(pin: &Pin<T>, because: impl Into<String>) -> Self
    where
        T: Clone,
    {
        Self {
            value: pin.value.clone(),
            because: because.into(),
            bounded_by: None,
            origin: pin.origin(),
        }
    }

    /// Adds what bounded it.
    #[must_use]
    pub fn bounded(mut self, by: Option<String>) -> Self {
        self.bounded_by = by;
        self
    }
}

/// The pin if there is one, else what the rule says.
#[must_use]
pub fn pin_or<T: Clone>(
    pin: Option<&Pin<T>>,
    rule: &str,
    value: T,
    because: impl Into<String>,
) -> Decision<T> {
    match pin {
        Some(pin) => Decision::pinned(pin, format!("set by {}", pin.layer)),
        None => Decision::derived(value, rule, because),
    }
}
