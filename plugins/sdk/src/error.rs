//! Why a call failed.

use std::fmt;

/// A message for the operator: lower case, what to do next. The node shows the first
/// [`MESH_MAX_ERROR_BYTES`](crate::abi::MESH_MAX_ERROR_BYTES) bytes.
///
/// Not a [`std::error::Error`] itself, so that `?` turns every such error into it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Error(String);

impl Error {
    /// With this message.
    pub fn new(message: impl Into<String>) -> Self {
        Self(message.into())
    }

    /// The message.
    pub fn message(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl<E: std::error::Error> From<E> for Error {
    fn from(error: E) -> Self {
        let mut message = error.to_string();
        let mut source = error.source();
        while let Some(cause) = source {
            message = format!("{message}: {cause}");
            source = cause.source();
        }
        Self(message)
    }
}
