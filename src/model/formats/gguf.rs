//! An opened GGUF file.
//!
//! In: a path. Out: its header and typed access to its metadata, without copying.
//! Invariant: an absent key is `None`, a key of another kind a problem; the two are never confused.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::gguf_header::{Header, parse};
use super::gguf_value::{Scalars, Texts, Value, ValueKind};
use super::{file_name, malformed, unreadable};
use crate::base::{Place, Problem};
use crate::sys::mapping::Mapping;

/// An opened GGUF file: its mapping and its header.
///
/// Getters answer `Ok(None)` for a key that is not there and a problem for a key of another kind.
#[derive(Clone, Debug)]
pub struct Gguf {
    map: Arc<Mapping>,
    path: PathBuf,
    name: String,
    header: Header,
}

impl Gguf {
    /// Maps and parses the file at `path`.
    pub fn open(path: &Path) -> Result<Self, Problem> {
        let map = Mapping::open(path).map_err(|error| unreadable(path, &error))?;
        let name = file_name(path);
        let header =
            parse(map.bytes(), &name).map_err(|problem| problem.at(Place::of(path.display().to_string())))?;
        Ok(Self {
            map: Arc::new(map),
            path: path.to_path_buf(),
            name,
            header,
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

    /// The parsed header.
    #[must_use]
    pub fn header(&self) -> &Header {
        &self.header
    }

    /// The value of `key`, whatever its kind.
    #[must_use]
    pub fn get(&self, key: &str) -> Option<Value<'_>> {
        self.header.value(self.map.bytes(), key)
    }

    fn wrong_kind(&self, key: &str, value: &Value<'_>, wanted: &str) -> Problem {
        malformed(
            &self.name,
            format!("`{key}` is {}, not {wanted}", value.describe()),
        )
        .at(Place::of(self.path.display().to_string()))
    }

    /// A text that has to be UTF-8.
    pub fn str(&self, key: &str) -> Result<Option<&str>, Problem> {
        match self.get(key) {
            None => Ok(None),
            Some(Value::Text(bytes)) => std::str::from_utf8(bytes).map(Some).map_err(|_| {
                malformed(&self.name, format!("`{key}` is not UTF-8"))
                    .at(Place::of(self.path.display().to_string()))
            }),
            Some(other) => Err(self.wrong_kind(key, &other, "a text")),
        }
    }

    /// An integer of any kind that fits `u64`.
    pub fn u64(&self, key: &str) -> Result<Option<u64>, Problem> {
        match self.get(key) {
            None => Ok(None),
            Some(Value::Integer(n)) => u64::try_from(n).map(Some).map_err(|_| {
                malformed(&self.name, format!("`{key}` is {n}, which is negative"))
                    .at(Place::of(self.path.display().to_string()))
            }),
            Some(other) => Err(self.wrong_kind(key, &other, "an integer")),
        }
    }

    /// An integer of any kind that fits `u32`, such as a token.
    pub fn u32(&self, key: &str) -> Result<Option<u32>, Problem> {
        let Some(n) = self.u64(key)? else { return Ok(None) };
        u32::try_from(n).map(Some).map_err(|_| {
            malformed(
                &self.name,
                format!("`{key}` is {n}; at most {} is possible", u32::MAX),
            )
            .at(Place::of(self.path.display().to_string()))
        })
    }

    /// A real number (an integer is taken as one).
    pub fn f32(&self, key: &str) -> Result<Option<f32>, Problem> {
        match self.get(key) {
            None => Ok(None),
            Some(Value::Real(x)) => Ok(Some(x as f32)),
            Some(Value::Integer(n)) => Ok(Some(n as f32)),
            Some(other) => Err(self.wrong_kind(key, &other, "a number")),
        }
    }

    /// A truth value.
    pub fn bool(&self, key: &str) -> Result<Option<bool>, Problem> {
        match self.get(key) {
            None => Ok(None),
            Some(Value::Bool(b)) => Ok(Some(b)),
            Some(other) => Err(self.wrong_kind(key, &other, "a truth value")),
        }
    }

    /// The texts of an array, as raw bytes in order. Nothing is copied.
    pub fn texts(&self, key: &str) -> Result<Option<Texts<'_>>, Problem> {
        let wanted = "an array of texts";
        match self.get(key) {
            None => Ok(None),
            Some(Value::Array(array)) => array
                .texts()
                .map(Some)
                .ok_or_else(|| self.wrong_kind(key, &Value::Array(array), wanted)),
            Some(other) => Err(self.wrong_kind(key, &other, wanted)),
        }
    }

    /// The real numbers of an array, in order. Nothing is copied.
    pub fn f32s(&self, key: &str) -> Result<Option<impl ExactSizeIterator<Item = f32> + '_>, Problem> {
        let found = self.scalars(key, &[ValueKind::F32, ValueKind::F64], "an array of real numbers")?;
        Ok(found.map(|all| {
            all.map(|value| match value {
                Value::Real(x) => x as f32,
                _ => f32::NAN,
            })
        }))
    }

    /// The integers of an array of any width, in order. Nothing is copied; a value beyond `i64` becomes its maximum.
    pub fn i64s(&self, key: &str) -> Result<Option<impl ExactSizeIterator<Item = i64> + '_>, Problem> {
        const KINDS: &[ValueKind] = &[
            ValueKind::U8,
            ValueKind::I8,
            ValueKind::U16,
            ValueKind::I16,
            ValueKind::U32,
            ValueKind::I32,
            ValueKind::U64,
            ValueKind::I64,
        ];
        let found = self.scalars(key, KINDS, "an array of integers")?;
        Ok(found.map(|all| {
            all.map(|value| match value {
                Value::Integer(n) => i64::try_from(n).unwrap_or(i64::MAX),
                _ => i64::MAX,
            })
        }))
    }

    /// The truth values of an array, in order.
    pub fn bools(&self, key: &str) -> Result<Option<impl ExactSizeIterator<Item = bool> + '_>, Problem> {
        let found = self.scalars(key, &[ValueKind::Bool], "an array of truth values")?;
        Ok(found.map(|all| all.map(|value| matches!(value, Value::Bool(true)))))
    }

    fn scalars(&self, key: &str, kinds: &[ValueKind], wanted: &str) -> Result<Option<Scalars<'_>>, Problem> {
        match self.get(key) {
            None => Ok(None),
            Some(Value::Array(array)) if kinds.contains(&array.kind()) => Ok(array.scalars()),
            Some(other) => Err(self.wrong_kind(key, &other, wanted)),
        }
    }
}
