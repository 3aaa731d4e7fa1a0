//! Reading a body: bounded in bytes and time, with nothing allocated on the client's word.

use std::time::Duration;

use axum::{
    body::BodyDataStream,
    extract::Request,
    http::{HeaderMap, header},
};
use bytes::BytesMut;
use futures::StreamExt as _;
use mesh_proto::{ErrorCode, MeshError};
use tokio::time::timeout;

use crate::options::GatewayOptions;

/// A refused body is read and forgotten up to here, so that the client, which writes before it reads, sees the refusal
/// and not a reset connection.
const DISCARD_LIMIT: usize = 64 << 20;

/// As [`DISCARD_LIMIT`], in time.
const DISCARD_TIMEOUT: Duration = Duration::from_secs(2);

/// The whole body.
///
/// # Errors
///
/// `body_too_large`, `request_timeout`, or `invalid_request` for a body that breaks off or is encoded.
pub(super) async fn read(request: Request, options: &GatewayOptions) -> Result<BytesMut, MeshError> {
    refuse_encoding(request.headers())?;
    let limit = options.body_limit;
    if announced(request.headers()).is_some_and(|length| length > limit as u64) {
        discard(request).await;
        return Err(too_large(limit));
    }
    let mut chunks = request.into_body().into_data_stream();
    let read = match timeout(options.body_timeout, collect(&mut chunks, limit)).await {
        Ok(read) => read,
        Err(_) => {
            let seconds = options.body_timeout.as_secs_f32();
            let message = format!("the body did not arrive within {seconds} s; send it faster, or send less");
            Err(MeshError::new(ErrorCode::RequestTimeout, message))
        }
    };
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
        let chunk = chunk.map_err(|error| {
            let message = format!("the body broke off or is not framed as announced ({error}); send it again");
            MeshError::new(ErrorCode::InvalidRequest, message)
        })?;
        if chunk.len() > limit - whole.len() {
            return Err(too_large(limit));
        }
        whole.extend_from_slice(&chunk);
    }
    Ok(whole)
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
