//! The architecture table: what is supported, where it may be cut, and why the rest is refused.

use mesh_gguf::{Architecture, Array, Gguf, GgufError, SUPPORTED, TensorType, Value, refusal_reason, support};

use crate::fixture::{BUILT_IN, Model, file_bytes};

fn reason(model: &Model) -> String {
    match model.judge() {
        Err(error @ GgufError::Unsupported { .. }) => error.to_string(),
        other => panic!("expected a refusal, got {other:?}"),
    }
}

fn illegal(architecture: &Architecture, start: u32, end: u32) -> String {
    match architecture.check_range(start, end) {
        Err(error @ GgufError::IllegalRange { .. }) => error.to_string(),
        other => panic!("expected a refusal, got {other:?}"),
    }
}

/// A file each row accepts.
fn sample(name: &'static str, layers: u32) -> Model {
    let mut model = Model::new(name, layers).without("rope_freqs.weight");
    if name == "llama4" {
        model.arch("interleave_moe_layer_step", Value::U32(1));
    }
    if name == "gpt-oss" {
        model.arch("attention.sliding_window", Value::U32(128));
    }
    model
}

/// Heads twice as long, so that heads × length is no longer the width.
fn lengthen_heads(model: &mut Model) {
    model.arch("attention.key_length", Value::U32(32));
    model.arch("attention.value_length", Value::U32(32));
    for (name, dims, _) in &mut model.tensors {
        if name.ends_with("attn_q.weight") {
            dims[1] = 128;
        }
    }
}

#[test]
fn every_row_is_accepted_and_listed_once() {
    for row in SUPPORTED {
        let architecture = sample(row.name, 8).judge().unwrap();
        assert_eq!(
            (architecture.name(), architecture.layers(), architecture.vocab_size()),
            (row.name, 8, 100)
        );
        assert!(!row.note.is_empty());
        assert_eq!(SUPPORTED.iter().filter(|other| other.name == row.name).count(), 1);
        assert_eq!(refusal_reason(row.name), "it is not in the table");
    }
}

#[test]
fn most_rows_can_be_cut_anywhere() {
    for row in SUPPORTED
        .iter()
        .filter(|row| !["llama4", "smollm3"].contains(&row.name))
    {
        assert_eq!(
            sample(row.name, 6).judge().unwrap().legal_cuts(),
            [1, 2, 3, 4, 5],
            "{}",
            row.name
        );
    }
}

#[test]
fn ranges_between_legal_cuts_are_legal_with_few_exceptions() {
    for row in SUPPORTED {
        assert_eq!(
            sample(row.name, 8).judge().unwrap().illegal_ranges(),
            [],
            "{}",
            row.name
        );
    }
    // A Llama 4 file whose own pattern leaves layers 4 to 11 without the window.
    let mut model = sample("llama4", 16);
    let pattern = (0..16).map(|layer| !(4..12).contains(&layer)).collect();
    model.arch("attention.sliding_window_pattern", Value::Array(Array::Bool(pattern)));
    let architecture = model.judge().unwrap();
    let ranges: Vec<_> = architecture
        .illegal_ranges()
        .into_iter()
        .map(|(range, _)| range)
        .collect();
    assert_eq!(ranges, [4..8, 4..12, 8..12]);
    assert!(illegal(&architecture, 4, 8).contains("sliding window"));
    architecture.check_range(8, 16).unwrap();
}

#[test]
fn smollm3_is_cut_at_multiples_of_four() {
    let architecture = sample("smollm3", 14).judge().unwrap();
    assert_eq!(architecture.legal_cuts(), [4, 8, 12]);
    architecture.check_range(12, 14).unwrap();
    let error = illegal(&architecture, 4, 6);
    assert!(
        error.contains("cut at layer 6") && error.contains("multiples of 4"),
        "{error}"
    );
}

#[test]
fn llama4_is_cut_at_multiples_of_four_and_of_its_expert_step() {
    let mut model = sample("llama4", 24);
    assert_eq!(model.judge().unwrap().legal_cuts(), [4, 8, 12, 16, 20]);
    model.arch("interleave_moe_layer_step", Value::U32(2));
    assert_eq!(model.judge().unwrap().legal_cuts(), [4, 8, 12, 16, 20]);
    model.arch("interleave_moe_layer_step", Value::U32(3));
    assert_eq!(model.judge().unwrap().legal_cuts(), [12]);
}

#[test]
fn llama4_without_a_window_is_one_stage_only() {
    let mut model = sample("llama4", 8);
    model.arch("attention.sliding_window", Value::U32(0));
    let architecture = model.judge().unwrap();
    assert!(architecture.legal_cuts().is_empty());
    architecture.check_range(0, 8).unwrap();
    assert!(illegal(&architecture, 0, 4).contains("leaves rope out of a file's last layer"));
}

#[test]
fn llama4_without_experts_is_refused() {
    let mut model = sample("llama4", 8);
    model.arch("expert_count", Value::U32(0));
    assert!(reason(&model).contains("without experts"));
}

#[test]
fn gemma3_with_the_layers_of_the_27b_is_one_stage_only() {
    let mut model = sample("gemma3", 62);
    // Equal scales: 64 / 4 = 16 = key length, so nothing differs.
    assert_eq!(model.judge().unwrap().legal_cuts().len(), 61);
    lengthen_heads(&mut model);
    let architecture = model.judge().unwrap();
    assert!(architecture.legal_cuts().is_empty());
    architecture.check_range(0, 62).unwrap();
    assert!(illegal(&architecture, 0, 31).contains("the 27B"));
}

#[test]
fn a_gemma3_stage_must_not_have_the_layers_of_the_27b() {
    let mut model = sample("gemma3", 80);
    lengthen_heads(&mut model);
    let architecture = model.judge().unwrap();
    assert!(illegal(&architecture, 0, 62).contains("62 layers"));
    assert!(illegal(&architecture, 10, 72).contains("62 layers"));
    architecture.check_range(0, 61).unwrap();
    architecture.check_range(0, 63).unwrap();
}

#[test]
fn other_architectures_are_refused_by_name_with_the_trap() {
    for (name, said) in [
        ("gemma2", "embedding scale"),
        ("gpt2", "before layer 0"),
        ("mamba", "cannot rewind"),
        ("deepseek2", "MLA"),
        ("qwen2vl", "M-RoPE"),
        ("bert", "cannot generate"),
        ("clip", "projector"),
        ("command-r", "number of layers"),
        ("phi2", "not proven"),
        ("something-new", "not in the table"),
    ] {
        let error = reason(&Model::new(name, 4));
        assert!(error.contains(&format!("`{name}`")) && error.contains(said), "{error}");
    }
}

#[test]
fn files_that_are_not_language_models_are_refused() {
    for (kind, said) in [
        ("adapter", "LoRA"),
        ("mmproj", "projector"),
        ("imatrix", "type `imatrix`"),
    ] {
        let mut model = Model::new("llama", 4);
        model.set("general.type", Value::string(kind));
        assert!(reason(&model).contains(said));
    }
    let mut metadata_only = Model::new("llama", 4);
    metadata_only.tensors.clear();
    assert!(reason(&metadata_only).contains("no tensors"));
    let mut model = Model::new("llama", 4);
    model.set("general.type", Value::string("model"));
    model.judge().unwrap();
}

#[test]
fn traps_of_single_files_are_refused() {
    let traps: [(&str, Value, &str); 9] = [
        ("attention.causal", Value::Bool(false), "encoder"),
        ("pooling_type", Value::U32(3), "embedding or classification"),
        (
            "classifier.output_labels",
            Value::Array(Array::String(["a", "b"].into_iter().collect())),
            "classification",
        ),
        ("nextn_predict_layers", Value::U32(1), "multi-token prediction"),
        ("n_deepstack_layers", Value::U32(3), "deepstack"),
        (
            "rope.dimension_sections",
            Value::Array(Array::I32(vec![16, 24, 24, 0])),
            "M-RoPE",
        ),
        (
            "attention.head_count_kv",
            Value::Array(Array::U32(vec![2, 2, 4, 2])),
            "differs between layers",
        ),
        ("attention.key_length_swa", Value::U32(8), "differs from"),
        ("embedding_length_out", Value::U32(8), "another width"),
    ];
    for (suffix, value, said) in traps {
        let mut model = Model::new("llama", 4);
        model.arch(suffix, value);
        let error = reason(&model);
        assert!(error.contains(said), "{suffix}: {error}");
    }
}

#[test]
fn an_unknown_global_tensor_is_refused_by_name() {
    let mut model = Model::new("llama", 4);
    model.tensor("position_embd.weight", &[64, 100], TensorType::F32);
    assert!(reason(&model).contains("`position_embd.weight`"));
}

#[test]
fn missing_layers_and_tensors_are_named() {
    let mut model = Model::new("llama", 4);
    model.tensors.retain(|(name, ..)| !name.starts_with("blk.2."));
    assert!(model.judge().unwrap_err().to_string().contains("`blk.2.*`"));
    let mut model = Model::new("llama", 4);
    model.tensor("blk.4.attn_q.weight", &[64, 64], TensorType::F32);
    assert!(model.judge().unwrap_err().to_string().contains("`blk.4.attn_q.weight`"));
    for tensor in ["token_embd.weight", "output_norm.weight"] {
        assert!(
            Model::new("llama", 4)
                .without(tensor)
                .judge()
                .unwrap_err()
                .to_string()
                .contains(tensor)
        );
    }
    assert!(sample("olmo2", 4).without("output.weight").judge().is_err());
    assert!(Model::new("llama", 4).without("output.weight").judge().unwrap().tied());
}

#[test]
fn vocabulary_sizes_must_agree() {
    let mut model = Model::new("llama", 4);
    model.set(
        "tokenizer.ggml.tokens",
        Value::Array(Array::String(["a"].into_iter().collect())),
    );
    assert!(model.judge().unwrap_err().to_string().contains("100 rows for 1 tokens"));
}

#[test]
fn layer_counts_beyond_llama_cpp_are_refused() {
    for layers in [0, 513, u32::MAX] {
        let mut model = Model::new("llama", 1);
        model.arch("block_count", Value::U32(layers));
        assert!(matches!(model.judge(), Err(GgufError::BadKey { .. })));
    }
    let nameless = file_bytes(&[], &[("t".to_owned(), vec![4], TensorType::F32)], 32);
    assert!(matches!(
        support(&Gguf::from_bytes(&nameless).unwrap()),
        Err(GgufError::MissingKey { .. })
    ));
}

#[test]
fn the_built_in_model_is_supported() {
    let architecture = support(&Gguf::open(BUILT_IN).unwrap()).unwrap();
    assert_eq!(
        (architecture.name(), architecture.layers(), architecture.tied()),
        ("llama", 8, true)
    );
}

#[test]
fn keys_that_llama_cpp_saves_with_neutral_values_are_no_traps() {
    let mut model = Model::new("llama", 4);
    model.arch("pooling_type", Value::U32(u32::MAX));
    model.arch(
        "classifier.output_labels",
        Value::Array(Array::String(Vec::<&str>::new().into_iter().collect())),
    );
    model.arch("rope.dimension_sections", Value::Array(Array::I32(vec![0; 4])));
    model.arch("nextn_predict_layers", Value::U32(0));
    model.arch("n_deepstack_layers", Value::U32(0));
    model.arch("attention.key_length_swa", Value::U32(16));
    model.arch("attention.causal", Value::Bool(true));
    model.judge().unwrap();
}
