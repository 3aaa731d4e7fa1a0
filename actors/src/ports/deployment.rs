//! What owning and hosting deployments needs: model files, other nodes' hosts, and who is there.

use std::{ops::Range, path::PathBuf, sync::Arc};

use async_trait::async_trait;
use mesh_proto::{
    MeshError, NodeId,
    wire::{Artifact, HostCommand, HostEvent, StageSpec},
};
use tokio::sync::mpsc;

/// What planning needs to know of a model.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct ModelFacts {
    /// Identity of the source: parts of different sources never mix.
    pub source_id: String,
    /// Such as `llama`.
    pub architecture: String,
    /// Such as `SmolLM2-135M-Instruct Q4_1`.
    pub label: String,
    /// Default name of a deployment: the file's stem.
    pub stem: String,
    /// Layers.
    pub layers: u32,
    /// Trained context, positions.
    pub context: u32,
    /// Width.
    pub n_embd: u32,
    /// Tokens in the vocabulary.
    pub n_vocab: u32,
    /// Bytes of each layer's tensors.
    pub layer_bytes: Vec<u64>,
    /// Bytes of the embedding matrix, in the first stage (and in the last, if tied).
    pub token_embd_bytes: u64,
    /// Bytes of norm and vocabulary matrix in the last stage.
    pub output_bytes: u64,
    /// Bytes of KV cache per position, for each layer.
    pub kv_bytes_per_position: Vec<u64>,
    /// Layers before which the model may be cut, ascending, without 0 and the end.
    pub legal_cuts: Vec<u32>,
    /// Ranges between legal cuts that still cannot be a stage, and why. Few models have any; the whole is always legal.
    pub illegal_ranges: Vec<(Range<u32>, String)>,
}

/// A part of a model in a file of its own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Piece {
    /// Layers `start..end`.
    Stage {
        /// First layer.
        start: u32,
        /// One past the last.
        end: u32,
    },
    /// Tokenizer and chat template.
    Vocabulary,
}

/// Called with bytes done and bytes in all.
pub type Progress = Arc<dyn Fn(u64, u64) + Send + Sync>;

/// Model files on this node.
#[async_trait]
pub trait ModelStore: Send + Sync + 'static {
    /// Reads what planning needs. `model` is a path on this node, or `built-in`.
    ///
    /// # Errors
    ///
    /// Missing, damaged or unsupported, saying what to do.
    async fn describe(&self, model: &str) -> Result<ModelFacts, MeshError>;

    /// Cuts a piece, or finds the one cut before. Dropping the future gives up and leaves nothing half-made.
    async fn cut(&self, model: &str, piece: Piece, progress: Progress) -> Result<Artifact, MeshError>;

    /// The verified file of this content: from here, or fetched from `source`.
    async fn obtain(&self, artifact: &Artifact, source: NodeId, progress: Progress) -> Result<PathBuf, MeshError>;
}

/// A stage on a node, held by its owner for as long as this lives.
#[derive(Debug)]
pub struct HostSession {
    /// To the host. Dropping it ends the stage.
    pub commands: mpsc::Sender<HostCommand>,
    /// From the host; ends when the node or its host is gone.
    pub events: mpsc::Receiver<HostEvent>,
}

/// Commands under way to a host: it gets two in its life.
pub const HOST_COMMANDS: usize = 4;

/// Events under way from a host: progress that does not fit is dropped, the few others wait.
pub const HOST_EVENTS: usize = 32;

/// Hosts on all nodes, this one included.
#[async_trait]
pub trait Hosts: Send + Sync + 'static {
    /// Asks a node to hold a stage.
    async fn host(&self, node: NodeId, spec: StageSpec) -> Result<HostSession, MeshError>;
}
