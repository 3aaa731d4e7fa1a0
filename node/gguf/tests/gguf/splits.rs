//! Cases G1 and G2: split files.

use std::fs;
use std::path::{Path, PathBuf};

use mesh_gguf::{Gguf, GgufError, Malformation, Value, describe};
use tempfile::tempdir;

use crate::fixture::{Model, content, file_bytes, stage};

/// Writes `model` as three parts, the first with metadata only.
fn split(model: &Model, directory: &Path) -> Vec<PathBuf> {
    let total = model.tensors.len();
    let ranges = [0..0, 0..total / 2, total / 2..total];
    let mut paths = Vec::new();
    for (index, range) in ranges.into_iter().enumerate() {
        let mut metadata = if index == 0 { model.metadata.clone() } else { Vec::new() };
        metadata.push(("split.no".to_owned(), Value::U16(index as u16)));
        metadata.push(("split.count".to_owned(), Value::U16(3)));
        metadata.push(("split.tensors.count".to_owned(), Value::I32(total as i32)));
        let path = directory.join(format!("tiny-{:05}-of-00003.gguf", index + 1));
        fs::write(&path, file_bytes(&metadata, &model.tensors[range], 32)).unwrap();
        paths.push(path);
    }
    paths
}

#[test]
fn any_part_opens_the_whole_set() {
    let dir = tempdir().unwrap();
    let model = Model::new("llama", 4);
    let paths = split(&model, dir.path());
    for path in &paths {
        let gguf = Gguf::open(path).unwrap();
        assert_eq!(gguf.tensors().len(), model.tensors.len());
        assert_eq!(
            gguf.files().collect::<Vec<_>>(),
            paths.iter().map(PathBuf::as_path).collect::<Vec<_>>()
        );
        assert_eq!(
            describe(&gguf)
                .unwrap()
                .files
                .iter()
                .map(|file| file.tensors)
                .sum::<u32>(),
            16
        );
    }
}

#[test]
fn a_split_source_gives_the_same_stages_as_a_single_file() {
    let dir = tempdir().unwrap();
    let model = Model::new("llama", 4);
    let parts = Gguf::open(&split(&model, dir.path())[1]).unwrap();
    let single = model.open(dir.path());
    for (start, end) in [(0, 1), (1, 3), (3, 4)] {
        let (from_parts, from_single) = (
            stage(&parts, start, end, dir.path()),
            stage(&single, start, end, dir.path()),
        );
        let read = |gguf: &Gguf| fs::read(gguf.path()).unwrap();
        assert_eq!(read(&from_parts), read(&from_single));
    }
    assert_eq!(
        content(&parts, "blk.3.attn_sinks.weight"),
        content(&single, "blk.3.attn_sinks.weight")
    );
}

#[test]
fn missing_parts_are_named() {
    let dir = tempdir().unwrap();
    let paths = split(&Model::new("llama", 4), dir.path());
    fs::remove_file(&paths[1]).unwrap();
    fs::remove_file(&paths[2]).unwrap();
    let error = Gguf::open(&paths[0]).unwrap_err();
    assert!(
        matches!(&error, GgufError::MissingParts { count: 3, missing } if missing == &paths[1..]),
        "{error}"
    );
    assert!(error.to_string().contains("tiny-00002-of-00003.gguf"));
}

#[test]
fn a_renamed_part_is_named_with_the_name_it_needs() {
    let dir = tempdir().unwrap();
    let paths = split(&Model::new("llama", 4), dir.path());
    let renamed = dir.path().join("part two.gguf");
    fs::rename(&paths[1], &renamed).unwrap();
    let error = Gguf::open(&renamed).unwrap_err();
    assert!(
        error.to_string().contains("must end in `-00002-of-00003.gguf`"),
        "{error}"
    );
    assert!(matches!(Gguf::open(&paths[0]), Err(GgufError::MissingParts { .. })));
}

#[test]
fn swapped_parts_are_named() {
    let dir = tempdir().unwrap();
    let paths = split(&Model::new("llama", 4), dir.path());
    let aside = dir.path().join("aside");
    fs::rename(&paths[1], &aside).unwrap();
    fs::rename(&paths[2], &paths[1]).unwrap();
    fs::rename(&aside, &paths[2]).unwrap();
    for path in &paths {
        let error = Gguf::open(path).unwrap_err();
        assert!(matches!(error, GgufError::SwappedPart { .. }), "{error}");
    }
}

#[test]
fn a_part_of_another_set_is_named() {
    let dir = tempdir().unwrap();
    let other = tempdir().unwrap();
    let paths = split(&Model::new("llama", 4), dir.path());
    let others = split(&Model::new("llama", 5), other.path());
    fs::copy(&others[1], &paths[1]).unwrap();
    assert!(matches!(Gguf::open(&paths[0]), Err(GgufError::PartsDisagree { .. })));
    fs::write(&paths[1], Model::new("llama", 2).bytes()).unwrap();
    assert!(matches!(
        Gguf::open(&paths[0]),
        Err(GgufError::SwappedPart { found: 0, .. })
    ));
}

#[test]
fn concatenated_parts_are_recognised() {
    let dir = tempdir().unwrap();
    let paths = split(&Model::new("llama", 4), dir.path());
    let first = fs::read(&paths[0]).unwrap();
    for pieces in [[&paths[0], &paths[1]], [&paths[1], &paths[2]]] {
        let joined: Vec<u8> = pieces.iter().flat_map(|path| fs::read(path).unwrap()).collect();
        let path = dir.path().join("joined.gguf");
        fs::write(&path, joined).unwrap();
        match Gguf::open(&path) {
            Err(GgufError::Malformed { fault, .. }) => {
                assert!(matches!(*fault, Malformation::Concatenated { .. }), "{fault}")
            }
            other => panic!("{other:?}"),
        }
    }
    assert!(!first.is_empty());
}

#[test]
fn a_part_in_memory_cannot_stand_for_the_set() {
    let dir = tempdir().unwrap();
    let paths = split(&Model::new("llama", 4), dir.path());
    let bytes = fs::read(&paths[1]).unwrap();
    assert!(matches!(Gguf::from_bytes(&bytes), Err(GgufError::PartsDisagree { .. })));
}

#[test]
fn lying_part_numbers_are_refused() {
    let mut model = Model::new("llama", 2);
    model
        .set("split.count", Value::U32(u32::MAX))
        .set("split.no", Value::U16(0));
    assert!(matches!(
        Gguf::from_bytes(&model.bytes()),
        Err(GgufError::BadKey { .. })
    ));
    model.set("split.count", Value::U16(2)).set("split.no", Value::U16(2));
    assert!(matches!(
        Gguf::from_bytes(&model.bytes()),
        Err(GgufError::BadKey { .. })
    ));
}
