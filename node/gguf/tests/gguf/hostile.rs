//! What llama.cpp would end the process over is refused by name: keys out of range, tensors of types that nothing is
//! computed with, vocabularies that cannot be loaded.

use mesh_gguf::{Array, Gguf, SUPPORTED, TensorType, Value, check_stage, check_vocabulary};
use tempfile::tempdir;

use crate::fixture::{BUILT_IN, Model, stage};

/// A model with every kind of tensor.
fn full(architecture: &'static str) -> Model {
    let mut model = Model::new(architecture, 2);
    model.arch("feed_forward_length", Value::U32(96));
    model.arch("attention.value_length", Value::U32(16));
    model.arch("rope.freq_base", Value::F32(10_000.0));
    model.arch("attention.sliding_window", Value::U32(32));
    if architecture == "llama4" {
        model.arch("interleave_moe_layer_step", Value::U32(1));
    }
    for layer in 0..2 {
        let name = |rest: &str| format!("blk.{layer}.{rest}");
        model.tensor(&name("attn_k.weight"), &[64, 32], TensorType::F16);
        model.tensor(&name("attn_k.bias"), &[32], TensorType::F32);
        model.tensor(&name("attn_output.weight"), &[64, 64], TensorType::Q8_0);
        model.tensor(&name("attn_q_norm.weight"), &[16], TensorType::F32);
        model.tensor(&name("ffn_up.weight"), &[64, 96], TensorType::F16);
        model.tensor(&name("ffn_down.weight"), &[96, 64], TensorType::F16);
        if model.metadata.iter().any(|(key, _)| key.ends_with(".expert_count")) {
            model.tensor(&name("ffn_gate_inp.weight"), &[64, 16], TensorType::F32);
            model.tensor(&name("ffn_gate_inp.bias"), &[16], TensorType::F32);
            model.tensor(&name("ffn_down_exps.weight"), &[96, 64, 16], TensorType::F16);
            model.tensor(&name("ffn_down_exps.bias"), &[64, 16], TensorType::F32);
            model.tensor(&name("ffn_down_exps.scale"), &[16], TensorType::F32);
        }
    }
    model
}

fn refusal(model: &Model) -> String {
    match model.judge() {
        Err(error) => error.to_string(),
        Ok(_) => panic!("it is accepted"),
    }
}

#[test]
fn a_full_model_of_every_architecture_is_accepted_and_so_is_each_of_its_stages() {
    for row in SUPPORTED {
        let model = full(row.name);
        let directory = tempdir().unwrap();
        let source = model.open(directory.path());
        let architecture = model.judge().unwrap_or_else(|error| panic!("{error}"));
        let cuts = [&[0][..], &architecture.legal_cuts(), &[2]].concat();
        for pair in cuts.windows(2) {
            check_stage(&stage(&source, pair[0], pair[1], directory.path())).unwrap();
        }
    }
    check_stage(&Gguf::open(BUILT_IN).unwrap()).unwrap();
}

#[test]
fn keys_out_of_range_are_refused_with_what_is_wanted() {
    let nan = || Value::F32(f32::NAN);
    let cases: Vec<(&'static str, &str, Value, &str)> = vec![
        (
            "llama",
            "attention.layer_norm_rms_epsilon",
            nan(),
            "is NaN, not a number above 0",
        ),
        (
            "llama",
            "attention.layer_norm_rms_epsilon",
            Value::F32(-1e-5),
            "is -0.00001, not a number above 0",
        ),
        (
            "llama",
            "attention.layer_norm_rms_epsilon",
            Value::F32(0.0),
            "is 0, not a number above 0",
        ),
        (
            "llama",
            "attention.layer_norm_rms_epsilon",
            Value::F32(1e9),
            "at most 0.1",
        ),
        (
            "starcoder2",
            "attention.layer_norm_epsilon",
            Value::F32(f32::INFINITY),
            "is inf, not a number above 0",
        ),
        (
            "llama",
            "attention.layer_norm_rms_epsilon",
            Value::U32(1),
            "is of type u32, not a number above 0",
        ),
        ("llama", "attention.temperature_scale", nan(), "not a finite number"),
        ("llama", "rope.freq_base", Value::F32(0.0), "not a number above 0"),
        (
            "llama",
            "rope.scaling.factor",
            Value::F32(-4.0),
            "not a number from 0 up",
        ),
        (
            "llama",
            "rope.scaling.type",
            Value::string("su"),
            "is \"su\", and llama.cpp knows none, linear",
        ),
        ("llama", "rope.scaling.type", Value::U32(1), "llama.cpp knows"),
        (
            "llama",
            "rope.dimension_count",
            Value::U32(8),
            "must be exactly the head length, 16",
        ),
        (
            "phi3",
            "rope.dimension_count",
            Value::U32(18),
            "must be at most the head length, 16",
        ),
        ("phi3", "rope.dimension_count", Value::U32(7), "it must be even"),
        ("llama", "attention.head_count", Value::U32(0), "is 0, not 1 to"),
        ("llama", "attention.head_count_kv", Value::U32(0), "is 0, not 1 to"),
        (
            "llama",
            "attention.head_count_kv",
            Value::U32(3),
            "does not divide the 4 heads",
        ),
        ("llama", "attention.value_length", Value::U32(8), "must be the same"),
        (
            "qwen2",
            "attention.head_count",
            Value::U32(8),
            "are not the width of 64",
        ),
        ("llama", "context_length", Value::U32(0), "is 0, not 1 to"),
        (
            "gpt-oss",
            "attention.sliding_window",
            Value::U32(u32::MAX),
            "not 0 to 1048576",
        ),
        ("llama", "expert_count", Value::U32(4), "is 0, and it must be 1 to 4"),
        (
            "llama",
            "expert_used_count",
            Value::U32(2),
            "without an expert_count it must be 0",
        ),
        ("qwen3moe", "expert_used_count", Value::U32(17), "it must be 1 to 16"),
        ("qwen3moe", "expert_count", Value::U32(5_000), "not 0 to 1024"),
        ("qwen3moe", "expert_count", Value::U32(0), "qwen3moe has experts"),
        (
            "qwen3moe",
            "expert_group_count",
            Value::U32(16),
            "groups of two or more",
        ),
        ("qwen3moe", "expert_group_count", Value::U32(3), "groups of two or more"),
        (
            "qwen3moe",
            "expert_group_count",
            Value::U32(4),
            "`qwen3moe.expert_group_used_count` is 0",
        ),
    ];
    for (architecture, suffix, value, said) in cases {
        let mut model = full(architecture);
        model.arch(suffix, value);
        let error = refusal(&model);
        assert!(
            error.contains(said) && error.ends_with("convert the model again"),
            "{suffix}: {error}"
        );
    }
    let mut model = full("llama");
    model.metadata.retain(|(key, _)| !key.ends_with("rms_epsilon"));
    assert!(refusal(&model).contains("`llama.attention.layer_norm_rms_epsilon` is missing"));
}

#[test]
fn norms_biases_factors_and_scales_are_f32_and_matrices_can_be_computed_with() {
    let name_of = |id| TensorType::from_id(id).unwrap();
    let (f16, bf16, q8_0, q8_1, i32, f64) = (
        name_of(1),
        name_of(30),
        name_of(8),
        name_of(9),
        name_of(26),
        name_of(28),
    );
    for (tensor, tensor_type) in [
        ("output_norm.weight", f16),
        ("output_norm.weight", bf16),
        ("rope_freqs.weight", f16),
        ("blk.1.attn_norm.weight", bf16),
        ("blk.0.attn_k.bias", f16),
        ("blk.0.attn_k.bias", q8_0),
        ("blk.0.attn_sinks.weight", f16),
        ("blk.0.ffn_gate_inp.bias", f16),
        ("blk.1.ffn_down_exps.bias", bf16),
        ("blk.1.ffn_down_exps.scale", f16),
        ("token_embd.weight", q8_1),
        ("output.weight", i32),
        ("blk.0.attn_q.weight", q8_1),
        ("blk.1.attn_output.weight", f64),
        ("blk.0.ffn_down_exps.weight", i32),
    ] {
        let mut model = full("qwen2moe");
        let found = model.tensors.iter_mut().find(|(name, ..)| name == tensor).unwrap();
        found.2 = tensor_type;
        let error = refusal(&model);
        assert!(
            error.contains(&format!("tensor `{tensor}` is of type {tensor_type}")) && error.ends_with("again")
                || error.ends_with("to another type"),
            "{error}"
        );
        // Another node's file is judged the same.
        assert!(check_stage(&Gguf::from_bytes(&model.bytes()).unwrap()).is_err());
    }
}

#[test]
fn a_row_length_that_no_key_gives_is_said() {
    let mut model = full("llama");
    // Of a key that no graph reads; llama.cpp itself writes it so.
    model.arch("kda.gate_lower_bound", Value::F32(f32::NEG_INFINITY));
    model.judge().unwrap();
    model.arch("feed_forward_length", Value::U32(0));
    let error = refusal(&model);
    assert!(
        error.contains("`blk.0.ffn_up.weight`") && error.contains("a length that no key gives"),
        "{error}"
    );
}

#[test]
fn shapes_that_the_keys_do_not_give_are_refused_with_those_that_they_do() {
    for (tensor, dims) in [
        ("blk.0.attn_k.weight", &[64, 64][..]),
        ("blk.0.attn_q_norm.weight", &[17]),
        ("blk.1.ffn_up.weight", &[64, 95]),
        ("blk.1.ffn_up.weight", &[64, 96, 2]),
        ("rope_freqs.weight", &[4]),
        ("output_norm.weight", &[]),
    ] {
        let mut model = full("llama");
        model.tensors.iter_mut().find(|(name, ..)| name == tensor).unwrap().1 = dims.to_vec();
        let error = refusal(&model);
        let said = format!("tensor `{tensor}` has shape {dims:?}, and the keys of the file make it [");
        assert!(error.contains(&said), "{error}");
    }
}

/// A model with a SentencePiece vocabulary: four texts and a token for each byte.
fn sentence_piece() -> Model {
    let mut model = full("llama");
    let tokens: Vec<Vec<u8>> = ["<unk>", "<s>", "</s>", "\u{2581}the"]
        .into_iter()
        .map(|text| text.as_bytes().to_vec())
        .chain((0..=255u8).map(|byte| format!("<0x{byte:02X}>").into_bytes()))
        .collect();
    let count = tokens.len();
    model.set("tokenizer.ggml.model", Value::string("llama"));
    model.set(
        "tokenizer.ggml.tokens",
        Value::Array(Array::String(tokens.iter().collect())),
    );
    model.set("tokenizer.ggml.scores", Value::Array(Array::F32(vec![0.0; count])));
    let types = (0..count).map(|id| if id < 4 { 1 } else { 6 }).collect();
    model.set("tokenizer.ggml.token_type", Value::Array(Array::I32(types)));
    for (name, dims, _) in &mut model.tensors {
        if ["token_embd.weight", "output.weight"].contains(&name.as_str()) {
            dims[1] = count as u64;
        }
    }
    model
}

#[test]
fn vocabularies_that_cannot_be_loaded_or_used_are_refused() {
    let strings = |texts: &[&str]| Value::Array(Array::String(texts.iter().collect()));
    sentence_piece().judge().unwrap();
    let token = |at: usize, text: &[u8]| {
        let mut model = sentence_piece();
        let Some((_, Value::Array(Array::String(tokens)))) = model
            .metadata
            .iter_mut()
            .find(|(key, _)| key == "tokenizer.ggml.tokens")
        else {
            panic!()
        };
        *tokens = tokens
            .iter()
            .enumerate()
            .map(|(id, old)| if id == at { text } else { old }.to_vec())
            .collect();
        model
    };
    for (model, said) in [
        (
            token(3, b"<s>"),
            "has the token `<s>` twice, the second time as number 3",
        ),
        // What is behind a zero byte is lost.
        (token(3, b"<s>\0x"), "has the token `<s>` twice"),
        (token(3, b"[EMPTY_2]"), ""),
        (
            token(14, b"newline"),
            "has no token <0x0A>, and a SentencePiece vocabulary needs one for each byte",
        ),
    ] {
        let said_now = model.judge().map(drop).map_err(|error| error.to_string());
        match said_now {
            Ok(()) => assert!(said.is_empty(), "{said}"),
            Err(error) if said.is_empty() => panic!("{error}"),
            Err(error) => assert!(
                error.contains(said) || error.contains("makes token 14 a byte"),
                "{error}"
            ),
        }
    }
    let cases: Vec<(&str, Value, &str)> = vec![
        (
            "tokenizer.ggml.scores",
            Value::Array(Array::F32(vec![0.0; 3])),
            "has 3 entries for 260 tokens",
        ),
        (
            "tokenizer.ggml.scores",
            Value::Array(Array::F32(vec![f32::NAN; 260])),
            "not a number",
        ),
        (
            "tokenizer.ggml.scores",
            Value::Array(Array::U32(vec![0; 260])),
            "is not an array of f32 or i32",
        ),
        (
            "tokenizer.ggml.token_type",
            Value::Array(Array::I32(vec![1; 9])),
            "has 9 entries for 260 tokens",
        ),
        (
            "tokenizer.ggml.token_type",
            Value::Array(Array::I32(vec![6; 260])),
            "makes token 0 a byte",
        ),
        ("tokenizer.ggml.token_type", Value::U32(1), "is not an array of i32"),
        ("tokenizer.ggml.tokens", Value::U32(1), "is not an array of texts"),
        (
            "tokenizer.ggml.bos_token_id",
            Value::U32(260),
            "names no token of the 260",
        ),
        (
            "tokenizer.ggml.model",
            Value::string("bert"),
            "no supported model has another",
        ),
        ("tokenizer.ggml.model", Value::U32(1), "is not a text"),
    ];
    for (key, value, said) in cases {
        let mut model = sentence_piece();
        model.set(key, value);
        let error = refusal(&model);
        assert!(error.contains(key) && error.contains(said), "{error}");
        assert!(check_vocabulary(&Gguf::from_bytes(&model.bytes()).unwrap()).is_err());
    }
    let mut none = sentence_piece();
    none.set("tokenizer.ggml.padding_token_id", Value::U32(u32::MAX));
    none.judge().unwrap();
    for (merges, said) in [
        (Value::U32(1), "is not an array of texts"),
        (strings(&["a b", "ab"]), "has no pair of texts at number 1"),
        (strings(&["a "]), "has no pair of texts at number 0"),
    ] {
        let mut model = full("llama");
        model.set("tokenizer.ggml.merges", merges);
        assert!(refusal(&model).contains(said), "{said}");
    }
    let mut model = full("llama");
    model.metadata.retain(|(key, _)| key != "tokenizer.ggml.merges");
    assert!(refusal(&model).contains("`tokenizer.ggml.merges` is missing"));
}

#[test]
fn a_stage_whose_vocabulary_is_not_that_of_its_tensors_is_refused() {
    let directory = tempdir().unwrap();
    let mut model = full("llama");
    let source = model.open(directory.path());
    check_stage(&stage(&source, 1, 2, directory.path())).unwrap();
    model.metadata.retain(|(key, _)| !key.starts_with("tokenizer."));
    model.arch("vocab_size", Value::U32(u32::MAX));
    let error = check_stage(&Gguf::from_bytes(&model.bytes()).unwrap()).unwrap_err();
    assert!(error.to_string().contains("differs from the 100 rows"), "{error}");
}
