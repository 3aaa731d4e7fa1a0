//! What a plugin gets when a model is ready.

use std::path::Path;
use std::time::Duration;

use crate::{Clock, Tokenizer, Waker};

/// A model is ready. Borrowed for [`crate::Plugin::activate`], but for [`Activation::clock`] and [`Activation::waker`],
/// which may be cloned and kept.
#[derive(Debug, Clone)]
pub struct Activation<'a> {
    /// What clients call the model.
    pub model_id: &'a str,
    /// BLAKE3 of the model's metadata and weights.
    pub model_digest: [u8; 32],
    /// Equal for equal vocabularies.
    pub tokenizer_id: &'a str,
    /// The model's tokenizer, if the node has it.
    pub tokenizer: Option<Tokenizer<'a>>,
    /// Absolute path of the configuration file, if one was given.
    pub config_path: Option<&'a Path>,
    /// Absolute path of a directory of the plugin's own, if one was given. It exists.
    pub state_dir: Option<&'a Path>,
    /// From a query to its deadline.
    pub proposal_budget: Duration,
    /// Most positions of a generation.
    pub context_length: u32,
    /// Most tokens that a query will ask for.
    pub max_candidates: u32,
    /// The clock of deadlines.
    pub clock: Clock,
    /// Wakes operations of this instance.
    pub waker: Waker,
}
