//! Quantities that people write in YAML and on the command line.
//!
//! In: text such as `8GiB`, `120ms`. Out: newtypes that keep the unit in the type.
//! Invariant: parsing never rounds an exact value and never overflows silently.

use std::fmt;
use std::str::FromStr;

use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A count of bytes. Text: `8GiB`, `512MiB`, `1.5GB`, `4096`. JSON: a number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Bytes(pub u64);

/// A duration in milliseconds. Text: `120ms`, `30s`, `5min`. JSON: a number of milliseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Millis(pub u64);

/// Why a quantity could not be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{text}` is not {wanted}")]
pub struct UnitError {
    text: String,
    wanted: &'static str,
}

const BYTE_UNITS: [(&str, u64); 13] = [
    ("B", 1),
    ("K", 1 << 10),
    ("KB", 1000),
    ("KiB", 1 << 10),
    ("M", 1 << 20),
    ("MB", 1_000_000),
    ("MiB", 1 << 20),
    ("G", 1 << 30),
    ("GB", 1_000_000_000),
    ("GiB", 1 << 30),
    ("T", 1 << 40),
    ("TB", 1_000_000_000_000),
    ("TiB", 1 << 40),
];
const TIME_UNITS: [(&str, u64); 5] = [
    ("ms", 1),
    ("s", 1000),
    ("m", 60_000),
    ("min", 60_000),
    ("h", 3_600_000),
];

impl Bytes {
    /// `n` mebibytes.
    #[must_use]
    pub const fn mib(n: u64) -> Self {
        Self(n << 20)
    }
    /// `n` gibibytes.
    #[must_use]
    pub const fn gib(n: u64) -> Self {
        Self(n << 30)
    }
}

/// Splits `1.5GiB` into an exact scaled value. A bare number has the unit 1.
fn parse_scaled(text: &str, units: &[(&str, u64)]) -> Option<u64> {
    let text = text.trim();
    let digits = text
        .find(|c: char| !c.is_ascii_digit() && c != '.')
        .unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let unit = unit.trim();
    let scale = if unit.is_empty() {
        1
    } else {
        units.iter().find(|(name, _)| name.eq_ignore_ascii_case(unit))?.1
    };
    if let Some((whole, fraction)) = number.split_once('.') {
        // Exact decimal arithmetic: `fraction / 10^digits × scale` has to be a whole number of the base unit or is cut.
        let places = u32::try_from(fraction.len())
            .ok()
            .filter(|&n| (1..=12).contains(&n))?;
        let whole: u64 = whole.parse().ok()?;
        let part: u64 = fraction.parse().ok()?;
        let part = u128::from(part) * u128::from(scale) / 10u128.pow(places);
        whole.checked_mul(scale)?.checked_add(u64::try_from(part).ok()?)
    } else {
        number.parse::<u64>().ok()?.checked_mul(scale)
    }
}

impl FromStr for Bytes {
    type Err = UnitError;
    fn from_str(text: &str) -> Result<Self, UnitError> {
        let wanted = "an amount of memory such as `8GiB`, `512MiB` or a number of bytes";
        parse_scaled(text, &BYTE_UNITS)
            .map(Self)
            .ok_or_else(|| UnitError {
                text: text.to_owned(),
                wanted,
            })
    }
}

impl FromStr for Millis {
    type Err = UnitError;
    fn from_str(text: &str) -> Result<Self, UnitError> {
        let wanted = "a duration such as `120ms`, `30s` or a number of milliseconds";
        parse_scaled(text, &TIME_UNITS)
            .map(Self)
            .ok_or_else(|| UnitError {
                text: text.to_owned(),
                wanted,
            })
    }
}

impl fmt::Display for Bytes {
    /// Binary units with one decimal, exact below 1 KiB: `448.0 MiB`.
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        #[expect(clippy::cast_precision_loss, reason = "shown with one decimal")]
        let value = self.0 as f64;
        for (shift, unit) in [(40u32, "TiB"), (30, "GiB"), (20, "MiB"), (10, "KiB")] {
            if self.0 >= 1 << shift {
                return write!(
                    out,
                    "{:.1} {unit}",
                    value / f64::from(1u32 << (shift - 10)) / 1024.0
                );
            }
        }
        write!(out, "{} B", self.0)
    }
}

impl fmt::Display for Millis {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0 >= 10_000 && self.0.is_multiple_of(1000) {
            write!(out, "{} s", self.0 / 1000)
        } else {
            write!(out, "{} ms", self.0)
        }
    }
}

/// A number or a text with a unit, as both YAML and JSON give it.
#[derive(Deserialize)]
#[serde(untagged)]
enum NumberOrText {
    Number(u64),
    Text(String),
}

macro_rules! serde_as_number_or_text {
    ($type:ident, $name:literal, $describe:literal) => {
        impl Serialize for $type {
            fn serialize<S: Serializer>(&self, out: S) -> Result<S::Ok, S::Error> {
                out.serialize_u64(self.0)
            }
        }
        impl<'de> Deserialize<'de> for $type {
            fn deserialize<D: Deserializer<'de>>(input: D) -> Result<Self, D::Error> {
                match NumberOrText::deserialize(input)? {
                    NumberOrText::Number(n) => Ok(Self(n)),
                    NumberOrText::Text(text) => text.parse().map_err(serde::de::Error::custom),
                }
            }
        }
        impl JsonSchema for $type {
            fn schema_name() -> std::borrow::Cow<'static, str> {
                $name.into()
            }
            fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
                schemars::json_schema!({"type": ["integer", "string"], "minimum": 0, "description": $describe})
            }
        }
    };
}
serde_as_number_or_text!(
    Bytes,
    "Bytes",
    "bytes: a number, or text with a unit such as `8GiB`"
);
serde_as_number_or_text!(
    Millis,
    "Millis",
    "milliseconds: a number, or text with a unit such as `120ms` or `30s`"
);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_parse_exactly() {
        for (text, bytes) in [
            ("8GiB", 8 << 30),
            ("4 gib", 4 << 30),
            ("1.5KiB", 1536),
            ("4096", 4096),
            ("2GB", 2_000_000_000),
        ] {
            assert_eq!(text.parse::<Bytes>().unwrap(), Bytes(bytes), "{text}");
        }
        for text in ["", "GiB", "-1", "1e3", "99999999999TiB", "4_096", "1.GiB"] {
            assert!(text.parse::<Bytes>().is_err(), "{text}");
        }
    }

    #[test]
    fn durations_parse_and_show() {
        assert_eq!("120ms".parse::<Millis>().unwrap(), Millis(120));
        assert_eq!("5min".parse::<Millis>().unwrap().to_string(), "300 s");
        assert_eq!(Bytes(469_762_048).to_string(), "448.0 MiB");
    }
}
