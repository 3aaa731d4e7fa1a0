//! The sliding-window pattern of a file, layer by layer.

use std::ops::Range;

use crate::error::GgufError;
use crate::gguf::Gguf;
use crate::value::Value;

/// Which layers use the sliding window, and what to do with a stage in which none does: llama.cpp ends the process
/// over a window that no layer uses (`GGML_ASSERT(hparams.is_swa_any())`, llama-model.cpp).
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Window {
    /// One entry per layer of the whole model.
    pub(crate) layers: Vec<bool>,
    /// What to do without any.
    pub(crate) unused: UnusedWindow,
}

/// What becomes of the window in a stage without a layer that uses it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum UnusedWindow {
    /// The window's keys are left out: the loader then builds the same graph without one.
    LeftOut,
    /// The loader insists on a window: all layers get one that is too wide to hide anything, and the rope base of
    /// layers without one.
    Widened,
    /// Neither gives the same results: there can be no such stage.
    Refused,
}

impl Window {
    /// Whether any of these layers uses it.
    pub(crate) fn used_in(&self, range: Range<u32>) -> bool {
        self.layers[range.start as usize..range.end as usize].contains(&true)
    }
}

/// Which layers use the window, as `llama_model_base::load_swa_pattern` and `llama_hparams::set_swa_pattern` decide:
/// an array is taken as it is (missing entries mean no window), a number n means all but every n-th layer (0: all),
/// and no key means `default_period`. With `optional`, a file without a positive `attention.sliding_window` has no
/// pattern, as in models that only then read one.
pub(super) fn window_pattern(
    gguf: &Gguf,
    layers: u32,
    default_period: u32,
    optional: bool,
) -> Result<Option<Vec<bool>>, GgufError> {
    let window = gguf.arch_value("attention.sliding_window").and_then(Value::as_u64);
    if optional && window.unwrap_or(0) == 0 {
        return Ok(None);
    }
    let key = format!("{}.attention.sliding_window_pattern", gguf.architecture()?);
    let bad = || {
        gguf.bad_key(
            &key,
            "must be a number or an array of booleans or integers: convert the model again".to_owned(),
        )
    };
    let period = match gguf.get(&key) {
        Some(Value::Array(array)) => {
            let mut pattern: Vec<bool> = array.to_u64s().ok_or_else(bad)?.iter().map(|x| *x != 0).collect();
            pattern.resize(layers as usize, false);
            return Ok(Some(pattern));
        }
        Some(number) => number
            .as_u64()
            .and_then(|period| u32::try_from(period).ok())
            .ok_or_else(bad)?,
        None => default_period,
    };
    Ok(Some(
        (0..layers)
            .map(|layer| period == 0 || layer % period < period - 1)
            .collect(),
    ))
}
