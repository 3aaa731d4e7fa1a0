//! Errors as the OpenAI API writes them.

use std::any::Any;

use axum::{
    Json,
    http::{HeaderValue, StatusCode, header},
    response::{IntoResponse, Response},
};
use mesh_proto::{ErrorCode, MeshError};
use serde::Serialize;

/// A full queue moves within a request's time.
const RETRY_QUEUE: HeaderValue = HeaderValue::from_static("1");

/// Another arrangement of stages, or another node behind the same address, takes seconds.
const RETRY_UNAVAILABLE: HeaderValue = HeaderValue::from_static("5");

/// `{"error": {...}}`, in a response of its own or as an event in a stream.
#[derive(Debug, Serialize)]
pub(super) struct ErrorBody<'a> {
    error: ErrorObject<'a>,
}

#[derive(Debug, Serialize)]
struct ErrorObject<'a> {
    message: &'a str,
    r#type: &'static str,
    param: Option<&'a str>,
    code: &'a str,
}

impl<'a> From<&'a MeshError> for ErrorBody<'a> {
    fn from(error: &'a MeshError) -> Self {
        Self {
            error: ErrorObject {
                message: &error.message,
                r#type: kind(error.code.http_status()),
                param: error.param.as_deref(),
                code: error.code.name(),
            },
        }
    }
}

/// The class that OpenAI's documentation gives for a status.
const fn kind(status: u16) -> &'static str {
    match status {
        401 => "authentication_error",
        403 => "permission_error",
        429 => "rate_limit_error",
        ..500 => "invalid_request_error",
        _ => "server_error",
    }
}

/// A refusal, with the status and headers that belong to it.
#[derive(Debug)]
pub(super) enum HttpError {
    /// A row of the error table.
    Mesh(MeshError),
    /// 405, which only HTTP has; the router adds `allow`.
    MethodNotAllowed(String),
}

impl HttpError {
    pub(super) fn method_not_allowed(message: String) -> Self {
        Self::MethodNotAllowed(message)
    }
}

impl HttpError {
    /// The response of a request that was admitted and failed later: it is not counted as refused.
    pub(super) fn after_admission(error: MeshError) -> Response {
        let mut response = respond(&error);
        response.extensions_mut().remove::<ErrorCode>();
        response
    }
}

impl From<MeshError> for HttpError {
    fn from(error: MeshError) -> Self {
        Self::Mesh(error)
    }
}

impl IntoResponse for HttpError {
    fn into_response(self) -> Response {
        match self {
            Self::Mesh(error) => respond(&error),
            Self::MethodNotAllowed(message) => {
                let kind = kind(StatusCode::METHOD_NOT_ALLOWED.as_u16());
                let error = ErrorObject {
                    message: &message,
                    r#type: kind,
                    param: None,
                    code: "method_not_allowed",
                };
                (StatusCode::METHOD_NOT_ALLOWED, Json(ErrorBody { error })).into_response()
            }
        }
    }
}

fn respond(error: &MeshError) -> Response {
    let status = StatusCode::from_u16(error.code.http_status()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let mut response = (status, Json(ErrorBody::from(error))).into_response();
    response.extensions_mut().insert(error.code);
    let headers = response.headers_mut();
    match status {
        StatusCode::TOO_MANY_REQUESTS => _ = headers.insert(header::RETRY_AFTER, RETRY_QUEUE),
        StatusCode::SERVICE_UNAVAILABLE => _ = headers.insert(header::RETRY_AFTER, RETRY_UNAVAILABLE),
        StatusCode::UNAUTHORIZED => {
            headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        _ => {}
    }
    if matches!(
        error.code,
        ErrorCode::Draining | ErrorCode::TooLarge | ErrorCode::RequestTimeout
    ) {
        headers.insert(header::CONNECTION, HeaderValue::from_static("close"));
    }
    response
}

/// A handler panicked: the client gets an answer, the log the reason.
pub(super) fn panicked(panic: Box<dyn Any + Send>) -> Response {
    let reason = panic
        .downcast_ref::<&str>()
        .copied()
        .or(panic.downcast_ref::<String>().map(String::as_str));
    tracing::error!(reason = reason.unwrap_or("unknown"), "an HTTP handler panicked");
    respond(&MeshError::internal(
        "the node failed on this request; see its log and report the defect",
    ))
}
