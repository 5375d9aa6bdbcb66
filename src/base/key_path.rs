//! `KeyPath`: the dotted name of a knob, such as `stages.decoder.threads`.
//!
//! In: text or segments. Out: the same, comparable and printable. Invariant: no empty segment.

use std::fmt;

use serde::{Deserialize, Serialize};

/// The dotted path of a setting, the same in YAML, environment, `--set`, `explain` and JSON.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct KeyPath(String);

impl KeyPath {
    /// From dotted text; empty segments are dropped.
    #[must_use]
    pub fn new(text: &str) -> Self {
        Self(
            text.split('.')
                .map(str::trim)
                .filter(|s| !s.is_empty())
                .collect::<Vec<_>>()
                .join("."),
        )
    }

    /// This path with one more segment.
    #[must_use]
    pub fn child(&self, segment: &str) -> Self {
        if self.0.is_empty() {
            Self(segment.to_owned())
        } else {
            Self(format!("{}.{segment}", self.0))
        }
    }

    /// The segments in order.
    pub fn segments(&self) -> impl Iterator<Item = &str> {
        self.0.split('.').filter(|s| !s.is_empty())
    }

    /// The dotted text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl From<&str> for KeyPath {
    fn from(text: &str) -> Self {
        Self::new(text)
    }
}

impl fmt::Display for KeyPath {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&self.0)
    }
}
