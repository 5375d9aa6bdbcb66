//! Reader of one safetensors file's header.
//!
//! In: the file's bytes (mapped). Out: every tensor's type, shape and absolute place.
//! Invariant: the header's length is compared with the file before it is read; tensors fill the data section without
//! gap or overlap; memory grows with the tensors present, never with a number the file claims.

use std::collections::HashSet;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::Deserialize;
use serde::de::{Error as _, IgnoredAny, MapAccess, SeqAccess, Visitor};

use super::{file_name, malformed, sniff, truncated, unreadable};
use crate::base::{Place, Problem};
use crate::model::card::TensorType;
use crate::sys::mapping::Mapping;

/// Largest header: the format's own limit.
const MAX_HEADER: u64 = 100_000_000;
/// Most tensors in one file.
const MAX_TENSORS: usize = 262_144;
/// Longest tensor name or type.
const MAX_NAME: usize = 1024;
/// Most dimensions of a tensor.
const MAX_DIMENSIONS: usize = 8;

/// One tensor's record.
#[derive(Clone, Debug, PartialEq)]
pub struct SafeTensor {
    /// Name.
    pub name: String,
    /// The type's name in the file, such as `BF16` or `I32`.
    pub dtype: String,
    /// Outermost dimension first. May hold a 0.
    pub shape: Vec<u64>,
    /// Size of the data.
    pub bytes: u64,
    /// Absolute offset in the file.
    pub offset: u64,
}

impl SafeTensor {
    /// The type as one the engine knows, or `None`.
    #[must_use]
    pub fn tensor_type(&self) -> Option<TensorType> {
        match self.dtype.as_str() {
            "F32" => Some(TensorType::F32),
            "F16" => Some(TensorType::F16),
            "BF16" => Some(TensorType::BF16),
            _ => None,
        }
    }
}

/// An opened safetensors file.
#[derive(Clone, Debug)]
pub struct File {
    map: Arc<Mapping>,
    path: PathBuf,
    tensors: Vec<SafeTensor>,
}

impl File {
    /// Maps and parses the file at `path`.
    pub fn open(path: &Path) -> Result<Self, Problem> {
        let map = Mapping::open(path).map_err(|error| unreadable(path, &error))?;
        let tensors = parse(map.bytes(), &file_name(path))
            .map_err(|problem| problem.at(Place::of(path.display().to_string())))?;
        Ok(Self {
            map: Arc::new(map),
            path: path.to_path_buf(),
            tensors,
        })
    }

    /// Where it was opened.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The file's mapping.
    #[must_use]
    pub fn mapping(&self) -> &Arc<Mapping> {
        &self.map
    }

    /// Every tensor, in the order of its data.
    #[must_use]
    pub fn tensors(&self) -> &[SafeTensor] {
        &self.tensors
    }
}

/// One record as JSON has it.
#[derive(Deserialize)]
struct Record {
    dtype: String,
    shape: Shape,
    data_offsets: (u64, u64),
}

/// At most [`MAX_DIMENSIONS`] numbers, so that a long list cannot fill memory.
struct Shape(Vec<u64>);

impl<'de> Deserialize<'de> for Shape {
    fn deserialize<D: serde::Deserializer<'de>>(input: D) -> Result<Self, D::Error> {
        struct Dimensions;
        impl<'de> Visitor<'de> for Dimensions {
            type Value = Shape;

            fn expecting(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(out, "a list of at most {MAX_DIMENSIONS} dimensions")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Shape, A::Error> {
                let mut shape = Vec::new();
                while let Some(dimension) = list.next_element()? {
                    if shape.len() == MAX_DIMENSIONS {
                        return Err(A::Error::custom(format!("more than {MAX_DIMENSIONS} dimensions")));
                    }
                    shape.push(dimension);
                }
                Ok(Shape(shape))
            }
        }
        input.deserialize_seq(Dimensions)
    }
}

/// The whole header: records by name, each name once, `__metadata__` passed over.
struct Records(Vec<(String, Record)>);

impl<'de> Deserialize<'de> for Records {
    fn deserialize<D: serde::Deserializer<'de>>(input: D) -> Result<Self, D::Error> {
        struct ByName;
        impl<'de> Visitor<'de> for ByName {
            type Value = Records;

            fn expecting(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
                out.write_str("a map of tensors")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Records, A::Error> {
                let mut records = Vec::new();
                let mut seen = HashSet::new();
                while let Some(name) = map.next_key::<String>()? {
                    if !seen.insert(name.clone()) {
                        return Err(A::Error::custom(format!("`{name}` stands twice")));
                    }
                    if name == "__metadata__" {
                        map.next_value::<IgnoredAny>()?;
                        continue;
                    }
                    if records.len() == MAX_TENSORS {
                        return Err(A::Error::custom(format!("more than {MAX_TENSORS} tensors")));
                    }
                    let record = map
                        .next_value::<Record>()
                        .map_err(|error| A::Error::custom(format!("the record of `{name}`: {error}")))?;
                    if name.len() > MAX_NAME || record.dtype.len() > MAX_NAME {
                        return Err(A::Error::custom(format!(
                            "a name or type of more than {MAX_NAME} bytes"
                        )));
                    }
                    records.push((name, record));
                }
                Ok(Records(records))
            }
        }
        input.deserialize_map(ByName)
    }
}

/// Parses the header of the safetensors file `bytes`; `name` is what messages call it.
pub fn parse(bytes: &[u8], name: &str) -> Result<Vec<SafeTensor>, Problem> {
    sniff::refuse_other_kinds(bytes, name, "safetensors")?;
    let Some((length, rest)) = bytes.split_first_chunk::<8>() else {
        return Err(truncated(
            name,
            format!("it has {} bytes; its header alone starts with 8", bytes.len()),
        ));
    };
    let length = u64::from_le_bytes(*length);
    if length > MAX_HEADER {
        return Err(malformed(
            name,
            format!("its header claims {length} bytes; at most {MAX_HEADER} are allowed"),
        ));
    }
    let present = rest.len();
    let Some((header, data)) = rest.split_at_checked(length as usize) else {
        return Err(truncated(
            name,
            format!("its header promises {length} bytes, {present} are present"),
        ));
    };
    if header.first() != Some(&b'{') {
        return Err(malformed(name, "its header does not start with `{`"));
    }
    let Records(records) = serde_json::from_slice(header)
        .map_err(|error| malformed(name, format!("its header cannot be read: {error}")))?;
    let data_start = 8 + length;
    let mut tensors = records
        .into_iter()
        .map(|(tensor, record)| place(tensor, record, data_start, name))
        .collect::<Result<Vec<_>, _>>()?;
    // An empty tensor may share its place with the next one.
    tensors.sort_by_key(|tensor| (tensor.offset, tensor.bytes));
    check_layout(&tensors, data_start, data.len() as u64, name)?;
    Ok(tensors)
}

/// Checks one record and makes its offset absolute.
fn place(tensor: String, record: Record, data_start: u64, name: &str) -> Result<SafeTensor, Problem> {
    let Record {
        dtype,
        shape,
        data_offsets,
    } = record;
    let (begin, end) = data_offsets;
    let Some(bits) = element_bits(&dtype) else {
        return Err(malformed(
            name,
            format!("`{tensor}` has the unknown type `{dtype}`"),
        ));
    };
    let elements = shape.0.iter().try_fold(1u64, |all, &n| all.checked_mul(n));
    let bits = elements
        .and_then(|n| n.checked_mul(bits))
        .filter(|bits| bits.is_multiple_of(8));
    let Some(needed) = bits.map(|bits| bits / 8) else {
        return Err(malformed(
            name,
            format!(
                "the size of `{tensor}` overflows or is no whole number of bytes (shape {:?})",
                shape.0
            ),
        ));
    };
    let (Some(bytes), Some(offset), true) = (
        end.checked_sub(begin),
        data_start.checked_add(begin),
        data_start.checked_add(end).is_some(),
    ) else {
        return Err(malformed(
            name,
            format!("`{tensor}` lies at {begin}..{end}, which is no place"),
        ));
    };
    if bytes != needed {
        return Err(malformed(
            name,
            format!(
                "`{tensor}` is {dtype} of shape {:?}, {needed} bytes, but has {bytes}",
                shape.0
            ),
        ));
    }
    Ok(SafeTensor {
        name: tensor,
        dtype,
        shape: shape.0,
        bytes,
        offset,
    })
}

/// No gap, no overlap, and all of the data there. `tensors` stand in the order of their data.
fn check_layout(tensors: &[SafeTensor], data_start: u64, present: u64, name: &str) -> Result<(), Problem> {
    let promised = tensors
        .iter()
        .map(|t| t.offset + t.bytes)
        .max()
        .unwrap_or(data_start)
        - data_start;
    if promised > present {
        let text = format!("its header promises {promised} bytes of tensors, {present} are present");
        return Err(if promised >= 1 << 42 {
            malformed(name, text)
        } else {
            truncated(name, text)
        });
    }
    let mut at = data_start;
    for tensor in tensors {
        if tensor.offset != at {
            let how = if tensor.offset < at {
                "overlaps the tensor before it"
            } else {
                "follows a gap"
            };
            return Err(malformed(name, format!("`{}` {how}", tensor.name)));
        }
        at += tensor.bytes;
    }
    if promised < present {
        return Err(malformed(
            name,
            format!("{} bytes follow the last tensor", present - promised),
        ));
    }
    Ok(())
}

/// Bits of one element of the format's types.
fn element_bits(dtype: &str) -> Option<u64> {
    Some(match dtype {
        "F4" => 4,
        "F6_E2M3" | "F6_E3M2" => 6,
        "BOOL" | "U8" | "I8" | "F8_E5M2" | "F8_E4M3" | "F8_E8M0" | "F8_E4M3FNUZ" | "F8_E5M2FNUZ" => 8,
        "I16" | "U16" | "F16" | "BF16" => 16,
        "I32" | "U32" | "F32" => 32,
        "I64" | "U64" | "F64" | "C64" => 64,
        _ => return None,
    })
}
