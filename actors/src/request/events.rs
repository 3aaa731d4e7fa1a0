//! The lifecycle of one request, in the words of its state machine, as subscribers and plugins hear it.

use std::{sync::Arc, time::Instant};

use mesh_proto::{
    LaneId, MeshError, RequestId, SessionId,
    v1::{FinishReason, RequestState, RequestTimings},
};

use super::{RequestOptions, clock::RequestClock};
use crate::{
    events::{Change, EventBus, Lifecycle, Operation, Receipt, ReceiptEnd, RequestFacts, RequestTrace, digest_of},
    plugin::{Followers, ModelPlugins},
    ports::{
        inference::Caller,
        plugin::{DecisionId, DiscardReason, GenerationIds, GenerationStart},
        proposer::{Proposal, Proposer},
    },
};

/// Attempt number of a request that was never recovered.
const FIRST_ATTEMPT: u32 = 1;

/// What is known of a request when it comes, beside what it asks.
#[derive(Debug, Clone)]
pub struct Arrival {
    pub id: RequestId,
    pub operation: Operation,
    pub caller: Caller,
}

/// Events of one request. Dropped before the terminal, it tells one: a request whose actor panicked or was killed has
/// its end too.
#[derive(Debug)]
pub struct RequestEvents {
    bus: EventBus,
    facts: Arc<RequestFacts>,
    account: Account,
    plugins: ModelPlugins,
    /// Plugins that follow it, from the lane to its end.
    followers: Option<Followers>,
    /// Candidates are being verified.
    decision: Option<DecisionId>,
    open: bool,
}

/// What the receipt will say.
#[derive(Debug, Default)]
struct Account {
    model_id: Arc<str>,
    seed: u64,
    prompt: Option<Arc<[u32]>>,
    session: Option<SessionId>,
    generated: Vec<u32>,
    token_us: Vec<u64>,
}

impl Drop for RequestEvents {
    fn drop(&mut self) {
        if self.open {
            let error = MeshError::internal("the request ended without a result; see the node's log");
            self.aborted(error, RequestTimings::default());
        }
    }
}

impl RequestEvents {
    /// It arrived: `Queued`. `None` if a request of this id is open on this node.
    pub fn queued(options: &RequestOptions, arrival: &Arrival, arrived: Instant) -> Option<Self> {
        let Arrival {
            id: request,
            operation,
            caller,
        } = arrival;
        let request = *request;
        let facts = Arc::new(RequestFacts {
            request,
            operation: *operation,
            deployment: options.deployment.clone(),
            agent_session: caller.agent_session.clone(),
            attempt: FIRST_ATTEMPT,
            arrived,
            trace: options.telemetry.begin(caller.trace),
        });
        if !options.events.open(facts.clone()) {
            return None;
        }
        options.events.publish(request, Change::default(), || Lifecycle::Queued);
        Some(Self {
            bus: options.events.clone(),
            facts,
            account: Account {
                model_id: options.model_id.clone(),
                ..Account::default()
            },
            plugins: options.plugins.clone(),
            followers: None,
            decision: None,
            open: true,
        })
    }

    /// A request that is refused at once.
    pub fn refused(options: &RequestOptions, arrival: &Arrival, error: &MeshError) {
        if let Some(mut events) = Self::queued(options, arrival, Instant::now()) {
            events.rejected(error.clone());
        }
    }

    /// Its place in a trace.
    pub fn trace(&self) -> Option<RequestTrace> {
        self.facts.trace
    }

    /// Seed in use.
    pub fn seed(&mut self, seed: u64) {
        self.account.seed = seed;
    }

    /// It holds a lane. Gives those that may propose.
    pub fn started(
        &mut self,
        prompt: Arc<[u32]>,
        lane: LaneId,
        session: SessionId,
        queued_us: u64,
    ) -> Vec<Box<dyn Proposer>> {
        self.account.prompt = Some(prompt.clone());
        self.account.session = Some(session);
        let change = Change {
            state: Some(RequestState::Started),
            session: Some(session),
            prompt_tokens: Some(prompt.len() as u32),
            ..Change::default()
        };
        let start = (!self.plugins.is_empty()).then(|| GenerationStart {
            ids: GenerationIds {
                request: self.facts.request,
                session,
                agent_session: self.facts.agent_session.clone(),
            },
            attempt: self.facts.attempt,
            prompt: prompt.clone(),
        });
        self.publish(change, || Lifecycle::Started {
            prompt,
            lane,
            queued_us,
        });
        self.followers = start.map(|start| Followers::begin(&self.plugins, &Arc::new(start)));
        self.followers.as_ref().map(Followers::proposers).unwrap_or_default()
    }

    /// The first token is drawn.
    pub fn prefilled(&self, prefill_us: u64) {
        let change = Change {
            state: Some(RequestState::Decoding),
            ..Change::default()
        };
        self.publish(change, || Lifecycle::Prefilled { prefill_us });
    }

    /// A proposer offers candidates, which will be verified.
    pub fn proposed(&mut self, proposal: &Proposal) {
        let Some(candidates) = proposal.candidates() else {
            return;
        };
        self.decision = Some(candidates.decision.clone());
        self.publish(Change::default(), || Lifecycle::Proposed {
            proposer: proposal.proposer().clone(),
            decision: candidates.decision.clone(),
            count: candidates.tokens.len() as u32,
        });
    }

    /// They were verified, or will not be.
    pub fn resolved(&mut self, decision: DecisionId, accepted: u32, reason: &'static str) {
        self.decision = None;
        self.publish(Change::default(), || Lifecycle::ProposalResolved {
            decision,
            accepted,
            reason,
        });
    }

    /// Tokens became output.
    pub fn committed(&mut self, tokens: Vec<u32>, text: String, clock: &RequestClock) {
        let now = clock.since_arrival_us();
        self.account.token_us.extend(tokens.iter().map(|_| now));
        self.account.generated.extend_from_slice(&tokens);
        let total = self.account.generated.len() as u32;
        if let Some(followers) = &mut self.followers {
            followers.committed(&tokens, u64::from(total));
        }
        let change = Change {
            completion_tokens: Some(total),
            ..Change::default()
        };
        self.publish(change, || Lifecycle::Committed {
            tokens,
            text,
            total,
            stage_us: clock.last_step_us(),
        });
    }

    /// The normal end.
    pub fn finished(&mut self, reason: FinishReason, timings: RequestTimings) {
        match self.receipt(ReceiptEnd::Finished(reason), timings) {
            Some(receipt) => {
                let receipt = Arc::new(receipt);
                if let Some(followers) = self.followers.take() {
                    followers.finished(&receipt);
                }
                self.end(Lifecycle::Finished(receipt));
            }
            // Cannot happen: only a request that holds a lane finishes.
            None => self.aborted(
                MeshError::internal("a request finished without a lane"),
                RequestTimings::default(),
            ),
        }
    }

    /// The other end.
    pub fn aborted(&mut self, error: MeshError, timings: RequestTimings) {
        // Of a request that panicked with candidates under way.
        if let Some(decision) = self.decision.take() {
            self.resolved(decision, 0, DiscardReason::Cancelled.name());
        }
        if let Some(followers) = self.followers.take() {
            followers.aborted(error.code, self.account.generated.len() as u64);
        }
        let receipt = self.receipt(ReceiptEnd::Aborted(error.code), timings).map(Arc::new);
        self.end(Lifecycle::Aborted { error, receipt });
    }

    /// Refused before a lane.
    pub fn rejected(&mut self, error: MeshError) {
        self.end(Lifecycle::Rejected(error));
    }

    fn publish(&self, change: Change, kind: impl FnOnce() -> Lifecycle) {
        self.bus.publish(self.facts.request, change, kind);
    }

    fn end(&mut self, terminal: Lifecycle) {
        if std::mem::take(&mut self.open) {
            let facts = &self.facts;
            tracing::debug!(
                request = %facts.request,
                deployment = %facts.deployment,
                trace_id = facts.trace.map(|trace| trace.own.trace_id_hex()),
                end = ?terminal.kind(),
                "request ended"
            );
            self.bus.end(&self.facts, terminal);
        }
    }

    /// `None` if it never held a lane.
    fn receipt(&mut self, end: ReceiptEnd, timings: RequestTimings) -> Option<Receipt> {
        let account = std::mem::take(&mut self.account);
        let (prompt, session) = (account.prompt?, account.session?);
        let clock = self.bus.clock();
        Some(Receipt {
            request: self.facts.request,
            attempt: self.facts.attempt,
            deployment: self.facts.deployment.clone(),
            model_id: account.model_id,
            session,
            agent_session: self.facts.agent_session.clone(),
            prompt_tokens: prompt.len() as u32,
            prompt_digest: digest_of(&prompt),
            generated: account.generated,
            token_us: account.token_us,
            end,
            seed: account.seed,
            arrived: clock.at(self.facts.arrived),
            ended: clock.now(),
            timings,
        })
    }
}
