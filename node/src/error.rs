//! What keeps a node from starting or going on.

use std::{io, path::PathBuf};

use mesh_proto::MeshError;

/// An error of the node, for the one who runs it.
#[derive(Debug, thiserror::Error)]
pub enum NodeError {
    /// A setting is wrong.
    #[error("{0}")]
    Config(String),
    /// A file or directory cannot be used.
    #[error("cannot {action} {path}: {error}; check the directory and its permissions, or use another --data-dir")]
    File {
        /// `read`, `write`, …
        action: &'static str,
        /// Which.
        path: PathBuf,
        /// Why.
        error: io::Error,
    },
    /// The data directory is another node's, or in use.
    #[error("{0}")]
    DataDir(String),
    /// No node runs on a data directory.
    #[error("{0}")]
    NotRunning(String),
    /// A port is taken, or the address is not this machine's.
    #[error("cannot listen on {what} {address}: {error}; use another address with {flag}")]
    Listen {
        /// `HTTP` or `gRPC`.
        what: &'static str,
        /// Address.
        address: std::net::SocketAddr,
        /// Why.
        error: io::Error,
        /// Flag that sets it.
        flag: &'static str,
    },
    /// HTTP or gRPC no longer answers.
    #[error("the {what} server ended: {error}; see the node's log, and start it again")]
    Server {
        /// `HTTP` or `gRPC`.
        what: &'static str,
        /// Why.
        error: io::Error,
    },
    /// The start was called off; nothing of it is left.
    #[error("interrupted; the node had not started yet")]
    Interrupted,
    /// The mesh refused, or cannot be reached.
    #[error(transparent)]
    Mesh(#[from] MeshError),
}

impl NodeError {
    /// A file error.
    pub(crate) fn file(action: &'static str, path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> Self {
        let path = path.into();
        move |error| Self::File { action, path, error }
    }
}

impl From<NodeError> for MeshError {
    fn from(error: NodeError) -> Self {
        match error {
            NodeError::Mesh(error) => error,
            NodeError::Config(message) => Self::new(mesh_proto::ErrorCode::InvalidRequest, message),
            other => Self::internal(other.to_string()),
        }
    }
}
