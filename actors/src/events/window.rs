//! The newest events of a node, without gaps.

use std::{collections::VecDeque, sync::Arc};

use super::event::LifecycleEvent;

/// Bounded by count and by bytes; the oldest go first.
#[derive(Debug)]
pub struct Window {
    events: VecDeque<Arc<LifecycleEvent>>,
    /// Sequence of the first event that is there, or of the next one that will be.
    first: u64,
    bytes: usize,
    max_events: usize,
    max_bytes: usize,
}

impl Window {
    /// Empty; the next event has sequence 1.
    pub fn new(max_events: usize, max_bytes: usize) -> Self {
        Self {
            events: VecDeque::new(),
            first: 1,
            bytes: 0,
            max_events,
            max_bytes,
        }
    }

    /// The oldest sequence that can be read, or the next one.
    pub fn first(&self) -> u64 {
        self.first
    }

    /// Events held.
    pub fn len(&self) -> usize {
        self.events.len()
    }

    /// About what they take, bytes.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Takes the next event.
    pub fn push(&mut self, event: LifecycleEvent) {
        self.bytes += weight(&event);
        self.events.push_back(Arc::new(event));
        while self.events.len() > self.max_events || self.bytes > self.max_bytes {
            let Some(oldest) = self.events.pop_front() else { return };
            self.bytes -= weight(&oldest);
            self.first += 1;
        }
    }

    /// An event that nobody needs was not built: nothing before it can be read any more.
    pub fn skip(&mut self) {
        self.first += self.events.len() as u64 + 1;
        self.events = VecDeque::new();
        self.bytes = 0;
    }

    /// At most `limit` events from a sequence on, which must not be older than [`Self::first`].
    pub fn read(&self, from: u64, limit: usize) -> impl Iterator<Item = Arc<LifecycleEvent>> {
        let skip = usize::try_from(from.saturating_sub(self.first)).unwrap_or(usize::MAX);
        self.events.iter().skip(skip).take(limit).cloned()
    }
}

fn weight(event: &LifecycleEvent) -> usize {
    size_of::<LifecycleEvent>() + event.kind.weight()
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use mesh_proto::RequestId;
    use proptest::prelude::*;

    use super::*;
    use crate::events::Lifecycle;

    fn event(node_sequence: u64, text: usize) -> LifecycleEvent {
        LifecycleEvent {
            request: Some(RequestId::random()),
            sequence: 1,
            node_sequence,
            attempt: 1,
            deployment: "d".into(),
            session: None,
            agent_session: None,
            time: SystemTime::UNIX_EPOCH,
            kind: Lifecycle::Committed {
                tokens: vec![1],
                text: "x".repeat(text),
                total: 1,
                stage_us: Vec::new(),
            },
        }
    }

    proptest! {
        #[test]
        fn the_window_is_bounded_and_has_no_gaps(steps in proptest::collection::vec((any::<bool>(), 0usize..4000), 1..200)) {
            let mut window = Window::new(20, 20_000);
            for (index, (kept, text)) in steps.into_iter().enumerate() {
                let sequence = index as u64 + 1;
                if kept { window.push(event(sequence, text)) } else { window.skip() }
                prop_assert!(window.len() <= 20 && window.bytes() <= 20_000);
                let read: Vec<u64> = window.read(window.first(), 1000).map(|event| event.node_sequence).collect();
                let expected: Vec<u64> = (window.first()..=sequence).collect();
                prop_assert_eq!(read, expected);
            }
        }
    }
}
