//! `Dtype`: the element types of arithmetic and of the KV cache.
//!
//! In: nothing. Out: the type and its size. Invariant: the names are those of YAML, JSON and `explain`.

use serde::{Deserialize, Serialize};

/// Element type.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "snake_case")]
#[expect(missing_docs, reason = "each name is the type's own")]
pub enum Dtype {
    #[default]
    F32,
    F16,
    Bf16,
}

impl Dtype {
    /// The name in YAML, JSON and `explain`.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::F16 => "f16",
            Self::Bf16 => "bf16",
        }
    }

    /// Bytes of one element.
    #[must_use]
    pub fn bytes(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::F16 | Self::Bf16 => 2,
        }
    }
}

impl std::fmt::Display for Dtype {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.write_str(self.as_str())
    }
}
