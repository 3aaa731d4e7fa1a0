//! An instance of a library as the plugin actors see it: their words become those of the plugin interface.

use std::{cell::RefCell, time::Duration, time::Instant};

use mesh_actors::{
    events::ReceiptEnd,
    ports::plugin::{
        AbortReason, CallFault, Candidates, DecisionId, DiscardReason, Discarded, Disposition, GenerationAbort,
        GenerationCommit, GenerationFinish, GenerationIds, GenerationStart, Outcome, PluginInstance, Poll,
        ProposalQuery,
    },
};
use mesh_plugin_host as host;
use mesh_proto::v1;

use super::library::fault;

thread_local! {
    /// Where candidates arrive: one buffer for each thread of a plugin, made once.
    static CANDIDATES: RefCell<Option<Box<host::CandidateBuffer>>> = const { RefCell::new(None) };
}

pub struct NativeInstance {
    instance: host::Instance,
}

impl NativeInstance {
    pub fn new(instance: host::Instance) -> Self {
        Self { instance }
    }
}

/// Names as text, for as long as a call.
struct Names {
    request: String,
    session: String,
    agent_session: String,
}

impl Names {
    fn of(ids: &GenerationIds) -> Self {
        Self {
            request: ids.request.to_string(),
            session: ids.session.to_string(),
            agent_session: ids.agent_session.as_ref().map(ToString::to_string).unwrap_or_default(),
        }
    }

    fn ids(&self) -> host::Ids<'_> {
        host::Ids {
            request: &self.request,
            session: &self.session,
            agent_session: &self.agent_session,
        }
    }
}

impl PluginInstance for NativeInstance {
    fn begin(&self, start: &GenerationStart) -> Result<(), CallFault> {
        let names = Names::of(&start.ids);
        let start = host::GenerationStart {
            ids: names.ids(),
            attempt: start.attempt,
            prompt: &start.prompt,
        };
        self.instance.begin(&start).map_err(fault)
    }

    fn commit(&self, commit: &GenerationCommit<'_>) -> Result<(), CallFault> {
        let names = Names::of(commit.ids);
        let commit = host::GenerationCommit {
            ids: names.ids(),
            tokens: commit.tokens,
            total: commit.total,
        };
        self.instance.commit(&commit).map_err(fault)
    }

    fn finish(&self, finish: &GenerationFinish) -> Result<(), CallFault> {
        let names = Names::of(&finish.ids);
        let receipt = &*finish.receipt;
        let token_ns: Vec<u64> = receipt.token_us.iter().map(|us| us.saturating_mul(1_000)).collect();
        let timings = &receipt.timings;
        let finish = host::GenerationFinish {
            ids: names.ids(),
            attempt: receipt.attempt,
            reason: finish_reason(receipt.end),
            incomplete: finish.incomplete,
            prompt_count: u64::from(receipt.prompt_tokens),
            prompt_digest: receipt.prompt_digest,
            generated: &receipt.generated,
            queued: Duration::from_micros(timings.queued_us),
            first_token: Duration::from_micros(timings.prefill_us),
            generation: Duration::from_micros(timings.prefill_us.saturating_add(timings.decode_us)),
            token_ns: &token_ns,
        };
        self.instance.finish(&finish).map_err(fault)
    }

    fn abort(&self, abort: &GenerationAbort) -> Result<(), CallFault> {
        let names = Names::of(&abort.ids);
        let abort = host::GenerationAbort {
            ids: names.ids(),
            attempt: abort.attempt,
            reason: abort_reason(abort.reason),
            incomplete: abort.incomplete,
            after_failed_finish: abort.after_failed_finish,
            committed_count: abort.committed,
        };
        self.instance.abort(&abort).map_err(fault)
    }

    fn start_proposal(&self, ids: &GenerationIds, query: &ProposalQuery, deadline: Instant) -> Result<u64, CallFault> {
        let names = Names::of(ids);
        let query = host::ProposalQuery {
            ids: names.ids(),
            max_tokens: query.max_tokens,
            prompt_count: query.prompt_count,
            committed_count: query.committed_count,
            step: query.step,
            deadline_ns: host::clock::ns_of(deadline),
            tail: &query.tail,
        };
        self.instance.start_proposal(&query).map_err(fault)
    }

    fn poll_proposal(&self, operation: u64, query: &ProposalQuery) -> Result<Poll, CallFault> {
        CANDIDATES.with_borrow_mut(|buffer| {
            let buffer = buffer.get_or_insert_with(|| Box::new(host::CandidateBuffer::new()));
            let poll = self.instance.poll_proposal(operation, buffer).map_err(fault)?;
            Ok(match poll {
                host::Poll::Pending => Poll::Pending,
                host::Poll::Abstain => Poll::Abstain,
                host::Poll::Failed(message) => Poll::Failed(message),
                host::Poll::Ready => ready(buffer, query),
            })
        })
    }

    fn cancel_proposal(&self, operation: u64) -> Result<(), CallFault> {
        self.instance.cancel_proposal(operation).map_err(fault)
    }

    fn report(&self, ids: &GenerationIds, candidates: &Candidates, outcome: &Outcome) -> Result<(), CallFault> {
        let names = Names::of(ids);
        let committed = usize::try_from(outcome.committed).unwrap_or(usize::MAX);
        let report = host::ProposalOutcome {
            ids: names.ids(),
            decision_id: candidates.decision.as_bytes(),
            disposition: disposition(outcome.disposition),
            step: candidates.step,
            proposed_count: candidates.tokens.len() as u64,
            accepted_count: outcome.accepted,
            committed: outcome.predictions.get(..committed).unwrap_or(&outcome.predictions),
            predictions: &outcome.predictions,
            base_position: candidates.base_position,
            verified_position: outcome.verified_position,
            canonical_position: outcome.canonical_position,
        };
        self.instance.report(&report).map_err(fault)
    }

    fn discard(&self, ids: &GenerationIds, decision: &Discarded) -> Result<(), CallFault> {
        let names = Names::of(ids);
        let discard = host::ProposalDiscard {
            ids: names.ids(),
            decision_id: decision.decision.as_bytes(),
            reason: discard_reason(decision.reason),
            step: decision.step,
            proposed_count: decision.proposed,
            base_position: decision.base_position,
        };
        self.instance.discard(&discard).map_err(fault)
    }

    fn shutdown(&self) -> Result<(), CallFault> {
        self.instance.shutdown().map_err(fault)
    }
}

/// Candidates that hold, or what is wrong with them.
fn ready(buffer: &host::CandidateBuffer, query: &ProposalQuery) -> Poll {
    let decision = buffer.decision_id().and_then(DecisionId::new);
    let checked = host::check(buffer, query.max_tokens, query.vocabulary, query.base_position());
    match (checked, decision) {
        (Ok(tokens), Some(decision)) => Poll::Ready(Candidates {
            decision,
            step: query.step,
            tokens,
            base_position: query.base_position(),
        }),
        (Ok(_), None) => Poll::Invalid {
            message: host::Invalid::DecisionId.to_string(),
            decision: None,
        },
        (Err(invalid), decision) => Poll::Invalid {
            message: invalid.to_string(),
            decision: decision.map(|decision| Discarded {
                decision,
                step: query.step,
                proposed: u64::from(buffer.token_count()),
                base_position: buffer.base_position(),
                reason: reason_of(invalid),
            }),
        },
    }
}

fn reason_of(invalid: host::Invalid) -> DiscardReason {
    match invalid {
        host::Invalid::TokenCount => DiscardReason::InvalidTokenCount,
        host::Invalid::TokenId => DiscardReason::InvalidTokenId,
        host::Invalid::Position => DiscardReason::PositionMismatch,
        // Without a name there is nothing to discard.
        host::Invalid::DecisionId => DiscardReason::Cancelled,
    }
}

fn finish_reason(end: ReceiptEnd) -> host::FinishReason {
    match end {
        ReceiptEnd::Finished(v1::FinishReason::Stop) => host::FinishReason::Stop,
        ReceiptEnd::Finished(v1::FinishReason::Length) => host::FinishReason::Length,
        ReceiptEnd::Finished(v1::FinishReason::Unspecified) | ReceiptEnd::Aborted(_) => host::FinishReason::Unknown,
    }
}

fn abort_reason(reason: AbortReason) -> host::AbortReason {
    match reason {
        AbortReason::Failed => host::AbortReason::Failed,
        AbortReason::Cancelled => host::AbortReason::Cancelled,
        AbortReason::StageLost => host::AbortReason::StageLost,
        AbortReason::Shutdown => host::AbortReason::Shutdown,
        AbortReason::FenceTimeout => host::AbortReason::FenceTimeout,
        AbortReason::FinishFailed => host::AbortReason::FinishFailed,
        AbortReason::Overloaded => host::AbortReason::Overloaded,
    }
}

fn disposition(disposition: Disposition) -> host::Disposition {
    match disposition {
        Disposition::FirstMismatch => host::Disposition::FirstMismatch,
        Disposition::FullAccept => host::Disposition::FullAccept,
        Disposition::Stopped => host::Disposition::Stopped,
    }
}

fn discard_reason(reason: DiscardReason) -> host::DiscardReason {
    match reason {
        DiscardReason::Cancelled => host::DiscardReason::Cancelled,
        DiscardReason::DeadlineExceeded => host::DiscardReason::DeadlineExceeded,
        DiscardReason::InvalidTokenCount => host::DiscardReason::InvalidTokenCount,
        DiscardReason::InvalidTokenId => host::DiscardReason::InvalidTokenId,
        DiscardReason::PositionMismatch => host::DiscardReason::PositionMismatch,
        DiscardReason::ExecutionFailed => host::DiscardReason::ExecutionFailed,
    }
}
