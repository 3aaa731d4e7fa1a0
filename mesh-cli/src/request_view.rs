//! What is printed about requests. Scripts rely on the names of the fields: the tests pin them.

use mesh_proto::v1;
use serde::Serialize;

use crate::output::{self, Table};

/// `mesh requests list`.
#[derive(Debug, Serialize)]
pub(crate) struct RequestsView {
    pub(crate) requests: Vec<RequestView>,
    /// Names of nodes that did not answer.
    pub(crate) missing: Vec<String>,
}

/// A request that is open, or that ended not long ago.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct RequestView {
    pub(crate) request_id: String,
    /// Its head.
    pub(crate) node: String,
    pub(crate) deployment: String,
    /// Once it has a lane.
    pub(crate) session_id: Option<String>,
    pub(crate) agent_session: Option<String>,
    /// `queued`, `started`, `decoding`, `finished` or `aborted`.
    pub(crate) state: &'static str,
    /// Of its newest event.
    pub(crate) sequence: u64,
    pub(crate) attempt: u32,
    pub(crate) prompt_tokens: u32,
    pub(crate) completion_tokens: u32,
    /// Since its arrival, or how long it took.
    pub(crate) age_us: u64,
    /// Why it ended.
    pub(crate) reason: Option<String>,
}

impl From<v1::ListRequestsResponse> for RequestsView {
    fn from(list: v1::ListRequestsResponse) -> Self {
        Self {
            requests: list.requests.into_iter().map(RequestView::from).collect(),
            missing: list.missing,
        }
    }
}

impl From<v1::RequestSummary> for RequestView {
    fn from(request: v1::RequestSummary) -> Self {
        let state = match request.state() {
            v1::RequestState::Queued => "queued",
            v1::RequestState::Started => "started",
            v1::RequestState::Decoding => "decoding",
            v1::RequestState::Finished => "finished",
            v1::RequestState::Aborted => "aborted",
            v1::RequestState::Unspecified => "unknown",
        };
        Self {
            request_id: request.request_id,
            node: request.node,
            deployment: request.deployment,
            session_id: output::some(request.session_id),
            agent_session: output::some(request.agent_session),
            state,
            sequence: request.sequence,
            attempt: request.attempt,
            prompt_tokens: request.prompt_tokens,
            completion_tokens: request.completion_tokens,
            age_us: request.age_us,
            reason: output::some(request.reason),
        }
    }
}

impl RequestsView {
    /// A list that is not whole says so, on stderr.
    pub(crate) fn warn_of_missing(&self) {
        if !self.missing.is_empty() {
            output::note(&format!(
                "mesh: {} did not answer; their requests are not in the list",
                self.missing.join(", ")
            ));
        }
    }

    /// For people.
    pub(crate) fn describe(&self) -> String {
        if self.requests.is_empty() {
            return "no requests\n".to_owned();
        }
        requests_table(&self.requests)
    }
}

impl RequestView {
    /// For people.
    pub(crate) fn describe(&self) -> String {
        let mut table = Table::new(&["request", &self.request_id]);
        let mut row = |name: &str, value: String| {
            if !value.is_empty() {
                table.row([name.to_owned(), value]);
            }
        };
        row("state", self.state.to_owned());
        row("deployment", self.deployment.clone());
        row("node", self.node.clone());
        row("session", self.session_id.clone().unwrap_or_default());
        row("agent session", self.agent_session.clone().unwrap_or_default());
        row("prompt", format!("{} tokens", self.prompt_tokens));
        row("generated", format!("{} tokens so far", self.completion_tokens));
        row("age", output::milliseconds(self.age_us));
        table.render(0)
    }
}

/// A line each.
pub(crate) fn requests_table(requests: &[RequestView]) -> String {
    let mut table = Table::new(&[
        "REQUEST",
        "STATE",
        "DEPLOYMENT",
        "NODE",
        "PROMPT",
        "TOKENS",
        "AGE",
        "REASON",
    ]);
    for request in requests {
        table.row([
            request.request_id.clone(),
            request.state.to_owned(),
            request.deployment.clone(),
            request.node.clone(),
            request.prompt_tokens.to_string(),
            request.completion_tokens.to_string(),
            output::milliseconds(request.age_us),
            request.reason.clone().unwrap_or_default(),
        ]);
    }
    table.render(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_json_of_requests_has_the_fields_that_scripts_rely_on() {
        let request = v1::RequestSummary {
            request_id: "r".into(),
            state: v1::RequestState::Decoding.into(),
            completion_tokens: 7,
            ..v1::RequestSummary::default()
        };
        let list = v1::ListRequestsResponse {
            requests: vec![request],
            missing: vec!["b".into()],
        };
        let json = serde_json::to_value(RequestsView::from(list)).unwrap();
        assert_eq!(json["missing"][0], "b");
        let request = &json["requests"][0];
        assert_eq!(
            (&request["request_id"], &request["state"]),
            (&"r".into(), &"decoding".into())
        );
        assert_eq!(request["completion_tokens"], 7);
        for empty in ["session_id", "agent_session", "reason"] {
            assert!(request[empty].is_null(), "{empty}");
        }
    }
}
