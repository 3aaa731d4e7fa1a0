//! A call that did not succeed.

use mesh_plugin_abi::{MESH_ERROR, MESH_OK, MESH_PANICKED, MeshStatus};

use crate::Callback;

/// A call that the plugin did not answer with success.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{callback}` {kind}: {message}")]
pub struct CallError {
    /// The function that was called.
    pub callback: Callback,
    /// In which way it failed.
    pub kind: CallErrorKind,
    /// What the plugin said about it; printable, never empty.
    pub message: String,
}

/// In which way a call failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum CallErrorKind {
    /// The plugin returned an error.
    Error,
    /// The plugin unwound.
    Panicked,
    /// The plugin returned a status that the function does not list.
    Unknown(i32),
    /// Of [`crate::Instance::shutdown`] only: another call still runs, and the plugin was not called.
    Busy,
}

impl std::fmt::Display for CallErrorKind {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Error => formatter.write_str("failed"),
            Self::Panicked => formatter.write_str("panicked"),
            Self::Unknown(status) => write!(formatter, "returned status {status}"),
            Self::Busy => formatter.write_str("was not called"),
        }
    }
}

impl CallErrorKind {
    /// What a status means for a function that lists no more than success, error and panic.
    pub(crate) fn of(status: MeshStatus) -> Result<(), Self> {
        match status {
            MESH_OK => Ok(()),
            MESH_ERROR => Err(Self::Error),
            MESH_PANICKED => Err(Self::Panicked),
            other => Err(Self::Unknown(other)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_status_of_poll_is_unknown_elsewhere() {
        assert_eq!(CallErrorKind::of(0), Ok(()));
        assert_eq!(CallErrorKind::of(1), Err(CallErrorKind::Error));
        assert_eq!(CallErrorKind::of(2), Err(CallErrorKind::Panicked));
        for status in [16, 17, 18, 19, -1, i32::MAX] {
            assert_eq!(CallErrorKind::of(status), Err(CallErrorKind::Unknown(status)));
        }
    }

    #[test]
    fn it_says_which_function_and_why() {
        let error = CallError {
            callback: Callback::Begin,
            kind: CallErrorKind::Error,
            message: "the disk is full".to_owned(),
        };
        assert_eq!(error.to_string(), "`begin_generation` failed: the disk is full");
    }
}
