use mesh_gguf::{Array, Gguf, ModelDescription, Value, describe};
use tempfile::tempdir;

use crate::fixture::{BUILT_IN, Model};

#[test]
fn the_built_in_model_is_described() {
    let description = describe(&Gguf::open(BUILT_IN).unwrap()).unwrap();
    assert_eq!(
        (description.architecture.as_str(), description.name.as_deref()),
        ("llama", Some("Psalm 2M"))
    );
    assert_eq!(
        (
            description.layers,
            description.context_length,
            description.embedding_length
        ),
        (8, 512, 128)
    );
    assert_eq!(
        (
            description.vocab_size,
            description.quantization.as_str(),
            description.tied
        ),
        (2048, "Q8_0", true)
    );
    let tokenizer = description.tokenizer.unwrap();
    assert_eq!(
        (tokenizer.model.as_str(), tokenizer.tokens, tokenizer.eos_id),
        ("gpt2", 2048, Some(2))
    );
    assert!(tokenizer.has_chat_template);
    // 2 heads of 32 keys and 32 values, f16.
    assert_eq!(description.kv_bytes_per_position, [256; 8]);
    assert!(description.experts.is_none());
    assert_eq!(description.source_id.len(), 64);
}

#[test]
fn bytes_add_up_to_the_tensors() {
    let dir = tempdir().unwrap();
    let gguf = Model::new("llama", 5).open(dir.path());
    let description = describe(&gguf).unwrap();
    let sum = description.layer_bytes.iter().sum::<u64>()
        + description.token_embd_bytes
        + description.output_bytes
        + description.global_bytes;
    assert_eq!(sum, gguf.tensors().iter().map(|tensor| tensor.bytes).sum::<u64>());
    assert_eq!(description.layer_bytes.len(), 5);
    assert_eq!(description.quantizations["Q4_0"].tensors, 5);
    assert_eq!(description.total_bytes, std::fs::metadata(gguf.path()).unwrap().len());
    assert!(!description.tied);
}

#[test]
fn cache_sizes_follow_per_layer_heads() {
    let mut model = Model::new("deci", 3);
    model.arch("attention.head_count_kv", Value::Array(Array::I32(vec![1, 0, 4])));
    model.arch("attention.value_length", Value::U32(8));
    let description = describe(&Gguf::from_bytes(&model.bytes()).unwrap()).unwrap();
    assert_eq!(description.kv_bytes_per_position, [48, 0, 192]);
}

#[test]
fn experts_are_counted() {
    let mut model = Model::new("qwen3moe", 2);
    model
        .arch("expert_count", Value::U32(128))
        .arch("expert_used_count", Value::U32(8));
    let experts = describe(&Gguf::from_bytes(&model.bytes()).unwrap())
        .unwrap()
        .experts
        .unwrap();
    assert_eq!((experts.total, experts.used, experts.shared), (128, 8, 0));
}

#[test]
fn a_description_survives_json() {
    let description = describe(&Gguf::from_bytes(&Model::new("llama", 2).bytes()).unwrap()).unwrap();
    let json = serde_json::to_string(&description).unwrap();
    assert_eq!(serde_json::from_str::<ModelDescription>(&json).unwrap(), description);
}

#[test]
fn what_is_missing_is_named() {
    let mut model = Model::new("llama", 2);
    model.metadata.retain(|(key, _)| key != "llama.context_length");
    let error = describe(&Gguf::from_bytes(&model.bytes()).unwrap())
        .unwrap_err()
        .to_string();
    assert!(error.contains("`llama.context_length` is missing"), "{error}");
}
