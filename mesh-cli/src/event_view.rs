//! What `mesh events` prints of each message. Scripts rely on the names of the fields: the tests pin them.

mod kind;

use mesh_proto::v1::{self, subscribe_response::Response};
use serde::Serialize;

use kind::KindView;

use crate::{
    output::{self, clock_time, milliseconds, some},
    request_view::RequestView,
};

/// One message.
#[derive(Debug, Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub(crate) enum NoticeView {
    /// Something happened to a request.
    Event(Box<EventView>),
    /// Requests that are open on a node.
    Snapshot {
        node: String,
        run: Option<u64>,
        sequence: Option<u64>,
        requests: Vec<RequestView>,
    },
    /// Events that the node has no more; `to` is 0 if it was started again and nobody knows.
    Gap { node: String, run: u64, from: u64, to: u64 },
    /// Events that were lost because they were not read in time.
    Lagged { node: String, dropped: u64 },
    /// Nothing happened; so far nodes have come.
    Heartbeat { positions: Vec<PositionView> },
}

/// How far a node has come.
#[derive(Debug, Serialize)]
pub(crate) struct PositionView {
    node: String,
    run: u64,
    sequence: u64,
}

#[derive(Debug, Serialize)]
pub(crate) struct EventView {
    request_id: String,
    sequence: u64,
    node: String,
    node_sequence: u64,
    node_run: u64,
    attempt: u32,
    deployment: String,
    session_id: Option<String>,
    agent_session: Option<String>,
    /// RFC 3339.
    time: String,
    #[serde(flatten)]
    kind: KindView,
}

impl NoticeView {
    /// `None` for what a newer node says and this program does not know.
    pub(crate) fn new(message: v1::SubscribeResponse, token_ids: bool, text: bool) -> Option<Self> {
        Some(match message.response? {
            Response::Event(event) => Self::Event(Box::new(EventView::new(event, token_ids, text))),
            Response::Snapshot(snapshot) => {
                let position = snapshot.position.unwrap_or_default();
                Self::Snapshot {
                    node: position.node,
                    run: Some(position.run),
                    sequence: Some(position.sequence),
                    requests: snapshot.requests.into_iter().map(RequestView::from).collect(),
                }
            }
            Response::Gap(gap) => Self::Gap {
                node: gap.node,
                run: gap.run,
                from: gap.from,
                to: gap.to,
            },
            Response::Lagged(lagged) => Self::Lagged {
                node: lagged.node,
                dropped: lagged.dropped,
            },
            Response::Heartbeat(heartbeat) => {
                let positions = heartbeat.cursor.unwrap_or_default().positions.into_iter();
                let view = |position: v1::NodePosition| PositionView {
                    node: position.node,
                    run: position.run,
                    sequence: position.sequence,
                };
                Self::Heartbeat {
                    positions: positions.map(view).collect(),
                }
            }
        })
    }

    /// What is open on a node, without a position in its events.
    pub(crate) fn open(node: String, requests: Vec<RequestView>) -> Self {
        Self::Snapshot {
            node,
            run: None,
            sequence: None,
            requests,
        }
    }

    /// For people: a line for each event; nothing while nothing happens.
    pub(crate) fn describe(&self) -> String {
        match self {
            Self::Event(event) => event.describe(),
            Self::Snapshot { node, requests, .. } => requests.iter().map(|request| open_line(node, request)).collect(),
            Self::Gap { node, to: 0, .. } => {
                format!(
                    "-- node {} was started again: what happened meanwhile is not known\n",
                    output::name(node)
                )
            }
            Self::Gap { node, from, to, .. } => {
                format!(
                    "-- gap: events {from} to {to} of node {} are gone\n",
                    output::name(node)
                )
            }
            Self::Lagged { node, dropped } => {
                format!(
                    "-- lagged: {dropped} events of node {} were not read in time\n",
                    output::name(node)
                )
            }
            Self::Heartbeat { .. } => String::new(),
        }
    }
}

fn open_line(node: &str, request: &RequestView) -> String {
    let details = format!(
        "{} on {}, {} prompt tokens, {} tokens, for {}",
        request.state,
        request.deployment,
        request.prompt_tokens,
        request.completion_tokens,
        milliseconds(request.age_us)
    );
    line("", &request.request_id, node, "open", &details)
}

/// Columns that fit almost everything: nobody waits for the widest cell.
fn line(time: &str, request: &str, node: &str, kind: &str, details: &str) -> String {
    let (request, node) = (output::name(request), output::name(node));
    let details = output::sentence(details);
    let line = format!("{time:<23}  {request:<36}  {node:<10}  {kind:<9}  {details}");
    format!("{}\n", line.trim_end())
}

impl EventView {
    fn new(event: v1::LifecycleEvent, token_ids: bool, text: bool) -> Self {
        Self {
            request_id: event.request_id,
            sequence: event.sequence,
            node: event.node,
            node_sequence: event.node_sequence,
            node_run: event.node_run,
            attempt: event.attempt,
            deployment: event.deployment,
            session_id: some(event.session_id),
            agent_session: some(event.agent_session),
            time: event.time.map(|time| time.to_string()).unwrap_or_default(),
            kind: event
                .kind
                .map_or(KindView::Unknown, |kind| KindView::new(kind, token_ids, text)),
        }
    }

    fn describe(&self) -> String {
        let (kind, details) = self.kind.describe(&self.deployment);
        line(&clock_time(&self.time), &self.request_id, &self.node, kind, &details)
    }
}

#[cfg(test)]
mod tests {
    use mesh_proto::v1::lifecycle_event::Kind;

    use super::*;

    fn view(kind: Kind) -> NoticeView {
        let event = v1::LifecycleEvent {
            request_id: "r".into(),
            sequence: 2,
            node: "a".into(),
            node_sequence: 9,
            deployment: "smol".into(),
            kind: Some(kind),
            ..v1::LifecycleEvent::default()
        };
        let response = Some(Response::Event(event));
        NoticeView::new(v1::SubscribeResponse { response }, false, true).unwrap()
    }

    #[test]
    fn the_json_of_an_event_has_the_fields_that_scripts_rely_on() {
        let committed = v1::Committed {
            total: 3,
            count: 1,
            text: "a\nb\x1b".into(),
            ..v1::Committed::default()
        };
        let view = view(Kind::Committed(committed));
        let json = serde_json::to_value(&view).unwrap();
        assert_eq!((&json["type"], &json["kind"]), (&"event".into(), &"committed".into()));
        assert_eq!((&json["request_id"], &json["node"]), (&"r".into(), &"a".into()));
        assert_eq!((&json["sequence"], &json["node_sequence"]), (&2.into(), &9.into()));
        assert_eq!(
            (&json["committed"]["total"], &json["committed"]["text"]),
            (&3.into(), &"a\nb\u{1b}".into())
        );
        assert!(json["committed"]["token_ids"].is_null() && json["session_id"].is_null());
        let line = view.describe();
        assert!(
            line.contains("+1, 3 so far") && line.ends_with("\"a\\nb\\u{1b}\"\n"),
            "{line}"
        );
        assert_eq!(line.matches('\n').count(), 1);
    }

    #[test]
    fn every_kind_is_one_line_and_one_object() {
        for (kind, name) in [
            (Kind::Queued(v1::Queued {}), "queued"),
            (Kind::Started(v1::Started::default()), "started"),
            (Kind::Prefilled(v1::Prefilled::default()), "prefilled"),
            (Kind::Proposed(v1::Proposed::default()), "proposed"),
            (
                Kind::ProposalResolved(v1::ProposalResolved::default()),
                "proposal_resolved",
            ),
            (Kind::Recovering(v1::Recovering::default()), "recovering"),
            (Kind::Recovered(v1::Recovered {}), "recovered"),
            (Kind::Finished(v1::Finished::default()), "finished"),
            (Kind::Aborted(v1::Aborted::default()), "aborted"),
            (Kind::Rejected(v1::Rejected::default()), "rejected"),
        ] {
            let view = view(kind);
            let json = serde_json::to_value(&view).unwrap();
            assert_eq!(json["kind"], name);
            let bare = matches!(name, "queued" | "recovered");
            assert_eq!(json[name].is_object(), !bare, "{json}");
            assert_eq!(view.describe().matches('\n').count(), 1);
        }
    }

    #[test]
    fn what_is_missing_is_said() {
        let gap = v1::Gap {
            node: "a".into(),
            from: 2,
            to: 5,
            ..v1::Gap::default()
        };
        let lagged = v1::Lagged {
            node: "a".into(),
            dropped: 7,
        };
        for (response, said) in [
            (Response::Gap(gap), "events 2 to 5 of node a"),
            (Response::Lagged(lagged), "7 events of node a"),
        ] {
            let view = NoticeView::new(
                v1::SubscribeResponse {
                    response: Some(response),
                },
                false,
                false,
            );
            assert!(view.unwrap().describe().contains(said));
        }
    }
}
