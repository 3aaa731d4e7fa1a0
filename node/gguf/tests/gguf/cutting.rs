use std::fs;

use mesh_gguf::{Array, Gguf, GgufError, StageCut, TensorType, Value, support, verify};
use tempfile::tempdir;

use crate::fixture::{Model, content, cut, go_on, noise, stage};

#[test]
fn blocks_are_renumbered_and_copied_byte_for_byte() {
    let dir = tempdir().unwrap();
    let source = Model::new("llama", 6).open(dir.path());
    let middle = stage(&source, 2, 5, dir.path());
    for local in 0..3 {
        for rest in ["attn_norm.weight", "attn_q.weight", "attn_sinks.weight"] {
            let from = format!("blk.{}.{rest}", local + 2);
            let to = format!("blk.{local}.{rest}");
            assert_eq!(content(&middle, &to), content(&source, &from));
            assert_eq!(middle.tensor(&to).unwrap().dims, source.tensor(&from).unwrap().dims);
        }
    }
    assert_eq!(middle.layers().unwrap(), 3);
    assert!(middle.tensor("blk.3.attn_q.weight").is_none());
}

#[test]
fn a_first_stage_has_the_embedding_and_no_output() {
    let dir = tempdir().unwrap();
    let source = Model::new("llama", 4).open(dir.path());
    let first = stage(&source, 0, 2, dir.path());
    assert_eq!(
        content(&first, "token_embd.weight"),
        content(&source, "token_embd.weight")
    );
    assert!(first.tensor("output.weight").is_none());
    assert!(first.tensor("output_norm.weight").is_some() && first.tensor("rope_freqs.weight").is_some());
    assert_eq!(first.get_u32("llama.vocab_size"), Some(100));
}

#[test]
fn a_middle_stage_has_a_stub_of_32_zero_rows() {
    let dir = tempdir().unwrap();
    let source = Model::new("llama", 4).open(dir.path());
    let middle = stage(&source, 1, 3, dir.path());
    assert_eq!(middle.tensor("token_embd.weight").unwrap().dims, [64, 32]);
    assert!(content(&middle, "token_embd.weight").iter().all(|byte| *byte == 0));
    assert!(middle.tensor("output.weight").is_none());
    assert_eq!(middle.get_u32("llama.vocab_size"), Some(32));
}

#[test]
fn a_last_stage_has_its_output_and_a_hole_for_the_embedding() {
    let dir = tempdir().unwrap();
    let source = Model::new("llama", 4).open(dir.path());
    let last = stage(&source, 2, 4, dir.path());
    assert_eq!(content(&last, "output.weight"), content(&source, "output.weight"));
    let hole = last.tensor("token_embd.weight").unwrap();
    assert_eq!(
        (hole.dims.as_slice(), hole.tensor_type),
        ([64, 100].as_slice(), TensorType::Q4_0)
    );
    assert!(content(&last, "token_embd.weight").iter().all(|byte| *byte == 0));
    assert_eq!(last.get_u32("llama.vocab_size"), Some(100));
}

#[test]
fn a_last_stage_of_a_tied_model_has_the_embedding_for_output() {
    let dir = tempdir().unwrap();
    let source = Model::new("llama", 4).without("output.weight").open(dir.path());
    let last = stage(&source, 2, 4, dir.path());
    assert_eq!(
        content(&last, "token_embd.weight"),
        content(&source, "token_embd.weight")
    );
    assert!(last.tensor("output.weight").is_none());
}

#[test]
fn where_the_loader_insists_on_an_output_other_stages_have_a_stub() {
    let dir = tempdir().unwrap();
    let source = Model::new("qwen2moe", 6).without("rope_freqs.weight").open(dir.path());
    let first = stage(&source, 0, 2, dir.path());
    assert_eq!(first.tensor("output.weight").unwrap().dims, [64, 100]);
    assert!(content(&first, "output.weight").iter().all(|byte| *byte == 0));
    let middle = stage(&source, 2, 4, dir.path());
    assert_eq!(middle.tensor("output.weight").unwrap().dims, [64, 32]);
    let last = stage(&source, 4, 6, dir.path());
    assert_eq!(content(&last, "output.weight"), content(&source, "output.weight"));
}

#[test]
fn an_output_bias_goes_to_the_last_stage_only() {
    let dir = tempdir().unwrap();
    let mut model = Model::new("qwen2", 4);
    model.tensor("output.bias", &[100], TensorType::F32);
    let source = model.open(dir.path());
    assert!(stage(&source, 0, 2, dir.path()).tensor("output.bias").is_none());
    assert_eq!(
        content(&stage(&source, 2, 4, dir.path()), "output.bias"),
        noise("output.bias", 400)
    );
}

#[test]
fn an_unused_classifier_head_is_left_out() {
    let dir = tempdir().unwrap();
    let mut model = Model::new("qwen3", 4).without("rope_freqs.weight");
    model.tensor("cls.output.weight", &[64, 1], TensorType::F32);
    let source = model.open(dir.path());
    for (start, end) in [(0, 2), (2, 4), (0, 4)] {
        assert!(
            stage(&source, start, end, dir.path())
                .tensor("cls.output.weight")
                .is_none()
        );
    }
}

#[test]
fn one_stage_over_all_layers_holds_everything() {
    let dir = tempdir().unwrap();
    let source = Model::new("llama", 3).open(dir.path());
    let whole = stage(&source, 0, 3, dir.path());
    assert_eq!(whole.tensors().len(), source.tensors().len());
    for tensor in source.tensors() {
        assert_eq!(
            content(&whole, &tensor.name),
            content(&source, &tensor.name),
            "{}",
            tensor.name
        );
    }
}

#[test]
fn per_layer_arrays_are_sliced_and_others_kept() {
    let dir = tempdir().unwrap();
    let mut model = Model::new("llama", 5);
    model.arch(
        "swiglu_clamp_exp",
        Value::Array(Array::F32(vec![0.0, 1.0, 2.0, 3.0, 4.0])),
    );
    model.arch("attention.head_count", Value::Array(Array::U32(vec![4; 5])));
    model.arch("something.else", Value::Array(Array::I32(vec![7, 8, 9])));
    model.set(
        "general.tags",
        Value::Array(Array::String((0..5).map(|i| format!("tag{i}")).collect())),
    );
    let middle = stage(&model.open(dir.path()), 1, 4, dir.path());
    assert_eq!(
        middle.get_array("llama.swiglu_clamp_exp"),
        Some(&Array::F32(vec![1.0, 2.0, 3.0]))
    );
    assert_eq!(
        middle.get_array("llama.attention.head_count"),
        Some(&Array::U32(vec![4; 3]))
    );
    assert_eq!(
        middle.get_array("llama.something.else"),
        Some(&Array::I32(vec![7, 8, 9]))
    );
    assert_eq!(middle.get_array("general.tags").unwrap().len(), 5);
}

#[test]
fn leading_dense_layers_are_counted_from_the_stage() {
    let dir = tempdir().unwrap();
    let mut model = Model::new("llama", 6);
    model.arch("leading_dense_block_count", Value::U32(3));
    let source = model.open(dir.path());
    let left = |start, end| stage(&source, start, end, dir.path()).get_u32("llama.leading_dense_block_count");
    assert_eq!(left(0, 2), Some(2));
    assert_eq!(left(2, 4), Some(1));
    assert_eq!(left(4, 6), Some(0));
}

#[test]
fn window_patterns_are_written_out_layer_by_layer() {
    let dir = tempdir().unwrap();
    let mut model = Model::new("gemma3", 12).without("rope_freqs.weight");
    model.arch("attention.sliding_window", Value::U32(128));
    let key = "gemma3.attention.sliding_window_pattern";
    let pattern = |source: &Gguf, start, end| match stage(source, start, end, dir.path()).get_array(key) {
        Some(Array::Bool(pattern)) => pattern.clone(),
        other => panic!("{other:?}"),
    };
    // No key: five of six.
    assert_eq!(pattern(&model.open(dir.path()), 4, 8), [true, false, true, true]);
    // A number.
    model.set(key, Value::U32(3));
    assert_eq!(pattern(&model.open(dir.path()), 1, 5), [true, false, true, true]);
    // An array.
    let array = (0..12).map(|layer| layer == 7).collect();
    model.set(key, Value::Array(Array::Bool(array)));
    assert_eq!(pattern(&model.open(dir.path()), 6, 9), [false, true, false]);
}

const WINDOW: &str = "attention.sliding_window";
const PATTERN: &str = "attention.sliding_window_pattern";

#[test]
fn a_stage_without_windowed_layers_has_no_window_where_the_loader_can_do_without() {
    let dir = tempdir().unwrap();
    for (name, full) in [("gemma3", 5), ("olmo2", 3)] {
        let mut model = Model::new(name, 8).without("rope_freqs.weight");
        model.arch(WINDOW, Value::U32(128));
        model.arch("rope.freq_base_swa", Value::F32(5_000.0));
        let source = model.open(dir.path());
        let alone = stage(&source, full, full + 1, dir.path());
        assert!(alone.get(&format!("{name}.{WINDOW}")).is_none());
        assert!(alone.get(&format!("{name}.{PATTERN}")).is_none());
        let with_another = stage(&source, full - 1, full + 1, dir.path());
        assert_eq!(with_another.get_u32(&format!("{name}.{WINDOW}")), Some(128));
        let windowed = stage(&source, 0, full, dir.path());
        let all = vec![true; full as usize];
        assert_eq!(
            windowed.get_array(&format!("{name}.{PATTERN}")),
            Some(&Array::Bool(all))
        );
    }
}

#[test]
fn a_stage_without_windowed_layers_has_a_window_that_hides_nothing_where_the_loader_insists() {
    let dir = tempdir().unwrap();
    let mut model = Model::new("gpt-oss", 4).without("rope_freqs.weight");
    model.arch(WINDOW, Value::U32(128));
    model.arch("rope.freq_base_swa", Value::F32(5_000.0));
    let alone = |model: &Model| stage(&model.open(dir.path()), 3, 4, dir.path());
    let cut = alone(&model);
    assert_eq!(cut.get_u32(&format!("gpt-oss.{WINDOW}")), Some(1 << 20));
    assert_eq!(
        cut.get_array(&format!("gpt-oss.{PATTERN}")),
        Some(&Array::Bool(vec![true]))
    );
    assert!(cut.get("gpt-oss.rope.freq_base_swa").is_none());
    // No context is longer than that window, whatever the file claims.
    model.arch("context_length", Value::U32(3 << 20));
    assert_eq!(model.judge().unwrap().longest_context(), Some(1 << 20));
    // The others keep theirs.
    let windowed = stage(&model.open(dir.path()), 2, 3, dir.path());
    assert_eq!(windowed.get_u32(&format!("gpt-oss.{WINDOW}")), Some(128));
    assert!(windowed.get("gpt-oss.rope.freq_base_swa").is_some());
}

#[test]
fn tokenizer_split_and_alignment_keys_are_dropped() {
    let dir = tempdir().unwrap();
    let mut model = Model::new("llama", 4);
    model.alignment = 128;
    model.set("general.alignment", Value::U32(128));
    let source = model.open(dir.path());
    for (start, end) in [(0, 1), (1, 3), (3, 4)] {
        let stage = stage(&source, start, end, dir.path());
        let tokenizer: Vec<&str> = stage
            .metadata()
            .map(|(key, _)| key)
            .filter(|key| key.starts_with("tokenizer."))
            .collect();
        assert_eq!(tokenizer, ["tokenizer.ggml.model"]);
        assert_eq!(stage.get_str("tokenizer.ggml.model"), Some("none"));
        assert!(stage.get("general.alignment").is_none() && stage.get("split.count").is_none());
    }
}

#[test]
fn tensors_named_for_other_precision_are_renumbered_with_their_layers() {
    let dir = tempdir().unwrap();
    let mut model = Model::new("llama", 4);
    let names = ["blk.0.attn_q.weight", "blk.2.attn_q.weight", "output.weight"]
        .into_iter()
        .collect();
    model.set("general.tensor_extra.name", Value::Array(Array::String(names)));
    model.set(
        "general.tensor_extra.prec_a4",
        Value::Array(Array::Bool(vec![true, false, true])),
    );
    let last = stage(&model.open(dir.path()), 1, 4, dir.path());
    let Some(Array::String(names)) = last.get_array("general.tensor_extra.name") else {
        panic!()
    };
    assert_eq!(
        names.iter().collect::<Vec<_>>(),
        [b"blk.1.attn_q.weight".as_slice(), b"output.weight"]
    );
    assert_eq!(
        last.get_array("general.tensor_extra.prec_a4"),
        Some(&Array::Bool(vec![false, true]))
    );
}

#[test]
fn a_layer_has_the_same_bytes_and_digest_in_every_stage() {
    let dir = tempdir().unwrap();
    let source = Model::new("llama", 6).open(dir.path());
    let a = cut(&source, 0, 4, dir.path()).manifest;
    let b = cut(&source, 2, 6, dir.path()).manifest;
    for layer in 2..4 {
        let of = |manifest: &mesh_gguf::StageManifest| {
            manifest
                .layers
                .iter()
                .find(|digest| digest.layer == layer)
                .unwrap()
                .section
                .clone()
        };
        assert_eq!((of(&a).bytes, of(&a).blake3), (of(&b).bytes, of(&b).blake3));
    }
    assert_ne!(a.layers[0].section.blake3, a.layers[1].section.blake3);
}

#[test]
fn sections_cover_the_file_and_their_digests_are_those_of_its_bytes() {
    let dir = tempdir().unwrap();
    let source = Model::new("llama", 5).open(dir.path());
    let artifact = cut(&source, 3, 5, dir.path());
    let bytes = fs::read(&artifact.path).unwrap();
    let manifest = artifact.manifest;
    assert_eq!((manifest.bytes, manifest.layers.len()), (bytes.len() as u64, 2));
    assert_eq!(manifest.blake3, blake3::hash(&bytes).to_hex().as_str());
    let mut at = 0;
    let layers = manifest.layers.iter().map(|layer| &layer.section);
    for section in [&manifest.header, &manifest.globals].into_iter().chain(layers) {
        assert_eq!(section.offset, at);
        at += section.bytes;
        let range = section.offset as usize..at as usize;
        assert_eq!(section.blake3, blake3::hash(&bytes[range]).to_hex().as_str());
    }
    assert_eq!(at, manifest.bytes);
    assert_eq!((manifest.layers[1].layer, manifest.layers[1].local), (4, 1));
}

#[test]
fn verify_names_the_layer_that_was_altered() {
    let dir = tempdir().unwrap();
    let artifact = cut(&Model::new("llama", 5).open(dir.path()), 1, 4, dir.path());
    verify(&artifact.path, &artifact.manifest).unwrap();
    let mut bytes = fs::read(&artifact.path).unwrap();
    bytes[artifact.manifest.layers[1].section.offset as usize + 3] ^= 1;
    fs::write(&artifact.path, &bytes).unwrap();
    let error = verify(&artifact.path, &artifact.manifest).unwrap_err().to_string();
    assert!(error.contains("layer 2 ("), "{error}");
    fs::write(&artifact.path, &bytes[1..]).unwrap();
    assert!(matches!(
        verify(&artifact.path, &artifact.manifest),
        Err(GgufError::Corrupt { .. })
    ));
}

#[cfg(unix)]
#[test]
fn the_hole_takes_no_disk() {
    use std::os::unix::fs::MetadataExt;
    let dir = tempdir().unwrap();
    let mut model = Model::new("llama", 2);
    let rows = 400_000;
    for name in ["token_embd.weight", "output.weight"] {
        model = model.without(name);
    }
    model.tensor("token_embd.weight", &[64, rows], TensorType::Q4_0);
    model.tensor("output.weight", &[64, rows], TensorType::Q4_0);
    model.set(
        "tokenizer.ggml.tokens",
        Value::Array(Array::String((0..rows).map(|id| format!("t{id}")).collect())),
    );
    let artifact = cut(&model.open(dir.path()), 1, 2, dir.path());
    let on_disk = fs::metadata(&artifact.path).unwrap().blocks() * 512;
    let matrix = rows * 64 / 32 * 18;
    assert!(artifact.manifest.bytes > 2 * matrix);
    assert!(
        on_disk < artifact.manifest.bytes - matrix + (1 << 20),
        "{on_disk} bytes on disk"
    );
    verify(&artifact.path, &artifact.manifest).unwrap();
}

#[test]
fn ranges_outside_the_model_are_refused() {
    let dir = tempdir().unwrap();
    let source = Model::new("llama", 4).open(dir.path());
    let architecture = support(&source).unwrap();
    for (start, end) in [(2, 2), (3, 2), (0, 5), (4, 5)] {
        let result = StageCut::plan(&source, &architecture, start..end);
        assert!(matches!(result, Err(GgufError::IllegalRange { .. })), "{start}..{end}");
    }
}

#[test]
fn progress_ends_at_the_size_of_the_file() {
    let dir = tempdir().unwrap();
    let source = Model::new("llama", 4).open(dir.path());
    let architecture = support(&source).unwrap();
    let plan = StageCut::plan(&source, &architecture, 1..3).unwrap();
    let mut seen = Vec::new();
    let artifact = plan.write(dir.path(), &mut |progress| {
        seen.push(progress);
        go_on(progress)
    });
    assert_eq!(artifact.unwrap().manifest.bytes, plan.file_bytes());
    assert!(seen.windows(2).all(|pair| pair[0].done <= pair[1].done));
    assert_eq!(seen.last().unwrap().done, plan.file_bytes());
    assert!(seen.iter().any(|progress| progress.layer == Some(2)));
}
