//! The `mesh.v1` services, health and reflection.

use std::{any::Any, sync::Arc};

use axum::{
    Router,
    extract::{Request as HttpRequest, State},
    http::{StatusCode, header},
    middleware::{Next, from_fn_with_state},
    response::{IntoResponse as _, Response as HttpResponse},
};
use mesh_actors::ports::telemetry::Telemetry;
use mesh_proto::{
    DESCRIPTORS, MeshError, RequestId,
    v1::{
        deployment_service_server::DeploymentServiceServer, inference_service_server::InferenceServiceServer,
        lifecycle_service_server::LifecycleServiceServer, node_service_server::NodeServiceServer,
    },
};
use tonic::{Request, Response, Status, metadata::MetadataMap, service::Routes};
use tonic_health::{
    ServingStatus,
    pb::health_server::HealthServer,
    server::{HealthReporter, HealthService},
};
use tonic_reflection::server::{Builder, Error as ReflectionError};
use tower_http::catch_panic::CatchPanicLayer;

use crate::{admission::at_work, gateway::Shared, request_id, serve::AtWork};

mod deployment;
mod inference;
mod lifecycle;
mod node;

/// Largest message of the administration services, both ways: a thousand nodes are some 300 KiB.
const ADMINISTRATION_MESSAGE: usize = 4 << 20;

/// Everything that is served on the gRPC port.
pub(crate) fn routes(shared: Arc<Shared>, health: &Health) -> Result<Router, ReflectionError> {
    let body_limit = shared.options.body_limit;
    let node = NodeServiceServer::new(node::Node(shared.clone()));
    let deployment = DeploymentServiceServer::new(deployment::Deployments(shared.clone()));
    let lifecycle = LifecycleServiceServer::new(lifecycle::Lifecycle(shared.clone()));
    let inference = InferenceServiceServer::new(inference::Inference(shared.clone()));
    let routes = Routes::new(node.max_decoding_message_size(ADMINISTRATION_MESSAGE))
        .add_service(deployment.max_decoding_message_size(ADMINISTRATION_MESSAGE))
        .add_service(lifecycle.max_decoding_message_size(ADMINISTRATION_MESSAGE))
        .add_service(inference.max_decoding_message_size(body_limit))
        .add_service(HealthServer::new(HealthService::from_health_reporter(health.0.clone())))
        .add_service(reflection().build_v1()?)
        .add_service(reflection().build_v1alpha()?);
    Ok(routes
        .prepare()
        .into_axum_router()
        .layer(CatchPanicLayer::custom(panicked))
        .layer(from_fn_with_state(shared, keep_pages_out)))
}

/// No browser speaks HTTP/2 without TLS, so that no page reaches this port. Should one come to, or something translate for
/// it, the origin tells; a type of content other than gRPC's is what a page could send without asking first.
async fn keep_pages_out(State(shared): State<Arc<Shared>>, request: HttpRequest, next: Next) -> HttpResponse {
    let kind = request.headers().get(header::CONTENT_TYPE);
    if !kind.is_some_and(|kind| kind.as_bytes().starts_with(b"application/grpc")) {
        let message = "this port speaks gRPC; the OpenAI API is on the HTTP port";
        return (StatusCode::UNSUPPORTED_MEDIA_TYPE, message).into_response();
    }
    match shared.origins.check(request.headers()) {
        Ok(()) => next.run(request).await,
        Err(error) => {
            shared.options.telemetry.refused(error.code);
            Status::from(error).into_http()
        }
    }
}

/// A handler panicked: the client gets a status, the log the reason (from the panic hook).
fn panicked(_: Box<dyn Any + Send>) -> axum::response::Response {
    Status::from(MeshError::internal(
        "the node failed on this call; see its log and report the defect",
    ))
    .into_http()
}

fn reflection() -> Builder<'static> {
    Builder::configure()
        .register_encoded_file_descriptor_set(DESCRIPTORS)
        .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
}

/// What `grpc.health.v1` answers: the whole server, and each service by name.
pub(crate) struct Health(HealthReporter);

const SERVICES: [&str; 5] = [
    "",
    "mesh.v1.NodeService",
    "mesh.v1.DeploymentService",
    "mesh.v1.InferenceService",
    "mesh.v1.LifecycleService",
];

impl Health {
    /// Everything is served.
    pub(crate) async fn serving() -> Self {
        let health = Self(HealthReporter::new());
        health.set(ServingStatus::Serving).await;
        health
    }

    /// Load balancers should look elsewhere.
    pub(crate) async fn stopping(&self) {
        self.set(ServingStatus::NotServing).await;
    }

    async fn set(&self, status: ServingStatus) {
        for service in SERVICES {
            self.0.set_service_status(service, status).await;
        }
    }
}

/// One call of an allowed caller, with its id.
struct Call {
    id: RequestId,
    /// Who has the token may wait for an answer however many others come.
    connection: Option<AtWork>,
    telemetry: Arc<dyn Telemetry>,
}

impl Call {
    /// Of any caller who may use inference.
    fn of_user<T>(shared: &Shared, request: &Request<T>) -> Result<Self, Status> {
        let headers = request.metadata().as_ref();
        let call = Self::new(shared, request.metadata());
        shared.access.user(headers).map_err(|error| call.refuse(error))?;
        Ok(call)
    }

    /// Of a caller with the administration token.
    fn of_admin<T>(shared: &Shared, request: &Request<T>) -> Result<Self, Status> {
        let headers = request.metadata().as_ref();
        let mut call = Self::new(shared, request.metadata());
        shared.access.admin(headers).map_err(|error| call.refuse(error))?;
        call.connection = at_work(request.extensions());
        Ok(call)
    }

    fn new(shared: &Shared, metadata: &MetadataMap) -> Self {
        Self {
            telemetry: shared.options.telemetry.clone(),
            connection: None,
            id: request_id::keep_or_make(metadata.get(request_id::HEADER).map(|id| id.as_bytes())),
        }
    }

    /// The answer, with the id.
    fn answer<T>(&self, message: T) -> Response<T> {
        let mut response = Response::new(message);
        self.mark(response.metadata_mut());
        response
    }

    /// The error as a status, with the id; counted.
    fn refuse(&self, error: MeshError) -> Status {
        self.telemetry.refused(error.code);
        let mut status = Status::from(error);
        self.mark(status.metadata_mut());
        status
    }

    fn mark(&self, metadata: &mut MetadataMap) {
        if let Ok(id) = self.id.to_string().parse() {
            metadata.insert(request_id::HEADER, id);
        }
    }
}
