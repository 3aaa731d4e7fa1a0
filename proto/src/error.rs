//! The one error table: code, HTTP status, gRPC status, whether trying again can help.

use std::fmt;

use crate::wire;

macro_rules! error_table {
    ($($(#[$doc:meta])* $variant:ident = $name:literal, $http:literal, $grpc:literal, $retry:literal;)*) => {
        /// Every error that a user, another node or a client can see.
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
        pub enum ErrorCode {
            $($(#[$doc])* $variant,)*
        }

        impl ErrorCode {
            /// All codes, in the order of the table.
            pub const ALL: &[Self] = &[$(Self::$variant,)*];

            /// Stable name, as in the OpenAI `code` field and on the wire.
            pub const fn name(self) -> &'static str {
                match self { $(Self::$variant => $name,)* }
            }

            /// HTTP status.
            pub const fn http_status(self) -> u16 {
                match self { $(Self::$variant => $http,)* }
            }

            /// gRPC status code (<https://grpc.io/docs/guides/status-codes/>).
            pub const fn grpc_code(self) -> i32 {
                match self { $(Self::$variant => $grpc,)* }
            }

            /// Whether the same request can succeed later.
            pub const fn retryable(self) -> bool {
                match self { $(Self::$variant => $retry,)* }
            }
        }
    };
}

error_table! {
    /// A field is missing, of the wrong type or out of range.
    InvalidRequest = "invalid_request", 400, 3, false;
    /// Prompt, or prompt and `max_tokens`, do not fit in the context.
    ContextLengthExceeded = "context_length_exceeded", 400, 3, false;
    /// The chat template raised, or cannot render this conversation.
    TemplateError = "template_error", 400, 3, false;
    /// A known parameter that Mesh does not offer yet.
    Unsupported = "unsupported_parameter", 400, 12, false;
    /// The key or token is missing or wrong.
    Unauthenticated = "invalid_api_key", 401, 16, false;
    /// The caller may not do this.
    PermissionDenied = "permission_denied", 403, 7, false;
    /// No deployment of this name.
    ModelNotFound = "model_not_found", 404, 5, false;
    /// The thing asked for does not exist.
    NotFound = "not_found", 404, 5, false;
    /// The name is taken, or the node is in a state that does not allow it.
    Conflict = "conflict", 409, 9, false;
    /// The body is larger than the limit.
    TooLarge = "body_too_large", 413, 8, false;
    /// The body is not of the type that is expected, or does not say that it is.
    UnsupportedMediaType = "unsupported_media_type", 415, 3, false;
    /// The body took too long to arrive.
    RequestTimeout = "request_timeout", 408, 4, true;
    /// The queue is full.
    QueueFull = "queue_full", 429, 8, true;
    /// The model file is damaged, unsupported or cannot be read.
    ModelInvalid = "model_invalid", 400, 3, false;
    /// Not enough memory, disk or layers for what was asked.
    InsufficientResources = "insufficient_resources", 400, 8, false;
    /// The client cancelled.
    Cancelled = "cancelled", 499, 1, false;
    /// The deployment exists and is not ready.
    NotReady = "deployment_not_ready", 503, 14, true;
    /// A stage went away while the request ran.
    StageLost = "stage_lost", 503, 14, true;
    /// The node is stopping.
    Draining = "draining", 503, 14, true;
    /// The other node cannot be reached.
    Unreachable = "node_unreachable", 503, 14, true;
    /// The other side did not answer in time.
    DeadlineExceeded = "deadline_exceeded", 504, 4, true;
    /// A peer broke the protocol.
    Protocol = "protocol_error", 502, 13, false;
    /// llama.cpp failed.
    EngineFailed = "engine_failed", 500, 13, false;
    /// A defect of Mesh.
    Internal = "internal_error", 500, 13, false;
}

impl ErrorCode {
    /// The code of this name; an unknown one, from a newer node, is [`ErrorCode::Internal`].
    pub fn from_name(name: &str) -> Self {
        Self::ALL
            .iter()
            .copied()
            .find(|code| code.name() == name)
            .unwrap_or(Self::Internal)
    }

    /// Code for `RESET_STREAM` and `STOP_SENDING` of QUIC: the HTTP status.
    pub const fn reset_code(self) -> u32 {
        self.http_status() as u32
    }
}

impl fmt::Display for ErrorCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// An error that may cross a process border.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{message}")]
pub struct MeshError {
    /// Row of the table.
    pub code: ErrorCode,
    /// Lower case, no full stop, says what to do.
    pub message: String,
    /// Field of the request at fault.
    pub param: Option<String>,
}

impl MeshError {
    /// An error without a field.
    pub fn new(code: ErrorCode, message: impl Into<String>) -> Self {
        Self {
            code,
            message: message.into(),
            param: None,
        }
    }

    /// A field of the request is wrong.
    pub fn invalid(param: impl Into<String>, message: impl Into<String>) -> Self {
        Self {
            code: ErrorCode::InvalidRequest,
            message: message.into(),
            param: Some(param.into()),
        }
    }

    /// The same error, blaming a field.
    #[must_use]
    pub fn with_param(mut self, param: impl Into<String>) -> Self {
        self.param = Some(param.into());
        self
    }

    /// A defect of Mesh.
    pub fn internal(message: impl Into<String>) -> Self {
        Self::new(ErrorCode::Internal, message)
    }
}

impl From<MeshError> for wire::Refusal {
    fn from(error: MeshError) -> Self {
        Self {
            code: error.code.name().to_owned(),
            message: error.message,
            param: error.param.unwrap_or_default(),
        }
    }
}

impl From<wire::Refusal> for MeshError {
    fn from(refusal: wire::Refusal) -> Self {
        Self {
            code: ErrorCode::from_name(&refusal.code),
            message: refusal.message,
            param: Some(refusal.param).filter(|param| !param.is_empty()),
        }
    }
}

#[cfg(feature = "grpc")]
impl From<MeshError> for tonic::Status {
    fn from(error: MeshError) -> Self {
        let mut status = Self::new(tonic::Code::from_i32(error.code.grpc_code()), error.message);
        if let Ok(code) = error.code.name().parse() {
            status.metadata_mut().insert("mesh-code", code);
        }
        // A field's name that is not ASCII cannot travel as metadata; the message tells it as well.
        if let Some(param) = error.param.and_then(|param| param.parse().ok()) {
            status.metadata_mut().insert("mesh-param", param);
        }
        status
    }
}

#[cfg(feature = "grpc")]
impl From<&tonic::Status> for MeshError {
    fn from(status: &tonic::Status) -> Self {
        let metadata = |key: &str| status.metadata().get(key).and_then(|value| value.to_str().ok());
        let code = metadata("mesh-code")
            .map(ErrorCode::from_name)
            .unwrap_or(match status.code() {
                tonic::Code::Unavailable => ErrorCode::Unreachable,
                tonic::Code::DeadlineExceeded => ErrorCode::DeadlineExceeded,
                tonic::Code::Unauthenticated => ErrorCode::Unauthenticated,
                _ => ErrorCode::Internal,
            });
        Self {
            code,
            message: status.message().to_owned(),
            param: metadata("mesh-param").map(str::to_owned),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_is_unique_and_found_again() {
        for code in ErrorCode::ALL {
            assert_eq!(ErrorCode::from_name(code.name()), *code);
        }
        assert_eq!(ErrorCode::from_name("from_the_future"), ErrorCode::Internal);
    }

    #[test]
    fn a_refusal_carries_the_whole_error() {
        let error = MeshError::invalid("top_p", "top_p is 2; use a value in (0, 1]");
        assert_eq!(MeshError::from(wire::Refusal::from(error.clone())), error);
    }

    #[cfg(feature = "grpc")]
    #[test]
    fn a_grpc_status_carries_the_whole_error() {
        for code in ErrorCode::ALL {
            let error = MeshError::new(*code, "what to do");
            assert_eq!(MeshError::from(&tonic::Status::from(error.clone())), error);
            let error = error.with_param("messages[0].content");
            assert_eq!(MeshError::from(&tonic::Status::from(error.clone())), error);
        }
    }

    #[cfg(feature = "grpc")]
    #[test]
    fn a_field_that_metadata_cannot_hold_is_left_out() {
        let status = tonic::Status::from(MeshError::invalid("größe\n", "unknown field"));
        assert_eq!(MeshError::from(&status).param, None);
        assert_eq!(
            MeshError::from(&tonic::Status::unavailable("gone")).code,
            ErrorCode::Unreachable
        );
    }
}
