//! One generation as a plugin is told of it: calls in order, one at a time, and one end.

use std::{collections::VecDeque, sync::Arc, time::Instant};

use super::Reply;
use crate::{
    plugin::{
        call::{Call, InstanceKey, Place, WorkerKey},
        permits::Permit,
    },
    ports::plugin::{AbortReason, GenerationAbort, GenerationFinish, GenerationIds, ProposalQuery},
};

/// A call that waits.
#[derive(Debug)]
pub(super) struct Waiting {
    pub call: Call,
    pub since: Instant,
    /// Given back when the call has returned.
    pub place: Place,
}

/// How far a proposal is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Phase {
    /// It is in the queue.
    Queued,
    /// A thread starts or polls it.
    Running,
    /// The operation is open and waits for a wake.
    Parked(u64),
}

/// What the request was promised an answer to.
#[derive(Debug)]
pub(super) struct Asked {
    pub query: Arc<ProposalQuery>,
    pub deadline: Instant,
    pub since: Instant,
    pub phase: Phase,
    /// `None` once it was answered: what comes now is late, or nobody wants it.
    pub reply: Option<Reply>,
    /// The request has lost interest.
    pub withdrawn: bool,
    /// A wake came while it was polled.
    pub woken: bool,
    /// What came of it is counted already.
    pub counted: bool,
    pub polls: u32,
    /// Kept for the report or discard, so that this always fits.
    pub place: Place,
}

impl Asked {
    pub fn new(query: Arc<ProposalQuery>, now: Instant, deadline: Instant, reply: Reply, place: Permit) -> Self {
        Self {
            query,
            deadline,
            since: now,
            phase: Phase::Queued,
            reply: Some(reply),
            withdrawn: false,
            woken: false,
            counted: false,
            polls: 0,
            place: Some(place),
        }
    }

    /// It was withdrawn, and its time is not over.
    pub fn is_excused(&self, now: Instant) -> bool {
        self.withdrawn && now < self.deadline
    }
}

/// One generation.
#[derive(Debug)]
pub(super) struct Generation {
    pub instance: InstanceKey,
    pub ids: Arc<GenerationIds>,
    pub attempt: u32,
    /// The plugin has heard of it. Only its end is told where begin was lost.
    pub begun: bool,
    /// Begin and commits do not add up.
    pub incomplete: bool,
    /// Tokens told so far, or about to be.
    pub total: u64,
    pub queue: VecDeque<Waiting>,
    /// Poll or cancel of the open operation: before anything else.
    pub urgent: Option<Waiting>,
    /// What a thread does for it, and for the function's name afterwards.
    pub running: Option<(WorkerKey, Waiting)>,
    pub asked: Option<Asked>,
    /// Decisions in the request's hands.
    pub open: u32,
    /// A question waited in vain, and nothing of it has been called since.
    pub starved: bool,
    /// It asks no more.
    pub disabled: bool,
    /// Its end is queued or was told.
    pub ended: bool,
    /// Until when its finish may wait.
    pub fence: Option<Instant>,
    /// It is among those that wait for a thread.
    pub ready: bool,
    /// Its place among the generations that are followed.
    pub _slot: Option<Permit>,
}

impl Generation {
    pub fn new(instance: InstanceKey, ids: Arc<GenerationIds>, attempt: u32, slot: Option<Permit>) -> Self {
        Self {
            instance,
            ids,
            attempt,
            begun: false,
            incomplete: false,
            total: 0,
            queue: VecDeque::new(),
            urgent: None,
            running: None,
            asked: None,
            open: 0,
            starved: false,
            disabled: false,
            ended: false,
            fence: None,
            ready: false,
            _slot: slot,
        }
    }

    /// A call could be made now.
    pub fn is_runnable(&self) -> bool {
        if self.running.is_some() {
            return false;
        }
        self.urgent.is_some()
            || self
                .queue
                .front()
                // An end waits for every decision that a request still holds.
                .is_some_and(|next| !next.call.is_terminal() || self.open == 0)
    }

    /// The next call.
    pub fn next(&mut self) -> Option<Waiting> {
        if !self.is_runnable() {
            return None;
        }
        self.urgent.take().or_else(|| self.queue.pop_front())
    }

    pub fn push(&mut self, call: Call, place: Place, now: Instant) {
        let since = now;
        self.queue.push_back(Waiting { call, since, place });
    }

    /// Before the end, if that is queued already, behind everything else.
    pub fn push_before_end(&mut self, call: Call, place: Place, now: Instant) {
        let at = self
            .queue
            .iter()
            .position(|waiting| waiting.call.is_terminal())
            .unwrap_or(self.queue.len());
        let since = now;
        self.queue.insert(at, Waiting { call, since, place });
    }

    /// The end that waits in the queue.
    pub fn waiting_end(&mut self) -> Option<&mut Waiting> {
        self.queue.iter_mut().find(|waiting| waiting.call.is_terminal())
    }

    /// The open operation, if no thread is in a call about it.
    pub fn parked(&self) -> Option<u64> {
        match (self.asked.as_ref()?.phase, &self.urgent) {
            (Phase::Parked(operation), _) => Some(operation),
            (Phase::Running, Some(waiting)) => match waiting.call {
                Call::Poll { operation, .. } => Some(operation),
                _ => None,
            },
            _ => None,
        }
    }

    /// What was asked is no longer in the queue.
    pub fn unqueue_proposal(&mut self) {
        self.queue
            .retain(|waiting| !matches!(waiting.call, Call::Propose { .. }));
    }

    pub fn abort(&self, reason: AbortReason, after_failed_finish: bool) -> Call {
        Call::Abort(Box::new(GenerationAbort {
            ids: (*self.ids).clone(),
            attempt: self.attempt,
            reason,
            committed: self.total,
            incomplete: self.incomplete,
            after_failed_finish,
        }))
    }

    /// Tokens of the receipt that were not told yet.
    pub fn rest(&self, finish: &GenerationFinish) -> Option<Call> {
        let generated = &finish.receipt.generated;
        let told = usize::try_from(self.total).unwrap_or(usize::MAX);
        let rest = generated.get(told..).filter(|rest| !rest.is_empty())?;
        Some(Call::Commit {
            tokens: rest.to_vec(),
            total: generated.len() as u64,
        })
    }
}
