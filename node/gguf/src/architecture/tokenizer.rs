//! The vocabulary of a file: what llama.cpp asserts on when it loads one, or throws over when it tokenizes.
//!
//! Source: `llama_vocab::impl::load`, `llm_tokenizer_spm_session` and `llama_vocab::byte_to_token` (llama-vocab.cpp).

use std::borrow::Cow;
use std::collections::HashSet;

use crate::array::{Array, StringArray};
use crate::error::GgufError;
use crate::gguf::Gguf;
use crate::value::Value;

const MODEL: &str = "tokenizer.ggml.model";
const TOKENS: &str = "tokenizer.ggml.tokens";
const SCORES: &str = "tokenizer.ggml.scores";
const TYPES: &str = "tokenizer.ggml.token_type";
const MERGES: &str = "tokenizer.ggml.merges";

/// Tokenizers of supported models: SentencePiece and BPE. llama.cpp has others for encoders and for architectures that are
/// not supported, and asserts that a vocabulary has what they look for.
const KINDS: [&str; 2] = ["llama", "gpt2"];

/// What a file without tokenizer has as its model.
const NONE: [&str; 2] = ["none", "no_vocab"];

/// What converters write for a token that there is none of: -1 as an unsigned number.
const NO_TOKEN: u64 = u32::MAX as u64;

/// `LLAMA_TOKEN_TYPE_BYTE`, llama.h.
const BYTE_TYPE: i32 = 6;

/// Checks the tokenizer of a file, if it has one.
///
/// # Errors
/// [`GgufError::BadKey`] or [`GgufError::MissingKey`]: the key, what it has, and what is wanted.
pub(super) fn check(gguf: &Gguf) -> Result<(), GgufError> {
    let Some(model) = gguf.get(MODEL) else {
        return Ok(());
    };
    let Some(model) = model.as_str() else {
        return Err(bad(gguf, MODEL, "is not a text"));
    };
    if NONE.contains(&model) {
        return Ok(());
    }
    if !KINDS.contains(&model) {
        return Err(bad(
            gguf,
            MODEL,
            "is neither `llama` (SentencePiece) nor `gpt2` (BPE), and no supported model has another",
        ));
    }
    let tokens = match gguf.get(TOKENS) {
        Some(Value::Array(Array::String(tokens))) if !tokens.is_empty() => tokens,
        Some(_) => return Err(bad(gguf, TOKENS, "is not an array of texts, or is empty")),
        None => return Err(gguf.missing(TOKENS)),
    };
    let texts = distinct(gguf, tokens)?;
    scores(gguf, tokens.len())?;
    types(gguf, tokens)?;
    special_ids(gguf, tokens.len())?;
    match model {
        "llama" => bytes(gguf, &texts),
        _ => merges(gguf),
    }
}

fn bad(gguf: &Gguf, key: &str, problem: impl Into<String>) -> GgufError {
    gguf.bad_key(key, format!("{}: convert the model again", problem.into()))
}

/// The texts as llama.cpp takes them, each of which may come once (`GGML_ASSERT(id_to_token.size() ==
/// token_to_id.size())`): a C string ends at its first zero byte, and an empty one is replaced.
fn distinct<'a>(gguf: &Gguf, tokens: &'a StringArray) -> Result<HashSet<Cow<'a, [u8]>>, GgufError> {
    let mut texts = HashSet::with_capacity(tokens.len());
    for (id, token) in tokens.iter().enumerate() {
        let text = token.split(|byte| *byte == 0).next().unwrap_or_default();
        let text = if text.is_empty() {
            Cow::Owned(format!("[EMPTY_{id}]").into_bytes())
        } else {
            Cow::Borrowed(text)
        };
        let shown = text.escape_ascii().to_string();
        if !texts.insert(text) {
            return Err(bad(
                gguf,
                TOKENS,
                format!("has the token `{shown}` twice, the second time as number {id}"),
            ));
        }
    }
    Ok(texts)
}

fn scores(gguf: &Gguf, tokens: usize) -> Result<(), GgufError> {
    match gguf.get(SCORES) {
        None => Ok(()),
        Some(Value::Array(Array::F32(scores))) if scores.iter().any(|score| score.is_nan()) => {
            Err(bad(gguf, SCORES, "has a score that is not a number"))
        }
        Some(Value::Array(array @ (Array::F32(_) | Array::I32(_)))) => length(gguf, SCORES, array, tokens),
        Some(_) => Err(bad(gguf, SCORES, "is not an array of f32 or i32")),
    }
}

fn types(gguf: &Gguf, tokens: &StringArray) -> Result<(), GgufError> {
    let types = match gguf.get(TYPES) {
        None => return Ok(()),
        Some(Value::Array(array @ Array::I32(types))) => {
            length(gguf, TYPES, array, tokens.len())?;
            types
        }
        Some(_) => return Err(bad(gguf, TYPES, "is not an array of i32")),
    };
    let is_bpe = gguf.get_str(MODEL) == Some("gpt2");
    let mut pairs = types.iter().zip(tokens.iter()).enumerate();
    match pairs.find(|(_, (kind, text))| **kind == BYTE_TYPE && (is_bpe || !is_byte(text))) {
        Some((id, _)) => Err(bad(
            gguf,
            TYPES,
            format!("makes token {id} a byte, which its text, or this tokenizer, cannot be"),
        )),
        None => Ok(()),
    }
}

/// Such as `<0x0A>`: `llama_vocab::impl::token_to_byte` ends the process, or reads past the text, for any other.
fn is_byte(text: &[u8]) -> bool {
    let digits = text.strip_prefix(b"<0x").and_then(|rest| rest.strip_suffix(b">"));
    digits.is_some_and(|digits| digits.len() == 2 && digits.iter().all(u8::is_ascii_hexdigit))
}

fn length(gguf: &Gguf, key: &str, array: &Array, tokens: usize) -> Result<(), GgufError> {
    if array.len() == tokens {
        return Ok(());
    }
    Err(bad(
        gguf,
        key,
        format!("has {} entries for {tokens} tokens", array.len()),
    ))
}

/// Every `tokenizer.ggml.*_token_id` names a token, or none.
fn special_ids(gguf: &Gguf, tokens: usize) -> Result<(), GgufError> {
    let keys = gguf
        .metadata()
        .filter(|(key, _)| key.starts_with("tokenizer.ggml.") && key.ends_with("_token_id"));
    for (key, value) in keys {
        let names_one = value.as_u64().is_some_and(|id| id < tokens as u64 || id == NO_TOKEN);
        let names_none = matches!(value, Value::I32(-1) | Value::I64(-1));
        if !names_one && !names_none {
            return Err(bad(gguf, key, format!("names no token of the {tokens}")));
        }
    }
    Ok(())
}

/// An SPM tokenizer takes what is not in its vocabulary byte by byte, and throws where a byte has no token
/// (`token_to_id.at` in `byte_to_token`).
fn bytes(gguf: &Gguf, texts: &HashSet<Cow<'_, [u8]>>) -> Result<(), GgufError> {
    let has = |byte: u8| texts.contains(format!("<0x{byte:02X}>").as_bytes()) || texts.contains(&[byte][..]);
    match (0..=u8::MAX).find(|byte| !has(*byte)) {
        None => Ok(()),
        Some(byte) => Err(bad(
            gguf,
            TOKENS,
            format!("has no token <0x{byte:02X}>, and a SentencePiece vocabulary needs one for each byte"),
        )),
    }
}

/// A BPE tokenizer needs its merges: two texts with a space between them.
fn merges(gguf: &Gguf) -> Result<(), GgufError> {
    let merges = match gguf.get(MERGES) {
        Some(Value::Array(Array::String(merges))) => merges,
        // Kimi K2 does without (`is_kimi_k2` there).
        None if gguf.get_str("tokenizer.ggml.pre") == Some("kimi-k2") => return Ok(()),
        None => return Err(gguf.missing(MERGES)),
        Some(_) => return Err(bad(gguf, MERGES, "is not an array of texts")),
    };
    // The space is looked for behind the first byte: `word.find(' ', 1)`.
    let is_pair = |merge: &[u8]| {
        let space = merge.iter().skip(1).position(|byte| *byte == b' ');
        space.is_some_and(|at| at + 2 < merge.len())
    };
    match merges.iter().position(|merge| !is_pair(merge)) {
        None => Ok(()),
        Some(index) => Err(bad(gguf, MERGES, format!("has no pair of texts at number {index}"))),
    }
}
