//! Parses the header of one file: counts, keys, tensor descriptions.

use std::collections::HashSet;
use std::io::{BufReader, Read, Seek, SeekFrom};

use crate::array::{Array, StringArray};
use crate::cursor::Cursor;
use crate::limits::{
    MAX_ALIGNMENT, MAX_ARRAY_ELEMENTS, MAX_DIMENSIONS, MAX_KEY_BYTES, MAX_KEYS, MAX_STRING_BYTES,
    MAX_TENSOR_NAME_BYTES, MAX_TENSORS,
};
use crate::malformation::Malformation;
use crate::tensor::TensorInfo;
use crate::tensor_type::TensorType;
use crate::value::{Value, ValueType};
use crate::writer::DEFAULT_ALIGNMENT;

/// Bytes a key takes at least: length, one character, type, one byte of value.
const MIN_KEY_BYTES: u64 = 8 + 1 + 4 + 1;
/// Bytes a tensor description takes at least: name length, one character, dimensions, type, offset.
const MIN_TENSOR_BYTES: u64 = 8 + 1 + 4 + 4 + 8;

/// The header of one file.
#[derive(Debug)]
pub(crate) struct Header {
    pub(crate) version: u32,
    pub(crate) metadata: Vec<(String, Value)>,
    pub(crate) tensors: Vec<TensorInfo>,
    /// First byte behind the last tensor description.
    pub(crate) header_bytes: u64,
}

/// Parses the header of a file of `size` bytes and checks that its tensors lie inside it.
pub(crate) fn parse<R: Read + Seek>(mut reader: R, size: u64, file: usize) -> Result<Header, Malformation> {
    let mut cursor = Cursor::new(BufReader::with_capacity(1 << 16, &mut reader), size);
    let (version, tensor_count, key_count) = counts(&mut cursor)?;
    let (metadata, alignment) = keys(&mut cursor, key_count)?;
    let unplaced = descriptions(&mut cursor, tensor_count)?;
    let header_bytes = cursor.at();
    drop(cursor);
    let data_start = header_bytes.next_multiple_of(alignment);
    let tensors = place(unplaced, data_start, alignment, size, file)?;
    let data_end = tensors
        .iter()
        .map(|tensor| tensor.offset + tensor.bytes)
        .max()
        .unwrap_or(header_bytes);
    refuse_second_header(&mut reader, data_end, alignment, size)?;
    Ok(Header {
        version,
        metadata,
        tensors,
        header_bytes,
    })
}

fn counts<R: Read>(cursor: &mut Cursor<R>) -> Result<(u32, u64, u64), Malformation> {
    let what = || "the file header".to_owned();
    let magic: [u8; 4] = cursor.array(&what)?;
    if magic != *b"GGUF" {
        return Err(Malformation::NotGguf {
            found: magic.escape_ascii().to_string(),
        });
    }
    let version = cursor.u32(&what)?;
    match version {
        2 | 3 => {}
        // llama.cpp's own test for the other byte order.
        _ if version & 0xffff == 0 && version != 0 => return Err(Malformation::BigEndian),
        0 | 1 => return Err(Malformation::OldVersion { version }),
        _ => return Err(Malformation::UnknownVersion { version }),
    }
    let tensor_count = count(cursor, "the number of tensors", MAX_TENSORS)?;
    let key_count = count(cursor, "the number of keys", MAX_KEYS)?;
    cursor.expect(key_count * MIN_KEY_BYTES, &|| {
        format!("the section of {key_count} keys")
    })?;
    Ok((version, tensor_count, key_count))
}

fn count<R: Read>(cursor: &mut Cursor<R>, what: &str, limit: u64) -> Result<u64, Malformation> {
    let at = cursor.at();
    let claimed = cursor.u64(&|| what.to_owned())?;
    if claimed > limit {
        return Err(Malformation::OverLimit {
            what: what.to_owned(),
            at,
            claimed,
            limit,
        });
    }
    Ok(claimed)
}

/// All keys, and the alignment they ask for.
fn keys<R: Read>(cursor: &mut Cursor<R>, key_count: u64) -> Result<(Vec<(String, Value)>, u64), Malformation> {
    let mut metadata = Vec::new();
    let mut seen = HashSet::new();
    let mut alignment = u64::from(DEFAULT_ALIGNMENT);
    for number in 0..key_count {
        let at = cursor.at();
        let key = cursor.name(MAX_KEY_BYTES, &|| format!("key number {number}"))?;
        if !seen.insert(key.clone()) {
            return Err(Malformation::DuplicateKey { key, at });
        }
        let value_at = cursor.at() + 4;
        let value = value(cursor, &key)?;
        if key == "general.alignment" {
            alignment = checked_alignment(&value, value_at)?;
        }
        metadata.push((key, value));
    }
    Ok((metadata, alignment))
}

fn checked_alignment(value: &Value, at: u64) -> Result<u64, Malformation> {
    match *value {
        Value::U32(alignment) if alignment.is_power_of_two() && alignment <= MAX_ALIGNMENT => Ok(u64::from(alignment)),
        Value::U32(alignment) => Err(Malformation::BadAlignment {
            found: alignment.to_string(),
            at,
            limit: MAX_ALIGNMENT,
        }),
        ref other => Err(Malformation::BadAlignment {
            found: format!("of type {}", other.value_type()),
            at,
            limit: MAX_ALIGNMENT,
        }),
    }
}

fn value<R: Read>(cursor: &mut Cursor<R>, key: &str) -> Result<Value, Malformation> {
    let what = || format!("the value of key `{key}`");
    Ok(match value_type(cursor, key)? {
        ValueType::U8 => Value::U8(u8::from_le_bytes(cursor.array(&what)?)),
        ValueType::I8 => Value::I8(i8::from_le_bytes(cursor.array(&what)?)),
        ValueType::U16 => Value::U16(u16::from_le_bytes(cursor.array(&what)?)),
        ValueType::I16 => Value::I16(i16::from_le_bytes(cursor.array(&what)?)),
        ValueType::U32 => Value::U32(u32::from_le_bytes(cursor.array(&what)?)),
        ValueType::I32 => Value::I32(i32::from_le_bytes(cursor.array(&what)?)),
        ValueType::F32 => Value::F32(f32::from_le_bytes(cursor.array(&what)?)),
        ValueType::Bool => Value::Bool(cursor.array::<1>(&what)?[0] != 0),
        ValueType::U64 => Value::U64(u64::from_le_bytes(cursor.array(&what)?)),
        ValueType::I64 => Value::I64(i64::from_le_bytes(cursor.array(&what)?)),
        ValueType::F64 => Value::F64(f64::from_le_bytes(cursor.array(&what)?)),
        ValueType::String => Value::String(cursor.string(MAX_STRING_BYTES, &what)?),
        ValueType::Array => Value::Array(array(cursor, key)?),
    })
}

fn value_type<R: Read>(cursor: &mut Cursor<R>, key: &str) -> Result<ValueType, Malformation> {
    let at = cursor.at();
    let id = cursor.u32(&|| format!("the type of key `{key}`"))?;
    ValueType::from_id(id).ok_or_else(|| Malformation::UnknownValueType {
        key: key.to_owned(),
        value_type: id,
        at,
    })
}

fn array<R: Read>(cursor: &mut Cursor<R>, key: &str) -> Result<Array, Malformation> {
    let at = cursor.at();
    let element_type = value_type(cursor, key)?;
    if element_type == ValueType::Array {
        return Err(Malformation::NestedArray {
            key: key.to_owned(),
            at,
        });
    }
    let length = count(cursor, &format!("the array length of key `{key}`"), MAX_ARRAY_ELEMENTS)?;
    let what = || format!("the array of key `{key}`");
    cursor.expect(length * element_type.min_bytes(), &what)?;
    if element_type == ValueType::String {
        return strings(cursor, key, length).map(Array::String);
    }
    let bytes = cursor.bytes(length * element_type.min_bytes(), &what)?;
    Ok(match element_type {
        ValueType::U8 => Array::U8(bytes),
        ValueType::I8 => Array::I8(decode(&bytes, i8::from_le_bytes)),
        ValueType::U16 => Array::U16(decode(&bytes, u16::from_le_bytes)),
        ValueType::I16 => Array::I16(decode(&bytes, i16::from_le_bytes)),
        ValueType::U32 => Array::U32(decode(&bytes, u32::from_le_bytes)),
        ValueType::I32 => Array::I32(decode(&bytes, i32::from_le_bytes)),
        ValueType::F32 => Array::F32(decode(&bytes, f32::from_le_bytes)),
        ValueType::U64 => Array::U64(decode(&bytes, u64::from_le_bytes)),
        ValueType::I64 => Array::I64(decode(&bytes, i64::from_le_bytes)),
        ValueType::F64 => Array::F64(decode(&bytes, f64::from_le_bytes)),
        ValueType::Bool => Array::Bool(bytes.iter().map(|byte| *byte != 0).collect()),
        // Both were handled above.
        ValueType::String | ValueType::Array => Array::String(StringArray::default()),
    })
}

fn strings<R: Read>(cursor: &mut Cursor<R>, key: &str, length: u64) -> Result<StringArray, Malformation> {
    let mut strings = StringArray::default();
    for index in 0..length {
        strings.push(&cursor.string(MAX_STRING_BYTES, &|| format!("string {index} of key `{key}`"))?);
    }
    Ok(strings)
}

fn decode<T, const N: usize>(bytes: &[u8], from: fn([u8; N]) -> T) -> Vec<T> {
    bytes.as_chunks::<N>().0.iter().map(|chunk| from(*chunk)).collect()
}

/// A tensor whose offset is still relative, and the byte where that offset is written.
struct Unplaced {
    info: TensorInfo,
    offset_at: u64,
}

fn descriptions<R: Read>(cursor: &mut Cursor<R>, tensor_count: u64) -> Result<Vec<Unplaced>, Malformation> {
    cursor.expect(tensor_count * MIN_TENSOR_BYTES, &|| {
        format!("the section of {tensor_count} tensor descriptions")
    })?;
    let mut tensors = Vec::new();
    let mut seen = HashSet::new();
    for number in 0..tensor_count {
        let at = cursor.at();
        let name = cursor.name(MAX_TENSOR_NAME_BYTES, &|| format!("the name of tensor number {number}"))?;
        if !seen.insert(name.clone()) {
            return Err(Malformation::DuplicateTensor { tensor: name, at });
        }
        tensors.push(description(cursor, name, at)?);
    }
    Ok(tensors)
}

fn description<R: Read>(cursor: &mut Cursor<R>, name: String, at: u64) -> Result<Unplaced, Malformation> {
    let what = || format!("the description of tensor `{name}`");
    let dims_at = cursor.at();
    let dim_count = cursor.u32(&what)?;
    if dim_count > MAX_DIMENSIONS {
        return Err(Malformation::OverLimit {
            what: format!("the number of dimensions of tensor `{name}`"),
            at: dims_at,
            claimed: u64::from(dim_count),
            limit: u64::from(MAX_DIMENSIONS),
        });
    }
    let dims = (0..dim_count)
        .map(|_| cursor.u64(&what))
        .collect::<Result<Vec<_>, _>>()?;
    let type_at = cursor.at();
    let type_id = cursor.u32(&what)?;
    let tensor_type = TensorType::from_id(type_id).ok_or_else(|| wrong_quantization(&name, type_id, type_at))?;
    let row = dims.first().copied().unwrap_or(1);
    if row % tensor_type.block_elements() != 0 {
        return Err(Malformation::PartialBlock {
            tensor: name,
            row,
            block: tensor_type.block_elements(),
            tensor_type: tensor_type.name(),
            at,
        });
    }
    let Some(bytes) = tensor_type.bytes_for(&dims) else {
        return Err(Malformation::ShapeOverflow { tensor: name, dims, at });
    };
    let offset_at = cursor.at();
    let offset = cursor.u64(&what)?;
    Ok(Unplaced {
        info: TensorInfo {
            name,
            dims,
            tensor_type,
            file: 0,
            offset,
            bytes,
        },
        offset_at,
    })
}

fn wrong_quantization(tensor: &str, type_id: u32, at: u64) -> Malformation {
    let detail = match TensorType::removed_name(type_id) {
        Some(name) => format!("removed quantization {name}"),
        None => "unknown quantization".to_owned(),
    };
    Malformation::WrongQuantization {
        tensor: tensor.to_owned(),
        type_id,
        detail,
        at,
    }
}

/// Makes offsets absolute and checks that tensors are aligned, inside the file and apart from each other.
fn place(
    unplaced: Vec<Unplaced>,
    data_start: u64,
    alignment: u64,
    size: u64,
    file: usize,
) -> Result<Vec<TensorInfo>, Malformation> {
    let mut tensors = Vec::with_capacity(unplaced.len());
    for Unplaced { mut info, offset_at } in unplaced {
        if info.offset % alignment != 0 {
            return Err(Malformation::Misaligned {
                tensor: info.name,
                offset: info.offset,
                alignment,
                at: offset_at,
            });
        }
        let end = data_start
            .checked_add(info.offset)
            .and_then(|start| start.checked_add(info.bytes));
        match end {
            Some(end) if end <= size => {}
            _ => {
                return Err(Malformation::PastEnd {
                    tensor: info.name,
                    end: end.unwrap_or(u64::MAX),
                    size,
                });
            }
        }
        info.offset += data_start;
        info.file = file;
        tensors.push(info);
    }
    let mut by_offset: Vec<&TensorInfo> = tensors.iter().filter(|tensor| tensor.bytes > 0).collect();
    by_offset.sort_by_key(|tensor| tensor.offset);
    for pair in by_offset.windows(2) {
        if pair[0].offset + pair[0].bytes > pair[1].offset {
            return Err(Malformation::Overlap {
                first: pair[0].name.clone(),
                second: pair[1].name.clone(),
                at: pair[1].offset,
            });
        }
    }
    Ok(tensors)
}

/// Parts joined with `cat` look like the first part with a tail: find the header the tail starts with.
fn refuse_second_header<R: Read + Seek>(
    reader: &mut R,
    data_end: u64,
    alignment: u64,
    size: u64,
) -> Result<(), Malformation> {
    for at in [data_end, data_end.next_multiple_of(alignment)] {
        if size.saturating_sub(at) < 4 {
            continue;
        }
        let mut magic = [0; 4];
        reader
            .seek(SeekFrom::Start(at))
            .and_then(|_| reader.read_exact(&mut magic))
            .map_err(|source| Malformation::Unreadable { at, source })?;
        if magic == *b"GGUF" {
            return Err(Malformation::Concatenated { at });
        }
    }
    Ok(())
}
