//! `CpuSet`: a set of kernel CPU ids with the kernel's own text form.
//!
//! In: text such as `0-3,8` or ids. Out: the same, in canonical form (sorted, runs joined).
//! Invariant: ids are kernel ids, never indexes; at most [`CpuSet::MAX_ID`] so hostile text cannot allocate much.

use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;

use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A set of kernel CPU ids (or NUMA node ids). Text form: `0-3,8`; the empty set is the empty string.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct CpuSet(BTreeSet<u32>);

/// Why a CPU list could not be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CpuSetError {
    /// A part is not a number or a range of numbers.
    #[error("`{0}` is not a CPU number or a range such as `0-3`")]
    NotANumber(String),
    /// A range whose end lies before its start.
    #[error("the range `{0}` ends before it starts")]
    Backwards(String),
    /// An id above what Linux can address.
    #[error("CPU {0} is above the largest id, {max}", max = CpuSet::MAX_ID)]
    TooLarge(u64),
}

impl CpuSet {
    /// The largest id accepted; Linux is built for at most 8192 CPUs.
    pub const MAX_ID: u32 = 65_535;

    /// The empty set.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// The ids `first..=last`.
    #[must_use]
    pub fn range(first: u32, last: u32) -> Self {
        (first..=last.min(Self::MAX_ID)).collect()
    }

    /// Adds one id; ids above [`Self::MAX_ID`] are ignored.
    pub fn insert(&mut self, cpu: u32) {
        if cpu <= Self::MAX_ID {
            self.0.insert(cpu);
        }
    }

    /// Whether `cpu` is in the set.
    #[must_use]
    pub fn contains(&self, cpu: u32) -> bool {
        self.0.contains(&cpu)
    }

    /// How many CPUs.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The smallest id.
    #[must_use]
    pub fn first(&self) -> Option<u32> {
        self.0.first().copied()
    }

    /// The largest id.
    #[must_use]
    pub fn last(&self) -> Option<u32> {
        self.0.last().copied()
    }

    /// Ids in rising order.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = u32> + '_ {
        self.0.iter().copied()
    }

    /// What is in both.
    #[must_use]
    pub fn intersection(&self, other: &Self) -> Self {
        Self(self.0.intersection(&other.0).copied().collect())
    }

    /// What is in either.
    #[must_use]
    pub fn union(&self, other: &Self) -> Self {
        Self(self.0.union(&other.0).copied().collect())
    }

    /// What is here and not there.
    #[must_use]
    pub fn difference(&self, other: &Self) -> Self {
        Self(self.0.difference(&other.0).copied().collect())
    }

    /// Whether every id of `self` is in `other`.
    #[must_use]
    pub fn is_subset(&self, other: &Self) -> bool {
        self.0.is_subset(&other.0)
    }
}

impl FromIterator<u32> for CpuSet {
    fn from_iter<I: IntoIterator<Item = u32>>(ids: I) -> Self {
        Self(ids.into_iter().filter(|&id| id <= Self::MAX_ID).collect())
    }
}

impl FromStr for CpuSet {
    type Err = CpuSetError;

    /// Reads the kernel's list form, including the `a-b:used/group` stride form.
    fn from_str(text: &str) -> Result<Self, CpuSetError> {
        let mut set = BTreeSet::new();
        for part in text
            .split([',', '\n', ' '])
            .map(str::trim)
            .filter(|p| !p.is_empty())
        {
            let (span, stride) = match part.split_once(':') {
                Some((span, stride)) => (span, Some(stride)),
                None => (part, None),
            };
            let (first, last) = if let Some((a, b)) = span.split_once('-') {
                (read_id(a, part)?, read_id(b, part)?)
            } else {
                let id = read_id(span, part)?;
                (id, id)
            };
            if last < first {
                return Err(CpuSetError::Backwards(part.to_owned()));
            }
            let (used, group) = match stride {
                None => (1, 1),
                Some(text) => {
                    let bad = || CpuSetError::NotANumber(part.to_owned());
                    let (used, group) = text.split_once('/').ok_or_else(bad)?;
                    (read_id(used, part)?, read_id(group, part)?.max(1))
                }
            };
            set.extend((first..=last).filter(|id| (id - first) % group < used));
        }
        Ok(Self(set))
    }
}

fn read_id(text: &str, part: &str) -> Result<u32, CpuSetError> {
    let id: u64 = text
        .trim()
        .parse()
        .map_err(|_| CpuSetError::NotANumber(part.to_owned()))?;
    u32::try_from(id)
        .ok()
        .filter(|&id| id <= CpuSet::MAX_ID)
        .ok_or(CpuSetError::TooLarge(id))
}

impl fmt::Display for CpuSet {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut ids = self.iter().peekable();
        let mut separator = "";
        while let Some(first) = ids.next() {
            let mut last = first;
            while ids.peek() == Some(&(last + 1)) {
                last += 1;
                ids.next();
            }
            if first == last {
                write!(out, "{separator}{first}")?;
            } else {
                write!(out, "{separator}{first}-{last}")?;
            }
            separator = ",";
        }
        Ok(())
    }
}

impl Serialize for CpuSet {
    fn serialize<S: Serializer>(&self, out: S) -> Result<S::Ok, S::Error> {
        out.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for CpuSet {
    fn deserialize<D: Deserializer<'de>>(input: D) -> Result<Self, D::Error> {
        let text = String::deserialize(input)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

impl JsonSchema for CpuSet {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "CpuSet".into()
    }
    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        schemars::json_schema!({"type": "string", "description": "kernel CPU ids, such as `0-3,8`", "pattern": "^([0-9]+(-[0-9]+)?(,[0-9]+(-[0-9]+)?)*)?$"})
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_round_trips_in_canonical_form() {
        for (given, canonical) in [
            ("0-3,8", "0-3,8"),
            ("3,1,2", "1-3"),
            ("", ""),
            ("5\n", "5"),
            ("0-6:1/2", "0,2,4,6"),
        ] {
            assert_eq!(given.parse::<CpuSet>().unwrap().to_string(), canonical, "{given}");
        }
    }

    #[test]
    fn bad_text_is_refused_without_allocating() {
        assert_eq!("3-1".parse::<CpuSet>(), Err(CpuSetError::Backwards("3-1".into())));
        assert_eq!(
            "0-4294967295".parse::<CpuSet>(),
            Err(CpuSetError::TooLarge(4_294_967_295))
        );
        assert!("a".parse::<CpuSet>().is_err() && "-1".parse::<CpuSet>().is_err());
    }
}
