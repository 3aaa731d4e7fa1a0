//! Telemetry of one node: made first, ended last.

use std::sync::{Arc, Weak};

use axum::{
    Router,
    http::{StatusCode, header::CONTENT_TYPE},
    response::{IntoResponse as _, Response},
    routing::get,
};
use mesh_proto::NodeId;
use opentelemetry::metrics::{Meter, MeterProvider as _};
use opentelemetry_sdk::{
    error::OTelSdkResult,
    metrics::{
        InstrumentKind, ManualReader, Pipeline, SdkMeterProvider, Temporality, data::ResourceMetrics,
        reader::MetricReader,
    },
};
use prometheus::{Encoder as _, Registry, TextEncoder};

use crate::{
    exporter::{ExporterThread, Work},
    figures::{Sources, observe},
    instruments::Instruments,
    names::SCOPE,
    queue::{Fate, SpanQueue},
    recorder::Recorder,
    settings::{Settings, resource},
};

/// Owns the meters and the exporter's thread. Dropping it ends both, without waiting for the collector.
pub struct NodeTelemetry {
    recorder: Arc<Recorder>,
    provider: SdkMeterProvider,
    meter: Meter,
    fate: Arc<Fate>,
    registry: Registry,
    exporter: Option<ExporterThread>,
}

impl NodeTelemetry {
    /// As the environment asks. Trouble is told in the log and costs telemetry, never the node.
    pub fn start(node: NodeId, name: &str) -> Self {
        let settings = Settings::from_environment();
        let resource = resource(node, name);
        let fate = Arc::new(Fate::default());
        let registry = Registry::new();
        let reader = Arc::new(ManualReader::builder().build());
        let mut provider = SdkMeterProvider::builder().with_resource(resource.clone());
        let scraped = opentelemetry_prometheus::exporter().with_registry(registry.clone());
        match scraped.scope_info_enabled(false).build() {
            Ok(scraped) => provider = provider.with_reader(scraped),
            Err(error) => tracing::warn!(%error, "there is nothing to scrape at /metrics"),
        }
        if settings.metrics.is_some() {
            provider = provider.with_reader(SharedReader(reader.clone()));
        }
        let provider = provider.build();
        let meter = provider.meter(SCOPE);
        let (queue, spans) = settings.traces.then(|| SpanQueue::new(fate.clone())).unzip();
        let work = Work {
            spans,
            metrics: settings.metrics.map(|every| (reader, every)),
            resource,
            fate: fate.clone(),
        };
        let exporter = (settings.traces || settings.metrics.is_some()).then(|| ExporterThread::start(work));
        let exporter = exporter.and_then(|started| {
            let warn = |error| tracing::warn!(%error, "nothing is exported: the telemetry thread did not start");
            started.map_err(warn).ok()
        });
        let tracing = queue.map(|queue| (settings.sampler, queue));
        Self {
            recorder: Arc::new(Recorder::new(Instruments::new(&meter), tracing)),
            provider,
            meter,
            fate,
            registry,
            exporter,
        }
    }

    /// What stages, links and requests report to.
    pub fn recorder(&self) -> Arc<Recorder> {
        self.recorder.clone()
    }

    /// Figures of these parts are told from now on.
    pub fn observe(&self, sources: &Sources) {
        observe(&self.meter, sources, &self.fate);
    }

    /// `GET /metrics`, in Prometheus' text format.
    pub fn routes(&self) -> Router {
        let registry = self.registry.clone();
        let scrape = get(move || {
            let registry = registry.clone();
            async move { scrape(&registry) }
        });
        Router::new()
            .route("/metrics", scrape.clone())
            .route("/metrics/", scrape)
    }

    /// Exports what is left, under a deadline.
    pub async fn stop(mut self) {
        if let Some(exporter) = self.exporter.take() {
            exporter.stop().await;
        }
        let _ = self.provider.shutdown();
    }
}

fn scrape(registry: &Registry) -> Response {
    let (encoder, mut text) = (TextEncoder::new(), Vec::new());
    match encoder.encode(&registry.gather(), &mut text) {
        Ok(()) => ([(CONTENT_TYPE, encoder.format_type().to_owned())], text).into_response(),
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()).into_response(),
    }
}

/// The provider's share of a reader that the exporter's thread collects from.
#[derive(Debug)]
struct SharedReader(Arc<ManualReader>);

impl MetricReader for SharedReader {
    fn register_pipeline(&self, pipeline: Weak<Pipeline>) {
        self.0.register_pipeline(pipeline);
    }

    fn collect(&self, metrics: &mut ResourceMetrics) -> OTelSdkResult {
        self.0.collect(metrics)
    }

    fn force_flush(&self) -> OTelSdkResult {
        self.0.force_flush()
    }

    fn shutdown_with_timeout(&self, timeout: std::time::Duration) -> OTelSdkResult {
        self.0.shutdown_with_timeout(timeout)
    }

    fn temporality(&self, kind: InstrumentKind) -> Temporality {
        self.0.temporality(kind)
    }
}
