//! Takes receipts from the bus to the thread that writes them.

use std::{
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed},
        mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel},
    },
    thread,
    time::{Duration, Instant},
};

use mesh_actors::events::{EndObserver, Receipt, RequestEnd};
use mesh_telemetry::ReceiptFigures;
use tokio::sync::oneshot;

use super::{
    chain::ChainKey,
    directory,
    log::{LogOptions, ROTATE_BYTES, ReceiptLog},
    policy::ReceiptPolicy,
    record::Content,
    view::ReceiptView,
};
use crate::NodeError;

/// Receipts that wait for the disk: it may stall for seconds at hundreds of requests a second.
const QUEUE: usize = 4096;

/// About the bytes they may hold: receipts of long answers are large.
const QUEUE_BYTES: usize = 32 << 20;

/// Receipts written at a time: one write and one fsync for all that have come meanwhile.
const BATCH: usize = 256;

/// How often lines are made safe under [`ReceiptPolicy::Interval`], and the head follows them in any case.
const COMMIT_INTERVAL: Duration = Duration::from_secs(1);

/// How long a stopping node waits for the disk: the queue at some MB/s.
const CLOSE_LIMIT: Duration = Duration::from_secs(5);

/// What the sink of a node is made of.
#[derive(Debug)]
pub(crate) struct SinkOptions {
    pub data_dir: PathBuf,
    pub key: ChainKey,
    /// Name of the node, for the receipts.
    pub node: String,
    pub policy: ReceiptPolicy,
    /// Token ids are stored too.
    pub token_ids: bool,
}

/// The thread, and the way to it.
#[derive(Debug)]
pub struct ReceiptSink {
    pub(super) observer: Arc<ReceiptObserver>,
    /// Ends with the thread.
    ended: oneshot::Receiver<()>,
}

/// Hears of ended requests; never waits.
#[derive(Debug)]
pub(super) struct ReceiptObserver {
    /// `None` when the node stops. Held for a moment only.
    queue: Mutex<Option<SyncSender<Arc<Receipt>>>>,
    pub(super) counters: Arc<Counters>,
}

#[derive(Debug, Default)]
pub(super) struct Counters {
    pub(super) queued_bytes: AtomicUsize,
    written: AtomicU64,
    lost: AtomicU64,
}

impl ReceiptSink {
    /// Opens the files and starts the thread; `None` if receipts are off.
    ///
    /// # Errors
    ///
    /// The files cannot be used, or the thread cannot be started.
    pub(crate) fn start(options: SinkOptions) -> Result<Option<Self>, NodeError> {
        if options.policy == ReceiptPolicy::Off {
            return Ok(None);
        }
        let log = ReceiptLog::open(LogOptions {
            directory: directory::receipts_dir(&options.data_dir),
            key: options.key.clone(),
            rotate_bytes: ROTATE_BYTES,
        })?;
        Self::spawn(log, options, QUEUE).map(Some)
    }

    fn spawn(log: ReceiptLog, options: SinkOptions, queue: usize) -> Result<Self, NodeError> {
        let (sender, receipts) = sync_channel(queue);
        let (end, ended) = oneshot::channel();
        let counters = Arc::new(Counters::default());
        let data_dir = options.data_dir.clone();
        let writer = Writer {
            log,
            receipts,
            counters: counters.clone(),
            options,
            reported: 0,
            failing: false,
            appended: true,
            committed: Instant::now(),
        };
        let run = move || {
            // Dropped with the thread, however it ends.
            let _end = end;
            writer.run();
        };
        let thread = thread::Builder::new().name("receipts".to_owned()).spawn(run);
        thread.map_err(NodeError::file("start the thread that writes receipts to", data_dir))?;
        let observer = Arc::new(ReceiptObserver {
            queue: Mutex::new(Some(sender)),
            counters,
        });
        Ok(Self { observer, ended })
    }

    /// What the bus tells of ended requests.
    pub fn observer(&self) -> Arc<dyn EndObserver> {
        self.observer.clone()
    }

    /// Gives figures, for metrics.
    pub fn figures(&self) -> Arc<dyn Fn() -> ReceiptFigures + Send + Sync> {
        let counters = self.observer.counters.clone();
        Arc::new(move || ReceiptFigures {
            written: counters.written.load(Relaxed),
            lost: counters.lost.load(Relaxed),
        })
    }

    /// Has what is queued written, and ends the thread. A disk that does not answer in time is left alone.
    pub(crate) async fn close(self) {
        self.observer.close();
        if tokio::time::timeout(CLOSE_LIMIT, self.ended).await.is_err() {
            tracing::warn!("the disk did not take all receipts in time; the last ones are lost");
        }
    }
}

impl ReceiptObserver {
    fn close(&self) {
        drop(self.lock().take());
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Option<SyncSender<Arc<Receipt>>>> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn is_queued(&self, receipt: &Arc<Receipt>) -> bool {
        let bytes = receipt.weight();
        if self.counters.queued_bytes.fetch_add(bytes, Relaxed) < QUEUE_BYTES {
            let queue = self.lock();
            if queue
                .as_ref()
                .is_some_and(|queue| queue.try_send(receipt.clone()).is_ok())
            {
                return true;
            }
        }
        self.counters.queued_bytes.fetch_sub(bytes, Relaxed);
        false
    }
}

impl EndObserver for ReceiptObserver {
    fn ended(&self, end: &RequestEnd<'_>) {
        if let Some(receipt) = end.kind.receipt()
            && !self.is_queued(receipt)
        {
            self.counters.lost.fetch_add(1, Relaxed);
        }
    }
}

/// What the thread does.
struct Writer {
    log: ReceiptLog,
    receipts: Receiver<Arc<Receipt>>,
    counters: Arc<Counters>,
    options: SinkOptions,
    /// Lost receipts that the log tells of.
    reported: u64,
    /// A write or a commit failed, and since then not both have worked: said once.
    failing: bool,
    /// The last write worked.
    appended: bool,
    committed: Instant,
}

impl Writer {
    /// Until the node stops and everything is written.
    fn run(mut self) {
        loop {
            match self.receipts.recv_timeout(COMMIT_INTERVAL) {
                Ok(first) => self.write_batch(first),
                Err(RecvTimeoutError::Timeout) => self.write(Vec::new()),
                Err(RecvTimeoutError::Disconnected) => break,
            }
            if self.options.policy == ReceiptPolicy::Always || self.committed.elapsed() >= COMMIT_INTERVAL {
                self.commit(self.options.policy != ReceiptPolicy::Never);
            }
        }
        self.write(Vec::new());
        self.commit(self.options.policy != ReceiptPolicy::Never);
    }

    fn write_batch(&mut self, first: Arc<Receipt>) {
        let mut batch = vec![first];
        batch.extend(self.receipts.try_iter().take(BATCH - 1));
        let bytes = batch.iter().map(|receipt| receipt.weight()).sum();
        self.counters.queued_bytes.fetch_sub(bytes, Relaxed);
        self.write(batch);
    }

    /// Writes receipts, and after them how many were lost by now.
    fn write(&mut self, batch: Vec<Arc<Receipt>>) {
        let lost = self.counters.lost.load(Relaxed);
        let unreported = Some(lost - self.reported).filter(|count| *count > 0);
        let written = batch.len() as u64;
        let receipts = batch.iter().map(|receipt| self.content(receipt));
        let lines: Vec<Content> = receipts
            .chain(unreported.map(|count| Content::Lost { count }))
            .collect();
        match self.log.append(lines) {
            Ok(()) => {
                self.reported = lost;
                self.counters.written.fetch_add(written, Relaxed);
                self.works_again(unreported);
                self.appended = true;
            }
            Err(error) => {
                self.counters.lost.fetch_add(written, Relaxed);
                self.appended = false;
                self.failed(&error);
            }
        }
    }

    fn content(&self, receipt: &Receipt) -> Content {
        let ids = self.options.token_ids;
        let view = ReceiptView::new(receipt.to_message(&self.options.node, ids), ids);
        Content::Receipt {
            receipt: Box::new(view),
        }
    }

    fn commit(&mut self, sync: bool) {
        self.committed = Instant::now();
        match self.log.commit(sync) {
            Ok(()) => self.failing &= !self.appended,
            Err(error) => self.failed(&error),
        }
    }

    fn failed(&mut self, error: &std::io::Error) {
        if !std::mem::replace(&mut self.failing, true) {
            let directory = directory::receipts_dir(Path::new(&self.options.data_dir));
            tracing::error!(%error, directory = %directory.display(), "receipts cannot be written or made safe; what the disk does not take is counted");
        }
    }

    fn works_again(&mut self, lost: Option<u64>) {
        if let Some(lost) = lost {
            tracing::warn!(lost, "receipts are missing in the log, which says so");
        }
    }
}
