//! A stage of the model: some consecutive layers, behind one synchronous interface that one OS thread owns.

use std::{ops::ControlFlow, ops::Range, path::PathBuf};

use mesh_proto::{ErrorCode, LaneId, MeshError, SessionId, v1::Sampling};

/// Loads stages. Called on the thread that will own the stage.
pub trait EngineLoader: Send + Sync + 'static {
    /// Loads a stage, reporting progress from 0 to 1; `Break` from `progress` gives up.
    ///
    /// # Errors
    ///
    /// [`EngineError::Load`] with the last words of the library and what to do.
    fn load(
        &self,
        spec: &StageLoad,
        progress: &mut dyn FnMut(f32) -> ControlFlow<()>,
    ) -> Result<Box<dyn StageEngine>, EngineError>;
}

/// Everything that loading a stage needs to know.
#[derive(Debug, Clone, PartialEq)]
pub struct StageLoad {
    /// Stage file: a small valid GGUF.
    pub path: PathBuf,
    /// BLAKE3 of the file, hex: by it a node knows the files that it has loaded before. Empty for a file that it knows
    /// nothing of.
    pub digest: String,
    /// Layers of the source that it holds.
    pub layers: Range<u32>,
    /// Layers of the source.
    pub total_layers: u32,
    /// Number of lanes: KV streams of `context` cells each.
    pub lanes: u32,
    /// Positions per lane.
    pub context: u32,
    /// Compute threads.
    pub threads: u32,
    /// Shape-independent arithmetic (exact mode).
    pub exact: bool,
    /// What an earlier self-check of exact mode found for this file; a loader without it looks again.
    pub exact_calls: Option<ExactCalls>,
    /// Layers to offload; `None` is all that the back end takes.
    pub gpu_layers: Option<u32>,
    /// Width of the model, checked against the file.
    pub n_embd: u32,
    /// Size of the vocabulary, checked against the file at the output stage.
    pub n_vocab: u32,
}

impl StageLoad {
    /// The stage takes token ids.
    pub fn is_first(&self) -> bool {
        self.layers.start == 0
    }

    /// The stage gives sampled tokens.
    pub fn is_last(&self) -> bool {
        self.layers.end == self.total_layers
    }
}

/// Consecutive rows of one lane.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RowSpan {
    /// Lane, also the sequence id.
    pub lane: LaneId,
    /// Fence: the occupation of the lane that these rows belong to.
    pub session: SessionId,
    /// Position of the first row. An engine that is ahead rewinds the lane to it.
    pub pos_start: u32,
    /// Token id of each row.
    pub tokens: Vec<u32>,
    /// How many of the last rows are sampled at the output stage.
    pub sampled_rows: u32,
}

impl RowSpan {
    /// Number of rows.
    pub fn rows(&self) -> usize {
        self.tokens.len()
    }
}

/// What one forward pass computes.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Batch {
    /// Rows, at most one span per lane, lanes ascending.
    pub spans: Vec<RowSpan>,
    /// Rows × `n_embd` in the order of the spans; empty at the first stage.
    pub activations: Vec<f32>,
}

impl Batch {
    /// Rows of all spans.
    pub fn rows(&self) -> usize {
        self.spans.iter().map(RowSpan::rows).sum()
    }
}

/// What a forward pass gives. Spans that were cancelled on the way are left out, with their rows.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct BatchOutput {
    /// Spans that were computed to the end, in the order of the batch, and their sampled tokens (empty but at
    /// the output stage): one for each sampled row.
    pub spans: Vec<(RowSpan, Vec<u32>)>,
    /// Rows × `n_embd` of these spans; empty at the output stage.
    pub activations: Vec<f32>,
    /// Spans that could not be computed, and why. The lane is cleared.
    pub failed: Vec<(RowSpan, EngineError)>,
}

/// Memory that a loaded stage takes, bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct MemoryFigures {
    /// Weights (mapped from the file, where the back end allows it).
    pub weights: u64,
    /// KV cache of all lanes.
    pub kv: u64,
    /// Compute and logit buffers.
    pub compute: u64,
}

impl MemoryFigures {
    /// Sum.
    pub fn total(&self) -> u64 {
        self.weights.saturating_add(self.kv).saturating_add(self.compute)
    }
}

/// Calls of an engine that all give a row the same bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ExactCalls {
    /// Most rows of a call.
    pub rows: u32,
    /// A call may hold a single row. Otherwise a lone row is computed with a second one, which decoding pays for.
    pub lone: bool,
}

/// A loaded stage. All calls come from the thread that loaded it.
pub trait StageEngine {
    /// Starts a session on a free lane: clears its cache and keeps its sampling (used at the output stage).
    fn open(&mut self, lane: LaneId, session: SessionId, sampling: &Sampling) -> Result<(), EngineError>;

    /// Computes a batch. `cancelled` is asked between the calls that the batch is cut into.
    ///
    /// # Errors
    ///
    /// Only what breaks the stage as a whole; trouble of one lane is in [`BatchOutput::failed`].
    fn forward(
        &mut self,
        batch: &Batch,
        cancelled: &dyn Fn(LaneId, SessionId) -> bool,
    ) -> Result<BatchOutput, EngineError>;

    /// Forgets everything from `position` on in a lane.
    fn trim(&mut self, lane: LaneId, position: u32) -> Result<(), EngineError>;

    /// Ends a session and clears its lane.
    fn free(&mut self, lane: LaneId);

    /// Memory in use.
    fn memory(&self) -> MemoryFigures;

    /// The calls that it keeps to, so that results do not depend on them; nothing where exact mode was not asked for or
    /// the self-check at load found none.
    fn exact_calls(&self) -> Option<ExactCalls>;

    /// Results do not depend on how rows are computed together.
    fn is_exact(&self) -> bool {
        self.exact_calls().is_some()
    }

    /// A lane can be taken back to an earlier position. Without that, candidates cannot be verified.
    fn can_rewind(&self) -> bool;
}

/// What can go wrong in an engine.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum EngineError {
    /// The stage did not load.
    #[error("cannot load {path}: {reason}")]
    Load {
        /// Stage file.
        path: String,
        /// Last words of the library, and what to do.
        reason: String,
    },
    /// Loading was given up.
    #[error("loading was cancelled")]
    Cancelled,
    /// A row asks for a lane or position that the stage does not have.
    #[error("lane {lane} cannot take position {position}: {reason}")]
    Position {
        /// Lane.
        lane: LaneId,
        /// Position of the row.
        position: u32,
        /// What is wrong with it.
        reason: String,
    },
    /// What came in cannot be computed: a token outside the vocabulary, or too few or too many activations.
    #[error("bad input: {0}")]
    BadInput(String),
    /// The library refused a batch.
    #[error("llama.cpp refused a batch of {rows} rows with status {status}: {reason}")]
    Decode {
        /// Rows in the call.
        rows: usize,
        /// Status of `llama_decode`.
        status: i32,
        /// Last words of the library.
        reason: String,
    },
    /// The engine's thread is gone.
    #[error("the engine thread has ended: {0}")]
    Gone(String),
    /// Sampling is not possible as asked.
    #[error("cannot sample: {0}")]
    Sampling(String),
}

impl From<EngineError> for MeshError {
    fn from(error: EngineError) -> Self {
        let code = match &error {
            EngineError::Load { .. } => ErrorCode::ModelInvalid,
            EngineError::Cancelled => ErrorCode::Cancelled,
            _ => ErrorCode::EngineFailed,
        };
        Self::new(code, error.to_string())
    }
}
