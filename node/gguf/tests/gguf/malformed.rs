//! Case G3: every fault is an error of its own that names key or tensor and byte.

use std::fs;

use mesh_gguf::{Array, Gguf, GgufError, MAX_ARRAY_ELEMENTS, Malformation, TensorType, Value};
use tempfile::tempdir;

use crate::fixture::{Model, file_bytes};

fn fault(bytes: &[u8]) -> Malformation {
    match Gguf::from_bytes(bytes) {
        Err(GgufError::Malformed { fault, .. }) => *fault,
        other => panic!("expected a malformation, got {other:?}"),
    }
}

fn header(version: u32, tensors: u64, keys: u64) -> Vec<u8> {
    let mut bytes = b"GGUF".to_vec();
    bytes.extend(version.to_le_bytes());
    bytes.extend(tensors.to_le_bytes());
    bytes.extend(keys.to_le_bytes());
    bytes
}

fn string(bytes: &mut Vec<u8>, text: &str) {
    bytes.extend((text.len() as u64).to_le_bytes());
    bytes.extend(text.as_bytes());
}

/// A file with one key of this type number and these raw bytes.
fn with_key(key: &str, value_type: u32, value: &[u8]) -> Vec<u8> {
    let mut bytes = header(3, 0, 1);
    string(&mut bytes, key);
    bytes.extend(value_type.to_le_bytes());
    bytes.extend(value);
    bytes
}

/// A file with one tensor and this much data.
fn with_tensors(tensors: &[(&str, &[u64], u32, u64)], data: usize) -> Vec<u8> {
    let mut bytes = header(3, tensors.len() as u64, 0);
    for (name, dims, tensor_type, offset) in tensors {
        string(&mut bytes, name);
        bytes.extend((dims.len() as u32).to_le_bytes());
        for dim in *dims {
            bytes.extend(dim.to_le_bytes());
        }
        bytes.extend(tensor_type.to_le_bytes());
        bytes.extend(offset.to_le_bytes());
    }
    bytes.resize(bytes.len().next_multiple_of(32) + data, 0);
    bytes
}

#[test]
fn other_files_are_not_gguf() {
    assert!(matches!(
        fault(b"PK\x03\x04 and so on, long enough"),
        Malformation::NotGguf { .. }
    ));
    assert!(
        fault(b"<html>404 not found</html>")
            .to_string()
            .contains("it starts with bytes <htm")
    );
    assert!(matches!(fault(b""), Malformation::Truncated { at: 0, .. }));
}

#[test]
fn old_new_and_big_endian_versions_are_told_apart() {
    assert!(matches!(
        fault(&header(1, 0, 0)),
        Malformation::OldVersion { version: 1 }
    ));
    assert!(matches!(
        fault(&header(0, 0, 0)),
        Malformation::OldVersion { version: 0 }
    ));
    assert!(matches!(
        fault(&header(4, 0, 0)),
        Malformation::UnknownVersion { version: 4 }
    ));
    assert!(matches!(
        fault(&header(3u32.swap_bytes(), 0, 0)),
        Malformation::BigEndian
    ));
}

#[test]
fn version_2_is_read() {
    let mut bytes = Model::new("llama", 2).bytes();
    bytes[4] = 2;
    assert_eq!(Gguf::from_bytes(&bytes).unwrap().layers().unwrap(), 2);
}

#[test]
fn truncation_anywhere_is_an_error() {
    let whole = Model::new("llama", 2).bytes();
    let gguf = Gguf::from_bytes(&whole).unwrap();
    let end = gguf
        .tensors()
        .iter()
        .map(|tensor| tensor.offset + tensor.bytes)
        .max()
        .unwrap();
    for length in 0..end as usize {
        match fault(&whole[..length]) {
            Malformation::Truncated { .. } | Malformation::PastEnd { .. } => {}
            other => panic!("{length}: {other}"),
        }
    }
}

#[test]
fn a_tensor_cut_off_is_named() {
    let whole = Model::new("llama", 2).bytes();
    let error = fault(&whole[..whole.len() - 100]).to_string();
    assert!(
        error.contains("tensor `blk.1.attn_q.weight`") || error.contains("tensor `blk.1.attn_sinks.weight`"),
        "{error}"
    );
}

#[test]
fn giant_claims_in_tiny_files_are_refused() {
    assert!(matches!(
        fault(&header(3, 0, u64::MAX)),
        Malformation::OverLimit { at: 16, .. }
    ));
    assert!(matches!(
        fault(&header(3, u64::MAX, 0)),
        Malformation::OverLimit { at: 8, .. }
    ));
    assert!(matches!(fault(&header(3, 0, 60_000)), Malformation::Truncated { .. }));
    assert!(matches!(fault(&header(3, 200_000, 0)), Malformation::Truncated { .. }));
    let giant = |length: u64, element: u32| {
        let mut value = element.to_le_bytes().to_vec();
        value.extend(length.to_le_bytes());
        fault(&with_key("tokenizer.ggml.tokens", 9, &value))
    };
    for element in [0, 4, 8, 12] {
        assert!(matches!(giant(u64::MAX, element), Malformation::OverLimit { .. }));
        let error = giant(MAX_ARRAY_ELEMENTS, element);
        assert!(matches!(error, Malformation::Truncated { .. }));
        assert!(
            error.to_string().contains("key `tokenizer.ggml.tokens` at byte"),
            "{error}"
        );
    }
    let mut key = header(3, 0, 1);
    key.extend((u64::MAX / 2).to_le_bytes());
    key.extend([0; 64]);
    assert!(matches!(fault(&key), Malformation::OverLimit { .. }));
    assert!(matches!(
        fault(&with_key("k", 8, &(1u64 << 25).to_le_bytes())),
        Malformation::Truncated { .. }
    ));
}

#[test]
fn nested_arrays_and_unknown_types_are_refused() {
    let mut value = 9u32.to_le_bytes().to_vec();
    value.extend(1u64.to_le_bytes());
    assert!(matches!(
        fault(&with_key("k", 9, &value)),
        Malformation::NestedArray { at: 37, .. }
    ));
    assert!(matches!(
        fault(&with_key("k", 13, &[0; 8])),
        Malformation::UnknownValueType {
            value_type: 13,
            at: 33,
            ..
        }
    ));
}

#[test]
fn keys_must_be_unique_and_not_empty() {
    let key = ("a.b".to_owned(), Value::U8(1));
    let twice = file_bytes(&[key.clone(), key], &[], 32);
    assert!(matches!(fault(&twice), Malformation::DuplicateKey { at: 40, .. }));
    assert!(matches!(
        fault(&with_key("", 0, &[0; 8])),
        Malformation::EmptyName { at: 24, .. }
    ));
    let mut bytes = with_key("abc", 0, &[0; 8]);
    bytes[32] = 0xff;
    assert!(matches!(fault(&bytes), Malformation::NotUtf8 { at: 24, .. }));
}

#[test]
fn alignment_must_be_a_power_of_two() {
    for bad in [
        Value::U32(0),
        Value::U32(33),
        Value::U32(1 << 31),
        Value::U64(32),
        Value::string("32"),
    ] {
        let bytes = file_bytes(&[("general.alignment".to_owned(), bad)], &[], 32);
        assert!(matches!(fault(&bytes), Malformation::BadAlignment { .. }));
    }
    let mut model = Model::new("llama", 2);
    model.alignment = 256;
    model.set("general.alignment", Value::U32(256));
    assert!(
        Gguf::from_bytes(&model.bytes())
            .unwrap()
            .tensors()
            .iter()
            .all(|tensor| tensor.offset % 256 == 0)
    );
}

#[test]
fn removed_and_unknown_quantizations_name_number_and_tensor() {
    for (type_id, said) in [
        (31, "removed quantization Q4_0_4_4"),
        (4, "removed quantization Q4_2"),
        (99, "unknown quantization"),
    ] {
        let error = fault(&with_tensors(&[("blk.0.x", &[32], type_id, 0)], 64)).to_string();
        assert!(
            error.contains("`blk.0.x`") && error.contains(said) && error.contains(&format!("type number {type_id}")),
            "{error}"
        );
    }
}

#[test]
fn shapes_must_make_sense() {
    let shape = |dims: &[u64], tensor_type| fault(&with_tensors(&[("t", dims, tensor_type, 0)], 64));
    assert!(matches!(shape(&[1; 5], 0), Malformation::OverLimit { claimed: 5, .. }));
    assert!(matches!(
        shape(&[1 << 40, 1 << 40], 0),
        Malformation::ShapeOverflow { .. }
    ));
    assert!(matches!(shape(&[u64::MAX], 0), Malformation::ShapeOverflow { .. }));
    assert!(matches!(
        shape(&[33], 8),
        Malformation::PartialBlock { row: 33, block: 32, .. }
    ));
    assert!(matches!(shape(&[1 << 61], 0), Malformation::ShapeOverflow { .. }));
    assert!(matches!(shape(&[1 << 50], 0), Malformation::PastEnd { .. }));
}

#[test]
fn tensors_must_be_aligned_inside_and_apart() {
    let two = |offset: u64| fault(&with_tensors(&[("a", &[16], 0, 0), ("b", &[16], 0, offset)], 128));
    assert!(matches!(two(33), Malformation::Misaligned { offset: 33, .. }));
    assert!(matches!(two(32), Malformation::Overlap { .. }));
    assert!(two(32).to_string().contains("`a` and `b` overlap"));
    assert!(matches!(two(96), Malformation::PastEnd { .. }));
    assert!(matches!(two(u64::MAX - 31), Malformation::PastEnd { .. }));
    assert!(matches!(
        fault(&with_tensors(&[("a", &[4], 0, 0), ("a", &[4], 0, 32)], 64)),
        Malformation::DuplicateTensor { .. }
    ));
    assert!(Gguf::from_bytes(&with_tensors(&[("a", &[16], 0, 0), ("b", &[16], 0, 64)], 128)).is_ok());
}

#[test]
fn tensor_names_have_the_length_llama_cpp_takes() {
    let named = |length: usize| with_tensors(&[(&"n".repeat(length), &[4], 0, 0)], 32);
    assert!(Gguf::from_bytes(&named(63)).is_ok());
    assert!(matches!(fault(&named(64)), Malformation::OverLimit { limit: 63, .. }));
}

#[test]
fn every_value_type_survives_writing_and_reading() {
    let values = vec![
        Value::U8(200),
        Value::I8(-3),
        Value::U16(60_000),
        Value::I16(-300),
        Value::U32(4_000_000_000),
        Value::I32(-70_000),
        Value::F32(1.5),
        Value::Bool(true),
        Value::String(vec![0xff, 0, b'x']),
        Value::U64(u64::MAX),
        Value::I64(i64::MIN),
        Value::F64(-0.25),
        Value::Array(Array::U8(vec![1, 2])),
        Value::Array(Array::I8(vec![-1])),
        Value::Array(Array::U16(vec![7])),
        Value::Array(Array::I16(vec![-7])),
        Value::Array(Array::U32(vec![])),
        Value::Array(Array::I32(vec![-1, 0])),
        Value::Array(Array::F32(vec![0.5])),
        Value::Array(Array::Bool(vec![true, false])),
        Value::Array(Array::String(["", "ü"].into_iter().collect())),
        Value::Array(Array::U64(vec![1 << 40])),
        Value::Array(Array::I64(vec![-(1 << 40)])),
        Value::Array(Array::F64(vec![2.5])),
    ];
    let metadata: Vec<_> = values
        .into_iter()
        .enumerate()
        .map(|(i, value)| (format!("key.{i}"), value))
        .collect();
    let gguf = Gguf::from_bytes(&file_bytes(&metadata, &[], 32)).unwrap();
    assert_eq!(
        gguf.metadata()
            .map(|(key, value)| (key.to_owned(), value.clone()))
            .collect::<Vec<_>>(),
        metadata
    );
}

#[test]
fn missing_files_and_directories_are_named() {
    let dir = tempdir().unwrap();
    let missing = dir.path().join("no such.gguf");
    assert!(Gguf::open(&missing).unwrap_err().to_string().contains("no such.gguf"));
    assert!(matches!(
        Gguf::open(dir.path()),
        Err(GgufError::NotAFile { .. } | GgufError::Open { .. })
    ));
}

#[cfg(unix)]
#[test]
fn names_with_spaces_unicode_and_symlinks_open() {
    let dir = tempdir().unwrap();
    let blob = dir.path().join("0a1b2c");
    fs::write(&blob, Model::new("llama", 2).bytes()).unwrap();
    let link = dir.path().join("mein Modell – ü.gguf");
    std::os::unix::fs::symlink(&blob, &link).unwrap();
    assert_eq!(
        Gguf::open(link)
            .unwrap()
            .tensor("blk.1.attn_q.weight")
            .unwrap()
            .tensor_type,
        TensorType::Q4_0
    );
}
