//! Which events a subscriber wants, and how much of them it may see.

use std::collections::HashSet;

use mesh_proto::{
    MeshError, RequestId,
    v1::{EventKind, RequestSummary, SubscribeRequest},
};

use super::event::LifecycleEvent;

/// Values of one filter. Whoever needs more subscribes to everything.
pub const MAX_FILTER_VALUES: usize = 256;

/// Longest value: an agent session.
const MAX_VALUE_BYTES: usize = mesh_proto::session::MAX_AGENT_SESSION;

/// What of an event is filled in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Content {
    /// Token ids.
    pub token_ids: bool,
    /// Text.
    pub text: bool,
}

/// Which events pass: "and" between the fields, "or" within one, empty lets everything pass.
#[derive(Debug, Clone, Default)]
pub struct EventFilter {
    deployments: HashSet<String>,
    requests: HashSet<RequestId>,
    agent_sessions: HashSet<String>,
    /// One bit for each kind; 0 is all.
    kinds: u32,
}

impl EventFilter {
    /// Checks the filters of a subscription.
    ///
    /// # Errors
    ///
    /// Too many or too long values, an id that is no UUID, a kind that does not exist; each names its field.
    pub fn new(request: &SubscribeRequest) -> Result<Self, MeshError> {
        bounded("deployments", &request.deployments)?;
        bounded("request_ids", &request.request_ids)?;
        bounded("agent_sessions", &request.agent_sessions)?;
        let requests = request.request_ids.iter().map(|id| {
            id.parse()
                .map_err(|error| MeshError::invalid("request_ids", format!("{error}; take it from `x-request-id`")))
        });
        let mut kinds = 0;
        for number in &request.kinds {
            let known = EventKind::try_from(*number).ok();
            let kind = known.filter(|kind| *kind != EventKind::Unspecified).ok_or_else(|| {
                let message =
                    format!("{number} is no event kind that this node knows; see EventKind in lifecycle.proto");
                MeshError::invalid("kinds", message)
            })?;
            kinds |= 1 << kind as u32;
        }
        Ok(Self {
            deployments: request.deployments.iter().cloned().collect(),
            requests: requests.collect::<Result<_, _>>()?,
            agent_sessions: request.agent_sessions.iter().cloned().collect(),
            kinds,
        })
    }

    /// The subscriber wants this event.
    pub fn passes(&self, event: &LifecycleEvent) -> bool {
        let session = event.agent_session.as_ref().map(|session| session.as_str());
        (self.kinds == 0 || self.kinds >> event.kind.kind() as u32 & 1 == 1)
            && (self.requests.is_empty() || event.request.is_some_and(|request| self.requests.contains(&request)))
            && self.passes_names(&event.deployment, session)
    }

    /// The subscriber wants to know that this request is open. Kinds do not matter.
    pub fn passes_open(&self, request: &RequestSummary) -> bool {
        let named = || request.request_id.parse().is_ok_and(|id| self.requests.contains(&id));
        let session = Some(request.agent_session.as_str()).filter(|session| !session.is_empty());
        (self.requests.is_empty() || named()) && self.passes_names(&request.deployment, session)
    }

    fn passes_names(&self, deployment: &str, session: Option<&str>) -> bool {
        (self.deployments.is_empty() || self.deployments.contains(deployment))
            && (self.agent_sessions.is_empty() || session.is_some_and(|session| self.agent_sessions.contains(session)))
    }
}

fn bounded(field: &'static str, values: &[String]) -> Result<(), MeshError> {
    if values.len() > MAX_FILTER_VALUES {
        let message = format!(
            "{field} has {} values, at most {MAX_FILTER_VALUES} are allowed; subscribe to all and filter yourself",
            values.len()
        );
        return Err(MeshError::invalid(field, message));
    }
    if let Some(value) = values
        .iter()
        .find(|value| value.is_empty() || value.len() > MAX_VALUE_BYTES)
    {
        let message = format!(
            "{field} has a value of {} bytes; each needs 1 to {MAX_VALUE_BYTES}",
            value.len()
        );
        return Err(MeshError::invalid(field, message));
    }
    Ok(())
}
