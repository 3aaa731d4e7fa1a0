//! What outlives the run of a node that owns deployments: which of them are wanted, and which epochs were used.

use mesh_proto::{MeshError, v1::ServeRequest};

/// A deployment that is brought back when its owner starts again.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct DesiredDeployment {
    /// Its name, also where the request has none.
    pub name: String,
    /// As it was asked for.
    pub request: ServeRequest,
    /// Where its stages were put, as in `ServeRequest.stages`: they go to the same nodes again.
    pub placed: String,
    /// Identity of the model file: another file of the same path is not what was asked for. Empty: any is.
    pub source_id: String,
    /// Unix time in seconds.
    pub created: u64,
}

/// Keeps it. Every call blocks until what it says is on the disk.
pub trait DesiredState: Send + Sync + 'static {
    /// From now on the deployment is brought back; it takes the place of one of the same name.
    ///
    /// # Errors
    ///
    /// It cannot be written.
    fn keep(&self, deployment: &DesiredDeployment) -> Result<(), MeshError>;

    /// It is not brought back any more, if it was at all.
    ///
    /// # Errors
    ///
    /// It cannot be written.
    fn forget(&self, name: &str) -> Result<(), MeshError>;

    /// Takes this many epochs, which no run of the node has had or will have; gives the last number before them.
    ///
    /// # Errors
    ///
    /// It cannot be written.
    fn take_epochs(&self, count: u64) -> Result<u64, MeshError>;
}
