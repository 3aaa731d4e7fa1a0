//! Reads what a subscriber was told and proves the invariants of lifecycle events.
//!
//! | invariant | over |
//! |---|---|
//! | sequences have no gaps and no repeats | each request, each node and run |
//! | queued, started, prefilled, committed\*, one terminal; nothing after it | each request |
//! | rejected was never started; finished was prefilled | each request |
//! | a proposal is resolved once, before the next and before the end; no more is accepted than was proposed | each request |
//! | totals grow by what is committed; ids are as many as counted | each request |
//! | the receipt is what was told: ids, counts, session, and a time for each token | each request |
//! | node, deployment, agent session, and session from the start on stay the same | each attempt |
//! | times never go back | each node and run |
//!
//! It wants a subscription to all kinds with token ids and text, made before the first request.

use std::{
    collections::{BTreeMap, HashMap},
    time::Duration,
};

use anyhow::{Context as _, Result, bail, ensure};
use mesh_proto::v1::{
    Gap, LifecycleEvent, Receipt, SubscribeResponse, lifecycle_event::Kind, subscribe_response::Response,
};

/// How a request ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// Normally.
    Finished,
    /// Otherwise.
    Aborted,
    /// Refused.
    Rejected,
    /// Its node was started again; nobody knows.
    Unknown,
}

/// One request as it was told.
#[derive(Debug, Clone, Default)]
pub struct Told {
    /// Text of all commits, joined.
    pub text: String,
    /// Ids of all commits.
    pub token_ids: Vec<u32>,
    /// Terminal, when it has come.
    pub end: Option<End>,
    /// Name in the error table of an aborted or rejected one.
    pub reason: String,
    /// A lane was held.
    pub started: bool,
    /// As the client's side named it.
    pub agent_session: String,
    /// Its receipt.
    pub receipt: Option<Receipt>,
    /// Candidates of all its proposals that the model produced too.
    pub accepted: u32,
    /// The proposal that is open: its decision and how many candidates it has.
    proposal: Option<(String, u32)>,
    prefilled: bool,
    sequence: u64,
    attempt: u32,
    node: String,
    deployment: String,
    session: String,
    prompt_tokens: u32,
}

#[derive(Debug, Default, PartialEq)]
struct NodeState {
    run: u64,
    sequence: u64,
    time: Duration,
}

/// Takes a stream of notices.
#[derive(Debug, Default)]
pub struct Checker {
    requests: BTreeMap<String, Told>,
    nodes: HashMap<String, NodeState>,
}

impl Checker {
    /// Takes the next notice.
    ///
    /// # Errors
    ///
    /// An invariant is broken; says which.
    pub fn see(&mut self, response: &SubscribeResponse) -> Result<()> {
        match response.response.as_ref().context("an empty notice")? {
            Response::Event(event) => self
                .event(event)
                .with_context(|| format!("request {}: {event:?}", event.request_id)),
            Response::Snapshot(snapshot) => {
                ensure!(snapshot.requests.is_empty(), "requests were open before: {snapshot:?}");
                let position = snapshot.position.as_ref().context("a snapshot without a position")?;
                let node = self.nodes.entry(position.node.clone()).or_default();
                ensure!(node.run != position.run, "a second snapshot of {position:?}");
                *node = NodeState {
                    run: position.run,
                    sequence: position.sequence,
                    ..NodeState::default()
                };
                Ok(())
            }
            Response::Gap(gap) => self.gap(gap),
            Response::Lagged(lagged) => bail!("the checker was too slow: {lagged:?}"),
            Response::Heartbeat(heartbeat) => {
                for position in heartbeat.cursor.iter().flat_map(|cursor| &cursor.positions) {
                    let known = self
                        .nodes
                        .get_mut(&position.node)
                        .context("a heartbeat before a snapshot")?;
                    if known.run == 0 {
                        known.run = position.run;
                    }
                    ensure!(
                        (known.run, known.sequence) == (position.run, position.sequence),
                        "{position:?} after {known:?}"
                    );
                }
                Ok(())
            }
        }
    }

    /// Requests by id.
    pub fn requests(&self) -> &BTreeMap<String, Told> {
        &self.requests
    }

    /// A request has had its terminal.
    pub fn has_ended(&self, id: &str) -> bool {
        self.requests.get(id).is_some_and(|told| told.end.is_some())
    }

    /// Ids of requests that have not ended.
    pub fn open(&self) -> Vec<&str> {
        let open = self.requests.iter().filter(|(_, told)| told.end.is_none());
        open.map(|(id, _)| id.as_str()).collect()
    }

    /// Only a node that was started again may have lost events.
    fn gap(&mut self, gap: &Gap) -> Result<()> {
        ensure!(gap.to == 0, "events are missing: {gap:?}");
        let node = self.nodes.get_mut(&gap.node).context("a gap of an unknown node")?;
        // Of a run that was over before it told anything, the gap is all that is heard.
        let is_new = *node == NodeState::default();
        ensure!(is_new || gap.run == node.run, "a gap of another run: {gap:?}");
        *node = NodeState::default();
        let lost = self
            .requests
            .values_mut()
            .filter(|told| told.node == gap.node && told.end.is_none());
        lost.for_each(|told| told.end = Some(End::Unknown));
        Ok(())
    }

    fn event(&mut self, event: &LifecycleEvent) -> Result<()> {
        self.node(event)?;
        if event.request_id.is_empty() {
            let about_node = matches!(event.kind, Some(Kind::PluginHealthChanged(_)));
            ensure!(about_node && event.sequence == 0, "about no request");
            return Ok(());
        }
        let told = self.requests.entry(event.request_id.clone()).or_default();
        ensure!(told.end.is_none(), "after the terminal {:?}", told.end);
        told.sequence += 1;
        ensure!(event.sequence == told.sequence, "expected sequence {}", told.sequence);
        told.same(event)?;
        match event.kind.as_ref().context("no kind")? {
            Kind::Queued(_) => ensure!(told.sequence == 1, "queued late"),
            Kind::Started(started) => {
                ensure!(
                    told.sequence == 2 && !event.session_id.is_empty(),
                    "started out of place"
                );
                ensure!(started.prompt_tokens > 0, "no prompt");
                (told.started, told.prompt_tokens) = (true, started.prompt_tokens);
                told.session.clone_from(&event.session_id);
            }
            Kind::Prefilled(_) => {
                ensure!(told.started && !told.prefilled, "prefilled out of place");
                told.prefilled = true;
            }
            Kind::Committed(committed) => {
                ensure!(told.prefilled, "committed before prefill");
                ensure!(committed.count as usize == committed.token_ids.len(), "ids are missing");
                ensure!(committed.count > 0 || !committed.text.is_empty(), "an empty commit");
                told.token_ids.extend(&committed.token_ids);
                told.text.push_str(&committed.text);
                ensure!(committed.total as usize == told.token_ids.len(), "a wrong total");
            }
            Kind::Finished(finished) => {
                ensure!(told.prefilled, "finished before prefill");
                ensure!(
                    finished.completion_tokens as usize == told.token_ids.len(),
                    "a wrong count"
                );
                ensure!(finished.prompt_tokens == told.prompt_tokens, "a wrong prompt");
                let receipt = finished.receipt.as_ref().context("no receipt")?;
                ensure!(
                    receipt.finish_reason == finished.reason && finished.reason != 0,
                    "a wrong reason"
                );
                told.settle(End::Finished, Some(receipt), event)?;
            }
            Kind::Aborted(aborted) => {
                ensure!(!aborted.reason.is_empty(), "aborted for no reason");
                told.reason.clone_from(&aborted.reason);
                ensure!(aborted.receipt.is_some() == told.started, "a receipt goes with a lane");
                told.settle(End::Aborted, aborted.receipt.as_ref(), event)?;
            }
            Kind::Rejected(rejected) => {
                ensure!(!told.started, "rejected after it started");
                ensure!(
                    !rejected.code.is_empty() && !rejected.message.is_empty(),
                    "rejected for no reason"
                );
                told.reason.clone_from(&rejected.code);
                told.settle(End::Rejected, None, event)?;
            }
            Kind::Proposed(proposed) => {
                ensure!(told.prefilled, "proposed before prefill");
                ensure!(proposed.count > 0 && !proposed.proposer.is_empty(), "an empty proposal");
                let open = told.proposal.replace((proposed.decision_id.clone(), proposed.count));
                ensure!(open.is_none(), "{open:?} is open");
            }
            Kind::ProposalResolved(resolved) => {
                let (decision, count) = told.proposal.take().context("nothing was proposed")?;
                ensure!(decision == resolved.decision_id, "another decision: {decision}");
                ensure!(resolved.accepted <= count && !resolved.reason.is_empty(), "of {count}");
                told.accepted += resolved.accepted;
            }
            Kind::PluginHealthChanged(_) => bail!("it is not about a request"),
            Kind::Recovering(_) | Kind::Recovered(_) => ensure!(told.started, "before a lane was held"),
        }
        Ok(())
    }

    fn node(&mut self, event: &LifecycleEvent) -> Result<()> {
        let node = self
            .nodes
            .get_mut(&event.node)
            .context("an event before the snapshot")?;
        if node.run == 0 {
            node.run = event.node_run;
        }
        ensure!(event.node_run == node.run, "another run, without a gap");
        node.sequence += 1;
        ensure!(
            event.node_sequence == node.sequence,
            "expected node sequence {}",
            node.sequence
        );
        let time = event.time.as_ref().context("no time")?;
        let time = Duration::new(u64::try_from(time.seconds)?, u32::try_from(time.nanos)?);
        ensure!(time >= node.time, "time went back from {:?}", node.time);
        node.time = time;
        Ok(())
    }
}

impl Told {
    fn same(&mut self, event: &LifecycleEvent) -> Result<()> {
        if self.sequence == 1 {
            ensure!(matches!(event.kind, Some(Kind::Queued(_))), "not queued at first");
            self.node.clone_from(&event.node);
            self.deployment.clone_from(&event.deployment);
            self.agent_session.clone_from(&event.agent_session);
            self.attempt = event.attempt;
        }
        ensure!(event.node == self.node, "another node");
        ensure!(event.deployment == self.deployment, "another deployment");
        ensure!(event.agent_session == self.agent_session, "another agent session");
        ensure!(event.attempt >= self.attempt && event.attempt > 0, "an older attempt");
        if self.started && event.attempt == self.attempt {
            ensure!(event.session_id == self.session, "another session");
        }
        self.attempt = event.attempt;
        self.session.clone_from(&event.session_id);
        Ok(())
    }

    fn settle(&mut self, end: End, receipt: Option<&Receipt>, event: &LifecycleEvent) -> Result<()> {
        self.end = Some(end);
        ensure!(self.proposal.is_none(), "{:?} was not resolved", self.proposal);
        let Some(receipt) = receipt else { return Ok(()) };
        ensure!(receipt.request_id == event.request_id, "a receipt of another request");
        ensure!(receipt.session_id == self.session, "a receipt of another session");
        ensure!(
            receipt.agent_session == self.agent_session,
            "a receipt of another agent session"
        );
        ensure!(receipt.token_ids == self.token_ids, "the receipt has other tokens");
        ensure!(
            receipt.completion_tokens as usize == self.token_ids.len(),
            "the receipt counts wrongly"
        );
        ensure!(
            receipt.prompt_tokens == self.prompt_tokens,
            "the receipt has another prompt"
        );
        ensure!(
            receipt.final_position == receipt.prompt_tokens + receipt.completion_tokens,
            "a wrong final position"
        );
        ensure!(receipt.token_us.len() == self.token_ids.len(), "times are missing");
        ensure!(receipt.token_us.is_sorted(), "token times go back");
        ensure!(
            receipt.prompt_digest.len() == 64 && !receipt.model_id.is_empty(),
            "digests are missing"
        );
        self.receipt = Some(receipt.clone());
        Ok(())
    }
}
