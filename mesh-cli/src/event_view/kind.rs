//! What happened, of one event.

use mesh_proto::v1::{self, lifecycle_event::Kind};
use serde::Serialize;

use crate::{
    local_node::receipts::{ReceiptView, TimingsView},
    output::{harmless, milliseconds, some},
    plugin_view::health_name,
};

/// `kind`, and what belongs to it in an object of that name.
#[derive(Debug, Serialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub(super) enum KindView {
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
    PluginHealth {
        plugin_health: PluginHealthView,
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
pub(super) struct StartedView {
    lane: u32,
    prompt_tokens: u32,
    queued_us: u64,
}

#[derive(Debug, Serialize)]
pub(super) struct PrefilledView {
    prefill_us: u64,
}

#[derive(Debug, Serialize)]
pub(super) struct CommittedView {
    total: u32,
    count: u32,
    /// Absent if not asked for.
    token_ids: Option<Vec<u32>>,
    /// Absent if not asked for.
    text: Option<String>,
    stage_us: Vec<u64>,
}

#[derive(Debug, Serialize)]
pub(super) struct ProposedView {
    proposer: String,
    decision_id: String,
    count: u32,
}

#[derive(Debug, Serialize)]
pub(super) struct ProposalResolvedView {
    decision_id: String,
    accepted: u32,
    reason: Option<String>,
}

#[derive(Debug, Serialize)]
pub(super) struct PluginHealthView {
    plugin: String,
    health: &'static str,
    reason: Option<String>,
}

#[derive(Debug, Serialize)]
pub(super) struct RecoveringView {
    reason: String,
}

#[derive(Debug, Serialize)]
pub(super) struct FinishedView {
    /// `stop` or `length`.
    reason: String,
    prompt_tokens: u32,
    completion_tokens: u32,
    timings: TimingsView,
    receipt: Option<ReceiptView>,
}

#[derive(Debug, Serialize)]
pub(super) struct AbortedView {
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
pub(super) struct RejectedView {
    /// Name in the error table.
    code: String,
    message: String,
    param: Option<String>,
}

impl KindView {
    pub(super) fn new(kind: Kind, token_ids: bool, text: bool) -> Self {
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
            Kind::PluginHealthChanged(changed) => Self::PluginHealth {
                plugin_health: PluginHealthView {
                    health: health_name(changed.health()),
                    plugin: changed.plugin,
                    reason: some(changed.reason),
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
    pub(super) fn describe(&self, deployment: &str) -> (&'static str, String) {
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
            Self::PluginHealth { plugin_health } => (
                "plugin",
                format!(
                    "{} is {} {}",
                    harmless(&plugin_health.plugin),
                    plugin_health.health,
                    harmless(plugin_health.reason.as_deref().unwrap_or_default())
                ),
            ),
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
