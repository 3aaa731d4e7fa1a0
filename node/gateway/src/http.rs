//! The OpenAI-compatible HTTP API.
//!
//! ```text
//! request ─▶ id ─▶ host, origin ─▶ CORS ─▶ panics ─▶ route ─▶ key ─▶ body ─▶ admit ─▶ JSON ─▶ parameters ─▶ generate::start
//!                                                                                                           │ admitted: 200
//! client ◀────────────────────────────────────── one object (collect) or events (stream) ◀──────────────────┘
//! ```

use std::sync::Arc;

use axum::{
    Router,
    extract::Request,
    middleware::from_fn_with_state,
    routing::{MethodRouter, get, post},
};
use mesh_proto::{ErrorCode, MeshError};
use tower_http::catch_panic::CatchPanicLayer;

use crate::{gateway::Shared, generate::shorten};
use error::HttpError;

mod answer;
mod body;
mod collect;
mod completions;
mod error;
mod field;
mod health;
mod json;
mod layers;
mod message;
mod models;
mod parameters;
mod prompt;
mod stream;

/// A path from a client is echoed up to here.
const ECHOED_PATH: usize = 100;

/// All routes, ready to be served; `more` needs the key too.
pub(crate) fn router(shared: Arc<Shared>, more: Router) -> Router {
    let open = Router::new();
    let open = route(open, "/healthz", get(health::healthz));
    let open = route(open, "/readyz", get(health::readyz));

    let keyed = Router::new();
    let keyed = route(keyed, "/v1/models", get(models::list));
    let keyed = keyed.route("/v1/models/{*id}", get(models::show));
    let keyed = route(keyed, "/v1/chat/completions", post(completions::chat));
    let keyed = route(keyed, "/v1/completions", post(completions::text));
    let keyed = keyed.merge(more.with_state(()));
    let keyed = keyed.route_layer(from_fn_with_state(shared.clone(), layers::require_key));

    open.merge(keyed)
        .method_not_allowed_fallback(method_not_allowed)
        .fallback(no_route)
        .with_state(shared.clone())
        .layer(CatchPanicLayer::custom(error::panicked))
        .layer(layers::cors(&shared.origins))
        .layer(from_fn_with_state(shared.clone(), layers::keep_pages_out))
        .layer(from_fn_with_state(shared, layers::request_id))
}

/// The route with and without a trailing slash.
fn route(router: Router<Arc<Shared>>, path: &str, methods: MethodRouter<Arc<Shared>>) -> Router<Arc<Shared>> {
    router.route(path, methods.clone()).route(&format!("{path}/"), methods)
}

async fn no_route(request: Request) -> HttpError {
    let method = request.method().clone();
    let path = shorten(request.uri().path(), ECHOED_PATH);
    body::discard(request).await;
    MeshError::new(
        ErrorCode::NotFound,
        format!("there is no {method} {path}; the API is under /v1"),
    )
    .into()
}

async fn method_not_allowed(request: Request) -> HttpError {
    let method = request.method().clone();
    let path = shorten(request.uri().path(), ECHOED_PATH);
    body::discard(request).await;
    HttpError::method_not_allowed(format!(
        "{path} does not take {method}; use a method of the allow header"
    ))
}
