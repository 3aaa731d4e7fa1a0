//! Traps that depend on the file rather than on its architecture.

use super::SupportedArchitecture;
use super::refusals::EMBEDDING_MODEL;
use crate::error::GgufError;
use crate::gguf::Gguf;
use crate::tensor::TensorInfo;
use crate::value::Value;

/// Global tensors the cutter knows where to put. Any other would have to be in some stage, and the loader refuses a
/// file with a tensor it does not use.
const KNOWN_GLOBALS: [&str; 11] = [
    "token_embd.weight",
    "output_norm.weight",
    "output_norm.bias",
    "output.weight",
    "output.bias",
    "output.scale",
    "output.input_scale",
    "rope_freqs.weight",
    "rope_factors_long.weight",
    "rope_factors_short.weight",
    UNUSED_GLOBAL,
];

/// A classifier head that the loader takes for optional (qwen3.cpp) and generation never reads; models that are
/// classifiers are refused by `pooling_type`. Stages do without.
pub(crate) const UNUSED_GLOBAL: &str = "cls.output.weight";

/// Per-layer keys of which these architectures use the first layer's value for all layers (`LLAMA_LOAD_LOCALS`,
/// `llm_graph_context`), so that a stage with another first layer would use another value.
const FIRST_LAYER_KEYS: [&str; 5] = [
    "attention.head_count",
    "attention.head_count_kv",
    "feed_forward_length",
    "expert_feed_forward_length",
    "expert_used_count",
];

/// Sizes for sliding-window layers; the graph takes those of the file's first layer for all layers.
const WINDOW_SIZES: [(&str, &str); 3] = [
    ("attention.key_length_swa", "attention.key_length"),
    ("attention.value_length_swa", "attention.value_length"),
    ("rope.dimension_count_swa", "rope.dimension_count"),
];

/// `LLAMA_POOLING_TYPE_UNSPECIFIED` (-1), as `llama_model_save_to_file` writes it.
const POOLING_UNSPECIFIED: u64 = u32::MAX as u64;

/// What the tensors say about the model.
pub(super) struct Shape {
    pub(super) vocab_size: u32,
    pub(super) embedding_length: u32,
    pub(super) tied: bool,
}

fn refuse(gguf: &Gguf, reason: impl Into<String>) -> Result<(), GgufError> {
    let architecture = gguf.architecture()?.to_owned();
    Err(GgufError::Unsupported {
        architecture,
        reason: reason.into(),
    })
}

/// Adapters, vision projectors and other files that are not language models.
pub(super) fn refuse_non_models(gguf: &Gguf) -> Result<(), GgufError> {
    match gguf.get_str("general.type") {
        None | Some("model") => {}
        Some("adapter") => {
            return refuse(
                gguf,
                "the file is an adapter (LoRA), not a model; merge it into its base first",
            );
        }
        Some("mmproj") => return refuse(gguf, "the file is a vision or audio projector, not a language model"),
        Some(other) => return refuse(gguf, format!("the file is of type `{other}`, not a model")),
    }
    if gguf.tensors().is_empty() {
        return refuse(
            gguf,
            "the file has no tensors: it holds a vocabulary only, or its other parts are missing",
        );
    }
    Ok(())
}

/// Keys whose presence changes what layers compute or how they are fed.
pub(super) fn refuse_file_traps(gguf: &Gguf, layers: u32) -> Result<(), GgufError> {
    let number = |suffix: &str| gguf.arch_value(suffix).and_then(Value::as_u64);
    if gguf.arch_value("attention.causal").and_then(Value::as_bool) == Some(false) {
        return refuse(gguf, "it is an encoder (attention is not causal), it cannot generate");
    }
    let labels = gguf.arch_value("classifier.output_labels").and_then(Value::as_array);
    if !matches!(number("pooling_type"), None | Some(0 | POOLING_UNSPECIFIED))
        || labels.is_some_and(|labels| !labels.is_empty())
    {
        return refuse(gguf, EMBEDDING_MODEL);
    }
    if number("nextn_predict_layers").unwrap_or(0) > 0 {
        return refuse(
            gguf,
            "it has multi-token prediction layers, which read the state of other layers",
        );
    }
    if number("n_deepstack_layers").unwrap_or(0) > 0 {
        return refuse(gguf, "it injects vision features into several layers (deepstack)");
    }
    let sections = gguf
        .arch_value("rope.dimension_sections")
        .and_then(Value::as_array)
        .and_then(|a| a.to_u64s());
    if sections.is_some_and(|sections| sections.iter().any(|section| *section != 0)) {
        return refuse(
            gguf,
            "it has rope sections (M-RoPE), which need four positions per row that a stage receives",
        );
    }
    if number("embedding_length_out").is_some_and(|out| out != 0 && Some(out) != number("embedding_length")) {
        return refuse(gguf, "its output rows have another width than its layers");
    }
    for suffix in FIRST_LAYER_KEYS {
        if gguf
            .arch_value(suffix)
            .and_then(Value::as_array)
            .is_some_and(|array| !array.is_uniform())
        {
            return refuse(
                gguf,
                format!("`{suffix}` differs between layers, and llama.cpp reads only the first one here"),
            );
        }
        gguf.per_layer(suffix, layers)?;
    }
    for (window, full) in WINDOW_SIZES {
        if number(window).is_some_and(|size| Some(size) != number(full)) {
            return refuse(
                gguf,
                format!("`{window}` differs from `{full}`, and llama.cpp takes the first layer's for all"),
            );
        }
    }
    Ok(())
}

/// Every layer is there, nothing unknown is, and the vocabulary's sizes agree.
pub(super) fn check_tensors(gguf: &Gguf, row: &SupportedArchitecture, layers: u32) -> Result<Shape, GgufError> {
    check_names(gguf, layers)?;
    let embedding_length = gguf.require_arch_u32("embedding_length")?;
    let embedding = gguf.tensor("token_embd.weight");
    let embedding =
        embedding.ok_or_else(|| gguf.bad_tensor("token_embd.weight", "is missing: convert the model again"))?;
    let vocab_size = vocab_size(gguf, embedding, embedding_length)?;
    let output = gguf.tensor("output.weight");
    if output.is_none() && row.output_required {
        return Err(gguf.bad_tensor("output.weight", "is missing: convert the model again"));
    }
    if output.is_some_and(|output| output.dims != embedding.dims) {
        return Err(gguf.bad_tensor(
            "output.weight",
            "has another shape than token_embd.weight: convert the model again",
        ));
    }
    if gguf.tensor("output_norm.weight").is_none() {
        return Err(gguf.bad_tensor("output_norm.weight", "is missing: convert the model again"));
    }
    Ok(Shape {
        vocab_size,
        embedding_length,
        tied: output.is_none(),
    })
}

fn check_names(gguf: &Gguf, layers: u32) -> Result<(), GgufError> {
    let mut present = vec![false; layers as usize];
    for tensor in gguf.tensors() {
        match tensor.layer() {
            Some((layer, _)) if layer < layers => present[layer as usize] = true,
            Some(_) => {
                let problem = format!("belongs to no layer, the model has {layers}: convert the model again");
                return Err(gguf.bad_tensor(&tensor.name, problem));
            }
            None if KNOWN_GLOBALS.contains(&tensor.name.as_str()) => {}
            None => {
                let reason = format!(
                    "it has tensor `{}`, of which it is not known which stages need it",
                    tensor.name
                );
                return refuse(gguf, reason);
            }
        }
    }
    match present.iter().position(|there| !there) {
        Some(layer) => Err(gguf.bad_tensor(
            &format!("blk.{layer}.*"),
            "is missing: the file is incomplete; fetch it again",
        )),
        None => Ok(()),
    }
}

/// Without tokens, the loader makes as many as the key says, before it compares them with any tensor.
pub(super) fn check_vocab_size(gguf: &Gguf, rows: u32) -> Result<(), GgufError> {
    let key = format!("{}.vocab_size", gguf.architecture()?);
    match gguf.get(&key) {
        Some(value) if value.as_u64() != Some(u64::from(rows)) => Err(gguf.bad_key(
            &key,
            format!("differs from the {rows} rows of token_embd.weight: cut the stage again"),
        )),
        _ => Ok(()),
    }
}

fn vocab_size(gguf: &Gguf, embedding: &TensorInfo, embedding_length: u32) -> Result<u32, GgufError> {
    let rows = match embedding.dims[..] {
        [row, rows] if row == u64::from(embedding_length) => u32::try_from(rows).ok(),
        _ => None,
    };
    let Some(rows) = rows.filter(|rows| *rows > 0) else {
        let problem = format!(
            "has shape {:?}, not {embedding_length} by the vocabulary: convert the model again",
            embedding.dims
        );
        return Err(gguf.bad_tensor(&embedding.name, problem));
    };
    // The loader takes the number of tokens for n_vocab, and the key only if there is no tokenizer.
    if let Some(tokens) = gguf
        .get_array("tokenizer.ggml.tokens")
        .filter(|tokens| tokens.len() as u64 != u64::from(rows))
    {
        let problem = format!("has {rows} rows for {} tokens: convert the model again", tokens.len());
        return Err(gguf.bad_tensor(&embedding.name, problem));
    }
    Ok(rows)
}
