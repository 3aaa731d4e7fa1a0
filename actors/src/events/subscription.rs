//! One subscriber's way through the events of a node: a cursor into the shared window.

use std::{
    collections::VecDeque,
    fmt,
    sync::Arc,
    time::{Duration, Instant},
};

use mesh_proto::v1::RequestSummary;
use tokio::{
    sync::watch,
    time::{sleep_until, timeout_at},
};

use super::{
    bus::Shared,
    event::LifecycleEvent,
    filter::{Content, EventFilter},
};

/// Events taken under one lock.
const BATCH: usize = 256;

/// A subscriber is woken at most this often: the first event after a pause at once, what follows closely in one go. A
/// hundred subscribers to a fast model would otherwise take a core for packets of one event each, and HTTP/2 clients
/// that stop reading end their connection over a few hundred small frames.
const PACE: Duration = Duration::from_millis(5);

/// Where a subscription begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Start {
    /// With a snapshot, then whatever comes.
    Now,
    /// After a sequence that was seen. The cursor may have been of another run: run and sequence.
    After {
        sequence: u64,
        lost_run: Option<(u64, u64)>,
    },
}

/// What a subscriber is told.
#[derive(Debug, Clone, PartialEq)]
pub enum Notice {
    /// Requests that are open; events follow from the next sequence on.
    Snapshot(Vec<RequestSummary>),
    /// An event.
    Event(Arc<LifecycleEvent>),
    /// The cursor asked for events that are not there any more.
    Gap {
        /// Run of the node that they belong to.
        run: u64,
        /// First missing.
        from: u64,
        /// Last missing; 0 if nobody knows.
        to: u64,
    },
    /// The subscriber was too slow for so many events.
    Lagged(u64),
    /// Nothing for a while.
    Heartbeat,
}

/// Reads events at its own pace. Dropping it unsubscribes.
pub struct Subscription {
    shared: Arc<Shared>,
    newest: watch::Receiver<()>,
    filter: EventFilter,
    content: Content,
    /// Sequence of the last event read, whether it passed the filter or not.
    position: u64,
    /// The next shortfall is what a cursor missed, not lag.
    resuming: bool,
    first: VecDeque<Notice>,
    batch: VecDeque<Arc<LifecycleEvent>>,
    /// When silence has lasted long enough, whatever was filtered meanwhile.
    heartbeat_due: tokio::time::Instant,
    /// When it may be woken again.
    next_wake: tokio::time::Instant,
}

impl fmt::Debug for Subscription {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Subscription")
            .field("node", &self.shared.node)
            .field("position", &self.position)
            .finish_non_exhaustive()
    }
}

impl Drop for Subscription {
    fn drop(&mut self) {
        self.shared.lock().left(Instant::now());
    }
}

impl Subscription {
    pub(super) fn new(
        shared: Arc<Shared>,
        newest: watch::Receiver<()>,
        (filter, content): (EventFilter, Content),
        start: Start,
        after: u64,
        mut open: Vec<RequestSummary>,
    ) -> Self {
        let mut first = VecDeque::new();
        let position = match start {
            Start::Now => {
                open.retain(|request| filter.passes_open(request));
                first.push_back(Notice::Snapshot(open));
                after
            }
            Start::After { sequence, lost_run } => {
                first.extend(lost_run.map(|(run, seen)| Notice::Gap {
                    run,
                    from: seen.saturating_add(1),
                    to: 0,
                }));
                sequence
            }
        };
        let now = tokio::time::Instant::now();
        Self {
            heartbeat_due: now + shared.options.heartbeat,
            shared,
            newest,
            filter,
            content,
            position,
            resuming: start != Start::Now,
            first,
            batch: VecDeque::new(),
            next_wake: now,
        }
    }

    /// Name of the node.
    pub fn node(&self) -> &str {
        &self.shared.node
    }

    /// Run of the node.
    pub fn run(&self) -> u64 {
        self.shared.run
    }

    /// What is filled in.
    pub fn content(&self) -> Content {
        self.content
    }

    /// Sequence up to which everything was told or passed over.
    pub fn position(&self) -> u64 {
        // What is still in the batch was not told yet.
        self.batch
            .front()
            .map_or(self.position, |event| event.node_sequence - 1)
    }

    /// The next notice; `None` when the node stops and everything was told. Loses nothing when dropped before it
    /// resolves.
    pub async fn next(&mut self) -> Option<Notice> {
        loop {
            if let Some(notice) = self.ready() {
                return Some(self.told(notice));
            }
            if self.shared.closing.is_cancelled() {
                return None;
            }
            let due = self.heartbeat_due;
            if timeout_at(due, self.woken()).await.is_err() {
                // What came at the same moment goes first.
                let notice = self.ready().unwrap_or(Notice::Heartbeat);
                return Some(self.told(notice));
            }
        }
    }

    fn told(&mut self, notice: Notice) -> Notice {
        self.heartbeat_due = tokio::time::Instant::now() + self.shared.options.heartbeat;
        notice
    }

    /// There is something new, and the pace allows to look; or the node stops.
    async fn woken(&mut self) {
        let closing = self.shared.closing.clone();
        let paced = async {
            let _ = self.newest.changed().await;
            sleep_until(self.next_wake).await;
            self.next_wake = tokio::time::Instant::now() + PACE;
        };
        tokio::select! {
            () = paced => {}
            () = closing.cancelled() => {}
        }
    }

    /// What can be told without waiting.
    pub fn ready(&mut self) -> Option<Notice> {
        if let Some(notice) = self.first.pop_front() {
            return Some(notice);
        }
        loop {
            while let Some(event) = self.batch.pop_front() {
                if self.filter.passes(&event) {
                    return Some(Notice::Event(event));
                }
            }
            // Marked as seen before reading, so that what comes after the read wakes.
            self.newest.borrow_and_update();
            let mut state = self.shared.lock();
            let first = state.window.first();
            let lost = (first - 1).saturating_sub(self.position);
            if lost > 0 {
                let from = self.position + 1;
                self.position = first - 1;
                if std::mem::take(&mut self.resuming) {
                    return Some(Notice::Gap {
                        run: self.shared.run,
                        from,
                        to: first - 1,
                    });
                }
                state.dropped(lost);
                return Some(Notice::Lagged(lost));
            }
            self.resuming = false;
            self.batch.extend(state.window.read(self.position + 1, BATCH));
            drop(state);
            self.position = self.batch.back()?.node_sequence;
        }
    }
}
