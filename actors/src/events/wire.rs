//! Events, receipts and notices as `mesh.v1` messages.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use mesh_proto::v1::{
    self, Aborted, Committed, Cursor, Finished, Gap, Heartbeat, Lagged, NodePosition, PluginHealthChanged, Prefilled,
    ProposalResolved, Proposed, Queued, Rejected, RequestState, RequestSummary, RequestTimings, Snapshot, Started,
    SubscribeResponse, lifecycle_event::Kind, subscribe_response::Response,
};
use prost_types::Timestamp;

use super::{
    event::{Lifecycle, LifecycleEvent},
    filter::Content,
    receipt::{Receipt, ReceiptEnd},
    subscription::{Notice, Subscription},
};

impl Subscription {
    /// The next notice as a message; `None` when the node stops and everything was told.
    pub async fn next_message(&mut self) -> Option<SubscribeResponse> {
        let notice = self.next().await?;
        Some(self.to_message(notice))
    }

    fn to_message(&self, notice: Notice) -> SubscribeResponse {
        let node = self.node().to_owned();
        let response = match notice {
            Notice::Event(event) => Response::Event(event.to_message(&node, self.run(), self.content())),
            Notice::Snapshot(requests) => Response::Snapshot(Snapshot {
                position: Some(self.position_message()),
                requests,
            }),
            Notice::Gap { run, from, to } => Response::Gap(Gap { node, run, from, to }),
            Notice::Lagged(dropped) => Response::Lagged(Lagged { node, dropped }),
            Notice::Heartbeat => Response::Heartbeat(Heartbeat {
                cursor: Some(Cursor {
                    positions: vec![self.position_message()],
                }),
            }),
        };
        SubscribeResponse {
            response: Some(response),
        }
    }

    fn position_message(&self) -> NodePosition {
        NodePosition {
            node: self.node().to_owned(),
            run: self.run(),
            sequence: self.position(),
        }
    }
}

impl LifecycleEvent {
    /// As a subscriber sees it.
    pub fn to_message(&self, node: &str, run: u64, content: Content) -> v1::LifecycleEvent {
        v1::LifecycleEvent {
            request_id: self.request.map(|request| request.to_string()).unwrap_or_default(),
            sequence: self.sequence,
            node: node.to_owned(),
            node_sequence: self.node_sequence,
            node_run: run,
            attempt: self.attempt,
            deployment: self.deployment.to_string(),
            session_id: self.session.map(|session| session.to_string()).unwrap_or_default(),
            agent_session: text_of(self.agent_session.as_ref()),
            time: Some(timestamp(self.time)),
            kind: Some(kind(&self.kind, node, content)),
        }
    }
}

fn kind(kind: &Lifecycle, node: &str, content: Content) -> Kind {
    match kind {
        Lifecycle::Queued => Kind::Queued(Queued {}),
        Lifecycle::Started {
            prompt,
            lane,
            queued_us,
        } => Kind::Started(Started {
            lane: lane.0,
            prompt_tokens: prompt.len() as u32,
            queued_us: *queued_us,
        }),
        Lifecycle::Prefilled { prefill_us } => Kind::Prefilled(Prefilled {
            prefill_us: *prefill_us,
        }),
        Lifecycle::Committed {
            tokens,
            text,
            total,
            stage_us,
        } => Kind::Committed(Committed {
            total: *total,
            count: tokens.len() as u32,
            token_ids: if content.token_ids { tokens.clone() } else { Vec::new() },
            text: if content.text { text.clone() } else { String::new() },
            stage_us: stage_us.clone(),
        }),
        Lifecycle::Proposed {
            proposer,
            decision,
            count,
        } => Kind::Proposed(Proposed {
            proposer: proposer.to_string(),
            decision_id: decision.to_string(),
            count: *count,
        }),
        Lifecycle::ProposalResolved {
            decision,
            accepted,
            reason,
        } => Kind::ProposalResolved(ProposalResolved {
            decision_id: decision.to_string(),
            accepted: *accepted,
            reason: (*reason).to_owned(),
        }),
        Lifecycle::Finished(receipt) => {
            let message = receipt.to_message(node, content.token_ids);
            Kind::Finished(Finished {
                reason: message.finish_reason,
                prompt_tokens: message.prompt_tokens,
                completion_tokens: message.completion_tokens,
                timings: message.timings.clone(),
                receipt: Some(message),
            })
        }
        Lifecycle::Aborted { error, receipt } => {
            let receipt = receipt
                .as_ref()
                .map(|receipt| receipt.to_message(node, content.token_ids));
            Kind::Aborted(Aborted {
                reason: error.code.name().to_owned(),
                message: error.message.clone(),
                prompt_tokens: receipt.as_ref().map_or(0, |receipt| receipt.prompt_tokens),
                completion_tokens: receipt.as_ref().map_or(0, |receipt| receipt.completion_tokens),
                timings: receipt.as_ref().and_then(|receipt| receipt.timings.clone()),
                receipt,
            })
        }
        Lifecycle::Rejected(error) => Kind::Rejected(Rejected {
            code: error.code.name().to_owned(),
            message: error.message.clone(),
            param: error.param.clone().unwrap_or_default(),
        }),
        Lifecycle::PluginHealthChanged { plugin, health, reason } => Kind::PluginHealthChanged(PluginHealthChanged {
            plugin: plugin.to_string(),
            health: v1::PluginHealth::from(*health).into(),
            reason: reason.clone(),
        }),
    }
}

impl Receipt {
    /// As clients and the durable sink see it.
    pub fn to_message(&self, node: &str, token_ids: bool) -> v1::Receipt {
        let (finish_reason, abort_reason) = match self.end {
            ReceiptEnd::Finished(reason) => (reason.into(), String::new()),
            ReceiptEnd::Aborted(code) => (0, code.name().to_owned()),
        };
        v1::Receipt {
            request_id: self.request.to_string(),
            attempt: self.attempt,
            node: node.to_owned(),
            deployment: self.deployment.to_string(),
            session_id: self.session.to_string(),
            agent_session: text_of(self.agent_session.as_ref()),
            model_id: self.model_id.to_string(),
            prompt_tokens: self.prompt_tokens,
            prompt_digest: blake3::Hash::from_bytes(self.prompt_digest).to_hex().to_string(),
            completion_tokens: self.generated.len() as u32,
            token_ids: if token_ids { self.generated.clone() } else { Vec::new() },
            final_position: self.final_position(),
            finish_reason,
            abort_reason,
            seed: self.seed,
            arrived: Some(timestamp(self.arrived)),
            ended: Some(timestamp(self.ended)),
            timings: Some(self.timings.clone()),
            token_us: self.token_us.clone(),
        }
    }

    /// As a line of a list.
    pub(super) fn summary(&self, node: &str) -> RequestSummary {
        let (state, reason) = match self.end {
            ReceiptEnd::Finished(reason) => (RequestState::Finished, finish_name(reason)),
            ReceiptEnd::Aborted(code) => (RequestState::Aborted, code.name()),
        };
        RequestSummary {
            request_id: self.request.to_string(),
            node: node.to_owned(),
            deployment: self.deployment.to_string(),
            session_id: self.session.to_string(),
            agent_session: text_of(self.agent_session.as_ref()),
            state: state.into(),
            sequence: 0,
            attempt: self.attempt,
            prompt_tokens: self.prompt_tokens,
            completion_tokens: self.generated.len() as u32,
            age_us: total_us(&self.timings),
            reason: reason.to_owned(),
        }
    }
}

fn total_us(timings: &RequestTimings) -> u64 {
    timings.queued_us + timings.prefill_us + timings.decode_us
}

fn finish_name(reason: v1::FinishReason) -> &'static str {
    match reason {
        v1::FinishReason::Stop => "stop",
        v1::FinishReason::Length => "length",
        v1::FinishReason::Unspecified => "",
    }
}

pub(super) fn text_of(session: Option<&mesh_proto::AgentSession>) -> String {
    session.map(ToString::to_string).unwrap_or_default()
}

fn timestamp(time: SystemTime) -> Timestamp {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO);
    Timestamp {
        seconds: i64::try_from(since.as_secs()).unwrap_or(i64::MAX),
        nanos: since.subsec_nanos() as i32,
    }
}
