//! Requests that have not ended.

use std::{collections::HashMap, sync::Arc, time::Instant};

use mesh_proto::{
    RequestId, SessionId,
    v1::{RequestState, RequestSummary},
};

use super::{bus::RequestFacts, wire::text_of};

/// One open request.
#[derive(Debug, Clone)]
pub struct OpenRequest {
    pub facts: Arc<RequestFacts>,
    /// Of its newest event.
    pub sequence: u64,
    pub state: RequestState,
    pub session: Option<SessionId>,
    pub prompt_tokens: u32,
    pub completion_tokens: u32,
}

impl OpenRequest {
    /// As clients see it.
    pub fn summary(&self, node: &str, now: Instant) -> RequestSummary {
        let age = now.saturating_duration_since(self.facts.arrived);
        RequestSummary {
            request_id: self.facts.request.to_string(),
            node: node.to_owned(),
            deployment: self.facts.deployment.to_string(),
            session_id: self.session.map(|session| session.to_string()).unwrap_or_default(),
            agent_session: text_of(self.facts.agent_session.as_ref()),
            state: self.state.into(),
            sequence: self.sequence,
            attempt: self.facts.attempt,
            prompt_tokens: self.prompt_tokens,
            completion_tokens: self.completion_tokens,
            age_us: u64::try_from(age.as_micros()).unwrap_or(u64::MAX),
            reason: String::new(),
        }
    }
}

/// All of a node, bounded by the places of its heads.
pub type OpenRequests = HashMap<RequestId, OpenRequest>;
