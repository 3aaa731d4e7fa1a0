//! `/healthz` is about the process, `/readyz` about whether requests can be served. Neither needs the key.

use std::sync::Arc;

use axum::{
    Json,
    extract::State,
    http::{HeaderMap, StatusCode},
};
use serde::Serialize;

use crate::gateway::Shared;

#[derive(Debug, Serialize)]
pub(super) struct Health {
    status: &'static str,
}

/// 200 while the process answers at all.
pub(super) async fn healthz() -> Json<Health> {
    Json(Health { status: "ok" })
}

#[derive(Debug, Serialize)]
pub(super) struct Readiness {
    ready: bool,
    draining: bool,
    /// Left out for callers without the key.
    #[serde(skip_serializing_if = "Option::is_none")]
    deployments: Option<Vec<DeploymentReadiness>>,
}

#[derive(Debug, Serialize)]
struct DeploymentReadiness {
    name: String,
    ready: bool,
}

/// 200 when a deployment is ready and the node is not stopping, else 503.
pub(super) async fn readyz(State(shared): State<Arc<Shared>>, headers: HeaderMap) -> (StatusCode, Json<Readiness>) {
    let models = shared.inference.models();
    let draining = shared.admission.is_draining();
    let ready = !draining && models.iter().any(|model| model.ready);
    let status = if ready {
        StatusCode::OK
    } else {
        StatusCode::SERVICE_UNAVAILABLE
    };
    let deployments = shared.access.user(&headers).is_ok().then(|| {
        models
            .into_iter()
            .map(|model| DeploymentReadiness {
                name: model.name,
                ready: model.ready,
            })
            .collect()
    });
    (
        status,
        Json(Readiness {
            ready,
            draining,
            deployments,
        }),
    )
}
