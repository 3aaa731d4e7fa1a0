use std::fs;

use mesh_gguf::{Array, Gguf, GgufError, VocabularyCut, verify_vocabulary};
use tempfile::tempdir;

use crate::fixture::{Model, names};

#[test]
fn the_vocabulary_has_the_tokenizer_and_no_tensors() {
    let dir = tempdir().unwrap();
    let source = Model::new("llama", 4).open(dir.path());
    let artifact = VocabularyCut::write(&source, dir.path()).unwrap();
    let vocabulary = Gguf::open(&artifact.path).unwrap();
    assert!(vocabulary.tensors().is_empty());
    assert_eq!(artifact.manifest.tokens, 100);
    for key in [
        "general.architecture",
        "general.name",
        "llama.context_length",
        "tokenizer.chat_template",
    ] {
        assert_eq!(vocabulary.get(key), source.get(key), "{key}");
    }
    let tokenizer = |gguf: &Gguf| gguf.metadata().filter(|(key, _)| key.starts_with("tokenizer.")).count();
    assert_eq!(tokenizer(&vocabulary), tokenizer(&source));
    assert!(vocabulary.get("llama.block_count").is_none());
}

#[test]
fn it_is_reused_verified_and_made_again_when_damaged() {
    let dir = tempdir().unwrap();
    let out = dir.path().join("out");
    let source = Model::new("llama", 4).open(dir.path());
    let artifact = VocabularyCut::write(&source, &out).unwrap();
    assert!(!artifact.reused);
    verify_vocabulary(&artifact.path, &artifact.manifest).unwrap();
    assert!(VocabularyCut::write(&source, &out).unwrap().reused);
    let mut bytes = fs::read(&artifact.path).unwrap();
    bytes[100] ^= 1;
    fs::write(&artifact.path, &bytes).unwrap();
    assert!(matches!(
        verify_vocabulary(&artifact.path, &artifact.manifest),
        Err(GgufError::Corrupt { .. })
    ));
    fs::write(&artifact.path, b"short").unwrap();
    assert!(!VocabularyCut::write(&source, &out).unwrap().reused);
    verify_vocabulary(&artifact.path, &artifact.manifest).unwrap();
    assert_eq!(names(&out).len(), 2);
}

#[test]
fn tokens_that_are_not_utf8_survive() {
    let dir = tempdir().unwrap();
    let mut model = Model::new("llama", 2);
    let tokens: Array = Array::String((0..100u8).map(|id| vec![0xff, id]).collect());
    model.set("tokenizer.ggml.tokens", mesh_gguf::Value::Array(tokens.clone()));
    let artifact = VocabularyCut::write(&model.open(dir.path()), dir.path()).unwrap();
    assert_eq!(
        Gguf::open(artifact.path).unwrap().get_array("tokenizer.ggml.tokens"),
        Some(&tokens)
    );
}

#[test]
fn a_model_without_tokenizer_is_refused() {
    let dir = tempdir().unwrap();
    let mut model = Model::new("llama", 2);
    model.metadata.retain(|(key, _)| !key.starts_with("tokenizer."));
    let result = VocabularyCut::write(&model.open(dir.path()), dir.path());
    assert!(matches!(result, Err(GgufError::MissingKey { .. })));
}
