//! Small seeded models, written by this crate's own writer.

use std::fs;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use mesh_gguf::{
    Architecture, Array, DEFAULT_ALIGNMENT, Gguf, NewTensor, Progress, StageArtifact, StageCut, TensorType, Value,
    layout, support,
};

/// The built-in model.
pub const BUILT_IN: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../models/psalm-2m-q8_0.gguf");

/// Architectures that are nothing without experts.
const WITH_EXPERTS: [&str; 4] = ["gpt-oss", "llama4", "qwen2moe", "qwen3moe"];

/// A model to be written.
#[derive(Clone)]
pub struct Model {
    pub architecture: &'static str,
    pub metadata: Vec<(String, Value)>,
    pub tensors: Vec<(String, Vec<u64>, TensorType)>,
    pub alignment: u32,
}

impl Model {
    /// A model with `layers` layers of three tensors, an output of its own, and a tokenizer.
    pub fn new(architecture: &'static str, layers: u32) -> Self {
        let (embedding, vocab) = (64, 100);
        let mut model = Self {
            architecture,
            metadata: vec![],
            tensors: vec![],
            alignment: DEFAULT_ALIGNMENT,
        };
        model.set("general.architecture", Value::string(architecture));
        model.set("general.name", Value::string("tiny"));
        model.arch("block_count", Value::U32(layers));
        model.arch("context_length", Value::U32(256));
        model.arch("embedding_length", Value::U32(embedding as u32));
        model.arch("attention.head_count", Value::U32(4));
        model.arch("attention.head_count_kv", Value::U32(2));
        model.arch("attention.key_length", Value::U32(16));
        model.arch("attention.layer_norm_rms_epsilon", Value::F32(1e-5));
        model.arch("attention.layer_norm_epsilon", Value::F32(1e-5));
        if WITH_EXPERTS.contains(&architecture) {
            model.arch("expert_count", Value::U32(16));
            model.arch("expert_used_count", Value::U32(2));
        }
        model.set("tokenizer.ggml.model", Value::string("gpt2"));
        let merges = ["t 1", "t1 2"].into_iter().collect();
        model.set("tokenizer.ggml.merges", Value::Array(Array::String(merges)));
        let tokens = (0..vocab).map(|id| format!("t{id}").into_bytes()).collect();
        model.set("tokenizer.ggml.tokens", Value::Array(Array::String(tokens)));
        model.set("tokenizer.ggml.eos_token_id", Value::U32(3));
        model.set("tokenizer.chat_template", Value::string("{{ messages }}"));
        model.tensor("token_embd.weight", &[embedding, vocab], TensorType::Q8_0);
        model.tensor("output_norm.weight", &[embedding], TensorType::F32);
        model.tensor("output.weight", &[embedding, vocab], TensorType::Q8_0);
        model.tensor("rope_freqs.weight", &[8], TensorType::F32);
        for layer in 0..layers {
            model.tensor(&format!("blk.{layer}.attn_norm.weight"), &[embedding], TensorType::F32);
            model.tensor(
                &format!("blk.{layer}.attn_q.weight"),
                &[embedding, embedding],
                TensorType::Q4_0,
            );
            // 4 floats: padding after it.
            model.tensor(&format!("blk.{layer}.attn_sinks.weight"), &[4], TensorType::F32);
        }
        model
    }

    pub fn set(&mut self, key: &str, value: Value) -> &mut Self {
        match self.metadata.iter_mut().find(|(known, _)| known == key) {
            Some((_, old)) => *old = value,
            None => self.metadata.push((key.to_owned(), value)),
        }
        self
    }

    pub fn arch(&mut self, suffix: &str, value: Value) -> &mut Self {
        let key = format!("{}.{suffix}", self.architecture);
        self.set(&key, value)
    }

    pub fn tensor(&mut self, name: &str, dims: &[u64], tensor_type: TensorType) -> &mut Self {
        self.tensors.push((name.to_owned(), dims.to_vec(), tensor_type));
        self
    }

    pub fn without(mut self, tensor: &str) -> Self {
        self.tensors.retain(|(name, ..)| name != tensor);
        self
    }

    pub fn bytes(&self) -> Vec<u8> {
        file_bytes(&self.metadata, &self.tensors, self.alignment)
    }

    pub fn write(&self, directory: &Path) -> PathBuf {
        let path = directory.join("model.gguf");
        fs::write(&path, self.bytes()).unwrap();
        path
    }

    /// Written into `directory` and opened.
    pub fn open(&self, directory: &Path) -> Gguf {
        Gguf::open(self.write(directory)).unwrap()
    }

    pub fn judge(&self) -> Result<Architecture, mesh_gguf::GgufError> {
        support(&Gguf::from_bytes(&self.bytes()).unwrap())
    }
}

/// A whole file; each tensor's bytes are pseudo-random, seeded by its name.
pub fn file_bytes(metadata: &[(String, Value)], tensors: &[(String, Vec<u64>, TensorType)], alignment: u32) -> Vec<u8> {
    let new: Vec<NewTensor> = tensors
        .iter()
        .map(|(name, dims, tensor_type)| NewTensor {
            name: name.clone(),
            dims: dims.clone(),
            tensor_type: *tensor_type,
            bytes: tensor_type.bytes_for(dims).unwrap(),
        })
        .collect();
    let plan = layout(metadata, &new, alignment);
    let mut bytes = plan.header.clone();
    bytes.resize(plan.file_bytes as usize, 0);
    for (tensor, offset) in new.iter().zip(&plan.offsets) {
        let content = noise(&tensor.name, tensor.bytes as usize);
        bytes[*offset as usize..*offset as usize + content.len()].copy_from_slice(&content);
    }
    bytes
}

pub fn noise(seed: &str, length: usize) -> Vec<u8> {
    let mut bytes = vec![0; length];
    blake3::Hasher::new()
        .update(seed.as_bytes())
        .finalize_xof()
        .fill(&mut bytes);
    bytes
}

/// The bytes of a tensor.
pub fn content(gguf: &Gguf, tensor: &str) -> Vec<u8> {
    let info = gguf.tensor(tensor).unwrap_or_else(|| panic!("no tensor {tensor}"));
    let bytes = fs::read(gguf.files().nth(info.file).unwrap()).unwrap();
    bytes[info.offset as usize..(info.offset + info.bytes) as usize].to_vec()
}

pub fn go_on(_: Progress) -> ControlFlow<()> {
    ControlFlow::Continue(())
}

/// Cuts layers out of an opened model into `directory`.
pub fn cut(gguf: &Gguf, start: u32, end: u32, directory: &Path) -> StageArtifact {
    let architecture = support(gguf).unwrap();
    StageCut::plan(gguf, &architecture, start..end)
        .unwrap()
        .write(directory, &mut go_on)
        .unwrap()
}

/// Cuts layers and opens the stage.
pub fn stage(gguf: &Gguf, start: u32, end: u32, directory: &Path) -> Gguf {
    Gguf::open(cut(gguf, start, end, directory).path).unwrap()
}

pub fn names(directory: &Path) -> Vec<String> {
    let mut names: Vec<String> = fs::read_dir(directory)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}
