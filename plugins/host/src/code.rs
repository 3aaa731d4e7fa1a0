//! Reasons and results, and their codes in the header.

use mesh_plugin_abi::{
    MESH_ABORT_CANCELLED, MESH_ABORT_FAILED, MESH_ABORT_FENCE_TIMEOUT, MESH_ABORT_FINISH_FAILED, MESH_ABORT_OVERLOADED,
    MESH_ABORT_SHUTDOWN, MESH_ABORT_STAGE_LOST, MESH_DISCARD_CANCELLED, MESH_DISCARD_DEADLINE_EXCEEDED,
    MESH_DISCARD_EXECUTION_FAILED, MESH_DISCARD_INVALID_TOKEN_COUNT, MESH_DISCARD_INVALID_TOKEN_ID,
    MESH_DISCARD_POSITION_MISMATCH, MESH_DISPOSITION_FIRST_MISMATCH, MESH_DISPOSITION_FULL_ACCEPT,
    MESH_DISPOSITION_STOPPED, MESH_FINISH_LENGTH, MESH_FINISH_STOP, MESH_FINISH_UNKNOWN,
};

/// Why a generation finished.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum FinishReason {
    /// For a reason that has no code of its own.
    Unknown,
    /// End of generation, or a stop string.
    Stop,
    /// The client's limit, or the end of the context.
    Length,
}

impl FinishReason {
    /// `MESH_FINISH_*`.
    pub const fn code(self) -> i32 {
        match self {
            Self::Unknown => MESH_FINISH_UNKNOWN,
            Self::Stop => MESH_FINISH_STOP,
            Self::Length => MESH_FINISH_LENGTH,
        }
    }
}

/// Why a generation was aborted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum AbortReason {
    /// Something failed.
    Failed,
    /// Cancelled by the client or an operator.
    Cancelled,
    /// A node of the model went away, or the model was stopped.
    StageLost,
    /// This node stops.
    Shutdown,
    /// It finished, but earlier calls did not return in time.
    FenceTimeout,
    /// `finish_generation` returned an error.
    FinishFailed,
    /// It ended, but the end found no place in the plugin's queue.
    Overloaded,
}

impl AbortReason {
    /// `MESH_ABORT_*`.
    pub const fn code(self) -> i32 {
        match self {
            Self::Failed => MESH_ABORT_FAILED,
            Self::Cancelled => MESH_ABORT_CANCELLED,
            Self::StageLost => MESH_ABORT_STAGE_LOST,
            Self::Shutdown => MESH_ABORT_SHUTDOWN,
            Self::FenceTimeout => MESH_ABORT_FENCE_TIMEOUT,
            Self::FinishFailed => MESH_ABORT_FINISH_FAILED,
            Self::Overloaded => MESH_ABORT_OVERLOADED,
        }
    }
}

/// How a verified decision came out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Disposition {
    /// A candidate was not what the model produced.
    FirstMismatch,
    /// The model produced all candidates.
    FullAccept,
    /// Generation ended within the accepted candidates.
    Stopped,
}

impl Disposition {
    /// `MESH_DISPOSITION_*`.
    pub const fn code(self) -> i32 {
        match self {
            Self::FirstMismatch => MESH_DISPOSITION_FIRST_MISMATCH,
            Self::FullAccept => MESH_DISPOSITION_FULL_ACCEPT,
            Self::Stopped => MESH_DISPOSITION_STOPPED,
        }
    }
}

/// Why a decision was not used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum DiscardReason {
    /// The request has gone, or another plugin was first.
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
    /// `MESH_DISCARD_*`.
    pub const fn code(self) -> i32 {
        match self {
            Self::Cancelled => MESH_DISCARD_CANCELLED,
            Self::DeadlineExceeded => MESH_DISCARD_DEADLINE_EXCEEDED,
            Self::InvalidTokenCount => MESH_DISCARD_INVALID_TOKEN_COUNT,
            Self::InvalidTokenId => MESH_DISCARD_INVALID_TOKEN_ID,
            Self::PositionMismatch => MESH_DISCARD_POSITION_MISMATCH,
            Self::ExecutionFailed => MESH_DISCARD_EXECUTION_FAILED,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_finish_reason_has_the_code_of_the_header() {
        use FinishReason::*;
        assert_eq!([Unknown, Stop, Length].map(FinishReason::code), [0, 1, 2]);
    }

    #[test]
    fn each_abort_reason_has_the_code_of_the_header() {
        use AbortReason::*;
        let all = [
            Failed,
            Cancelled,
            StageLost,
            Shutdown,
            FenceTimeout,
            FinishFailed,
            Overloaded,
        ];
        assert_eq!(all.map(AbortReason::code), [0, 1, 2, 3, 4, 5, 6]);
    }

    #[test]
    fn each_disposition_has_the_code_of_the_header() {
        use Disposition::*;
        assert_eq!([FirstMismatch, FullAccept, Stopped].map(Disposition::code), [0, 1, 2]);
    }

    #[test]
    fn each_discard_reason_has_the_code_of_the_header() {
        use DiscardReason::*;
        let all = [
            Cancelled,
            DeadlineExceeded,
            InvalidTokenCount,
            InvalidTokenId,
            PositionMismatch,
            ExecutionFailed,
        ];
        assert_eq!(all.map(DiscardReason::code), [0, 1, 2, 3, 4, 5]);
    }
}
