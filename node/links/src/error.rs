//! From iroh's errors to ours: "not delivered", "crashed" and "said no" stay apart.

use std::{error::Error, fmt::Display};

use mesh_proto::{ErrorCode, MeshError};

/// The peer cannot be reached.
pub fn unreachable(name: &str, error: &dyn Display) -> MeshError {
    let message = format!("node {name} cannot be reached: {error}; check that it runs and that UDP gets through");
    MeshError::new(ErrorCode::Unreachable, message)
}

/// A connection or stream ended in the middle.
pub fn lost(what: &str, error: &(dyn Error + 'static)) -> MeshError {
    MeshError::new(ErrorCode::StageLost, format!("{what} was lost: {}", with_causes(error)))
}

/// An error and what is behind it: iroh's own words often only say "connection lost".
pub fn with_causes(error: &(dyn Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(cause) = next {
        let words = cause.to_string();
        if !text.ends_with(&words) {
            text = format!("{text}: {words}");
        }
        next = cause.source();
    }
    text
}

/// The peer broke the protocol.
pub fn protocol(message: impl Into<String>) -> MeshError {
    MeshError::new(ErrorCode::Protocol, message)
}

/// The peer did not answer in time.
pub fn too_late(what: &str, seconds: u64) -> MeshError {
    MeshError::new(
        ErrorCode::DeadlineExceeded,
        format!("{what} did not answer within {seconds} s"),
    )
}
