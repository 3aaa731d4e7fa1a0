//! What a model is, for people and for the planner.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::error::GgufError;
use crate::gguf::Gguf;
use crate::tensor::TensorInfo;
use crate::value::Value;

/// Bytes of one key or value element in the cache: f16.
const KV_ELEMENT_BYTES: u64 = 2;

/// A description of a model; sizes in bytes.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ModelDescription {
    /// `general.architecture`.
    pub architecture: String,
    /// `general.name`, if the file has one.
    pub name: Option<String>,
    /// Dominant tensor type by bytes, such as `Q4_K`.
    pub quantization: String,
    /// Number of layers (blocks).
    pub layers: u32,
    /// Trained context, tokens.
    pub context_length: u32,
    /// Width of an activation row, elements.
    pub embedding_length: u32,
    /// Number of tokens.
    pub vocab_size: u32,
    /// Size of all files.
    pub total_bytes: u64,
    /// Number of weights.
    pub parameters: u64,
    /// Tensor bytes of each layer.
    pub layer_bytes: Vec<u64>,
    /// Size of the token embedding.
    pub token_embd_bytes: u64,
    /// Size of the output matrix; 0 if tied.
    pub output_bytes: u64,
    /// Size of all other tensors outside the layers.
    pub global_bytes: u64,
    /// Whether the token embedding serves as output matrix.
    pub tied: bool,
    /// Share of each tensor type, by name.
    pub quantizations: BTreeMap<String, QuantizationShare>,
    /// The tokenizer, if the file has one.
    pub tokenizer: Option<TokenizerDescription>,
    /// Size of one position of one lane in the cache, for each layer, with f16 keys and values.
    pub kv_bytes_per_position: Vec<u64>,
    /// Experts, if the model has any.
    pub experts: Option<ExpertCounts>,
    /// The files, in order.
    pub files: Vec<FilePart>,
    /// See [`Gguf::source_id`].
    pub source_id: String,
}

/// How much of a model has one tensor type.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct QuantizationShare {
    /// Number of tensors.
    pub tensors: u32,
    /// Their size, bytes.
    pub bytes: u64,
}

/// The tokenizer's keys that matter for a reader.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TokenizerDescription {
    /// `tokenizer.ggml.model`, such as `gpt2` or `llama`.
    pub model: String,
    /// `tokenizer.ggml.pre`: the pre-tokenizer.
    pub pre: Option<String>,
    /// Number of tokens.
    pub tokens: u32,
    /// Id of the beginning-of-text token.
    pub bos_id: Option<u32>,
    /// Id of the end-of-text token.
    pub eos_id: Option<u32>,
    /// Whether there is a chat template.
    pub has_chat_template: bool,
}

/// Numbers of experts per layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExpertCounts {
    /// All.
    pub total: u32,
    /// Used per token.
    pub used: u32,
    /// Shared, always used.
    pub shared: u32,
}

/// One file of the model.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FilePart {
    /// Its path.
    pub path: PathBuf,
    /// Its size, bytes.
    pub bytes: u64,
    /// GGUF version.
    pub version: u32,
    /// Tensors in it.
    pub tensors: u32,
}

/// Describes a model, supported or not.
///
/// # Errors
/// [`GgufError::MissingKey`] or [`GgufError::BadKey`] for what every language model must have.
pub fn describe(gguf: &Gguf) -> Result<ModelDescription, GgufError> {
    let layers = gguf.layers()?;
    let sizes = Sizes::of(gguf.tensors(), layers);
    let tokenizer = tokenizer(gguf);
    let quantizations = quantizations(gguf.tensors());
    Ok(ModelDescription {
        architecture: gguf.architecture()?.to_owned(),
        name: gguf.get_str("general.name").map(str::to_owned),
        quantization: dominant(&quantizations),
        layers,
        context_length: gguf.require_arch_u32("context_length")?,
        embedding_length: gguf.require_arch_u32("embedding_length")?,
        vocab_size: vocab_size(gguf, tokenizer.as_ref()),
        total_bytes: gguf.file_bytes(),
        parameters: gguf
            .tensors()
            .iter()
            .map(TensorInfo::elements)
            .fold(0, u64::saturating_add),
        layer_bytes: sizes.layers,
        token_embd_bytes: sizes.token_embd,
        output_bytes: sizes.output,
        global_bytes: sizes.global,
        tied: sizes.output == 0,
        quantizations,
        tokenizer,
        kv_bytes_per_position: kv_bytes_per_position(gguf, layers)?,
        experts: experts(gguf),
        files: files(gguf),
        source_id: gguf.source_id(),
    })
}

/// Tensor bytes by place.
struct Sizes {
    layers: Vec<u64>,
    token_embd: u64,
    output: u64,
    global: u64,
}

impl Sizes {
    fn of(tensors: &[TensorInfo], layers: u32) -> Self {
        let mut sizes = Self {
            layers: vec![0; layers as usize],
            token_embd: 0,
            output: 0,
            global: 0,
        };
        for tensor in tensors {
            let place = match tensor.layer() {
                Some((layer, _)) => sizes.layers.get_mut(layer as usize),
                None if tensor.name == "token_embd.weight" => Some(&mut sizes.token_embd),
                None if tensor.name == "output.weight" => Some(&mut sizes.output),
                None => None,
            };
            *place.unwrap_or(&mut sizes.global) += tensor.bytes;
        }
        sizes
    }
}

fn quantizations(tensors: &[TensorInfo]) -> BTreeMap<String, QuantizationShare> {
    let mut shares: BTreeMap<String, QuantizationShare> = BTreeMap::new();
    for tensor in tensors {
        let share = shares.entry(tensor.tensor_type.name().to_owned()).or_default();
        share.tensors += 1;
        share.bytes += tensor.bytes;
    }
    shares
}

fn dominant(shares: &BTreeMap<String, QuantizationShare>) -> String {
    shares
        .iter()
        .max_by_key(|(_, share)| share.bytes)
        .map_or_else(String::new, |(name, _)| name.clone())
}

fn vocab_size(gguf: &Gguf, tokenizer: Option<&TokenizerDescription>) -> u32 {
    let rows = gguf
        .tensor("token_embd.weight")
        .and_then(|tensor| u32::try_from(tensor.rows()).ok());
    let key = || {
        gguf.arch_value("vocab_size")
            .and_then(Value::as_u64)
            .and_then(|size| u32::try_from(size).ok())
    };
    rows.or_else(|| tokenizer.map(|tokenizer| tokenizer.tokens))
        .or_else(key)
        .unwrap_or(0)
}

fn tokenizer(gguf: &Gguf) -> Option<TokenizerDescription> {
    Some(TokenizerDescription {
        model: gguf.get_str("tokenizer.ggml.model")?.to_owned(),
        pre: gguf.get_str("tokenizer.ggml.pre").map(str::to_owned),
        tokens: gguf
            .get_array("tokenizer.ggml.tokens")
            .map_or(0, |tokens| tokens.len() as u32),
        bos_id: gguf.get_u32("tokenizer.ggml.bos_token_id"),
        eos_id: gguf.get_u32("tokenizer.ggml.eos_token_id"),
        has_chat_template: gguf.get("tokenizer.chat_template").is_some(),
    })
}

/// Key and value elements of a layer: heads × length, with llama.cpp's defaults (`n_head_kv` = `n_head`, lengths =
/// `n_embd / n_head` of the first layer).
fn kv_bytes_per_position(gguf: &Gguf, layers: u32) -> Result<Vec<u64>, GgufError> {
    let heads = gguf
        .per_layer("attention.head_count", layers)?
        .unwrap_or_else(|| vec![0; layers as usize]);
    let kv_heads = gguf.per_layer("attention.head_count_kv", layers)?;
    let embedding = u64::from(gguf.require_arch_u32("embedding_length")?);
    let default_length = heads
        .first()
        .and_then(|heads| embedding.checked_div(*heads))
        .unwrap_or(0);
    let length = |suffix| {
        gguf.arch_value(suffix)
            .and_then(Value::as_u64)
            .unwrap_or(default_length)
    };
    let per_head = length("attention.key_length").saturating_add(length("attention.value_length"));
    let bytes = |heads: &u64| heads.saturating_mul(per_head).saturating_mul(KV_ELEMENT_BYTES);
    Ok(kv_heads.unwrap_or(heads).iter().map(bytes).collect())
}

fn experts(gguf: &Gguf) -> Option<ExpertCounts> {
    let number = |suffix: &str| {
        let value = gguf.arch_value(suffix)?;
        let value = value
            .as_u64()
            .or_else(|| value.as_array()?.to_u64s()?.into_iter().max())?;
        u32::try_from(value).ok()
    };
    let total = number("expert_count").filter(|total| *total > 0)?;
    Some(ExpertCounts {
        total,
        used: number("expert_used_count").unwrap_or(0),
        shared: number("expert_shared_count").unwrap_or(0),
    })
}

fn files(gguf: &Gguf) -> Vec<FilePart> {
    let tensors_in = |index| gguf.tensors().iter().filter(|tensor| tensor.file == index).count() as u32;
    gguf.parts()
        .iter()
        .enumerate()
        .map(|(index, part)| FilePart {
            path: part.path.clone(),
            bytes: part.size,
            version: part.version,
            tensors: tensors_in(index),
        })
        .collect()
}
