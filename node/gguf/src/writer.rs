//! Writes GGUF headers: the core that cutting, the vocabulary file and tests share.

use crate::array::{Array, StringArray};
use crate::tensor_type::TensorType;
use crate::value::Value;

/// Alignment of tensor data where a file does not say otherwise, bytes.
pub const DEFAULT_ALIGNMENT: u32 = 32;

/// A tensor to be written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewTensor {
    /// Name.
    pub name: String,
    /// Shape.
    pub dims: Vec<u64>,
    /// Element type.
    pub tensor_type: TensorType,
    /// Size, bytes; must be what type and shape give.
    pub bytes: u64,
}

/// An encoded header and where the data of each tensor goes.
#[derive(Debug, Clone)]
pub struct Layout {
    /// The header, padded up to the first tensor.
    pub header: Vec<u8>,
    /// Offset of each tensor from the start of the file, bytes, in the order given.
    pub offsets: Vec<u64>,
    /// Size of the whole file, the last tensor padded too, bytes.
    pub file_bytes: u64,
}

/// Lays out a version 3 file: header, keys, tensor descriptions, then the tensors in the order given, each padded to
/// `alignment` (llama.cpp accepts no other order and no gaps). `alignment` must be a power of two; unless it is
/// [`DEFAULT_ALIGNMENT`], `metadata` must hold it as `general.alignment`.
pub fn layout(metadata: &[(String, Value)], tensors: &[NewTensor], alignment: u32) -> Layout {
    let alignment = u64::from(alignment.max(1));
    let mut header = Vec::new();
    header.extend_from_slice(b"GGUF");
    header.extend_from_slice(&3u32.to_le_bytes());
    header.extend_from_slice(&(tensors.len() as u64).to_le_bytes());
    header.extend_from_slice(&(metadata.len() as u64).to_le_bytes());
    for (key, value) in metadata {
        put_string(&mut header, key.as_bytes());
        header.extend_from_slice(&value.value_type().id().to_le_bytes());
        put_value(&mut header, value);
    }
    let mut relative = Vec::with_capacity(tensors.len());
    let mut next = 0u64;
    for tensor in tensors {
        put_string(&mut header, tensor.name.as_bytes());
        header.extend_from_slice(&(tensor.dims.len() as u32).to_le_bytes());
        for dim in &tensor.dims {
            header.extend_from_slice(&dim.to_le_bytes());
        }
        header.extend_from_slice(&tensor.tensor_type.id().to_le_bytes());
        header.extend_from_slice(&next.to_le_bytes());
        relative.push(next);
        next += tensor.bytes.next_multiple_of(alignment);
    }
    let data_start = (header.len() as u64).next_multiple_of(alignment);
    header.resize(data_start as usize, 0);
    Layout {
        header,
        offsets: relative.into_iter().map(|offset| data_start + offset).collect(),
        file_bytes: data_start + next,
    }
}

fn put_string(out: &mut Vec<u8>, string: &[u8]) {
    out.extend_from_slice(&(string.len() as u64).to_le_bytes());
    out.extend_from_slice(string);
}

fn put_value(out: &mut Vec<u8>, value: &Value) {
    match value {
        Value::U8(x) => out.push(*x),
        Value::I8(x) => out.extend_from_slice(&x.to_le_bytes()),
        Value::U16(x) => out.extend_from_slice(&x.to_le_bytes()),
        Value::I16(x) => out.extend_from_slice(&x.to_le_bytes()),
        Value::U32(x) => out.extend_from_slice(&x.to_le_bytes()),
        Value::I32(x) => out.extend_from_slice(&x.to_le_bytes()),
        Value::F32(x) => out.extend_from_slice(&x.to_le_bytes()),
        Value::Bool(x) => out.push(u8::from(*x)),
        Value::U64(x) => out.extend_from_slice(&x.to_le_bytes()),
        Value::I64(x) => out.extend_from_slice(&x.to_le_bytes()),
        Value::F64(x) => out.extend_from_slice(&x.to_le_bytes()),
        Value::String(bytes) => put_string(out, bytes),
        Value::Array(array) => put_array(out, array),
    }
}

fn put_array(out: &mut Vec<u8>, array: &Array) {
    out.extend_from_slice(&array.element_type().id().to_le_bytes());
    out.extend_from_slice(&(array.len() as u64).to_le_bytes());
    match array {
        Array::U8(values) => out.extend_from_slice(values),
        Array::Bool(values) => out.extend(values.iter().map(|x| u8::from(*x))),
        Array::I8(values) => put_all(out, values, |x| x.to_le_bytes()),
        Array::U16(values) => put_all(out, values, |x| x.to_le_bytes()),
        Array::I16(values) => put_all(out, values, |x| x.to_le_bytes()),
        Array::U32(values) => put_all(out, values, |x| x.to_le_bytes()),
        Array::I32(values) => put_all(out, values, |x| x.to_le_bytes()),
        Array::F32(values) => put_all(out, values, |x| x.to_le_bytes()),
        Array::U64(values) => put_all(out, values, |x| x.to_le_bytes()),
        Array::I64(values) => put_all(out, values, |x| x.to_le_bytes()),
        Array::F64(values) => put_all(out, values, |x| x.to_le_bytes()),
        Array::String(strings) => put_strings(out, strings),
    }
}

fn put_all<T: Copy, const N: usize>(out: &mut Vec<u8>, values: &[T], to: fn(T) -> [u8; N]) {
    for value in values {
        out.extend_from_slice(&to(*value));
    }
}

fn put_strings(out: &mut Vec<u8>, strings: &StringArray) {
    for string in strings.iter() {
        put_string(out, string);
    }
}
