//! Spans on their way to the exporter, and what became of them.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use opentelemetry_sdk::trace::SpanData;
use tokio::sync::mpsc::{self, error::TrySendError};

/// Spans that wait: a request makes about six with each token on three stages, so this is ten seconds of a hundred
/// tokens a second; some 4 MB.
const QUEUE: usize = 8192;

/// What became of spans and of exports of metrics, for metrics.
#[derive(Debug, Default)]
pub(crate) struct Fate {
    /// Spans that a collector took.
    pub exported: AtomicU64,
    /// Spans that did not fit.
    pub queue_full: AtomicU64,
    /// Spans that a collector did not take.
    pub export_failed: AtomicU64,
    /// Spans left when the node stopped.
    pub shutdown: AtomicU64,
    /// Exports of metrics that a collector did not take. The next one holds the same sums.
    pub metrics_failed: AtomicU64,
}

impl Fate {
    /// Counts.
    pub fn count(counter: &AtomicU64, items: usize) {
        counter.fetch_add(items as u64, Ordering::Relaxed);
    }
}

/// The producers' end.
#[derive(Debug, Clone)]
pub(crate) struct SpanQueue {
    sender: mpsc::Sender<SpanData>,
    fate: Arc<Fate>,
}

impl SpanQueue {
    /// A queue and its other end.
    pub fn new(fate: Arc<Fate>) -> (Self, mpsc::Receiver<SpanData>) {
        let (sender, receiver) = mpsc::channel(QUEUE);
        (Self { sender, fate }, receiver)
    }

    /// Takes a span or drops it; never waits.
    pub fn push(&self, span: SpanData) {
        match self.sender.try_send(span) {
            Ok(()) => {}
            Err(TrySendError::Full(_)) => Fate::count(&self.fate.queue_full, 1),
            Err(TrySendError::Closed(_)) => Fate::count(&self.fate.shutdown, 1),
        }
    }
}
