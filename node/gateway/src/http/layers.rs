//! What every request passes: its id, whether a web page may send it, CORS, the key.

use std::{sync::Arc, time::Duration};

use axum::{
    extract::{Request, State},
    http::{HeaderName, HeaderValue},
    middleware::Next,
    response::{IntoResponse as _, Response},
};
use mesh_proto::ErrorCode;
use tower_http::cors::{AllowHeaders, AllowMethods, CorsLayer};

use super::{body, error::HttpError};
use crate::{gateway::Shared, identity, origins::Origins, request_id};

/// Browsers cap it below this anyway; nothing here changes while a node runs.
const PREFLIGHT_CACHE: Duration = Duration::from_secs(3600);

/// The seed in use, so that a client can ask for the same text again.
pub(super) const SEED_HEADER: HeaderName = HeaderName::from_static("x-mesh-seed");

const REQUEST_ID: HeaderName = HeaderName::from_static(request_id::HEADER);

/// Tells browsers that pages of the listed origins may read answers. Headers are mirrored, since `*` does not cover
/// `authorization` (Fetch standard, CORS protocol).
pub(super) fn cors(origins: &Origins) -> CorsLayer {
    CorsLayer::new()
        .allow_origin(origins.cors())
        .allow_methods(AllowMethods::mirror_request())
        .allow_headers(AllowHeaders::mirror_request())
        .expose_headers([REQUEST_ID, SEED_HEADER, axum::http::header::RETRY_AFTER])
        .max_age(PREFLIGHT_CACHE)
}

/// Gives the request its id, as an extension, and returns it with whatever is answered; refusals are counted.
pub(super) async fn request_id(State(shared): State<Arc<Shared>>, mut request: Request, next: Next) -> Response {
    let id = request_id::keep_or_make(request.headers().get(REQUEST_ID).map(HeaderValue::as_bytes));
    request.extensions_mut().insert(id);
    let trace = identity::trace(request.headers());
    let (method, path) = (request.method().clone(), request.uri().path().to_owned());
    let mut response = next.run(request).await;
    tracing::debug!(
        request_id = %id,
        %method,
        path,
        trace_id = trace.map(|trace| trace.trace_id_hex()),
        status = response.status().as_u16(),
        "answered"
    );
    if let Some(code) = response.extensions().get::<ErrorCode>() {
        shared.options.telemetry.refused(*code);
    }
    if let Ok(value) = HeaderValue::try_from(id.to_string()) {
        response.headers_mut().insert(REQUEST_ID, value);
    }
    response
}

/// Refuses what a page of any site can have a browser send, and requests under a name that is not this node's: before
/// anything is done for them, and without the headers that let a page read the answer.
pub(super) async fn keep_pages_out(State(shared): State<Arc<Shared>>, request: Request, next: Next) -> Response {
    let hosts = shared.options.hosts.check(request.headers(), request.uri());
    match hosts.and_then(|()| shared.origins.check(request.headers())) {
        Ok(()) => next.run(request).await,
        Err(error) => {
            body::discard(request).await;
            HttpError::from(error).into_response()
        }
    }
}

/// Lets in who has the key, if the node has one.
pub(super) async fn require_key(State(shared): State<Arc<Shared>>, request: Request, next: Next) -> Response {
    match shared.access.user(request.headers()) {
        Ok(()) => next.run(request).await,
        Err(error) => {
            body::discard(request).await;
            HttpError::from(error).into_response()
        }
    }
}
