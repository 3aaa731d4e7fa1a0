//! What a plugin learns when a model is ready.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// Called with an operation when the plugin says that its state changed: from any thread, also from within a call, and
/// with operations that nobody started. Must not block.
pub type Wake = Arc<dyn Fn(u64) + Send + Sync>;

/// A model that is ready on this node.
#[derive(Debug, Clone, Copy)]
pub struct ActivationRequest<'a> {
    /// What clients call it.
    pub model_id: &'a str,
    /// BLAKE3 of the model's metadata and weights.
    pub model_digest: [u8; 32],
    /// Equal for equal vocabularies.
    pub tokenizer_id: &'a str,
    /// Configuration of the plugin, absolute.
    pub config_path: Option<&'a Path>,
    /// A directory of the plugin's own, absolute, that exists.
    pub state_dir: Option<&'a Path>,
    /// From a query to its deadline.
    pub proposal_budget: Duration,
    /// Most positions of a generation.
    pub context_length: u32,
    /// Most tokens that a query will ask for.
    pub max_candidates: u32,
}
