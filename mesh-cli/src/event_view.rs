//! What `mesh events` prints of each message. Scripts rely on the names of the fields: the tests pin them.

use mesh_proto::v1::{self, lifecycle_event::Kind, subscribe_response::Response};
use serde::Serialize;

use crate::{
    local_node::receipts::{ReceiptView, TimingsView},
    output::{clock_time, harmless, milliseconds, some},
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

/// `kind`, and what belongs to it in an object of that name.
#[derive(Debug, Serialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
enum KindView {
    Queued,
    Started {
        started: StartedView,
    },
    Prefilled {
        prefilled: PrefilledView,
    },
    Committed {
        committed: CommittedView,
    },
    Proposed {
        proposed: ProposedView,
    },
    ProposalResolved {
        proposal_resolved: ProposalResolvedView,
    },
    Recovering {
        recovering: RecoveringView,
    },
    Recovered,
    Finished {
        finished: FinishedView,
    },
    Aborted {
        aborted: AbortedView,
    },
    Rejected {
        rejected: RejectedView,
    },
    /// Of a newer node.
    Unknown,
}

#[derive(Debug, Serialize)]
struct StartedView {
    lane: u32,
    prompt_tokens: u32,
    queued_us: u64,
}

#[derive(Debug, Serialize)]
struct PrefilledView {
    prefill_us: u64,
}

#[derive(Debug, Serialize)]
struct CommittedView {
    total: u32,
    count: u32,
    /// Absent if not asked for.
    token_ids: Option<Vec<u32>>,
    /// Absent if not asked for.
    text: Option<String>,
    stage_us: Vec<u64>,
}

#[derive(Debug, Serialize)]
struct ProposedView {
    proposer: String,
    decision_id: String,
    count: u32,
}

#[derive(Debug, Serialize)]
struct ProposalResolvedView {
    decision_id: String,
    accepted: u32,
    reason: Option<String>,
}

#[derive(Debug, Serialize)]
struct RecoveringView {
    reason: String,
}

#[derive(Debug, Serialize)]
struct FinishedView {
    /// `stop` or `length`.
    reason: String,
    prompt_tokens: u32,
    completion_tokens: u32,
    timings: TimingsView,
    receipt: Option<ReceiptView>,
}

#[derive(Debug, Serialize)]
struct AbortedView {
    /// Name in the error table.
    reason: String,
    message: String,
    prompt_tokens: u32,
    completion_tokens: u32,
    timings: Option<TimingsView>,
    /// Absent if it never held a lane.
    receipt: Option<ReceiptView>,
}

#[derive(Debug, Serialize)]
struct RejectedView {
    /// Name in the error table.
    code: String,
    message: String,
    param: Option<String>,
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
                format!("-- node {node} was started again: what happened meanwhile is not known\n")
            }
            Self::Gap { node, from, to, .. } => format!("-- gap: events {from} to {to} of node {node} are gone\n"),
            Self::Lagged { node, dropped } => {
                format!("-- lagged: {dropped} events of node {node} were not read in time\n")
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

impl KindView {
    fn new(kind: Kind, token_ids: bool, text: bool) -> Self {
        match kind {
            Kind::Queued(_) => Self::Queued,
            Kind::Started(started) => Self::Started {
                started: StartedView {
                    lane: started.lane,
                    prompt_tokens: started.prompt_tokens,
                    queued_us: started.queued_us,
                },
            },
            Kind::Prefilled(prefilled) => Self::Prefilled {
                prefilled: PrefilledView {
                    prefill_us: prefilled.prefill_us,
                },
            },
            Kind::Committed(committed) => Self::Committed {
                committed: CommittedView {
                    total: committed.total,
                    count: committed.count,
                    token_ids: token_ids.then_some(committed.token_ids),
                    text: text.then_some(committed.text),
                    stage_us: committed.stage_us,
                },
            },
            Kind::Proposed(proposed) => Self::Proposed {
                proposed: ProposedView {
                    proposer: proposed.proposer,
                    decision_id: proposed.decision_id,
                    count: proposed.count,
                },
            },
            Kind::ProposalResolved(resolved) => Self::ProposalResolved {
                proposal_resolved: ProposalResolvedView {
                    decision_id: resolved.decision_id,
                    accepted: resolved.accepted,
                    reason: some(resolved.reason),
                },
            },
            Kind::Recovering(recovering) => Self::Recovering {
                recovering: RecoveringView {
                    reason: recovering.reason,
                },
            },
            Kind::Recovered(_) => Self::Recovered,
            Kind::Finished(finished) => Self::Finished {
                finished: FinishedView::new(finished, token_ids),
            },
            Kind::Aborted(aborted) => Self::Aborted {
                aborted: AbortedView::new(aborted, token_ids),
            },
            Kind::Rejected(rejected) => Self::Rejected {
                rejected: RejectedView {
                    code: rejected.code,
                    message: rejected.message,
                    param: some(rejected.param),
                },
            },
        }
    }

    /// Name and details.
    fn describe(&self, deployment: &str) -> (&'static str, String) {
        match self {
            Self::Queued => ("queued", format!("for {deployment}")),
            Self::Started { started } => (
                "started",
                format!(
                    "lane {}, {} prompt tokens, queued {}",
                    started.lane,
                    started.prompt_tokens,
                    milliseconds(started.queued_us)
                ),
            ),
            Self::Prefilled { prefilled } => ("prefilled", milliseconds(prefilled.prefill_us)),
            Self::Committed { committed } => ("committed", committed.describe()),
            Self::Proposed { proposed } => (
                "proposed",
                format!("{} tokens by {}", proposed.count, proposed.proposer),
            ),
            Self::ProposalResolved { proposal_resolved } => {
                ("resolved", format!("{} tokens accepted", proposal_resolved.accepted))
            }
            Self::Recovering { recovering } => ("recovering", harmless(&recovering.reason)),
            Self::Recovered => ("recovered", String::new()),
            Self::Finished { finished } => ("finished", finished.describe()),
            Self::Aborted { aborted } => (
                "aborted",
                format!(
                    "{} after {} tokens: {}",
                    aborted.reason,
                    aborted.completion_tokens,
                    harmless(&aborted.message)
                ),
            ),
            Self::Rejected { rejected } => (
                "rejected",
                format!("{}: {}", rejected.code, harmless(&rejected.message)),
            ),
            Self::Unknown => ("unknown", "a kind that this program does not know".to_owned()),
        }
    }
}

impl CommittedView {
    fn describe(&self) -> String {
        let mut details = format!("+{}, {} so far", self.count, self.total);
        if let Some(ids) = &self.token_ids {
            details += &format!(", ids {ids:?}");
        }
        if let Some(text) = &self.text {
            // Escaped: on one line, and harmless to a terminal.
            details += &format!(", {text:?}");
        }
        details
    }
}

impl FinishedView {
    fn new(finished: v1::Finished, token_ids: bool) -> Self {
        let reason = match finished.reason() {
            v1::FinishReason::Stop => "stop",
            v1::FinishReason::Length => "length",
            v1::FinishReason::Unspecified => "",
        };
        Self {
            reason: reason.to_owned(),
            prompt_tokens: finished.prompt_tokens,
            completion_tokens: finished.completion_tokens,
            timings: finished.timings.map(TimingsView::from).unwrap_or_default(),
            receipt: finished.receipt.map(|receipt| ReceiptView::new(receipt, token_ids)),
        }
    }

    fn describe(&self) -> String {
        let timings = &self.timings;
        let rate = if self.completion_tokens > 1 && timings.decode_us > 0 {
            let rate = f64::from(self.completion_tokens - 1) * 1e6 / timings.decode_us as f64;
            format!(", {rate:.1} tokens/s")
        } else {
            String::new()
        };
        let total = timings.queued_us + timings.prefill_us + timings.decode_us;
        format!(
            "{}, {} tokens in {}{rate}",
            self.reason,
            self.completion_tokens,
            milliseconds(total)
        )
    }
}

impl AbortedView {
    fn new(aborted: v1::Aborted, token_ids: bool) -> Self {
        Self {
            reason: aborted.reason,
            message: aborted.message,
            prompt_tokens: aborted.prompt_tokens,
            completion_tokens: aborted.completion_tokens,
            timings: aborted.timings.map(TimingsView::from),
            receipt: aborted.receipt.map(|receipt| ReceiptView::new(receipt, token_ids)),
        }
    }
}

#[cfg(test)]
mod tests {
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
