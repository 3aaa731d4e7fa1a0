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

#[cfg(test)]
mod tests {
    use std::time::{Instant, SystemTime};

    use mesh_actors::ports::telemetry::StageForward;

    use super::*;
    use crate::spans::{child_of, forward};

    fn span() -> SpanData {
        let now = Instant::now();
        let batch = StageForward {
            deployment: "psalm",
            stage: 1,
            traces: &[],
            lanes: 1,
            rows: 1,
            began: now,
            ended: now,
        };
        forward(&batch, child_of(None), (SystemTime::now(), SystemTime::now()))
    }

    #[test]
    fn what_does_not_fit_is_dropped_and_counted_per_cause() {
        let fate = Arc::new(Fate::default());
        let (queue, mut spans) = SpanQueue::new(fate.clone());
        for _ in 0..QUEUE + 3 {
            queue.push(span());
        }
        assert_eq!(fate.queue_full.load(Ordering::Relaxed), 3);
        assert!(spans.try_recv().is_ok());
        drop(spans);
        queue.push(span());
        assert_eq!(fate.shutdown.load(Ordering::Relaxed), 1);
    }
}
