//! The architecture table: which models can be cut, and where.
//!
//! A stage is a small model of its own, so everything llama.cpp derives from the layer index or from the number of
//! layers must come out the same in the stage as in the whole. Each row of [`SUPPORTED`] was read in the loader's
//! source with that question; what was found is noted at its rule. A file that meets a trap is refused by name, with
//! the reason, before anything is loaded.

mod hyper_parameters;
mod refusals;
mod roles;
mod rules;
mod table;
mod tokenizer;
mod traps;
mod window;

use std::ops::Range;

use crate::error::GgufError;
use crate::gguf::Gguf;

pub(crate) use hyper_parameters::MAX_WINDOW;
pub use refusals::refusal_reason;
pub use table::{SUPPORTED, SupportedArchitecture};
pub(crate) use traps::UNUSED_GLOBAL;
pub(crate) use window::{UnusedWindow, Window};

/// A supported architecture and what follows from one file of it.
#[derive(Debug, Clone)]
pub struct Architecture {
    row: &'static SupportedArchitecture,
    layers: u32,
    vocab_size: u32,
    embedding_length: u32,
    tied: bool,
    rules: Rules,
}

/// Where one file may be cut.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Rules {
    /// Cuts must be multiples of this; 1 for anywhere.
    pub(crate) period: u32,
    /// Why multiples, for messages.
    pub(crate) period_reason: &'static str,
    /// Set if no cut at all gives the whole's results.
    pub(crate) whole_only: Option<String>,
    /// A number of layers that a stage must not have, and why.
    pub(crate) forbidden_length: Option<(u32, String)>,
    /// Which layers use the sliding window, to be written out; `None` if the loader reads no pattern.
    pub(crate) window: Option<Window>,
}

impl Default for Rules {
    fn default() -> Self {
        Self {
            period: 1,
            period_reason: "",
            whole_only: None,
            forbidden_length: None,
            window: None,
        }
    }
}

/// Judges a file.
///
/// # Errors
/// [`GgufError::Unsupported`] with the reason; or the key or tensor that is missing or wrong.
pub fn support(gguf: &Gguf) -> Result<Architecture, GgufError> {
    let name = gguf.architecture()?;
    let unsupported = |reason: String| GgufError::Unsupported {
        architecture: name.to_owned(),
        reason,
    };
    // What the file is comes before what its architecture is: an adapter names the architecture of its base.
    traps::refuse_non_models(gguf)?;
    let row = SUPPORTED
        .iter()
        .find(|row| row.name == name)
        .ok_or_else(|| unsupported(refusal_reason(name).to_owned()))?;
    let layers = gguf.layers()?;
    traps::refuse_file_traps(gguf, layers)?;
    let shape = traps::check_tensors(gguf, row, layers)?;
    let rules = (row.rules)(gguf, layers)?;
    let sizes = hyper_parameters::read(gguf, row, layers)?;
    roles::check(gguf, &sizes, u64::from(shape.vocab_size))?;
    tokenizer::check(gguf)?;
    Ok(Architecture {
        row,
        layers,
        vocab_size: shape.vocab_size,
        embedding_length: shape.embedding_length,
        tied: shape.tied,
        rules,
    })
}

/// Judges a stage file, which may come from another node: everything that llama.cpp would end the process over and that
/// the file's header shows.
///
/// # Errors
/// As [`support`].
pub fn check_stage(gguf: &Gguf) -> Result<(), GgufError> {
    let name = gguf.architecture()?;
    let row = SUPPORTED.iter().find(|row| row.name == name);
    let row = row.ok_or_else(|| GgufError::Unsupported {
        architecture: name.to_owned(),
        reason: refusal_reason(name).to_owned(),
    })?;
    let layers = gguf.layers()?;
    traps::refuse_file_traps(gguf, layers)?;
    let shape = traps::check_tensors(gguf, row, layers)?;
    (row.rules)(gguf, layers)?;
    traps::check_vocab_size(gguf, shape.vocab_size)?;
    let sizes = hyper_parameters::read(gguf, row, layers)?;
    roles::check(gguf, &sizes, u64::from(shape.vocab_size))
}

/// Judges the tokenizer of a vocabulary file, which may come from another node, or of a whole model.
///
/// # Errors
/// [`GgufError::MissingKey`] or [`GgufError::BadKey`].
pub fn check_vocabulary(gguf: &Gguf) -> Result<(), GgufError> {
    tokenizer::check(gguf)
}

impl Architecture {
    /// `general.architecture`.
    pub fn name(&self) -> &'static str {
        self.row.name
    }

    /// The table's row.
    pub fn row(&self) -> &'static SupportedArchitecture {
        self.row
    }

    /// Layers of the whole model.
    pub fn layers(&self) -> u32 {
        self.layers
    }

    /// Rows of the token embedding: the real vocabulary.
    pub fn vocab_size(&self) -> u32 {
        self.vocab_size
    }

    /// Width of an activation row, elements.
    pub fn embedding_length(&self) -> u32 {
        self.embedding_length
    }

    /// Whether the output matrix is the token embedding.
    pub fn tied(&self) -> bool {
        self.tied
    }

    /// Longest context that all stages of such a file can hold, positions; `None` if nothing but memory limits it. A
    /// stage without any windowed layer has a window in name, 2^20 positions wide, which must hide nothing.
    pub fn longest_context(&self) -> Option<u32> {
        let window = self.rules.window.as_ref()?;
        (window.unused == UnusedWindow::Widened).then_some(MAX_WINDOW)
    }

    pub(crate) fn output_required(&self) -> bool {
        self.row.output_required
    }

    pub(crate) fn window(&self) -> Option<&Window> {
        self.rules.window.as_ref()
    }

    /// Whether a stage may end before, and the next begin at, this layer. 0 and the number of layers are the model's
    /// ends and always legal. (A range between legal cuts can be illegal too: see [`Architecture::illegal_ranges`].)
    pub fn legal_cut(&self, layer: u32) -> bool {
        layer == 0
            || layer == self.layers
            || (layer < self.layers && self.rules.whole_only.is_none() && layer.is_multiple_of(self.rules.period))
    }

    /// All legal cuts strictly inside the model, ascending.
    pub fn legal_cuts(&self) -> Vec<u32> {
        (1..self.layers).filter(|layer| self.legal_cut(*layer)).collect()
    }

    /// Ranges between legal cuts that still cannot be a stage, and why. Of the supported architectures only a few
    /// unusual files have any.
    pub fn illegal_ranges(&self) -> Vec<(Range<u32>, String)> {
        if self.rules.forbidden_length.is_none() && !self.refuses_unused_window() {
            return Vec::new();
        }
        let cuts: Vec<u32> = (0..=self.layers).filter(|layer| self.legal_cut(*layer)).collect();
        let ranges = cuts.iter().enumerate();
        ranges
            .flat_map(|(index, start)| cuts[index + 1..].iter().map(|end| *start..*end))
            .filter_map(|range| Some((range.clone(), self.illegal_range_reason(&range)?)))
            .collect()
    }

    /// Whether layers `start..end` can be a stage.
    ///
    /// # Errors
    /// [`GgufError::IllegalRange`] with the reason and what is possible.
    pub fn check_range(&self, start: u32, end: u32) -> Result<(), GgufError> {
        let illegal = |reason: String| GgufError::IllegalRange {
            architecture: self.row.name.to_owned(),
            start,
            end,
            layers: self.layers,
            reason,
        };
        if start >= end {
            return Err(illegal(
                "a stage needs at least one layer: give start-end with start below end".to_owned(),
            ));
        }
        if end > self.layers {
            return Err(illegal(format!(
                "the last layer is {}: end at {} at most",
                self.layers - 1,
                self.layers
            )));
        }
        for cut in [start, end] {
            if !self.legal_cut(cut) {
                return Err(illegal(self.illegal_cut_reason(cut)));
            }
        }
        self.illegal_range_reason(&(start..end))
            .map_or(Ok(()), |reason| Err(illegal(reason)))
    }

    fn refuses_unused_window(&self) -> bool {
        let window = self.rules.window.as_ref();
        window.is_some_and(|window| window.unused == UnusedWindow::Refused)
    }

    /// Why a range between legal cuts cannot be a stage.
    fn illegal_range_reason(&self, range: &Range<u32>) -> Option<String> {
        if let Some((length, reason)) = &self.rules.forbidden_length
            && range.end - range.start == *length
            && *length != self.layers
        {
            return Some(format!("{reason}; use a stage of another length"));
        }
        let window = self.rules.window.as_ref()?;
        let missing = window.unused == UnusedWindow::Refused && !window.used_in(range.clone());
        missing.then(|| {
            "none of its layers uses the sliding window, without which llama.cpp computes others differently; let the \
             stage reach a layer that does"
                .to_owned()
        })
    }

    fn illegal_cut_reason(&self, cut: u32) -> String {
        match &self.rules.whole_only {
            Some(reason) => format!("it cannot be cut at all, because {reason}; serve it as one stage"),
            None => format!(
                "a cut at layer {cut} is not possible, because {}; cut at multiples of {}",
                self.rules.period_reason, self.rules.period
            ),
        }
    }
}
