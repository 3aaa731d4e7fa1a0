//! The thread that exports, with an async runtime of its own: whatever the collector does, the node's runtime does not
//! notice, not even one of a single worker.

use std::{io, sync::Arc, thread, time::Duration};

use opentelemetry_otlp::{MetricExporter, SpanExporter};
use opentelemetry_sdk::{
    Resource,
    error::OTelSdkResult,
    metrics::{ManualReader, data::ResourceMetrics, exporter::PushMetricExporter as _, reader::MetricReader as _},
    trace::{SpanData, SpanExporter as _},
};
use tokio::{
    runtime::Builder,
    select,
    sync::{mpsc, oneshot},
    time::{MissedTickBehavior, interval_at, sleep, timeout},
};
use tokio_util::sync::CancellationToken;

use crate::queue::Fate;

/// How long what is left may take when the node stops. The user waits for it.
pub const FLUSH_LIMIT: Duration = Duration::from_millis(1500);

/// Beyond that, the thread needs no more than this to notice; then it is left to the end of the process.
const NOTICE_LIMIT: Duration = Duration::from_millis(250);

/// Spans in one request to the collector (the specification's default).
const BATCH: usize = 512;

/// How long a span waits for company.
const BATCH_DELAY: Duration = Duration::from_millis(500);

/// What the thread works with.
pub(crate) struct Work {
    /// Spans, if they are exported.
    pub spans: Option<mpsc::Receiver<SpanData>>,
    /// Metrics, if they are exported, and how often.
    pub metrics: Option<(Arc<ManualReader>, Duration)>,
    /// Who exports.
    pub resource: Resource,
    /// What becomes of all that.
    pub fate: Arc<Fate>,
}

/// The running thread. Dropping it tells the thread to end, without waiting.
#[derive(Debug)]
pub(crate) struct ExporterThread {
    stop: CancellationToken,
    ended: Option<oneshot::Receiver<()>>,
}

impl ExporterThread {
    /// Starts it.
    ///
    /// # Errors
    ///
    /// The system gives no thread.
    pub fn start(work: Work) -> io::Result<Self> {
        let stop = CancellationToken::new();
        let (on_end, ended) = oneshot::channel();
        let stopping = stop.clone();
        thread::Builder::new().name("telemetry".to_owned()).spawn(move || {
            match Builder::new_current_thread().enable_all().build() {
                Ok(runtime) => {
                    runtime.block_on(work.run(&stopping));
                    // A name that is being looked up is not waited for.
                    runtime.shutdown_background();
                }
                Err(error) => tracing::warn!(%error, "nothing is exported: the telemetry thread has no runtime"),
            }
            let _ = on_end.send(());
        })?;
        Ok(Self {
            stop,
            ended: Some(ended),
        })
    }

    /// Exports what is left, within [`FLUSH_LIMIT`].
    pub async fn stop(mut self) {
        self.stop.cancel();
        if let Some(ended) = self.ended.take()
            && timeout(FLUSH_LIMIT + NOTICE_LIMIT, ended).await.is_err()
        {
            tracing::warn!("the telemetry thread is left behind");
        }
    }
}

impl Drop for ExporterThread {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

impl Work {
    async fn run(self, stop: &CancellationToken) {
        // The HTTP client's TLS has no provider of its own. A second call changes nothing.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let Self {
            spans,
            metrics,
            resource,
            fate,
        } = self;
        let export = async {
            tokio::join!(
                export_spans(spans, &resource, &fate, stop),
                export_metrics(metrics, &fate, stop)
            );
        };
        let deadline = async {
            stop.cancelled().await;
            sleep(FLUSH_LIMIT).await;
        };
        select! {
            () = export => {}
            () = deadline => tracing::warn!("the collector did not take the last telemetry in time"),
        }
    }
}

async fn export_spans(
    spans: Option<mpsc::Receiver<SpanData>>,
    resource: &Resource,
    fate: &Fate,
    stop: &CancellationToken,
) {
    let Some(mut spans) = spans else { return };
    let mut exporter = match SpanExporter::builder().build() {
        Ok(exporter) => exporter,
        Err(error) => return tracing::warn!(%error, "traces are not exported; check the OTEL_ variables"),
    };
    exporter.set_resource(resource);
    let mut health = Health::new("spans");
    while let Some(batch) = next_batch(&mut spans, stop).await {
        let pending = Pending::new(batch.len(), fate);
        let outcome = exporter.export(batch).await;
        pending.settle(outcome.is_ok());
        health.note(outcome);
    }
}

/// Waits for spans, then a little for more; `None` when the node stops and nothing is left.
async fn next_batch(spans: &mut mpsc::Receiver<SpanData>, stop: &CancellationToken) -> Option<Vec<SpanData>> {
    let mut batch = Vec::new();
    select! {
        biased;
        taken = spans.recv_many(&mut batch, BATCH) => if taken == 0 { return None },
        () = stop.cancelled() => return None,
    }
    let company = async {
        while let room @ 1.. = BATCH - batch.len() {
            if spans.recv_many(&mut batch, room).await == 0 {
                return;
            }
        }
    };
    select! {
        () = company => {}
        () = stop.cancelled() => {}
        () = sleep(BATCH_DELAY) => {}
    }
    Some(batch)
}

/// Spans on the wire. Dropped with the thread's work, they count as left behind.
struct Pending<'a> {
    spans: usize,
    fate: &'a Fate,
}

impl<'a> Pending<'a> {
    fn new(spans: usize, fate: &'a Fate) -> Self {
        Self { spans, fate }
    }

    fn settle(mut self, taken: bool) {
        let counter = if taken {
            &self.fate.exported
        } else {
            &self.fate.export_failed
        };
        Fate::count(counter, std::mem::take(&mut self.spans));
    }
}

impl Drop for Pending<'_> {
    fn drop(&mut self) {
        Fate::count(&self.fate.shutdown, self.spans);
    }
}

async fn export_metrics(metrics: Option<(Arc<ManualReader>, Duration)>, fate: &Fate, stop: &CancellationToken) {
    let Some((reader, every)) = metrics else { return };
    let exporter = match MetricExporter::builder().build() {
        Ok(exporter) => exporter,
        Err(error) => return tracing::warn!(%error, "metrics are not exported; check the OTEL_ variables"),
    };
    let mut health = Health::new("metrics");
    let mut ticks = interval_at(tokio::time::Instant::now() + every, every);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut collected = ResourceMetrics::default();
    loop {
        let last = select! {
            _ = ticks.tick() => false,
            () = stop.cancelled() => true,
        };
        let outcome = match reader.collect(&mut collected) {
            Ok(()) => exporter.export(&collected).await,
            Err(error) => Err(error),
        };
        if outcome.is_err() {
            Fate::count(&fate.metrics_failed, 1);
        }
        health.note(outcome);
        if last {
            return;
        }
    }
}

/// Says once that the collector fails, and once that it is back.
struct Health {
    what: &'static str,
    failing: bool,
}

impl Health {
    fn new(what: &'static str) -> Self {
        Self { what, failing: false }
    }

    fn note(&mut self, outcome: OTelSdkResult) {
        match outcome {
            Err(error) if !self.failing => {
                tracing::warn!(what = self.what, %error, "the collector does not take telemetry; dropped until it does");
                self.failing = true;
            }
            Ok(()) if self.failing => {
                tracing::info!(what = self.what, "the collector takes telemetry again");
                self.failing = false;
            }
            _ => {}
        }
    }
}
