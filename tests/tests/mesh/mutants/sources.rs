//! What mutants are made of: the built-in model, and small random models of other architectures with its tokenizer.

use std::path::Path;

use anyhow::Result;
use mesh_engine::RandomModel;
use mesh_gguf::{Gguf, Value};

use crate::gguf_file::GgufFile;

/// One of each kind of graph: dense, with windows, with experts, with layer norms and biases, with rope factors.
const ARCHITECTURES: [&str; 5] = ["gemma3", "qwen2moe", "gpt-oss", "starcoder2", "phi3"];

/// Layers of the random models.
const LAYERS: u32 = 2;

/// Headers and data of good files.
pub fn sources(directory: &Path) -> Result<Vec<GgufFile>> {
    let built_in = GgufFile::read(mesh_node::built_in_model())?;
    let tokenizer: Vec<(String, Value)> = built_in
        .metadata
        .iter()
        .filter(|(key, _)| key.starts_with("tokenizer."))
        .cloned()
        .collect();
    let vocabulary = Gguf::from_bytes(mesh_node::built_in_model())?
        .get_array("tokenizer.ggml.tokens")
        .map_or(0, |tokens| tokens.len() as u32);
    let mut sources = vec![built_in];
    for architecture in ARCHITECTURES {
        let path = directory.join(format!("{architecture}.gguf"));
        let model = RandomModel {
            layers: LAYERS,
            vocabulary,
            ..RandomModel::new(architecture)
        };
        model.write(&path).map_err(anyhow::Error::msg)?;
        let mut header = GgufFile::read(&std::fs::read(&path)?)?;
        header.metadata.retain(|(key, _)| !key.starts_with("tokenizer."));
        header.metadata.extend(tokenizer.iter().cloned());
        sources.push(header);
    }
    Ok(sources)
}
