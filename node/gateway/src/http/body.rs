//! Reading a body: JSON, bounded in bytes, with nothing allocated on the client's word. Its time is bounded by
//! [`Pace`](crate::serve::Pace).

use std::time::Duration;

use axum::{
    body::BodyDataStream,
    extract::Request,
    http::{HeaderMap, HeaderValue, header},
};
use bytes::BytesMut;
use futures::StreamExt as _;
use mesh_proto::{ErrorCode, MeshError};
use tokio::time::timeout;

use crate::{options::GatewayOptions, serve::BodyError};

/// A refused body is read and forgotten up to here, so that the client, which writes before it reads, sees the refusal
/// and not a reset connection.
const DISCARD_LIMIT: usize = 64 << 20;

/// As [`DISCARD_LIMIT`], in time.
const DISCARD_TIMEOUT: Duration = Duration::from_secs(2);

/// The whole body.
///
/// # Errors
///
/// `unsupported_media_type`, `body_too_large`, `request_timeout`, or `invalid_request` for a body that breaks off or is
/// encoded.
pub(super) async fn read(request: Request, options: &GatewayOptions) -> Result<BytesMut, MeshError> {
    if let Err(error) = demand_json(request.headers()).and_then(|()| refuse_encoding(request.headers())) {
        discard(request).await;
        return Err(error);
    }
    let limit = options.body_limit;
    if announced(request.headers()).is_some_and(|length| length > limit as u64) {
        discard(request).await;
        return Err(too_large(limit));
    }
    let mut chunks = request.into_body().into_data_stream();
    let read = collect(&mut chunks, limit).await;
    if matches!(&read, Err(error) if error.code == ErrorCode::TooLarge) {
        forget(chunks).await;
    }
    read
}

/// Reads and forgets the body of a request that is refused.
pub(super) async fn discard(request: Request) {
    // Such a client waits for leave to send: it gets the refusal instead (RFC 9110 §10.1.1).
    if !request.headers().contains_key(header::EXPECT) {
        forget(request.into_body().into_data_stream()).await;
    }
}

async fn forget(mut chunks: BodyDataStream) {
    let discard = async {
        let mut discarded = 0;
        while let Some(Ok(chunk)) = chunks.next().await {
            discarded += chunk.len();
            if discarded > DISCARD_LIMIT {
                break;
            }
        }
    };
    _ = timeout(DISCARD_TIMEOUT, discard).await;
}

async fn collect(chunks: &mut BodyDataStream, limit: usize) -> Result<BytesMut, MeshError> {
    let mut whole = BytesMut::new();
    while let Some(chunk) = chunks.next().await {
        let chunk = chunk.map_err(|error| not_read(&error))?;
        if chunk.len() > limit - whole.len() {
            return Err(too_large(limit));
        }
        whole.extend_from_slice(&chunk);
    }
    Ok(whole)
}

/// What kept a body from being read to its end.
fn not_read(error: &axum::Error) -> MeshError {
    let mut cause: Option<&(dyn std::error::Error + 'static)> = Some(error);
    while let Some(error) = cause {
        if let Some(known) = error.downcast_ref::<BodyError>() {
            return known.into();
        }
        cause = error.source();
    }
    let message = format!("the body broke off ({error}); send it again");
    MeshError::new(ErrorCode::InvalidRequest, message)
}

/// A page of any site can have a browser send a body of another type, or of none, without asking first (Fetch standard,
/// CORS-safelisted request headers).
fn demand_json(headers: &HeaderMap) -> Result<(), MeshError> {
    let mut types = headers.get_all(header::CONTENT_TYPE).iter();
    let json = |value: &HeaderValue| {
        let essence = value.as_bytes().split(|byte| *byte == b';').next().unwrap_or_default();
        essence.trim_ascii().eq_ignore_ascii_case(b"application/json")
    };
    match (types.next(), types.next()) {
        (Some(value), None) if json(value) => Ok(()),
        _ => {
            let message = "the body must be JSON and say so; send the header `content-type: application/json`";
            Err(MeshError::new(ErrorCode::UnsupportedMediaType, message))
        }
    }
}

fn announced(headers: &HeaderMap) -> Option<u64> {
    headers.get(header::CONTENT_LENGTH)?.to_str().ok()?.parse().ok()
}

fn refuse_encoding(headers: &HeaderMap) -> Result<(), MeshError> {
    match headers.get(header::CONTENT_ENCODING) {
        Some(encoding) if !encoding.as_bytes().eq_ignore_ascii_case(b"identity") => {
            let message = "encoded bodies are not supported; send the JSON without content-encoding";
            Err(MeshError::new(ErrorCode::InvalidRequest, message))
        }
        _ => Ok(()),
    }
}

fn too_large(limit: usize) -> MeshError {
    let message = format!("the body is larger than {limit} bytes; send less, or raise the node's body limit");
    MeshError::new(ErrorCode::TooLarge, message)
}
