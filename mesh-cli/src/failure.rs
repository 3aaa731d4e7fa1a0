//! How a command ends: the exit codes, and the one line that says why.

use std::{fmt, io, process::ExitCode};

use mesh_proto::{ErrorCode, MeshError};

use crate::output;

/// The table of exit codes, for `mesh help` and the README.
pub(crate) const EXIT_CODES: &str = "\
Exit codes:
  0    done
  1    failed for a reason that is not below; the message says which
  2    wrong usage: a flag or a value that cannot be used
  3    the node is not running or does not answer
  4    there is no model or node of that name
  5    refused: a name, port or directory is taken, or a token, key or ticket is missing or wrong
  6    the model file is missing, damaged or not supported
  7    not enough memory, disk, nodes or layers for what was asked
  8    not now: busy, loading, stopping, or a stage was lost; try again
  130  interrupted";

/// Exit codes. Scripts rely on the numbers; [`EXIT_CODES`] documents them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Exit {
    Failed = 1,
    Usage = 2,
    Unreachable = 3,
    NotFound = 4,
    Refused = 5,
    ModelInvalid = 6,
    InsufficientResources = 7,
    NotNow = 8,
    Interrupted = 130,
}

/// Why a command failed.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) exit: Exit,
    message: String,
}

impl Failure {
    pub(crate) fn new(exit: Exit, message: impl Into<String>) -> Self {
        Self {
            exit,
            message: message.into(),
        }
    }

    pub(crate) fn failed(message: impl Into<String>) -> Self {
        Self::new(Exit::Failed, message)
    }

    pub(crate) fn usage(message: impl Into<String>) -> Self {
        Self::new(Exit::Usage, message)
    }

    /// The user pressed Ctrl-C, or a service manager asked to stop.
    pub(crate) fn interrupted(what: &str) -> Self {
        Self::new(Exit::Interrupted, format!("interrupted; {what}"))
    }

    /// Says why on stderr.
    pub(crate) fn report(&self) -> ExitCode {
        use io::Write as _;
        // Nothing is left to do if stderr is closed.
        let _ = writeln!(io::stderr(), "mesh: {}", output::harmless(&self.message));
        ExitCode::from(self.exit as u8)
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl From<MeshError> for Failure {
    fn from(error: MeshError) -> Self {
        // It may quote a file or a peer.
        Self::new(exit_of(error.code), output::sentence(&error.message))
    }
}

impl From<tonic::Status> for Failure {
    fn from(status: tonic::Status) -> Self {
        use tonic::Code;
        // Only a node names its errors by the table; a transport does not.
        let by_transport = !status.metadata().contains_key("mesh-code");
        let lost = matches!(
            status.code(),
            Code::Unavailable | Code::Unknown | Code::Internal | Code::Cancelled
        );
        if by_transport && lost {
            let message = format!(
                "the node does not answer any more ({}); see whether it runs, and its log",
                status.message()
            );
            return Self::new(Exit::Unreachable, message);
        }
        MeshError::from(&status).into()
    }
}

/// Which exit code an error of the table has.
fn exit_of(code: ErrorCode) -> Exit {
    match code {
        ErrorCode::InvalidRequest
        | ErrorCode::ContextLengthExceeded
        | ErrorCode::TemplateError
        | ErrorCode::Unsupported
        | ErrorCode::TooLarge
        | ErrorCode::UnsupportedMediaType => Exit::Usage,
        ErrorCode::Unreachable => Exit::Unreachable,
        ErrorCode::ModelNotFound | ErrorCode::NotFound => Exit::NotFound,
        ErrorCode::Unauthenticated | ErrorCode::PermissionDenied | ErrorCode::Conflict => Exit::Refused,
        ErrorCode::ModelInvalid => Exit::ModelInvalid,
        ErrorCode::InsufficientResources => Exit::InsufficientResources,
        ErrorCode::RequestTimeout
        | ErrorCode::QueueFull
        | ErrorCode::NotReady
        | ErrorCode::StageLost
        | ErrorCode::Draining
        | ErrorCode::DeadlineExceeded => Exit::NotNow,
        ErrorCode::Cancelled => Exit::Interrupted,
        ErrorCode::Protocol | ErrorCode::EngineFailed | ErrorCode::Internal => Exit::Failed,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_exit_code_is_documented() {
        for exit in [
            Exit::Failed,
            Exit::Usage,
            Exit::Unreachable,
            Exit::NotFound,
            Exit::Refused,
            Exit::ModelInvalid,
            Exit::InsufficientResources,
            Exit::NotNow,
            Exit::Interrupted,
        ] {
            let number = (exit as u8).to_string();
            let documented = EXIT_CODES
                .lines()
                .any(|line| line.trim_start().split(' ').next() == Some(&number));
            assert!(documented, "{exit:?}");
        }
    }

    #[test]
    fn the_readme_documents_the_exit_codes() {
        assert!(include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/../README.md")).contains(EXIT_CODES));
    }

    #[test]
    fn a_lost_connection_is_exit_code_3() {
        assert_eq!(
            Failure::from(tonic::Status::unavailable("http2 error")).exit,
            Exit::Unreachable
        );
        assert_eq!(
            Failure::from(tonic::Status::unknown("transport error")).exit,
            Exit::Unreachable
        );
    }

    #[test]
    fn a_status_with_a_code_of_the_table_keeps_it_across_the_wire() {
        for code in ErrorCode::ALL {
            let status = tonic::Status::from(MeshError::new(*code, "why"));
            assert_eq!(Failure::from(status).exit, exit_of(*code), "{code}");
        }
    }
}
