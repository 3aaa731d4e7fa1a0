//! What a gateway needs from the mesh: the models it can serve, and generation.

use std::sync::Arc;

use async_trait::async_trait;
use mesh_proto::{
    AgentSession, MeshError, TraceContext,
    v1::{self, GenerateRequest, GenerateStarted},
};
use tokio::sync::mpsc;

pub use crate::request::journal::{GenerateEvent, JournalReader};

/// A deployment as `/v1/models` shows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServedModel {
    /// OpenAI model id.
    pub name: String,
    /// Unix time in seconds.
    pub created: u64,
    /// Requests are accepted now.
    pub ready: bool,
    /// Tokens per lane.
    pub context: u32,
}

/// What a gateway vouches for, beside the request: a client's body cannot set it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Caller {
    /// From the header that the operator named.
    pub agent_session: Option<AgentSession>,
    /// The caller's span.
    pub trace: Option<TraceContext>,
}

/// Generation on any deployment of the mesh, wherever its head is.
#[async_trait]
pub trait Inference: Send + Sync + 'static {
    /// All deployments known to this node.
    fn models(&self) -> Vec<ServedModel>;

    /// Tokenizes, admits and starts a request; returns once it is admitted (it may still wait for a lane). Dropping
    /// the future or the generation cancels the request.
    ///
    /// # Errors
    ///
    /// Everything that is refused before the first token: see the error table.
    async fn generate(&self, request: GenerateRequest, caller: Caller) -> Result<Generation, MeshError>;
}

/// An admitted request.
#[derive(Debug)]
pub struct Generation {
    /// Id, prompt tokens, seed.
    pub started: GenerateStarted,
    /// Text as it commits, then exactly one terminal event. Dropping it cancels.
    pub events: JournalReader,
}

/// What `mesh` commands ask of the node they talk to.
#[async_trait]
pub trait Administration: Send + Sync + 'static {
    /// Status of this node and what it knows of the mesh.
    async fn status(&self) -> Result<v1::GetStatusResponse, MeshError>;
    /// A new ticket for joining this node's mesh.
    async fn create_ticket(&self) -> Result<v1::CreateTicketResponse, MeshError>;
    /// Members.
    async fn nodes(&self) -> Result<Vec<v1::Node>, MeshError>;
    /// Native plugins of this node.
    async fn plugins(&self) -> Result<Vec<v1::Plugin>, MeshError>;
    /// Leaves the mesh; the node's process ends afterwards. With `force` even where others depend on it or cannot be told.
    async fn leave(&self, force: bool) -> Result<(), MeshError>;
    /// Takes another node, by name or id, out of the mesh.
    async fn remove_node(&self, name: &str) -> Result<(), MeshError>;
    /// Serves a model. Progress arrives until one `ready`, or one error; dropping the receiver before that gives up
    /// and leaves nothing behind.
    async fn serve(&self, request: v1::ServeRequest) -> Result<ServeStream, MeshError>;
    /// Ends a deployment, wherever it is owned.
    async fn stop(&self, name: &str) -> Result<(), MeshError>;
    /// All deployments known to this node, lanes included.
    async fn deployments(&self) -> Result<Vec<v1::Deployment>, MeshError>;
}

/// Progress of `serve`, bounded by [`SERVE_PROGRESS_CAPACITY`]: progress that does not fit is dropped, results wait.
pub type ServeStream = mpsc::Receiver<Result<v1::ServeResponse, MeshError>>;

/// A terminal redraws ten times a second; more than this in the queue is stale.
pub const SERVE_PROGRESS_CAPACITY: usize = 64;

/// Shared handle.
pub type SharedInference = Arc<dyn Inference>;
