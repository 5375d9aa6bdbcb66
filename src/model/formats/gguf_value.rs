//! Values of GGUF metadata, read in place.
//!
//! In: a byte range that the reader has walked once and found whole. Out: scalars by value, texts and arrays as
//! views and iterators into the file.
//! Invariant: nothing is copied; a list of 262,144 tokens costs no memory until someone collects it.

/// Types of metadata values (the numbers of the format).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the format's own names")]
pub enum ValueKind {
    U8,
    I8,
    U16,
    I16,
    U32,
    I32,
    F32,
    Bool,
    Text,
    Array,
    U64,
    I64,
    F64,
}

impl ValueKind {
    /// The kind with this number, if the format has one.
    #[must_use]
    pub fn from_id(id: u32) -> Option<Self> {
        const KINDS: [ValueKind; 13] = [
            ValueKind::U8,
            ValueKind::I8,
            ValueKind::U16,
            ValueKind::I16,
            ValueKind::U32,
            ValueKind::I32,
            ValueKind::F32,
            ValueKind::Bool,
            ValueKind::Text,
            ValueKind::Array,
            ValueKind::U64,
            ValueKind::I64,
            ValueKind::F64,
        ];
        KINDS.get(usize::try_from(id).ok()?).copied()
    }

    /// Bytes of one value, or `None` where it varies (text, array).
    #[must_use]
    pub fn fixed_bytes(self) -> Option<usize> {
        match self {
            Self::U8 | Self::I8 | Self::Bool => Some(1),
            Self::U16 | Self::I16 => Some(2),
            Self::U32 | Self::I32 | Self::F32 => Some(4),
            Self::U64 | Self::I64 | Self::F64 => Some(8),
            Self::Text | Self::Array => None,
        }
    }

    /// Fewest bytes a value of this kind can take: an empty text is its length, an empty array its kind and count.
    #[must_use]
    pub fn least_bytes(self) -> usize {
        match self {
            Self::Text => 8,
            Self::Array => 12,
            other => other.fixed_bytes().unwrap_or(1),
        }
    }

    /// How messages call it.
    #[must_use]
    pub fn describe(self) -> &'static str {
        match self {
            Self::U8 | Self::I8 | Self::U16 | Self::I16 | Self::U32 | Self::I32 | Self::U64 | Self::I64 => {
                "an integer"
            }
            Self::F32 | Self::F64 => "a real number",
            Self::Bool => "a truth value",
            Self::Text => "a text",
            Self::Array => "an array",
        }
    }
}

/// One metadata value.
#[derive(Clone, Copy, Debug)]
pub enum Value<'a> {
    /// Any integer kind.
    Integer(i128),
    /// F32 (exact) or F64.
    Real(f64),
    /// A truth value.
    Bool(bool),
    /// A text; usually UTF-8, not guaranteed.
    Text(&'a [u8]),
    /// An array.
    Array(Array<'a>),
}

impl Value<'_> {
    /// How messages call it.
    #[must_use]
    pub fn describe(&self) -> &'static str {
        match self {
            Self::Integer(_) => "an integer",
            Self::Real(_) => "a real number",
            Self::Bool(_) => "a truth value",
            Self::Text(_) => "a text",
            Self::Array(_) => "an array",
        }
    }
}

/// An array of metadata values in the file.
#[derive(Clone, Copy, Debug)]
pub struct Array<'a> {
    pub(super) kind: ValueKind,
    pub(super) len: usize,
    pub(super) bytes: &'a [u8],
}

impl<'a> Array<'a> {
    /// Kind of the elements.
    #[must_use]
    pub fn kind(&self) -> ValueKind {
        self.kind
    }

    /// Number of elements.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether it has no elements.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The texts, or `None` if the elements are not texts.
    #[must_use]
    pub fn texts(&self) -> Option<Texts<'a>> {
        (self.kind == ValueKind::Text).then_some(Texts {
            bytes: self.bytes,
            left: self.len,
        })
    }

    /// The numbers and truth values, or `None` if the elements are texts or arrays.
    #[must_use]
    pub fn scalars(&self) -> Option<Scalars<'a>> {
        let width = self.kind.fixed_bytes()?;
        Some(Scalars {
            kind: self.kind,
            chunks: self.bytes.chunks_exact(width),
        })
    }
}

/// Texts of an array, in order.
#[derive(Clone, Debug)]
pub struct Texts<'a> {
    bytes: &'a [u8],
    left: usize,
}

impl<'a> Iterator for Texts<'a> {
    type Item = &'a [u8];

    fn next(&mut self) -> Option<&'a [u8]> {
        self.left = self.left.checked_sub(1)?;
        let (len, rest) = self.bytes.split_first_chunk::<8>()?;
        let (text, rest) = rest.split_at_checked(usize::try_from(u64::from_le_bytes(*len)).ok()?)?;
        self.bytes = rest;
        Some(text)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.left, Some(self.left))
    }
}

impl ExactSizeIterator for Texts<'_> {}

/// Numbers of an array, in order.
#[derive(Clone, Debug)]
pub struct Scalars<'a> {
    kind: ValueKind,
    chunks: std::slice::ChunksExact<'a, u8>,
}

impl<'a> Iterator for Scalars<'a> {
    type Item = Value<'a>;

    fn next(&mut self) -> Option<Value<'a>> {
        scalar(self.kind, self.chunks.next()?)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        self.chunks.size_hint()
    }
}

impl ExactSizeIterator for Scalars<'_> {}

/// One number or truth value from exactly its bytes.
pub(super) fn scalar(kind: ValueKind, bytes: &[u8]) -> Option<Value<'static>> {
    fn fixed<const N: usize>(bytes: &[u8]) -> Option<[u8; N]> {
        bytes.try_into().ok()
    }
    Some(match kind {
        ValueKind::U8 => Value::Integer(u8::from_le_bytes(fixed(bytes)?).into()),
        ValueKind::I8 => Value::Integer(i8::from_le_bytes(fixed(bytes)?).into()),
        ValueKind::U16 => Value::Integer(u16::from_le_bytes(fixed(bytes)?).into()),
        ValueKind::I16 => Value::Integer(i16::from_le_bytes(fixed(bytes)?).into()),
        ValueKind::U32 => Value::Integer(u32::from_le_bytes(fixed(bytes)?).into()),
        ValueKind::I32 => Value::Integer(i32::from_le_bytes(fixed(bytes)?).into()),
        ValueKind::U64 => Value::Integer(u64::from_le_bytes(fixed(bytes)?).into()),
        ValueKind::I64 => Value::Integer(i64::from_le_bytes(fixed(bytes)?).into()),
        ValueKind::F32 => Value::Real(f32::from_le_bytes(fixed(bytes)?).into()),
        ValueKind::F64 => Value::Real(f64::from_le_bytes(fixed(bytes)?)),
        ValueKind::Bool => Value::Bool(fixed::<1>(bytes)? != [0]),
        ValueKind::Text | ValueKind::Array => return None,
    })
}
