//! Every pre-tokenizer of llama.cpp on long runs of like characters: most are regular expressions that `std::regex`
//! matches by recursion.

use std::{
    path::{Path, PathBuf},
    thread,
};

use llama_cpp_2::model::{LlamaModel, params::LlamaModelParams};
use mesh_engine::{LlamaVocabulary, LlamaVocabularyLoader};
use mesh_gguf::{DEFAULT_ALIGNMENT, Gguf, Value, VocabularyCut, layout};
use mesh_proto::ErrorCode;

use crate::models;

/// The values of `tokenizer.ggml.pre` that llama.cpp tells apart (`llama-vocab.cpp`, `tokenizer_pre ==`, as vendored by
/// llama-cpp-sys-2 0.1.161), a line for each set of expressions (`llm_tokenizer_bpe`).
const PRE_TOKENIZERS: &[&[&str]] = &[
    &["default", "exaone4", "megrez"],
    &["minicpm5"],
    &[
        "llama3",
        "llama-v3",
        "llama-bpe",
        "falcon3",
        "falcon-h1",
        "pixtral",
        "midm-2.0",
        "lfm2",
        "jina-v5-nano",
        "dbrx",
        "smaug-bpe",
        "chatglm-bpe",
        "glm4",
        "glm5",
    ],
    &["jais-2"],
    &["deepseek-llm"],
    &["deepseek-coder"],
    &["deepseek-v3", "hunyuan-dense", "hy_v4", "joyai-llm"],
    &["spark2_5"],
    &["youtu"],
    &["falcon"],
    &[
        "starcoder",
        "refact",
        "command-r",
        "smollm",
        "codeshell",
        "exaone",
        "minerva-7b",
        "mellum2",
    ],
    &[
        "gpt-2",
        "phi-2",
        "jina-es",
        "jina-de",
        "gigachat",
        "jina-v2-es",
        "jina-v2-de",
        "a.x-4.0",
        "mellum",
        "modern-bert",
        "mpt",
        "olmo",
        "jais",
        "trillion",
        "granite-docling",
        "jina-v1-en",
        "jina-v2-code",
        "roberta-bpe",
    ],
    &[
        "qwen2",
        "deepseek-r1-qwen",
        "kormo",
        "f2llmv2",
        "stablelm2",
        "hunyuan",
        "solar-open",
        "grok-2",
        "minimax-m2",
    ],
    &["qwen35"],
    &["poro-chat", "bloom", "gpt3-finnish"],
    &["viking"],
    &["tekken"],
    &["chameleon"],
    &["gpt-4o", "llama4", "kanana2", "talkie"],
    &["granite-embed-multi-97m"],
    &["tiny_aya", "cohere2moe"],
    &["kimi-k2"],
    &["superbpe"],
    &["bailingmoe", "bailingmoe2", "llada-moe"],
    &["seed-coder"],
    &["ufakzeka"],
    &["afmoe"],
    &["laguna"],
    &["exaone-moe"],
    // These work on UTF-8 instead of GPT-2's spelling of bytes, which the vocabulary here has.
    &["gemma4", "granite-embed-multi-311m"],
    &["mmbert"],
    &["sarvam-moe"],
];

/// What those of the last three lines give back is less than the text. `whitespace` is not here: with this vocabulary
/// llama.cpp asserts on the first text, which is found when the vocabulary is loaded (`tests/tests/mesh/tokenizer.rs`).
const OTHER_SPELLING: [&str; 4] = ["gemma4", "granite-embed-multi-311m", "mmbert", "sarvam-moe"];

/// Letters, digits, punctuation, spaces, Han, emoji, combining marks; and mixtures that some expressions match as one.
const CLASSES: [&str; 12] = ["a", "A", "7", "!", " ", "\n", "漢", "🙂", "\u{301}", "aB", "a ", "é/"];

/// As long as the longest prompts.
const MILLION: usize = 1 << 20;

/// The built-in vocabulary with another pre-tokenizer.
fn vocabulary_file(pre: &str, directory: &Path) -> PathBuf {
    let whole = Gguf::open(models::built_in()).unwrap();
    let artifact = VocabularyCut::write(&whole, directory).unwrap();
    let cut = Gguf::open(&artifact.path).unwrap();
    let metadata: Vec<(String, Value)> = cut
        .metadata()
        .map(|(key, value)| {
            let value = match key {
                "tokenizer.ggml.pre" => Value::string(pre),
                _ => value.clone(),
            };
            (key.to_owned(), value)
        })
        .collect();
    assert_eq!(cut.tensors().len(), 0);
    let path = directory.join(format!("{pre}.gguf"));
    std::fs::write(&path, layout(&metadata, &[], DEFAULT_ALIGNMENT).header).unwrap();
    path
}

fn text(vocabulary: &LlamaVocabulary, tokens: &[u32]) -> Vec<u8> {
    let mut bytes = Vec::new();
    tokens.iter().for_each(|token| vocabulary.piece(*token, &mut bytes));
    bytes
}

/// Tokens that give the text back, or a refusal.
fn takes_or_refuses(pre: &str, characters: usize, classes: &[&str]) {
    let directory = tempfile::tempdir().unwrap();
    let vocabulary = LlamaVocabularyLoader
        .load_vocabulary(&vocabulary_file(pre, directory.path()))
        .unwrap();
    for class in classes {
        let sample = class.repeat(characters / class.chars().count());
        let started = std::time::Instant::now();
        match vocabulary.tokenize_raw(&sample, u32::MAX) {
            Ok(tokens) if OTHER_SPELLING.contains(&pre) => drop(tokens),
            Ok(tokens) => assert!(
                text(&vocabulary, &tokens) == sample.as_bytes(),
                "{pre} loses some of {class:?}"
            ),
            Err(error) => assert_eq!(error.code, ErrorCode::InvalidRequest, "{pre}, {class:?}: {error}"),
        }
        println!("{pre} {class:?}: {:?}", started.elapsed());
    }
}

#[test]
fn every_pre_tokenizer_takes_a_prompt_of_like_characters() {
    for pre in PRE_TOKENIZERS.iter().copied().flatten() {
        takes_or_refuses(pre, 1 << 13, &CLASSES);
    }
}

/// A second or two for each run: these are the expressions of models in use, and with them the kinds of recursion that the
/// others have; that those need no more stack is measured below.
#[test]
fn a_million_like_characters_are_tokenized_or_refused() {
    for pre in ["default", "falcon", "deepseek-llm", "tekken", "gpt-4o", "llama3"] {
        takes_or_refuses(pre, MILLION, &CLASSES[..9]);
    }
}

/// What a thread's stack holds of real memory after tokenizing, bytes.
#[cfg(target_os = "linux")]
fn stack_used(path: &Path, sample: &str) -> usize {
    let measure = || {
        // The token of an initialised library, which stays so.
        let backend = std::mem::ManuallyDrop::new(llama_cpp_2::llama_backend::LlamaBackend {});
        let params = LlamaModelParams::default().with_vocab_only(true);
        let model = LlamaModel::load_from_file(&backend, path, &params).unwrap();
        let before = resident_around(&raw const params as usize);
        let tokens = model.vocab().tokenize(sample.as_bytes(), false, true);
        drop(tokens);
        resident_around(&raw const params as usize) - before
    };
    thread::scope(|scope| {
        let thread = thread::Builder::new().stack_size(1 << 30).spawn_scoped(scope, measure);
        thread.unwrap().join().unwrap()
    })
}

/// Resident bytes of the mapping that holds an address.
#[cfg(target_os = "linux")]
fn resident_around(address: usize) -> usize {
    let maps = std::fs::read_to_string("/proc/self/smaps").unwrap();
    let mut is_here = false;
    for line in maps.lines() {
        let range = line.split(' ').next().and_then(|range| range.split_once('-'));
        let bound = |hex: &str| usize::from_str_radix(hex, 16).ok();
        if let Some((Some(start), Some(end))) = range.map(|(start, end)| (bound(start), bound(end))) {
            is_here = (start..end).contains(&address);
        }
        if let Some(size) = line.strip_prefix("Rss:").filter(|_| is_here) {
            return size.trim().trim_end_matches(" kB").parse::<usize>().unwrap() << 10;
        }
    }
    panic!("no mapping holds the stack");
}

/// `STACK_PER_CHARACTER` in `text_limits.rs` is a measurement: this is it, with a quarter to spare.
#[cfg(target_os = "linux")]
#[test]
fn no_pre_tokenizer_takes_more_stack_than_is_given() {
    const CHARACTERS: usize = 1 << 14;
    LlamaVocabularyLoader.load_vocabulary(&models::built_in()).unwrap();
    let directory = tempfile::tempdir().unwrap();
    let mut most = 0;
    for group in PRE_TOKENIZERS {
        let path = vocabulary_file(group[0], directory.path());
        for class in CLASSES {
            let sample = class.repeat(CHARACTERS / class.chars().count());
            let used = stack_used(&path, &sample) / CHARACTERS;
            if used > 16 {
                println!("{} {class:?}: {used} bytes a character", group[0]);
            }
            most = most.max(used);
        }
    }
    assert!(
        most * 5 / 4 <= mesh_engine::STACK_PER_CHARACTER,
        "{most} bytes a character"
    );
}
