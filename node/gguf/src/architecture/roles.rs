//! The table of tensor roles: which types the graph takes for each tensor, and in which shape.
//!
//! llama.cpp compares shapes itself and refuses; types it asserts on, or it crashes in the first call. A norm, a bias, a
//! rope factor, a sink or a scale goes through an operation of 32-bit floats (`binary_op` in `binary-ops.cpp`,
//! `ggml_add_id`, `ggml_rope_impl`, `ggml_flash_attn_ext_add_sinks`), whatever the file's quantization; a matrix needs
//! a dot product (`type_traits_cpu` in `ggml-cpu.c`).

use super::hyper_parameters::HyperParameters;
use crate::error::GgufError;
use crate::gguf::Gguf;
use crate::tensor::TensorInfo;
use crate::tensor_type::TensorType;

/// What a tensor is to the graph.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// Multiplied with rows, or looked up by token.
    Matrix,
    /// Added to rows, multiplied with them element by element, or read as floats.
    Floats,
}

/// One dimension of a shape. Some have several lengths, since architectures differ.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Dim {
    One,
    Width,
    Vocabulary,
    /// Queries of all heads.
    Queries,
    /// Keys, or values, of all heads.
    Keys,
    /// Queries, keys and values.
    Fused,
    Heads,
    /// Half of what rope turns.
    RopePairs,
    FeedForward,
    /// Gate and up in one, or up alone.
    FeedForwardUp,
    ExpertFeedForward,
    SharedFeedForward,
    Experts,
    /// One norm for each head, or one for all.
    QueryNorm,
    KeyNorm,
    /// One for the matrix, or for each expert's.
    Scales,
}

use Dim::{
    ExpertFeedForward, Experts, FeedForward, FeedForwardUp, Fused, Heads, KeyNorm, Keys, One, Queries, QueryNorm,
    RopePairs, Scales, SharedFeedForward, Vocabulary, Width,
};
use Kind::{Floats, Matrix};

/// Tensors of a layer, named as behind `blk.N.`.
const LAYER: &[(&str, Kind, &[Dim])] = &[
    ("attn_norm.weight", Floats, &[Width]),
    ("attn_norm.bias", Floats, &[Width]),
    ("attn_norm_2.weight", Floats, &[Width]),
    ("attn_norm_2.bias", Floats, &[Width]),
    ("attn_q.weight", Matrix, &[Width, Queries]),
    ("attn_q.bias", Floats, &[Queries]),
    ("attn_k.weight", Matrix, &[Width, Keys]),
    ("attn_k.bias", Floats, &[Keys]),
    ("attn_v.weight", Matrix, &[Width, Keys]),
    ("attn_v.bias", Floats, &[Keys]),
    ("attn_qkv.weight", Matrix, &[Width, Fused]),
    ("attn_qkv.bias", Floats, &[Fused]),
    ("attn_q_norm.weight", Floats, &[QueryNorm]),
    ("attn_k_norm.weight", Floats, &[KeyNorm]),
    ("attn_sinks.weight", Floats, &[Heads]),
    ("attn_output.weight", Matrix, &[Queries, Width]),
    ("attn_output.bias", Floats, &[Width]),
    ("post_attention_norm.weight", Floats, &[Width]),
    ("ffn_norm.weight", Floats, &[Width]),
    ("ffn_norm.bias", Floats, &[Width]),
    ("post_ffw_norm.weight", Floats, &[Width]),
    ("ffn_gate.weight", Matrix, &[Width, FeedForward]),
    ("ffn_gate.bias", Floats, &[FeedForward]),
    ("ffn_up.weight", Matrix, &[Width, FeedForwardUp]),
    ("ffn_up.bias", Floats, &[FeedForwardUp]),
    ("ffn_down.weight", Matrix, &[FeedForward, Width]),
    ("ffn_down.bias", Floats, &[Width]),
    ("ffn_gate_inp.weight", Matrix, &[Width, Experts]),
    ("ffn_gate_inp.bias", Floats, &[Experts]),
    ("ffn_gate_exps.weight", Matrix, &[Width, ExpertFeedForward, Experts]),
    ("ffn_gate_exps.bias", Floats, &[ExpertFeedForward, Experts]),
    ("ffn_up_exps.weight", Matrix, &[Width, ExpertFeedForward, Experts]),
    ("ffn_up_exps.bias", Floats, &[ExpertFeedForward, Experts]),
    ("ffn_down_exps.weight", Matrix, &[ExpertFeedForward, Width, Experts]),
    ("ffn_down_exps.bias", Floats, &[Width, Experts]),
    ("ffn_gate_inp_shexp.weight", Matrix, &[Width]),
    ("ffn_gate_shexp.weight", Matrix, &[Width, SharedFeedForward]),
    ("ffn_up_shexp.weight", Matrix, &[Width, SharedFeedForward]),
    ("ffn_down_shexp.weight", Matrix, &[SharedFeedForward, Width]),
];

/// Tensors of the whole model.
const GLOBAL: &[(&str, Kind, &[Dim])] = &[
    ("token_embd.weight", Matrix, &[Width, Vocabulary]),
    ("output_norm.weight", Floats, &[Width]),
    ("output_norm.bias", Floats, &[Width]),
    ("output.weight", Matrix, &[Width, Vocabulary]),
    ("output.bias", Floats, &[Vocabulary]),
    ("rope_freqs.weight", Floats, &[RopePairs]),
    ("rope_factors_long.weight", Floats, &[RopePairs]),
    ("rope_factors_short.weight", Floats, &[RopePairs]),
];

/// Names of what is not in the tables: scales of a quantized matrix, whatever matrix it is.
const SCALES: [&str; 2] = [".scale", ".input_scale"];

/// Checks every tensor whose role is known. Others are llama.cpp's to refuse: it takes none that its graph does not use.
///
/// # Errors
/// [`GgufError::BadTensor`]: the tensor, what it has, and what is wanted.
pub(super) fn check(gguf: &Gguf, sizes: &HyperParameters, vocabulary: u64) -> Result<(), GgufError> {
    for tensor in gguf.tensors() {
        if let Some((kind, shape)) = role(tensor) {
            check_type(gguf, tensor, kind)?;
            check_shape(gguf, tensor, shape, sizes, vocabulary)?;
        }
    }
    check_tied(gguf)
}

fn role(tensor: &TensorInfo) -> Option<(Kind, &'static [Dim])> {
    let (table, name) = match tensor.layer() {
        Some((_, rest)) => (LAYER, rest),
        None => (GLOBAL, tensor.name.as_str()),
    };
    if SCALES.iter().any(|end| name.ends_with(end)) {
        return Some((Floats, &[Scales]));
    }
    table
        .iter()
        .find(|(known, ..)| *known == name)
        .map(|(_, kind, shape)| (*kind, *shape))
}

fn check_type(gguf: &Gguf, tensor: &TensorInfo, kind: Kind) -> Result<(), GgufError> {
    let (fits, wanted) = match kind {
        Matrix => (
            tensor.tensor_type.is_computable(),
            "which nothing is computed with; quantize the model again, to another type",
        ),
        Floats => (
            tensor.tensor_type == TensorType::F32,
            "and llama.cpp computes it in F32 only: convert the model again",
        ),
    };
    if fits {
        return Ok(());
    }
    Err(gguf.bad_tensor(&tensor.name, format!("is of type {}, {wanted}", tensor.tensor_type)))
}

fn check_shape(
    gguf: &Gguf,
    tensor: &TensorInfo,
    shape: &[Dim],
    sizes: &HyperParameters,
    vocabulary: u64,
) -> Result<(), GgufError> {
    let wanted: Vec<Vec<u64>> = shape.iter().map(|dim| lengths(*dim, sizes, vocabulary)).collect();
    let longest = tensor.dims.len().max(wanted.len());
    let one = lengths(One, sizes, vocabulary);
    let fits = (0..longest).all(|index| {
        let length = tensor.dims.get(index).copied().unwrap_or(1);
        wanted.get(index).unwrap_or(&one).contains(&length)
    });
    if fits {
        return Ok(());
    }
    let words: Vec<String> = wanted.iter().map(|lengths| in_words(lengths)).collect();
    let problem = format!(
        "has shape {:?}, and the keys of the file make it [{}]: convert the model again",
        tensor.dims,
        words.join(", ")
    );
    Err(gguf.bad_tensor(&tensor.name, problem))
}

fn in_words(lengths: &[u64]) -> String {
    let words: Vec<String> = lengths.iter().map(u64::to_string).collect();
    if words.is_empty() {
        "a length that no key gives".to_owned()
    } else {
        words.join(" or ")
    }
}

/// What a dimension may be, in elements.
fn lengths(dim: Dim, sizes: &HyperParameters, vocabulary: u64) -> Vec<u64> {
    let queries = sizes.heads * sizes.head_length;
    let keys = sizes.kv_heads * sizes.head_length;
    let mut lengths: Vec<u64> = match dim {
        One => vec![1],
        Width => vec![sizes.width],
        Vocabulary => vec![vocabulary],
        Queries => vec![queries],
        Keys => vec![keys],
        Fused => vec![queries + 2 * keys],
        Heads => vec![sizes.heads],
        RopePairs => vec![sizes.rope_dimensions / 2],
        FeedForward => sizes.feed_forward.into_iter().collect(),
        FeedForwardUp => sizes.feed_forward.into_iter().flat_map(|ff| [ff, 2 * ff]).collect(),
        ExpertFeedForward => {
            let shared_out = sizes.feed_forward.map(|ff| ff / sizes.experts_used.max(1));
            [sizes.expert_feed_forward, sizes.feed_forward, shared_out]
                .into_iter()
                .flatten()
                .collect()
        }
        SharedFeedForward => [sizes.shared_feed_forward, sizes.expert_feed_forward, sizes.feed_forward]
            .into_iter()
            .flatten()
            .collect(),
        Experts => vec![sizes.experts],
        QueryNorm => vec![sizes.head_length, queries],
        KeyNorm => vec![sizes.head_length, keys],
        Scales => vec![1, sizes.experts],
    };
    lengths.dedup();
    lengths
}

/// `GGML_ASSERT` at the end of `llama_model_base::load_tensors`: a tied output in NVFP4 has no scales of its own.
fn check_tied(gguf: &Gguf) -> Result<(), GgufError> {
    let is_tied = gguf.tensor("output.weight").is_none();
    let is_nvfp4 = gguf
        .tensor("token_embd.weight")
        .is_some_and(|tensor| tensor.tensor_type.name() == "NVFP4");
    let scale = ["output.scale", "output.input_scale"]
        .into_iter()
        .find(|name| gguf.tensor(name).is_some());
    match scale {
        Some(name) if is_tied && is_nvfp4 => {
            Err(gguf.bad_tensor(name, "is there without an output.weight: convert the model again"))
        }
        _ => Ok(()),
    }
}
