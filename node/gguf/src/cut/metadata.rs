//! The metadata of a stage.

use std::ops::Range;

use super::pieces::STUB_VOCAB;
use crate::architecture::{Architecture, MAX_WINDOW, UnusedWindow, Window};
use crate::array::{Array, StringArray};
use crate::error::GgufError;
use crate::gguf::Gguf;
use crate::tensor::split_layer;
use crate::value::Value;

/// Counts of leading layers of another kind: what is left of them in the stage.
const LEADING_COUNTS: [&str; 1] = ["leading_dense_block_count"];

/// Keys whose arrays are not per layer, whatever their length.
const NOT_PER_LAYER: [&str; 2] = ["rope.dimension_sections", "classifier.output_labels"];

const EXTRA_NAMES: &str = "general.tensor_extra.name";
const EXTRA_VALUES: &str = "general.tensor_extra.prec_a4";

/// Metadata for layers `range`.
pub(super) fn stage_metadata(
    gguf: &Gguf,
    architecture: &Architecture,
    range: &Range<u32>,
) -> Result<Vec<(String, Value)>, GgufError> {
    let prefix = format!("{}.", architecture.name());
    let mut stage: Vec<(String, Value)> = Vec::new();
    for (key, value) in gguf.metadata() {
        if is_dropped(key) {
            continue;
        }
        let value = match key.strip_prefix(&prefix) {
            Some(suffix) => arch_value(suffix, value, architecture.layers(), range),
            None => value.clone(),
        };
        stage.push((key.to_owned(), value));
    }
    let real_vocabulary = range.start == 0 || range.end == architecture.layers();
    let vocab_size = if real_vocabulary {
        architecture.vocab_size()
    } else {
        STUB_VOCAB
    };
    set(
        &mut stage,
        &format!("{prefix}block_count"),
        Value::U32(range.end - range.start),
    );
    set(&mut stage, &format!("{prefix}vocab_size"), Value::U32(vocab_size));
    // The loader sizes the vocabulary from the key, and knows no tokens.
    set(&mut stage, "tokenizer.ggml.model", Value::string("none"));
    if let Some(window) = architecture.window() {
        write_window(&mut stage, &prefix, window, range);
    }
    extra_precisions(gguf, &mut stage, range)?;
    Ok(stage)
}

fn is_dropped(key: &str) -> bool {
    // The vocabulary is a file of its own; a stage is one file with the default alignment.
    key.starts_with("tokenizer.")
        || key.starts_with("split.")
        || key == "general.alignment"
        || key == EXTRA_NAMES
        || key == EXTRA_VALUES
}

fn arch_value(suffix: &str, value: &Value, layers: u32, range: &Range<u32>) -> Value {
    if LEADING_COUNTS.contains(&suffix)
        && let Some(count) = value.as_u64()
    {
        let left = count
            .saturating_sub(u64::from(range.start))
            .min(u64::from(range.end - range.start));
        return Value::U32(left as u32);
    }
    match value {
        Value::Array(array) if array.len() == layers as usize && !NOT_PER_LAYER.contains(&suffix) => {
            Value::Array(array.slice(range.start as usize, range.end as usize))
        }
        _ => value.clone(),
    }
}

/// Writes out which layers use the sliding window. If none does, the window goes, or hides nothing.
fn write_window(stage: &mut Vec<(String, Value)>, prefix: &str, window: &Window, range: &Range<u32>) {
    let (size, pattern) = (
        format!("{prefix}attention.sliding_window"),
        format!("{prefix}attention.sliding_window_pattern"),
    );
    let local = window.layers[range.start as usize..range.end as usize].to_vec();
    if window.used_in(range.clone()) {
        set(stage, &pattern, Value::Array(Array::Bool(local)));
        return;
    }
    match window.unused {
        UnusedWindow::LeftOut => stage.retain(|(key, _)| *key != size && *key != pattern),
        UnusedWindow::Widened => {
            // Longer than any context of such a model: see `Architecture::longest_context`.
            set(stage, &size, Value::U32(MAX_WINDOW));
            set(stage, &pattern, Value::Array(Array::Bool(vec![true; local.len()])));
            // The loader then takes the base of the other layers.
            stage.retain(|(key, _)| key.strip_prefix(prefix) != Some("rope.freq_base_swa"));
        }
        // Such a range is not legal.
        UnusedWindow::Refused => set(stage, &pattern, Value::Array(Array::Bool(local))),
    }
}

fn set(metadata: &mut Vec<(String, Value)>, key: &str, value: Value) {
    match metadata.iter_mut().find(|(known, _)| known == key) {
        Some((_, old)) => *old = value,
        None => metadata.push((key.to_owned(), value)),
    }
}

/// `general.tensor_extra.*` lists tensors by name that want other activation precision (`llama_prec_policy::load`):
/// names of layers outside the stage go, the others are renumbered.
fn extra_precisions(gguf: &Gguf, stage: &mut Vec<(String, Value)>, range: &Range<u32>) -> Result<(), GgufError> {
    let Some(names) = gguf.get(EXTRA_NAMES) else {
        return Ok(());
    };
    let (Some(Array::String(names)), Some(Array::Bool(values))) = (names.as_array(), gguf.get_array(EXTRA_VALUES))
    else {
        return Err(gguf.bad_key(
            EXTRA_NAMES,
            format!("needs an array of booleans in `{EXTRA_VALUES}`: convert the model again"),
        ));
    };
    if names.len() != values.len() {
        return Err(gguf.bad_key(
            EXTRA_NAMES,
            format!("and `{EXTRA_VALUES}` differ in length: convert the model again"),
        ));
    }
    let (mut kept_names, mut kept_values) = (StringArray::default(), Vec::new());
    for (name, value) in names.iter().zip(values) {
        match std::str::from_utf8(name).ok().and_then(split_layer) {
            Some((layer, rest)) if range.contains(&layer) => {
                kept_names.push(format!("blk.{}.{rest}", layer - range.start).as_bytes());
            }
            Some(_) => continue,
            None => kept_names.push(name),
        }
        kept_values.push(*value);
    }
    stage.push((EXTRA_NAMES.to_owned(), Value::Array(Array::String(kept_names))));
    stage.push((EXTRA_VALUES.to_owned(), Value::Array(Array::Bool(kept_values))));
    Ok(())
}
