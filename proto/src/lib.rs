//! Ids, domain types, stage frames, gRPC messages and the one error table of Mesh.
//!
//! Everything that crosses a process border is defined here, and nothing that acts. The `.proto` files under
//! `proto/mesh` are the truth about messages; [`frame`] about the bytes around those of the stage protocol;
//! [`error`] about codes.

pub mod error;
pub mod frame;
pub mod ids;
pub mod sampling;
pub mod session;
pub mod trace;

/// Public gRPC messages, package `mesh.v1`.
#[allow(missing_docs, clippy::all, rust_2018_idioms)]
pub mod v1 {
    include!(concat!(env!("OUT_DIR"), "/mesh.v1.rs"));
}

/// Messages between nodes, package `mesh.wire.v1`.
#[allow(missing_docs, clippy::all, rust_2018_idioms)]
pub mod wire {
    // The generated code reaches `mesh.v1` through two `super`s.
    mod v1 {
        include!(concat!(env!("OUT_DIR"), "/mesh.wire.v1.rs"));
    }
    pub use v1::*;
}

/// Descriptors of all messages and services, for gRPC reflection.
pub const DESCRIPTORS: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/descriptors.bin"));

pub use error::{ErrorCode, MeshError};
pub use ids::{Epoch, LaneId, NodeId, RequestId, SessionId};
pub use session::AgentSession;
pub use trace::TraceContext;
