//! The model that ships with the project, cut in every way.

use mesh_gguf::{Gguf, VocabularyCut, verify};
use tempfile::tempdir;

use crate::fixture::{BUILT_IN, content, cut};

#[test]
fn every_cut_of_the_built_in_model_gives_valid_stages() {
    let dir = tempdir().unwrap();
    let source = Gguf::open(BUILT_IN).unwrap();
    for start in 0..8 {
        for end in start + 1..=8 {
            let artifact = cut(&source, start, end, dir.path());
            verify(&artifact.path, &artifact.manifest).unwrap();
            let stage = Gguf::open(&artifact.path).unwrap();
            assert_eq!(stage.layers().unwrap(), end - start);
            assert_eq!(
                (artifact.manifest.first, artifact.manifest.last),
                (start == 0, end == 8)
            );
            let last = format!("blk.{}.ffn_down.weight", end - start - 1);
            assert_eq!(
                content(&stage, &last),
                content(&source, &format!("blk.{}.ffn_down.weight", end - 1))
            );
        }
    }
}

#[test]
fn stages_together_are_hardly_larger_than_the_source() {
    let dir = tempdir().unwrap();
    let source = Gguf::open(BUILT_IN).unwrap();
    let stages: u64 = [(0, 3), (3, 6), (6, 8)]
        .into_iter()
        .map(|(start, end)| cut(&source, start, end, dir.path()).manifest.bytes)
        .sum();
    let vocabulary = VocabularyCut::write(&source, dir.path()).unwrap().manifest.bytes;
    let embedding = source.tensor("token_embd.weight").unwrap().bytes;
    assert!(stages + vocabulary < source.file_bytes() + embedding + (64 << 10));
}
