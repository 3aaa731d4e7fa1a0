//! One event, and the end of a request as observers see it.

use std::{fmt, sync::Arc, time::SystemTime};

use mesh_proto::{
    AgentSession, LaneId, MeshError, RequestId, SessionId, TraceContext,
    v1::{EventKind, GenerateRequest, generate_request::Prompt},
};

use super::receipt::Receipt;
use crate::{plugin::Health, ports::plugin::DecisionId};

/// What happened to a request.
#[derive(Debug, Clone, PartialEq)]
pub enum Lifecycle {
    /// The deployment was chosen; the request is being prepared or waits for a lane.
    Queued,
    /// A lane is really held.
    Started {
        /// Token ids of the prompt, shared with the request.
        prompt: Arc<[u32]>,
        /// The lane.
        lane: LaneId,
        /// From arrival to the lane, microseconds.
        queued_us: u64,
    },
    /// The prompt is in the cache and the first token is drawn.
    Prefilled {
        /// From the lane to the first token, microseconds.
        prefill_us: u64,
    },
    /// Tokens became part of the output.
    Committed {
        /// The new ones; empty when only held-back text is released.
        tokens: Vec<u32>,
        /// Text released with them; stop strings and unfinished characters are held back.
        text: String,
        /// All committed so far, these included.
        total: u32,
        /// What each stage computed for the step, stage 0 first, microseconds.
        stage_us: Vec<u64>,
    },
    /// A proposer offers candidates, which are being verified.
    Proposed {
        /// Who.
        proposer: Arc<str>,
        /// The decision, as the proposer names it.
        decision: DecisionId,
        /// Candidates.
        count: u32,
    },
    /// They were verified, or will not be.
    ProposalResolved {
        /// The decision.
        decision: DecisionId,
        /// Candidates that the model produced too.
        accepted: u32,
        /// Name of the disposition, or of the reason why it was not used.
        reason: &'static str,
    },
    /// The normal end.
    Finished(Arc<Receipt>),
    /// Any other end: after `Started`, with a receipt; before it, by cancellation or with the deployment.
    Aborted {
        /// Why.
        error: MeshError,
        /// If it held a lane.
        receipt: Option<Arc<Receipt>>,
    },
    /// Refused before a lane was held.
    Rejected(MeshError),
    /// About the node: a plugin became better or worse.
    PluginHealthChanged {
        /// Which plugin.
        plugin: Arc<str>,
        /// How it is now.
        health: Health,
        /// Why it is not healthy, or empty.
        reason: String,
    },
}

impl Lifecycle {
    /// Nothing follows it.
    pub fn is_terminal(&self) -> bool {
        matches!(self, Self::Finished(_) | Self::Aborted { .. } | Self::Rejected(_))
    }

    /// The receipt of a request that held a lane and has ended.
    pub fn receipt(&self) -> Option<&Arc<Receipt>> {
        match self {
            Self::Finished(receipt) => Some(receipt),
            Self::Aborted { receipt, .. } => receipt.as_ref(),
            _ => None,
        }
    }

    /// As filters name it.
    pub fn kind(&self) -> EventKind {
        match self {
            Self::Queued => EventKind::Queued,
            Self::Started { .. } => EventKind::Started,
            Self::Prefilled { .. } => EventKind::Prefilled,
            Self::Committed { .. } => EventKind::Committed,
            Self::Proposed { .. } => EventKind::Proposed,
            Self::ProposalResolved { .. } => EventKind::ProposalResolved,
            Self::Finished(_) => EventKind::Finished,
            Self::Aborted { .. } => EventKind::Aborted,
            Self::Rejected(_) => EventKind::Rejected,
            Self::PluginHealthChanged { .. } => EventKind::PluginHealthChanged,
        }
    }

    /// About what it takes in memory beside the event itself, bytes. Receipts count in full, though they are shared.
    pub(super) fn weight(&self) -> usize {
        match self {
            Self::Queued | Self::Prefilled { .. } => 0,
            Self::Proposed { decision, .. } | Self::ProposalResolved { decision, .. } => decision.as_bytes().len(),
            Self::Started { prompt, .. } => prompt.len() * 4,
            Self::Committed {
                tokens, text, stage_us, ..
            } => tokens.capacity() * 4 + text.capacity() + stage_us.capacity() * 8,
            Self::Finished(receipt) => receipt.weight(),
            Self::Aborted { error, receipt } => {
                error.message.len() + receipt.as_ref().map_or(0, |receipt| receipt.weight())
            }
            Self::Rejected(error) => error.message.len(),
            Self::PluginHealthChanged { reason, .. } => reason.len(),
        }
    }
}

/// A numbered event of one request.
#[derive(Debug, Clone, PartialEq)]
pub struct LifecycleEvent {
    /// The request; none if it is about the node.
    pub request: Option<RequestId>,
    /// Of the request, from 1, without gaps; 0 if it is about the node.
    pub sequence: u64,
    /// Of the node, from 1, without gaps.
    pub node_sequence: u64,
    /// From 1; grows with every recovery.
    pub attempt: u32,
    /// Deployment.
    pub deployment: Arc<str>,
    /// Occupation of a lane, once it has one.
    pub session: Option<SessionId>,
    /// As the client's side names it.
    pub agent_session: Option<AgentSession>,
    /// Never goes back within a run of the node.
    pub time: SystemTime,
    /// What happened.
    pub kind: Lifecycle,
}

/// What a client asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operation {
    /// A turn in a conversation.
    Chat,
    /// More of a text, or of token ids.
    Completion,
}

impl Operation {
    /// By the form of its prompt.
    pub fn of(request: &GenerateRequest) -> Self {
        match request.prompt {
            Some(Prompt::Chat(_)) => Self::Chat,
            _ => Self::Completion,
        }
    }
}

/// The trace that a request belongs to, if it is traced.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RequestTrace {
    /// The span of the request itself: parent of what stages and links do for it.
    pub own: TraceContext,
    /// The caller's span.
    pub parent: Option<TraceContext>,
}

/// A request that has ended.
#[derive(Debug)]
pub struct RequestEnd<'a> {
    /// The request.
    pub request: RequestId,
    /// Deployment.
    pub deployment: &'a str,
    /// What was asked for.
    pub operation: Operation,
    /// Trace.
    pub trace: Option<RequestTrace>,
    /// Arrival at the head.
    pub arrived: SystemTime,
    /// Now.
    pub ended: SystemTime,
    /// The terminal: `Finished`, `Aborted` or `Rejected`.
    pub kind: &'a Lifecycle,
}

/// Hears of every request that ends: telemetry, the durable sink of receipts. Called by the request's actor: must not
/// block, and must bound what it queues.
pub trait EndObserver: Send + Sync + fmt::Debug + 'static {
    /// A request has ended.
    fn ended(&self, end: &RequestEnd<'_>);
}
