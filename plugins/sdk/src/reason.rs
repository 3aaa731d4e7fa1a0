//! Codes of the node as enums. Each code is mapped one by one; one that is not known here takes the fallback that the
//! header names.

use mesh_plugin_abi as abi;

/// Why a generation finished.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum FinishReason {
    /// For a reason that this SDK does not know.
    #[default]
    Unknown,
    /// End of generation, or a stop string.
    Stop,
    /// The client's limit, or the end of the context.
    Length,
}

impl FinishReason {
    /// In one word, for logs and labels.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Unknown => "unknown",
            Self::Stop => "stop",
            Self::Length => "length",
        }
    }

    /// From `MESH_FINISH_*`.
    pub fn from_code(code: i32) -> Self {
        match code {
            abi::MESH_FINISH_STOP => Self::Stop,
            abi::MESH_FINISH_LENGTH => Self::Length,
            _ => Self::Unknown,
        }
    }
}

/// Why a generation was aborted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum AbortReason {
    /// Something failed, or for a reason that this SDK does not know.
    #[default]
    Failed,
    /// By the client or an operator.
    Cancelled,
    /// A node of the model went away, or the model was stopped.
    StageLost,
    /// This node stops.
    Shutdown,
    /// It finished, but earlier calls did not return in time.
    FenceTimeout,
    /// [`crate::Plugin::finish`] returned an error.
    FinishFailed,
    /// It ended, but the end found no place in the plugin's queue.
    Overloaded,
}

impl AbortReason {
    /// In one word, for logs and labels.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Failed => "failed",
            Self::Cancelled => "cancelled",
            Self::StageLost => "stage_lost",
            Self::Shutdown => "shutdown",
            Self::FenceTimeout => "fence_timeout",
            Self::FinishFailed => "finish_failed",
            Self::Overloaded => "overloaded",
        }
    }

    /// From `MESH_ABORT_*`.
    pub fn from_code(code: i32) -> Self {
        match code {
            abi::MESH_ABORT_CANCELLED => Self::Cancelled,
            abi::MESH_ABORT_STAGE_LOST => Self::StageLost,
            abi::MESH_ABORT_SHUTDOWN => Self::Shutdown,
            abi::MESH_ABORT_FENCE_TIMEOUT => Self::FenceTimeout,
            abi::MESH_ABORT_FINISH_FAILED => Self::FinishFailed,
            abi::MESH_ABORT_OVERLOADED => Self::Overloaded,
            _ => Self::Failed,
        }
    }
}

/// How a verified decision came out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Disposition {
    /// A candidate was not what the model produced, or in a way that this SDK does not know.
    #[default]
    FirstMismatch,
    /// The model produced all candidates, and one more token.
    FullAccept,
    /// Generation ended within the accepted candidates.
    Stopped,
}

impl Disposition {
    /// In one word, for logs and labels.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::FirstMismatch => "first_mismatch",
            Self::FullAccept => "full_accept",
            Self::Stopped => "stopped",
        }
    }

    /// From `MESH_DISPOSITION_*`.
    pub fn from_code(code: i32) -> Self {
        match code {
            abi::MESH_DISPOSITION_FULL_ACCEPT => Self::FullAccept,
            abi::MESH_DISPOSITION_STOPPED => Self::Stopped,
            _ => Self::FirstMismatch,
        }
    }
}

/// Why a decision was not used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum DiscardReason {
    /// The request has gone, another plugin was first, or for a reason that this SDK does not know.
    #[default]
    Cancelled,
    /// It came after the deadline.
    DeadlineExceeded,
    /// No tokens, more than wanted, or more than the buffer holds.
    InvalidTokenCount,
    /// A token is not in the vocabulary.
    InvalidTokenId,
    /// It is not for the position that was asked about.
    PositionMismatch,
    /// The model could not verify it.
    ExecutionFailed,
}

impl DiscardReason {
    /// In one word, for logs and labels.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Cancelled => "cancelled",
            Self::DeadlineExceeded => "deadline_exceeded",
            Self::InvalidTokenCount => "invalid_token_count",
            Self::InvalidTokenId => "invalid_token_id",
            Self::PositionMismatch => "position_mismatch",
            Self::ExecutionFailed => "execution_failed",
        }
    }

    /// From `MESH_DISCARD_*`.
    pub fn from_code(code: i32) -> Self {
        match code {
            abi::MESH_DISCARD_DEADLINE_EXCEEDED => Self::DeadlineExceeded,
            abi::MESH_DISCARD_INVALID_TOKEN_COUNT => Self::InvalidTokenCount,
            abi::MESH_DISCARD_INVALID_TOKEN_ID => Self::InvalidTokenId,
            abi::MESH_DISCARD_POSITION_MISMATCH => Self::PositionMismatch,
            abi::MESH_DISCARD_EXECUTION_FAILED => Self::ExecutionFailed,
            _ => Self::Cancelled,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_codes_take_the_fallback_of_the_header() {
        for code in [i32::MIN, -1, 77, i32::MAX] {
            assert_eq!(
                FinishReason::from_code(code),
                FinishReason::from_code(abi::MESH_FINISH_UNKNOWN)
            );
            assert_eq!(
                AbortReason::from_code(code),
                AbortReason::from_code(abi::MESH_ABORT_FAILED)
            );
            assert_eq!(
                Disposition::from_code(code),
                Disposition::from_code(abi::MESH_DISPOSITION_FIRST_MISMATCH)
            );
            assert_eq!(
                DiscardReason::from_code(code),
                DiscardReason::from_code(abi::MESH_DISCARD_CANCELLED)
            );
        }
    }

    #[test]
    fn known_codes_are_told_apart() {
        let aborts: Vec<_> = (0..=6).map(AbortReason::from_code).collect();
        let discards: Vec<_> = (0..=5).map(DiscardReason::from_code).collect();
        for (index, reason) in aborts.iter().enumerate() {
            assert!(!aborts[..index].contains(reason));
        }
        for (index, reason) in discards.iter().enumerate() {
            assert!(!discards[..index].contains(reason));
        }
    }
}
