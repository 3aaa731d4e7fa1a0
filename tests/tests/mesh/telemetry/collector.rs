//! An OTLP receiver over HTTP, in the test.

use std::{
    collections::BTreeSet,
    net::SocketAddr,
    sync::{Arc, Mutex, PoisonError},
};

use anyhow::Result;
use axum::{Router, body::Bytes, extract::State, http::StatusCode, routing::post};
use opentelemetry_proto::tonic::{
    collector::{metrics::v1::ExportMetricsServiceRequest, trace::v1::ExportTraceServiceRequest},
    common::v1::{KeyValue, any_value::Value},
    resource::v1::Resource,
    trace::v1::Span,
};
use prost::Message as _;
use tokio::{net::TcpListener, task::JoinHandle};

/// A span, and the node that it came from.
#[derive(Debug, Clone)]
pub struct Received {
    pub node: String,
    pub service: String,
    pub span: Span,
}

#[derive(Debug, Default)]
struct Got {
    spans: Vec<Received>,
    metrics: BTreeSet<String>,
}

/// Dropping it closes it.
pub struct Collector {
    address: SocketAddr,
    got: Arc<Mutex<Got>>,
    task: JoinHandle<()>,
}

impl Drop for Collector {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Collector {
    pub async fn start() -> Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        let got = Arc::new(Mutex::new(Got::default()));
        let routes = Router::new()
            .route("/v1/traces", post(traces))
            .route("/v1/metrics", post(metrics))
            .with_state(got.clone());
        let serve = async move { axum::serve(listener, routes).await.expect("it serves") };
        Ok(Self {
            address,
            got,
            task: tokio::spawn(serve),
        })
    }

    pub fn endpoint(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Spans of a trace so far.
    pub fn trace(&self, id: &[u8]) -> Vec<Received> {
        let got = self.got.lock().unwrap_or_else(PoisonError::into_inner);
        let of_trace = got.spans.iter().filter(|received| received.span.trace_id == id);
        of_trace.cloned().collect()
    }

    /// Names of metrics so far.
    pub fn metrics(&self) -> BTreeSet<String> {
        self.got.lock().unwrap_or_else(PoisonError::into_inner).metrics.clone()
    }
}

async fn traces(State(got): State<Arc<Mutex<Got>>>, body: Bytes) -> StatusCode {
    let Ok(request) = ExportTraceServiceRequest::decode(body) else {
        return StatusCode::BAD_REQUEST;
    };
    let mut got = got.lock().unwrap_or_else(PoisonError::into_inner);
    for resource in request.resource_spans {
        let of = |name| of_resource(resource.resource.as_ref(), name);
        let (node, service) = (of("mesh.node.name"), of("service.name"));
        let spans = resource.scope_spans.into_iter().flat_map(|scope| scope.spans);
        got.spans.extend(spans.map(|span| Received {
            node: node.clone(),
            service: service.clone(),
            span,
        }));
    }
    StatusCode::OK
}

async fn metrics(State(got): State<Arc<Mutex<Got>>>, body: Bytes) -> StatusCode {
    let Ok(request) = ExportMetricsServiceRequest::decode(body) else {
        return StatusCode::BAD_REQUEST;
    };
    let scopes = request.resource_metrics.into_iter().flat_map(|one| one.scope_metrics);
    let metrics = scopes.flat_map(|scope| scope.metrics);
    let mut got = got.lock().unwrap_or_else(PoisonError::into_inner);
    got.metrics.extend(metrics.map(|metric| metric.name));
    StatusCode::OK
}

fn of_resource(resource: Option<&Resource>, name: &str) -> String {
    let value = resource.and_then(|resource| attribute(&resource.attributes, name));
    match value {
        Some(Value::StringValue(text)) => text,
        _ => String::new(),
    }
}

/// The value of an attribute.
pub fn attribute(attributes: &[KeyValue], name: &str) -> Option<Value> {
    let found = attributes.iter().find(|attribute| attribute.key == name)?;
    found.value.as_ref()?.value.clone()
}
