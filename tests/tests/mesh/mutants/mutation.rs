//! One change of a good file, chosen by a seed.

use mesh_gguf::{Array, StringArray, TensorType, Value};

use crate::gguf_file::GgufFile;

/// Numbers that break assumptions.
const NUMBERS: [u32; 16] = [
    0,
    1,
    2,
    3,
    5,
    7,
    16,
    31,
    64,
    127,
    129,
    1000,
    65_536,
    1 << 22,
    1 << 31,
    u32::MAX,
];

/// Floats that do.
const FLOATS: [f32; 10] = [
    f32::NAN,
    f32::INFINITY,
    f32::NEG_INFINITY,
    -1.0,
    0.0,
    -0.0,
    1e-45,
    1e38,
    -1e-5,
    1.0,
];

/// Texts of keys that hold a text.
const TEXTS: [&str; 6] = ["", "none", "linear", "llama", "longrope", "su\u{1b}[2J"];

/// Keys that a good file may lack, and one that has them means something by.
const ADDED: [&str; 12] = [
    "expert_count",
    "expert_used_count",
    "expert_group_count",
    "expert_group_used_count",
    "rope.dimension_count",
    "attention.key_length",
    "attention.value_length",
    "attention.sliding_window",
    "attention.sliding_window_pattern",
    "expert_feed_forward_length",
    "leading_dense_block_count",
    "nextn_predict_layers",
];

/// How keys begin that these graphs read; llama.cpp writes a hundred more.
const READ: [&str; 15] = [
    "attention.head_count",
    "attention.key_length",
    "attention.value_length",
    "attention.layer_norm",
    "attention.sliding_window",
    "attention.causal",
    "block_count",
    "context_length",
    "embedding_length",
    "expert_",
    "feed_forward_length",
    "final_logit_softcapping",
    "pooling_type",
    "rope.",
    "vocab_size",
];

/// Numbers of all tensor types, the removed ones left out.
const TYPES: [u32; 35] = [
    0, 1, 2, 3, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30, 34, 35,
    39, 40, 41, 42,
];

/// Tries of a choice that changes nothing, before another is made.
const TRIES: u32 = 50;

/// A file and what was done to it.
pub struct Mutation {
    pub what: String,
    pub bytes: Vec<u8>,
}

/// SplitMix64 (Steele, Lea, Flood 2014).
struct Choices(u64);

impl Choices {
    fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut value = self.0;
        value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((value ^ (value >> 31)) % bound.max(1) as u64) as usize
    }

    fn of<'a, T>(&mut self, all: &'a [T]) -> &'a T {
        &all[self.below(all.len())]
    }
}

impl Mutation {
    /// The mutant of a seed: one or two changes.
    pub fn new(sources: &[GgufFile], seed: u64) -> Self {
        let mut choices = Choices(seed.wrapping_mul(0x2545_f491_4f6c_dd1d));
        let mut header = choices.of(sources).clone();
        let architecture = text(&header, "general.architecture");
        let mut done = Vec::new();
        let changes = 1 + choices.below(3) / 2;
        for _ in 0..TRIES {
            if done.len() == changes {
                break;
            }
            done.extend(change(&mut header, &architecture, &mut choices));
        }
        Self {
            what: format!("seed {seed}, {architecture}: {}", done.join(", ")),
            bytes: header.bytes(),
        }
    }
}

fn text(header: &GgufFile, key: &str) -> String {
    let value = header.metadata.iter().find(|(known, _)| known == key);
    value
        .and_then(|(_, value)| value.as_str())
        .unwrap_or_default()
        .to_owned()
}

/// Makes one change, unless the choice changes nothing.
fn change(header: &mut GgufFile, architecture: &str, choices: &mut Choices) -> Option<String> {
    match choices.below(10) {
        0..4 => change_type(header, choices),
        4..8 => change_value(header, architecture, choices),
        8 => add_key(header, architecture, choices),
        _ => change_vocabulary(header, choices),
    }
}

fn change_type(header: &mut GgufFile, choices: &mut Choices) -> Option<String> {
    let new = TensorType::from_id(*choices.of(&TYPES))?;
    let index = choices.below(header.tensors.len());
    let tensor = &mut header.tensors[index];
    if new == tensor.tensor_type || new.bytes_for(&tensor.dims).is_none() {
        return None;
    }
    tensor.tensor_type = new;
    Some(format!("{} as {new}", tensor.name))
}

fn change_value(header: &mut GgufFile, architecture: &str, choices: &mut Choices) -> Option<String> {
    let read = |key: &str| {
        let suffix = key.strip_prefix(architecture).and_then(|rest| rest.strip_prefix('.'));
        suffix.is_some_and(|suffix| READ.iter().any(|start| suffix.starts_with(start)))
    };
    let mut own: Vec<_> = header.metadata.iter_mut().filter(|(key, _)| read(key)).collect();
    let index = choices.below(own.len());
    let (key, value) = own.get_mut(index)?;
    let new = match value {
        Value::U32(_) => Value::U32(*choices.of(&NUMBERS)),
        Value::F32(_) => Value::F32(*choices.of(&FLOATS)),
        Value::Bool(old) => Value::Bool(!*old),
        Value::String(_) => Value::string(*choices.of(&TEXTS)),
        Value::Array(array) => Value::Array(array.slice(0, array.len() / 2)),
        _ => return None,
    };
    if *value == new {
        return None;
    }
    *value = new;
    Some(format!("{key} is {value:?}"))
}

fn add_key(header: &mut GgufFile, architecture: &str, choices: &mut Choices) -> Option<String> {
    let key = format!("{architecture}.{}", choices.of(&ADDED));
    let value = Value::U32(*choices.of(&NUMBERS));
    let said = format!("{key} is {value:?}");
    header.metadata.retain(|(known, _)| *known != key);
    header.metadata.push((key, value));
    Some(said)
}

fn change_vocabulary(header: &mut GgufFile, choices: &mut Choices) -> Option<String> {
    let key = *choices.of(&[
        "tokenizer.ggml.tokens",
        "tokenizer.ggml.token_type",
        "tokenizer.ggml.merges",
        "tokenizer.ggml.model",
        "tokenizer.ggml.bos_token_id",
        "tokenizer.ggml.eos_token_id",
    ]);
    let (_, value) = header.metadata.iter_mut().find(|(known, _)| known == key)?;
    let (new, said) = match value {
        Value::U32(_) => {
            let id = *choices.of(&NUMBERS);
            (Value::U32(id), id.to_string())
        }
        // An SPM vocabulary without byte tokens, among others.
        Value::String(_) => {
            let model = *choices.of(&["llama", "bert", "t5", "rwkv", "plamo2", "none"]);
            (Value::string(model), model.to_owned())
        }
        Value::Array(Array::String(texts)) => {
            let doubled = choices.below(texts.len());
            let first = texts.get(0).unwrap_or_default();
            let other = texts.iter().enumerate();
            let other: StringArray = other
                .map(|(id, text)| if id == doubled { first } else { text })
                .collect();
            (Value::Array(Array::String(other)), format!("doubled at {doubled}"))
        }
        Value::Array(Array::I32(types)) => {
            let (at, kind) = (choices.below(types.len()), choices.below(9) as i32);
            let mut types = types.clone();
            types[at] = kind;
            (Value::Array(Array::I32(types)), format!("{kind} at {at}"))
        }
        _ => return None,
    };
    if *value == new {
        return None;
    }
    *value = new;
    Some(format!("{key} is {said}"))
}
