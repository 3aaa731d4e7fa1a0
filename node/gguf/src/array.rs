//! Arrays of metadata values.

use crate::value::ValueType;

/// A typed one-dimensional array; the format's nested arrays are refused by the reader.
#[derive(Debug, Clone, PartialEq)]
pub enum Array {
    /// Unsigned bytes.
    U8(Vec<u8>),
    /// Signed bytes.
    I8(Vec<i8>),
    /// Unsigned 16-bit integers.
    U16(Vec<u16>),
    /// Signed 16-bit integers.
    I16(Vec<i16>),
    /// Unsigned 32-bit integers.
    U32(Vec<u32>),
    /// Signed 32-bit integers.
    I32(Vec<i32>),
    /// 32-bit floats.
    F32(Vec<f32>),
    /// Booleans; any non-zero byte is true, as for llama.cpp.
    Bool(Vec<bool>),
    /// Strings.
    String(StringArray),
    /// Unsigned 64-bit integers.
    U64(Vec<u64>),
    /// Signed 64-bit integers.
    I64(Vec<i64>),
    /// 64-bit floats.
    F64(Vec<f64>),
}

/// Many strings in one allocation: a vocabulary has hundreds of thousands of them.
///
/// Strings are bytes: tokens of real vocabularies are not always valid UTF-8.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct StringArray {
    bytes: Vec<u8>,
    ends: Vec<usize>,
}

impl StringArray {
    /// Number of strings.
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// The string at `index`.
    pub fn get(&self, index: usize) -> Option<&[u8]> {
        let end = *self.ends.get(index)?;
        let start = if index == 0 { 0 } else { self.ends[index - 1] };
        Some(&self.bytes[start..end])
    }

    /// All strings in order.
    pub fn iter(&self) -> impl Iterator<Item = &[u8]> {
        (0..self.len()).filter_map(|index| self.get(index))
    }

    /// Appends one string.
    pub fn push(&mut self, string: &[u8]) {
        self.bytes.extend_from_slice(string);
        self.ends.push(self.bytes.len());
    }
}

impl<S: AsRef<[u8]>> FromIterator<S> for StringArray {
    fn from_iter<I: IntoIterator<Item = S>>(strings: I) -> Self {
        let mut array = Self::default();
        for string in strings {
            array.push(string.as_ref());
        }
        array
    }
}

/// Runs one expression over the vector inside an array, whatever its element type.
macro_rules! each_numeric {
    ($array:expr, $values:ident => $body:expr, $strings:ident => $string_body:expr) => {
        match $array {
            Array::U8($values) => $body,
            Array::I8($values) => $body,
            Array::U16($values) => $body,
            Array::I16($values) => $body,
            Array::U32($values) => $body,
            Array::I32($values) => $body,
            Array::F32($values) => $body,
            Array::Bool($values) => $body,
            Array::U64($values) => $body,
            Array::I64($values) => $body,
            Array::F64($values) => $body,
            Array::String($strings) => $string_body,
        }
    };
}

impl Array {
    /// Number of elements.
    pub fn len(&self) -> usize {
        each_numeric!(self, values => values.len(), strings => strings.len())
    }

    /// Whether there are no elements.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Type of the elements.
    pub fn element_type(&self) -> ValueType {
        match self {
            Self::U8(_) => ValueType::U8,
            Self::I8(_) => ValueType::I8,
            Self::U16(_) => ValueType::U16,
            Self::I16(_) => ValueType::I16,
            Self::U32(_) => ValueType::U32,
            Self::I32(_) => ValueType::I32,
            Self::F32(_) => ValueType::F32,
            Self::Bool(_) => ValueType::Bool,
            Self::String(_) => ValueType::String,
            Self::U64(_) => ValueType::U64,
            Self::I64(_) => ValueType::I64,
            Self::F64(_) => ValueType::F64,
        }
    }

    /// Elements `start..end` as an array of the same type; indices past the end are dropped.
    pub fn slice(&self, start: usize, end: usize) -> Self {
        let end = end.min(self.len());
        let start = start.min(end);
        match self {
            Self::U8(v) => Self::U8(v[start..end].to_vec()),
            Self::I8(v) => Self::I8(v[start..end].to_vec()),
            Self::U16(v) => Self::U16(v[start..end].to_vec()),
            Self::I16(v) => Self::I16(v[start..end].to_vec()),
            Self::U32(v) => Self::U32(v[start..end].to_vec()),
            Self::I32(v) => Self::I32(v[start..end].to_vec()),
            Self::F32(v) => Self::F32(v[start..end].to_vec()),
            Self::Bool(v) => Self::Bool(v[start..end].to_vec()),
            Self::U64(v) => Self::U64(v[start..end].to_vec()),
            Self::I64(v) => Self::I64(v[start..end].to_vec()),
            Self::F64(v) => Self::F64(v[start..end].to_vec()),
            Self::String(v) => Self::String((start..end).filter_map(|index| v.get(index)).collect()),
        }
    }

    /// The elements as unsigned integers; `None` if one of them is not a non-negative integer (booleans are 0 and 1).
    pub fn to_u64s(&self) -> Option<Vec<u64>> {
        match self {
            Self::U8(v) => Some(v.iter().map(|x| u64::from(*x)).collect()),
            Self::U16(v) => Some(v.iter().map(|x| u64::from(*x)).collect()),
            Self::U32(v) => Some(v.iter().map(|x| u64::from(*x)).collect()),
            Self::U64(v) => Some(v.clone()),
            Self::Bool(v) => Some(v.iter().map(|x| u64::from(*x)).collect()),
            Self::I8(v) => v.iter().map(|x| u64::try_from(*x).ok()).collect(),
            Self::I16(v) => v.iter().map(|x| u64::try_from(*x).ok()).collect(),
            Self::I32(v) => v.iter().map(|x| u64::try_from(*x).ok()).collect(),
            Self::I64(v) => v.iter().map(|x| u64::try_from(*x).ok()).collect(),
            Self::F32(_) | Self::F64(_) | Self::String(_) => None,
        }
    }

    /// Whether all elements are equal (true when empty).
    pub fn is_uniform(&self) -> bool {
        each_numeric!(
            self,
            values => values.windows(2).all(|pair| pair[0] == pair[1]),
            strings => (1..strings.len()).all(|index| strings.get(index) == strings.get(0))
        )
    }
}
