//! Parser of a GGUF header, versions 2 and 3, little-endian.
//!
//! In: the file's bytes. Out: metadata as positions of values, and every tensor's type, shape and place.
//! Invariant: each count, length, dimension and offset is compared with what the file can hold before it is used;
//! arithmetic is checked; memory grows with the number of keys and tensors really present, never with a number the
//! file claims.

use std::collections::{HashMap, HashSet};
use std::fmt::Display;
use std::ops::Range;

use super::gguf_value::{Array, Value, ValueKind, scalar};
use super::{listing, malformed, sniff, truncated, unsupported};
use crate::base::{Code, Problem};
use crate::model::card::TensorType;

/// Most metadata keys; real files have tens.
const MAX_KEYS: u64 = 65_536;
/// Most tensors; the largest real files have some thousands.
const MAX_TENSORS: u64 = 262_144;
/// Longest tensor name. The reference writer allows 63 bytes.
const MAX_TENSOR_NAME: u64 = 1024;
/// Longest key: the format's own limit.
const MAX_KEY: u64 = 65_535;
/// Arrays of arrays deeper than this are refused; no known writer nests at all.
const MAX_ARRAY_DEPTH: u32 = 4;
/// Largest alignment of the data section. Writers use 32; page alignment of any platform fits.
const MAX_ALIGNMENT: u64 = 1 << 20;
/// Alignment when the file does not say.
const DEFAULT_ALIGNMENT: u64 = 32;
/// A claimed file size beyond this cannot come from an interrupted download.
const ABSURD: u64 = 1 << 42;
/// The same for one key's value.
const ABSURD_VALUE: u64 = 1 << 36;
/// Fewest bytes of a key or tensor record that say what is wrong with it: its name's length and one byte.
const LEAST_RECORD: u64 = 8 + 1;

/// One tensor's record.
#[derive(Clone, Debug, PartialEq)]
pub struct GgufTensor {
    /// Name.
    pub name: String,
    /// Block type.
    pub dtype: TensorType,
    /// Outermost dimension first (the file has it innermost first).
    pub shape: Vec<u64>,
    /// Size of the data.
    pub bytes: u64,
    /// Absolute offset in the file.
    pub offset: u64,
}

/// What the header says, as positions in the file.
#[derive(Clone, Debug)]
pub struct Header {
    /// 2 or 3.
    pub version: u32,
    /// Alignment of the data section and of every tensor in it.
    pub alignment: u64,
    /// Absolute offset of the data section.
    pub data_start: u64,
    /// Every tensor, in file order.
    pub tensors: Vec<GgufTensor>,
    entries: Vec<Entry>,
    by_key: HashMap<String, usize>,
}

/// A key and where its value lies.
#[derive(Clone, Debug)]
struct Entry {
    key: String,
    kind: ValueKind,
    /// The value's bytes, without its kind.
    range: Range<usize>,
}

/// Reads forward through the bytes; every step checks what remains.
struct Cursor<'a> {
    bytes: &'a [u8],
    at: usize,
    name: &'a str,
}

impl<'a> Cursor<'a> {
    fn remaining(&self) -> u64 {
        (self.bytes.len() - self.at) as u64
    }

    fn take(&mut self, len: u64, what: &dyn Display) -> Result<&'a [u8], Problem> {
        let remaining = self.remaining();
        if len > remaining {
            return Err(self.too_long(len, "bytes", what));
        }
        // `len` is at most what remains, so both fit `usize`.
        let end = self.at + len as usize;
        let taken = self.bytes.get(self.at..end).unwrap_or(&[]);
        self.at = end;
        Ok(taken)
    }

    fn too_long(&self, count: u64, unit: &str, what: &dyn Display) -> Problem {
        let text = format!(
            "{what} needs {count} {unit} at offset {}, but only {} bytes remain of {}",
            self.at,
            self.remaining(),
            self.bytes.len()
        );
        if count >= ABSURD_VALUE {
            malformed(self.name, text)
        } else {
            truncated(self.name, text)
        }
    }

    fn u32(&mut self, what: &dyn Display) -> Result<u32, Problem> {
        let bytes = self.take(4, what)?;
        Ok(bytes.first_chunk().map_or(0, |b| u32::from_le_bytes(*b)))
    }

    fn u64(&mut self, what: &dyn Display) -> Result<u64, Problem> {
        let bytes = self.take(8, what)?;
        Ok(bytes.first_chunk().map_or(0, |b| u64::from_le_bytes(*b)))
    }

    /// A text of at least one and at most `limit` bytes that has to be UTF-8.
    fn name(&mut self, limit: u64, what: &str) -> Result<String, Problem> {
        let len = self.u64(&format_args!("the length of {what}"))?;
        if len == 0 {
            return Err(malformed(self.name, format!("{what} is an empty text")));
        }
        if len > limit {
            return Err(malformed(
                self.name,
                format!("{what} claims {len} bytes; at most {limit} are allowed"),
            ));
        }
        let bytes = self.take(len, &what)?;
        String::from_utf8(bytes.to_vec())
            .map_err(|_| malformed(self.name, format!("{what} at offset {} is not UTF-8", self.at)))
    }

    fn kind(&mut self, what: &dyn Display) -> Result<ValueKind, Problem> {
        let id = self.u32(what)?;
        ValueKind::from_id(id).ok_or_else(|| {
            malformed(
                self.name,
                format!("{what} has value type {id}; types 0 to 12 exist"),
            )
        })
    }

    /// Walks over one value without keeping it.
    fn skip_value(&mut self, kind: ValueKind, key: &str, depth: u32) -> Result<(), Problem> {
        if let Some(width) = kind.fixed_bytes() {
            self.take(width as u64, &format_args!("the value of `{key}`"))?;
        } else if kind == ValueKind::Text {
            let len = self.u64(&format_args!("the length of `{key}`"))?;
            self.take(len, &format_args!("the text of `{key}`"))?;
        } else {
            if depth >= MAX_ARRAY_DEPTH {
                return Err(malformed(
                    self.name,
                    format!("`{key}` nests arrays more than {MAX_ARRAY_DEPTH} deep"),
                ));
            }
            let (element, count) = self.array_head(key)?;
            if let Some(width) = element.fixed_bytes() {
                // Within the file, as `array_head` has checked: no overflow.
                self.take(
                    count * width as u64,
                    &format_args!("the {count} elements of `{key}`"),
                )?;
            } else {
                for _ in 0..count {
                    self.skip_value(element, key, depth + 1)?;
                }
            }
        }
        Ok(())
    }

    /// Element kind and count of an array, the count bounded by what the rest of the file can hold.
    fn array_head(&mut self, key: &str) -> Result<(ValueKind, u64), Problem> {
        let element = self.kind(&format_args!("the element type of `{key}`"))?;
        let count = self.u64(&format_args!("the element count of `{key}`"))?;
        if count > self.remaining() / element.least_bytes() as u64 {
            return Err(self.too_long(count, "elements", &format_args!("the array `{key}`")));
        }
        Ok((element, count))
    }
}

/// Parses the header of the GGUF file `bytes`; `name` is what messages call it.
pub fn parse(bytes: &[u8], name: &str) -> Result<Header, Problem> {
    sniff::refuse_other_kinds(bytes, name, "GGUF")?;
    let mut cursor = Cursor { bytes, at: 0, name };
    let version = preamble(&mut cursor)?;
    let tensor_count = cursor.u64(&"the tensor count")?;
    let key_count = cursor.u64(&"the key count")?;
    for (count, limit, what) in [
        (key_count, MAX_KEYS, "metadata keys"),
        (tensor_count, MAX_TENSORS, "tensors"),
    ] {
        if count > limit {
            return Err(malformed(
                name,
                format!("it claims {count} {what}; at most {limit} are allowed"),
            ));
        }
        if count > cursor.remaining() / LEAST_RECORD {
            return Err(cursor.too_long(count, what, &"the header"));
        }
    }
    let (entries, by_key) = read_entries(&mut cursor, key_count)?;
    let alignment = alignment(bytes, &entries, &by_key, name)?;
    let mut tensors = read_tensors(&mut cursor, tensor_count)?;
    let data_start = (cursor.at as u64).next_multiple_of(alignment);
    place_tensors(&mut tensors, data_start, alignment, bytes.len() as u64, name)?;
    Ok(Header {
        version,
        alignment,
        data_start,
        tensors,
        entries,
        by_key,
    })
}

/// Magic and version, with the near misses named.
fn preamble(cursor: &mut Cursor<'_>) -> Result<u32, Problem> {
    let name = cursor.name;
    let magic = cursor.bytes.get(..4).unwrap_or(cursor.bytes);
    if magic != b"GGUF" {
        if b"GGUF".starts_with(magic) {
            return Err(truncated(
                name,
                format!("it ends after {} bytes", cursor.bytes.len()),
            ));
        }
        let shown: String = magic
            .iter()
            .flat_map(|b| b.escape_ascii())
            .map(char::from)
            .collect();
        return Err(Problem::new(
            Code::ModelNotAModel,
            format!("`{name}` is not a GGUF file: it starts with `{shown}` instead of `GGUF`"),
            "pass a GGUF file, or a folder with config.json and safetensors",
        ));
    }
    cursor.take(4, &"the magic")?;
    match cursor.u32(&"the version")? {
        version @ (2 | 3) => Ok(version),
        swapped if (1..=3).contains(&swapped.swap_bytes()) => Err(unsupported(
            name,
            format!("it is a big-endian GGUF file (version {})", swapped.swap_bytes()),
            "get the little-endian file of this model; big-endian ones are made for s390x and the like",
        )),
        version => Err(unsupported(
            name,
            format!("it is GGUF version {version}; versions 2 and 3 are served"),
            if version == 1 {
                "convert the model again with a current converter: version 1 went out of use in 2023"
            } else {
                "update edge-deploy, or get the model as GGUF version 3"
            },
        )),
    }
}

fn read_entries(
    cursor: &mut Cursor<'_>,
    count: u64,
) -> Result<(Vec<Entry>, HashMap<String, usize>), Problem> {
    let mut entries = Vec::new();
    let mut by_key = HashMap::new();
    for index in 0..count {
        let key = cursor.name(MAX_KEY, &format!("metadata key {} of {count}", index + 1))?;
        let kind = cursor.kind(&format_args!("`{key}`"))?;
        let start = cursor.at;
        cursor.skip_value(kind, &key, 0)?;
        if by_key.insert(key.clone(), entries.len()).is_some() {
            return Err(malformed(cursor.name, format!("the key `{key}` stands twice")));
        }
        entries.push(Entry {
            key,
            kind,
            range: start..cursor.at,
        });
    }
    Ok((entries, by_key))
}

fn alignment(
    bytes: &[u8],
    entries: &[Entry],
    by_key: &HashMap<String, usize>,
    name: &str,
) -> Result<u64, Problem> {
    let Some(entry) = by_key.get("general.alignment").and_then(|&i| entries.get(i)) else {
        return Ok(DEFAULT_ALIGNMENT);
    };
    let value = bytes
        .get(entry.range.clone())
        .and_then(|bytes| scalar(entry.kind, bytes));
    match value {
        Some(Value::Integer(n)) => u64::try_from(n)
            .ok()
            .filter(|n| n.is_power_of_two() && *n <= MAX_ALIGNMENT)
            .ok_or_else(|| {
                malformed(
                    name,
                    format!("general.alignment is {n}; it has to be a power of two up to {MAX_ALIGNMENT}"),
                )
            }),
        _ => Err(malformed(
            name,
            format!("general.alignment is {}, not an integer", entry.kind.describe()),
        )),
    }
}

/// Reads the tensor records; offsets stay relative to the data section.
fn read_tensors(cursor: &mut Cursor<'_>, count: u64) -> Result<Vec<GgufTensor>, Problem> {
    let name = cursor.name;
    let mut tensors = Vec::new();
    let mut seen = HashSet::new();
    let mut unserved = Vec::new();
    for index in 0..count {
        let tensor = cursor.name(
            MAX_TENSOR_NAME,
            &format!("the name of tensor {} of {count}", index + 1),
        )?;
        if !seen.insert(tensor.clone()) {
            return Err(malformed(name, format!("the tensor `{tensor}` stands twice")));
        }
        let dims = cursor.u32(&format_args!("the dimension count of `{tensor}`"))?;
        if !(1..=4).contains(&dims) {
            return Err(malformed(
                name,
                format!("the tensor `{tensor}` has {dims} dimensions; 1 to 4 are allowed"),
            ));
        }
        let mut shape = Vec::with_capacity(dims as usize);
        for _ in 0..dims {
            shape.push(cursor.u64(&format_args!("the dimensions of `{tensor}`"))?);
        }
        let id = cursor.u32(&format_args!("the type of `{tensor}`"))?;
        let offset = cursor.u64(&format_args!("the offset of `{tensor}`"))?;
        if shape.contains(&0) {
            return Err(malformed(
                name,
                format!("the tensor `{tensor}` has a dimension of 0 (shape {shape:?}, innermost first)"),
            ));
        }
        let elements = shape.iter().try_fold(1u64, |all, &n| all.checked_mul(n));
        let Some(elements) = elements.filter(|&n| i64::try_from(n).is_ok()) else {
            return Err(malformed(
                name,
                format!("the number of elements of `{tensor}` overflows (shape {shape:?}, innermost first)"),
            ));
        };
        let Some(dtype) = dtype_from_id(id) else {
            unserved.push(format!("`{tensor}` ({})", dtype_name(id)));
            continue;
        };
        let block = dtype.block_len() as u64;
        let inner = shape.first().copied().unwrap_or(0);
        if !inner.is_multiple_of(block) {
            return Err(malformed(
                name,
                format!(
                    "the rows of `{tensor}` have {inner} elements, not a multiple of {block} as {} needs",
                    dtype.as_str()
                ),
            ));
        }
        let Some(bytes) = (elements / block).checked_mul(dtype.block_bytes() as u64) else {
            return Err(malformed(
                name,
                format!("the size of `{tensor}` overflows (shape {shape:?}, innermost first)"),
            ));
        };
        shape.reverse();
        tensors.push(GgufTensor {
            name: tensor,
            dtype,
            shape,
            bytes,
            offset,
        });
    }
    if unserved.is_empty() {
        return Ok(tensors);
    }
    Err(unsupported(
        name,
        format!(
            "{} of its {count} tensors have a type that is not served: {}",
            unserved.len(),
            listing(&unserved)
        ),
        "get the model in another quantisation, such as Q4_K_M, Q8_0 or F16",
    ))
}

/// Makes offsets absolute; checks alignment, bounds and overlap.
fn place_tensors(
    tensors: &mut [GgufTensor],
    data_start: u64,
    alignment: u64,
    file_len: u64,
    name: &str,
) -> Result<(), Problem> {
    let mut last: Option<(u64, String)> = None;
    for tensor in tensors.iter_mut() {
        if !tensor.offset.is_multiple_of(alignment) {
            return Err(malformed(
                name,
                format!(
                    "the tensor `{}` lies at offset {}, not a multiple of the alignment {alignment}",
                    tensor.name, tensor.offset
                ),
            ));
        }
        let absolute = data_start.checked_add(tensor.offset);
        let Some((start, end)) = absolute.and_then(|s| Some((s, s.checked_add(tensor.bytes)?))) else {
            return Err(malformed(
                name,
                format!("the place of the tensor `{}` overflows", tensor.name),
            ));
        };
        tensor.offset = start;
        if last.as_ref().is_none_or(|(furthest, _)| end > *furthest) {
            last = Some((end, tensor.name.clone()));
        }
    }
    if let Some((end, tensor)) = last
        && end > file_len
    {
        let text = format!(
            "its tensors need {end} bytes (up to the end of `{tensor}`), but the file has {file_len}; {} are missing",
            end - file_len
        );
        return Err(if end >= ABSURD {
            malformed(name, text)
        } else {
            truncated(name, text)
        });
    }
    let mut order: Vec<&GgufTensor> = tensors.iter().collect();
    order.sort_by_key(|tensor| tensor.offset);
    for pair in order.windows(2) {
        if let [first, second] = pair
            && first.offset + first.bytes > second.offset
        {
            return Err(malformed(
                name,
                format!("the tensors `{}` and `{}` overlap", first.name, second.name),
            ));
        }
    }
    Ok(())
}

/// The tensor types we serve, by their ggml number.
fn dtype_from_id(id: u32) -> Option<TensorType> {
    Some(match id {
        0 => TensorType::F32,
        1 => TensorType::F16,
        2 => TensorType::Q4_0,
        3 => TensorType::Q4_1,
        6 => TensorType::Q5_0,
        7 => TensorType::Q5_1,
        8 => TensorType::Q8_0,
        10 => TensorType::Q2_K,
        11 => TensorType::Q3_K,
        12 => TensorType::Q4_K,
        13 => TensorType::Q5_K,
        14 => TensorType::Q6_K,
        20 => TensorType::IQ4_NL,
        23 => TensorType::IQ4_XS,
        30 => TensorType::BF16,
        39 => TensorType::MXFP4,
        _ => return None,
    })
}

/// What messages call a type number that is not served.
fn dtype_name(id: u32) -> String {
    let name = match id {
        9 => "Q8_1",
        15 => "Q8_K",
        16 => "IQ2_XXS",
        17 => "IQ2_XS",
        18 => "IQ3_XXS",
        19 => "IQ1_S",
        21 => "IQ3_S",
        22 => "IQ2_S",
        24 => "I8",
        25 => "I16",
        26 => "I32",
        27 => "I64",
        28 => "F64",
        29 => "IQ1_M",
        34 => "TQ1_0",
        35 => "TQ2_0",
        40 => "NVFP4",
        other => return format!("unknown type {other}"),
    };
    name.to_owned()
}

impl Header {
    /// Every key, in file order.
    pub fn keys(&self) -> impl Iterator<Item = &str> {
        self.entries.iter().map(|entry| entry.key.as_str())
    }

    /// The value of `key` in `file`, the bytes this header was parsed from.
    #[must_use]
    pub fn value<'a>(&self, file: &'a [u8], key: &str) -> Option<Value<'a>> {
        let entry = self.entries.get(*self.by_key.get(key)?)?;
        let bytes = file.get(entry.range.clone())?;
        match entry.kind {
            ValueKind::Text => Some(Value::Text(bytes.get(8..)?)),
            ValueKind::Array => {
                let (kind, rest) = bytes.split_first_chunk::<4>()?;
                let (len, bytes) = rest.split_first_chunk::<8>()?;
                Some(Value::Array(Array {
                    kind: ValueKind::from_id(u32::from_le_bytes(*kind))?,
                    len: usize::try_from(u64::from_le_bytes(*len)).ok()?,
                    bytes,
                }))
            }
            kind => scalar(kind, bytes),
        }
    }
}
