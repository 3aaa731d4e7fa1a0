//! Keeps lifecycle events and checks what has to hold of them.

use std::{
    collections::BTreeMap,
    sync::{Mutex, MutexGuard, PoisonError},
};

use mesh_proto::{LaneId, RequestId, v1::SubscribeRequest};

use crate::{
    events::{EventBus, EventOptions, Lifecycle, LifecycleEvent, Notice, Subscription},
    ports::plugin::DecisionId,
};

/// Subscribes to everything, as any other subscriber.
#[derive(Debug)]
pub struct EventLog {
    bus: EventBus,
    read: Mutex<Read>,
}

#[derive(Debug)]
struct Read {
    subscription: Subscription,
    events: Vec<LifecycleEvent>,
}

impl Default for EventLog {
    fn default() -> Self {
        let bus = EventBus::new("scripted", 1, EventOptions::default(), Vec::new());
        let subscription = bus.subscribe(&SubscribeRequest::default()).expect("a subscription");
        let read = Mutex::new(Read {
            subscription,
            events: Vec::new(),
        });
        Self { bus, read }
    }
}

impl EventLog {
    /// Where requests send their events.
    pub fn bus(&self) -> &EventBus {
        &self.bus
    }

    /// All events so far.
    fn lock(&self) -> Events<'_> {
        let mut read = self.read.lock().unwrap_or_else(PoisonError::into_inner);
        while let Some(notice) = read.subscription.ready() {
            match notice {
                Notice::Event(event) => read.events.push(LifecycleEvent::clone(&event)),
                Notice::Snapshot(open) => assert!(open.is_empty()),
                other => panic!("the log did not keep up: {other:?}"),
            }
        }
        Events(read)
    }

    /// Events of all requests, each in order.
    pub fn by_request(&self) -> BTreeMap<RequestId, Vec<LifecycleEvent>> {
        let mut requests: BTreeMap<RequestId, Vec<LifecycleEvent>> = BTreeMap::new();
        for event in self.lock().iter() {
            // Events about the node belong to no request.
            if let Some(request) = event.request {
                requests.entry(request).or_default().push(event.clone());
            }
        }
        requests
    }

    /// Events of one request.
    pub fn of(&self, request: &str) -> Vec<LifecycleEvent> {
        let events = self.lock();
        events
            .iter()
            .filter(|event| event.request.is_some_and(|id| id.to_string() == request))
            .cloned()
            .collect()
    }

    /// Text that a request committed.
    pub fn text(&self, request: &str) -> String {
        let texts = self.of(request).into_iter().filter_map(|event| match event.kind {
            Lifecycle::Committed { text, .. } => Some(text),
            _ => None,
        });
        texts.collect()
    }

    /// Requests that began and did not end.
    pub fn unended(&self) -> usize {
        self.by_request()
            .values()
            .filter(|events| !events.last().is_some_and(|event| event.kind.is_terminal()))
            .count()
    }

    /// Checks all requests, which must have ended.
    ///
    /// # Panics
    ///
    /// An invariant is broken.
    pub fn check(&self) {
        for (request, events) in self.by_request() {
            if let Err(what) = check_request(&events) {
                panic!("request {request}: {what}\n{events:#?}");
            }
        }
        self.check_lanes();
    }

    /// No two requests hold a lane at once, going by the order of events.
    fn check_lanes(&self) {
        let mut held: BTreeMap<LaneId, RequestId> = BTreeMap::new();
        for event in self.lock().iter() {
            match &event.kind {
                Lifecycle::Started { lane, .. } => {
                    // The end of the one before may be told a moment later: it freed the lane first.
                    held.extend(event.request.map(|request| (*lane, request)));
                }
                Lifecycle::Committed { .. } | Lifecycle::Prefilled { .. } => {
                    assert!(
                        held.values().any(|holder| Some(*holder) == event.request),
                        "{event:?} without a lane"
                    );
                }
                _ => {}
            }
        }
    }
}

/// Holds the lock while events are read.
struct Events<'a>(MutexGuard<'a, Read>);

impl std::ops::Deref for Events<'_> {
    type Target = [LifecycleEvent];

    fn deref(&self) -> &[LifecycleEvent] {
        &self.0.events
    }
}

fn check_request(events: &[LifecycleEvent]) -> Result<(), String> {
    let (mut started, mut prefilled, mut total) = (false, false, 0u32);
    let mut open: Option<&DecisionId> = None;
    for (index, event) in events.iter().enumerate() {
        if event.sequence != index as u64 + 1 {
            return Err(format!("event {index} has sequence {}", event.sequence));
        }
        if event.kind.is_terminal() != (index + 1 == events.len()) {
            return Err("not exactly one terminal at the end".to_owned());
        }
        match &event.kind {
            Lifecycle::Queued if index == 0 => {}
            Lifecycle::Started { .. } if index == 1 => started = true,
            Lifecycle::Prefilled { .. } if started && !prefilled => prefilled = true,
            Lifecycle::Committed { tokens, total: now, .. } if prefilled => {
                total += tokens.len() as u32;
                if *now != total {
                    return Err(format!("{now} committed, after {total}"));
                }
            }
            Lifecycle::Proposed { decision, .. } if prefilled && open.is_none() => open = Some(decision),
            Lifecycle::ProposalResolved { decision, .. } if open == Some(decision) => open = None,
            Lifecycle::Finished(receipt) if prefilled && open.is_none() && receipt.generated.len() as u32 == total => {}
            Lifecycle::Rejected(_) if !started => {}
            Lifecycle::Aborted { .. } => {}
            other => return Err(format!("{other:?} at {index}")),
        }
    }
    Ok(())
}
