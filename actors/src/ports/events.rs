//! Where lifecycle events go. One state change, one event, emitted by the request's actor alone (DESIGN §5).

use std::{fmt, sync::Arc};

use mesh_proto::{LaneId, MeshError, RequestId, v1::FinishReason};

/// What happened to a request.
#[derive(Debug, Clone, PartialEq)]
pub enum Lifecycle {
    /// The deployment was chosen; the request is being prepared or waits for a lane.
    Queued,
    /// A lane is really held.
    Started {
        /// Tokens of the prompt.
        prompt_tokens: u32,
        /// The lane.
        lane: LaneId,
    },
    /// The prompt is in the cache and the first token is drawn.
    Prefilled,
    /// Tokens became part of the output.
    Committed {
        /// The new ones.
        tokens: Vec<u32>,
        /// Text released with them; stop strings and unfinished characters are held back.
        text: String,
        /// All committed so far, these included.
        total: u32,
    },
    /// The normal end.
    Finished {
        /// Why.
        reason: FinishReason,
        /// Tokens of the prompt.
        prompt_tokens: u32,
        /// Tokens committed.
        completion_tokens: u32,
    },
    /// Any other end after `Started`, or a cancellation before it.
    Aborted(MeshError),
    /// Refused before a lane was held.
    Rejected(MeshError),
}

/// A numbered event of one request.
#[derive(Debug, Clone, PartialEq)]
pub struct LifecycleEvent {
    /// The request.
    pub request: RequestId,
    /// Per request, from 1, without gaps.
    pub sequence: u64,
    /// Attempt, from 1; grows with every recovery.
    pub attempt: u32,
    /// Deployment.
    pub deployment: Arc<str>,
    /// What happened.
    pub kind: Lifecycle,
}

/// Takes events. Must not block.
pub trait EventSink: Send + Sync + fmt::Debug + 'static {
    /// Whether anybody listens: events are not even built otherwise.
    fn is_listening(&self) -> bool;
    /// Takes one event.
    fn emit(&self, event: LifecycleEvent);
}

/// Nobody listens.
#[derive(Debug, Clone, Copy, Default)]
pub struct NoSubscribers;

impl EventSink for NoSubscribers {
    fn is_listening(&self) -> bool {
        false
    }

    fn emit(&self, _event: LifecycleEvent) {}
}
