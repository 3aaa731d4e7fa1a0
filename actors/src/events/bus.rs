//! Numbers events, keeps what late readers need, and wakes subscribers. One for each node.
//!
//! The lock is held for map and ring operations only, never over an await. It is taken for each event even when nobody
//! listens, so that a subscriber that comes meanwhile sees a snapshot and events that fit together; an event itself is
//! built only for subscribers.

use std::{
    collections::HashMap,
    fmt,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use mesh_proto::{
    AgentSession, ErrorCode, MeshError, RequestId, SessionId,
    v1::{Cursor, ListRequestsRequest, RequestState, RequestSummary, SubscribeRequest},
};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::{
    EventClock,
    event::{EndObserver, Lifecycle, LifecycleEvent, Operation, RequestEnd, RequestTrace},
    filter::{Content, EventFilter},
    kept::KeptReceipts,
    open::{OpenRequest, OpenRequests},
    receipt::Receipt,
    subscription::{Start, Subscription},
    window::Window,
};

/// Bounds of a bus.
#[derive(Debug, Clone, Copy)]
pub struct EventOptions {
    /// `false`: nothing is numbered, kept or told; for measuring what the bus costs.
    pub enabled: bool,
    /// Events in the window: what a subscriber may lag behind, and how far a cursor reaches back (default 16,384:
    /// a minute of 250 tokens a second).
    pub window_events: usize,
    /// About the bytes they may take (default 32 MiB).
    pub window_bytes: usize,
    /// How long events are still kept when the last subscriber has gone, so that it can resume (default 5 minutes).
    pub linger: Duration,
    /// A subscriber that has nothing to hear gets a heartbeat this often (default 10 s).
    pub heartbeat: Duration,
    /// Subscribers at once (default 1,024).
    pub max_subscribers: usize,
}

impl Default for EventOptions {
    fn default() -> Self {
        Self {
            enabled: true,
            window_events: 16_384,
            window_bytes: 32 << 20,
            linger: Duration::from_secs(300),
            heartbeat: Duration::from_secs(10),
            max_subscribers: 1024,
        }
    }
}

/// What is known of a request from its arrival on.
#[derive(Debug)]
pub struct RequestFacts {
    pub request: RequestId,
    pub deployment: Arc<str>,
    pub operation: Operation,
    pub agent_session: Option<AgentSession>,
    pub attempt: u32,
    pub arrived: Instant,
    pub trace: Option<RequestTrace>,
}

/// What an event changes in the list of open requests.
#[derive(Debug, Clone, Copy, Default)]
pub struct Change {
    pub state: Option<RequestState>,
    pub session: Option<SessionId>,
    pub prompt_tokens: Option<u32>,
    pub completion_tokens: Option<u32>,
}

/// Figures of a bus, for metrics.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct EventFigures {
    /// Subscribers now.
    pub subscribers: usize,
    /// Events since the start, those that were not built included.
    pub events: u64,
    /// Events that subscribers missed since the start, summed over subscribers.
    pub dropped: u64,
    /// Events in the window.
    pub window_events: usize,
    /// About the bytes they take.
    pub window_bytes: usize,
    /// Requests that have not ended.
    pub open: usize,
}

/// Cheap to clone.
#[derive(Clone)]
pub struct EventBus {
    pub(super) shared: Arc<Shared>,
}

impl fmt::Debug for EventBus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EventBus")
            .field("node", &self.shared.node)
            .field("run", &self.shared.run)
            .finish_non_exhaustive()
    }
}

pub(super) struct Shared {
    pub node: Arc<str>,
    pub run: u64,
    pub options: EventOptions,
    pub clock: EventClock,
    pub newest: watch::Sender<()>,
    /// The node stops: subscriptions end when they have told what they have.
    pub closing: CancellationToken,
    observers: Vec<Arc<dyn EndObserver>>,
    state: Mutex<State>,
}

pub(super) struct State {
    pub sequence: u64,
    pub window: Window,
    pub open: OpenRequests,
    kept: KeptReceipts,
    subscribers: usize,
    /// Since when nobody subscribes; `None` while somebody does, or when events are not built.
    quiet: Option<Instant>,
    listening: bool,
    dropped: u64,
}

impl Shared {
    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        // Nothing panics while the lock is held; if it did, the worst is a request that stays listed.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    pub(super) fn left(&mut self, now: Instant) {
        self.subscribers = self.subscribers.saturating_sub(1);
        if self.subscribers == 0 {
            self.quiet = Some(now);
        }
    }

    pub(super) fn dropped(&mut self, events: u64) {
        self.dropped = self.dropped.saturating_add(events);
    }

    /// Copies of the open requests, oldest first: they are put into words without the lock.
    fn open_now(&self) -> Vec<OpenRequest> {
        let mut open: Vec<_> = self.open.values().cloned().collect();
        open.sort_by_key(|request| request.facts.arrived);
        open
    }

    /// Whether the next event is built; notices when nobody has come back for long enough.
    fn is_listening(&mut self, now: Instant, linger: Duration) -> bool {
        if self
            .quiet
            .is_some_and(|since| now.saturating_duration_since(since) > linger)
        {
            self.quiet = None;
            self.listening = false;
        }
        self.listening
    }
}

impl EventBus {
    /// The bus of a node. `run` tells its runs apart.
    pub fn new(node: &str, run: u64, options: EventOptions, observers: Vec<Arc<dyn EndObserver>>) -> Self {
        let state = State {
            sequence: 0,
            window: Window::new(options.window_events, options.window_bytes),
            open: HashMap::new(),
            kept: KeptReceipts::default(),
            subscribers: 0,
            quiet: None,
            listening: false,
            dropped: 0,
        };
        let shared = Shared {
            node: node.into(),
            run,
            options,
            clock: EventClock::start(),
            newest: watch::Sender::new(()),
            closing: CancellationToken::new(),
            observers,
            state: Mutex::new(state),
        };
        Self {
            shared: Arc::new(shared),
        }
    }

    /// Name of the node.
    pub fn node(&self) -> &str {
        &self.shared.node
    }

    /// Gives wall-clock times for events and receipts.
    pub fn clock(&self) -> &EventClock {
        &self.shared.clock
    }

    /// Subscribes, at the newest event or after a cursor's. Positions of other nodes in the cursor are not looked at.
    ///
    /// # Errors
    ///
    /// Bad filters, a cursor ahead of this node, too many subscribers, or the node stops.
    pub fn subscribe(&self, request: &SubscribeRequest) -> Result<Subscription, MeshError> {
        let filter = EventFilter::new(request)?;
        let content = Content {
            token_ids: request.include_token_ids,
            text: request.include_text,
        };
        if !self.shared.options.enabled {
            let message = "events are switched off on this node; start it without `--no-events`";
            return Err(MeshError::new(ErrorCode::Conflict, message));
        }
        if self.shared.closing.is_cancelled() {
            return Err(MeshError::new(
                ErrorCode::Draining,
                "the node stops; subscribe to another one",
            ));
        }
        let newest = self.shared.newest.subscribe();
        let mut state = self.shared.lock();
        let start = self.start(&state, request.cursor.as_ref())?;
        if state.subscribers >= self.shared.options.max_subscribers {
            let message = format!(
                "{} subscribers are connected, the limit of this node; close some or subscribe to another node",
                state.subscribers
            );
            return Err(MeshError::new(ErrorCode::QueueFull, message));
        }
        state.subscribers += 1;
        state.quiet = None;
        state.listening = true;
        let open = match start {
            Start::Now => state.open_now(),
            Start::After { .. } => Vec::new(),
        };
        let after = state.sequence;
        drop(state);
        let now = Instant::now();
        let open = open.iter().map(|request| request.summary(&self.shared.node, now));
        let open = open.collect();
        Ok(Subscription::new(
            self.shared.clone(),
            newest,
            (filter, content),
            start,
            after,
            open,
        ))
    }

    fn start(&self, state: &State, cursor: Option<&Cursor>) -> Result<Start, MeshError> {
        let own = cursor.and_then(|cursor| {
            let mut positions = cursor.positions.iter();
            positions.find(|position| position.node == *self.shared.node)
        });
        let Some(position) = own else { return Ok(Start::Now) };
        if position.run != self.shared.run {
            return Ok(Start::After {
                sequence: 0,
                lost_run: Some((position.run, position.sequence)),
            });
        }
        if position.sequence > state.sequence {
            let message = format!(
                "the cursor is at event {} of node {}, which is at {}; resume with the last position you got",
                position.sequence, position.node, state.sequence
            );
            return Err(MeshError::invalid("cursor", message));
        }
        Ok(Start::After {
            sequence: position.sequence,
            lost_run: None,
        })
    }

    /// Requests that have not ended, oldest first; if asked for, before them those whose receipts are kept.
    pub fn requests(&self, asked: &ListRequestsRequest) -> Vec<RequestSummary> {
        let state = self.shared.lock();
        let ended: Vec<Arc<Receipt>> = if asked.include_ended {
            state.kept.iter().cloned().collect()
        } else {
            Vec::new()
        };
        let open = state.open_now();
        drop(state);
        let now = Instant::now();
        let ended = ended.iter().map(|receipt| receipt.summary(&self.shared.node));
        let open = open.iter().map(|request| request.summary(&self.shared.node, now));
        let mut all: Vec<RequestSummary> = ended.chain(open).collect();
        all.retain(|request| asked.deployments.is_empty() || asked.deployments.contains(&request.deployment));
        all
    }

    /// The deployment of an open request.
    pub fn deployment_of(&self, request: RequestId) -> Option<Arc<str>> {
        let state = self.shared.lock();
        state.open.get(&request).map(|open| open.facts.deployment.clone())
    }

    /// The receipt of a request that ended, if it is still kept.
    pub fn receipt(&self, request: RequestId) -> Option<Arc<Receipt>> {
        self.shared.lock().kept.find(request)
    }

    /// Figures for metrics.
    pub fn figures(&self) -> EventFigures {
        let state = self.shared.lock();
        EventFigures {
            subscribers: state.subscribers,
            events: state.sequence,
            dropped: state.dropped,
            window_events: state.window.len(),
            window_bytes: state.window.bytes(),
            open: state.open.len(),
        }
    }

    /// The node stops: no more subscribers, and each one ends when it has told what is there.
    pub fn close(&self) {
        self.shared.closing.cancel();
    }

    /// A request that arrives. `false` if one of its id is open.
    pub(crate) fn open(&self, facts: Arc<RequestFacts>) -> bool {
        if !self.shared.options.enabled {
            return true;
        }
        let mut state = self.shared.lock();
        if state.open.contains_key(&facts.request) {
            return false;
        }
        let open = OpenRequest {
            facts: facts.clone(),
            sequence: 0,
            state: RequestState::Queued,
            session: None,
            prompt_tokens: 0,
            completion_tokens: 0,
        };
        state.open.insert(facts.request, open);
        true
    }

    /// One state change of an open request. `kind` is called only if somebody listens.
    pub(crate) fn publish(&self, request: RequestId, change: Change, kind: impl FnOnce() -> Lifecycle) {
        if self.shared.options.enabled {
            self.append(request, change, kind, None);
        }
    }

    /// Something about the node. `kind` is called only if somebody listens.
    pub(crate) fn tell(&self, kind: impl FnOnce() -> Lifecycle) {
        if !self.shared.options.enabled {
            return;
        }
        let mut state = self.shared.lock();
        let now = Instant::now();
        state.sequence += 1;
        if !state.is_listening(now, self.shared.options.linger) {
            return state.window.skip();
        }
        let event = LifecycleEvent {
            request: None,
            sequence: 0,
            node_sequence: state.sequence,
            attempt: 0,
            deployment: "".into(),
            session: None,
            agent_session: None,
            time: self.shared.clock.at(now),
            kind: kind(),
        };
        state.window.push(event);
        drop(state);
        self.shared.newest.send_replace(());
    }

    /// The terminal of a request, which is no longer open afterwards.
    pub(crate) fn end(&self, facts: &RequestFacts, kind: Lifecycle) {
        let ended = RequestEnd {
            request: facts.request,
            deployment: &facts.deployment,
            operation: facts.operation,
            trace: facts.trace,
            arrived: self.shared.clock.at(facts.arrived),
            ended: self.shared.clock.now(),
            kind: &kind,
        };
        for observer in &self.shared.observers {
            observer.ended(&ended);
        }
        if self.shared.options.enabled {
            self.append(facts.request, Change::default(), || kind.clone(), Some(&kind));
        }
    }

    /// Everything under one lock: a snapshot shows a request or its terminal, never both or neither.
    fn append(
        &self,
        request: RequestId,
        change: Change,
        kind: impl FnOnce() -> Lifecycle,
        terminal: Option<&Lifecycle>,
    ) {
        let mut state = self.shared.lock();
        // Read under the lock: times are in the order of the numbers.
        let now = Instant::now();
        state.sequence += 1;
        let node_sequence = state.sequence;
        let listening = state.is_listening(now, self.shared.options.linger);
        let Some(open) = state.open.get_mut(&request) else {
            // Cannot happen: events come between `open` and `end`. The number is used up all the same.
            return state.window.skip();
        };
        open.sequence += 1;
        open.apply(change);
        let event = listening.then(|| LifecycleEvent {
            request: Some(request),
            sequence: open.sequence,
            node_sequence,
            attempt: open.facts.attempt,
            deployment: open.facts.deployment.clone(),
            session: open.session,
            agent_session: open.facts.agent_session.clone(),
            time: self.shared.clock.at(now),
            kind: kind(),
        });
        match event {
            Some(event) => state.window.push(event),
            None => state.window.skip(),
        }
        if let Some(terminal) = terminal {
            state.open.remove(&request);
            if let Some(receipt) = terminal.receipt() {
                state.kept.push(receipt.clone());
            }
        }
        drop(state);
        if listening {
            self.shared.newest.send_replace(());
        }
    }
}

impl OpenRequest {
    fn apply(&mut self, change: Change) {
        self.state = change.state.unwrap_or(self.state);
        self.session = change.session.or(self.session);
        self.prompt_tokens = change.prompt_tokens.unwrap_or(self.prompt_tokens);
        self.completion_tokens = change.completion_tokens.unwrap_or(self.completion_tokens);
    }
}
