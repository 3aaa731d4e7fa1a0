//! Questions to a plugin: from the query to candidates, an abstention, or a deadline.
//!
//! ```text
//! Queued ── dispatched in time ──▶ Running ──┬─ pending ─▶ Parked ── wake ─▶ Running
//!    │                                       ├─ ready in time ─▶ candidates, decision open
//!    └── deadline, request gone ─▶ over      └─ abstains, fails, late ─▶ over (cancelled, discarded)
//! ```
//!
//! The request is answered at the deadline whatever the plugin does; what the plugin makes of it afterwards is counted
//! then, once.

use std::time::Instant;

use super::{
    Answer, Effect, PluginMachine, Question, Reply,
    generation::{Asked, Generation, Phase, Waiting},
};
use crate::{
    plugin::{
        call::{Call, GenerationKey},
        ledger::{Callback, ProposalOutcome},
    },
    ports::plugin::{CallFault, CallFaultKind, Candidates, DiscardReason, Discarded, Poll},
};

/// Polls of one operation: a plugin that wakes and has nothing is left alone until the deadline.
const MAX_POLLS: u32 = 64;

impl PluginMachine {
    pub(super) fn ask(&mut self, question: Question, now: Instant, effects: &mut Vec<Effect>) {
        let Question {
            key,
            query,
            deadline,
            reply,
            place,
        } = question;
        let shut_out = self.health.is_shut_out() || self.closing.is_some();
        let Some(generation) = self
            .generations
            .get_mut(&key)
            .filter(|generation| !shut_out && !generation.ended && !generation.disabled && !generation.incomplete)
        else {
            effects.push(Effect::Answer(reply, Answer::Off));
            return;
        };
        // The last question is still in the plugin's hands, or calls before it are: waiting again would cost a deadline
        // for nothing. So it is answered at once, which is trouble but no fault: what is in the way is counted when it
        // returns.
        if generation.asked.is_some() || generation.starved {
            let is_excused = generation.asked.as_ref().is_some_and(|last| last.is_excused(now));
            return self.not_asked(reply, is_excused, effects);
        }
        let call = Call::Propose {
            query: query.clone(),
            deadline,
        };
        generation.asked = Some(Asked::new(query, now, deadline, reply, place));
        // The place is kept with the question: the message in the queue needs none of its own.
        generation.push(call, None, now);
        self.timers.insert((deadline, key));
        self.make_ready(key);
    }

    /// A plugin is not to blame for looking for what was withdrawn, while it had time.
    fn not_asked(&mut self, reply: Reply, is_excused: bool, effects: &mut Vec<Effect>) {
        effects.push(Effect::Answer(reply, Answer::Abstain));
        self.ledger.proposal(ProposalOutcome::ExpiredBeforeDispatch);
        if !is_excused {
            self.health.trouble("it was busy when it was asked");
        }
    }

    /// The request has lost interest in this step.
    pub(super) fn withdraw(&mut self, key: GenerationKey, step: u64, now: Instant, effects: &mut Vec<Effect>) {
        let asked = self.generations.get(&key).and_then(|it| it.asked.as_ref());
        if asked.is_some_and(|asked| asked.query.step == step) {
            self.withdraw_any(key, now, effects);
        }
    }

    pub(super) fn withdraw_any(&mut self, key: GenerationKey, now: Instant, effects: &mut Vec<Effect>) {
        let Some(generation) = self.generations.get_mut(&key) else {
            return;
        };
        let Some(asked) = &mut generation.asked else { return };
        if let Some(reply) = asked.reply.take() {
            effects.push(Effect::Answer(reply, Answer::Abstain));
            asked.withdrawn = true;
        }
        match (asked.phase, generation.parked()) {
            (_, Some(operation)) => cancel(generation, operation, now),
            (Phase::Queued, None) => generation.unqueue_proposal(),
            _ => return,
        }
        if self.settle(key, effects).is_some() {
            self.ledger.proposal(ProposalOutcome::Cancelled);
        }
        self.make_ready(key);
    }

    /// The deadline of a question may have passed.
    pub(super) fn expire_question(&mut self, key: GenerationKey, now: Instant, effects: &mut Vec<Effect>) {
        let Some(generation) = self.generations.get_mut(&key) else {
            return;
        };
        let Some(asked) = generation.asked.as_mut().filter(|asked| asked.deadline <= now) else {
            return;
        };
        if let Some(reply) = asked.reply.take() {
            effects.push(Effect::Answer(reply, Answer::Abstain));
        }
        match (asked.phase, generation.parked()) {
            (_, Some(operation)) => {
                cancel(generation, operation, now);
                let since = self.settle(key, effects);
                let reason = "it had no candidates at the deadline";
                self.missed(ProposalOutcome::ExpiredInPlugin, reason, since, now);
            }
            (Phase::Queued, None) => {
                generation.unqueue_proposal();
                generation.starved = true;
                let since = self.settle(key, effects);
                let reason = "its calls took so long that it could not be asked in time";
                self.missed(ProposalOutcome::ExpiredBeforeDispatch, reason, since, now);
            }
            // What it comes to is counted when the call returns, or is given up.
            _ => {}
        }
        self.make_ready(key);
    }

    /// A start or poll has returned.
    pub(super) fn polled(
        &mut self,
        key: GenerationKey,
        operation: Option<u64>,
        poll: Result<Poll, CallFault>,
        now: Instant,
        effects: &mut Vec<Effect>,
    ) {
        let Some(generation) = self.generations.get_mut(&key) else {
            return;
        };
        let Some(asked) = &mut generation.asked else { return };
        // One reading of the clock decides what is done and what is counted.
        let in_time = now < asked.deadline && asked.reply.is_some();
        match (poll, operation) {
            (Ok(Poll::Pending), Some(operation)) if in_time => self.park(key, operation, now),
            (Ok(Poll::Pending), Some(operation)) => {
                cancel(generation, operation, now);
                self.too_late(key, false, now, effects);
            }
            (Ok(Poll::Pending), None) => {
                self.broken(key, None, "an operation that was not started is pending", effects);
            }
            (Ok(Poll::Ready(candidates)), _) if in_time => self.propose(key, candidates, effects),
            (Ok(Poll::Ready(candidates)), _) => self.ready_too_late(key, candidates, now, effects),
            (Ok(Poll::Abstain), _) if in_time => {
                self.answer(key, Answer::Abstain, effects);
                self.settle(key, effects);
                self.ledger.proposal(ProposalOutcome::Abstained);
                self.health.answered();
            }
            (Ok(Poll::Abstain), _) => self.too_late(key, false, now, effects),
            (failed, operation) => self.failed(key, operation, failed, now, effects),
        }
    }

    /// An operation that failed is cancelled first.
    fn failed(
        &mut self,
        key: GenerationKey,
        operation: Option<u64>,
        poll: Result<Poll, CallFault>,
        now: Instant,
        effects: &mut Vec<Effect>,
    ) {
        let Some(generation) = self.generations.get_mut(&key) else {
            return;
        };
        if let Some(operation) = operation {
            cancel(generation, operation, now);
        }
        match poll {
            Ok(Poll::Failed(message)) => self.broken(key, Some(Callback::Poll), &message, effects),
            Ok(Poll::Invalid { message, decision }) => {
                if let Some(decision) = decision {
                    discard(generation, decision, now);
                    self.ledger.discarded();
                }
                self.broken(key, Some(Callback::Poll), &message, effects);
            }
            Ok(Poll::Pending | Poll::Ready(_) | Poll::Abstain) => {}
            Err(fault) => {
                let callback = operation.map_or(Callback::Start, |_| Callback::Poll);
                self.broken_by(key, callback, &fault, effects);
            }
        }
    }

    /// Candidates that nobody waits for any more.
    fn ready_too_late(&mut self, key: GenerationKey, candidates: Candidates, now: Instant, effects: &mut Vec<Effect>) {
        let Some(generation) = self.generations.get_mut(&key) else {
            return;
        };
        let is_withdrawn = generation.asked.as_ref().is_some_and(|asked| asked.withdrawn);
        let reason = if is_withdrawn {
            DiscardReason::Cancelled
        } else {
            DiscardReason::DeadlineExceeded
        };
        discard(generation, candidates.discarded(reason), now);
        self.ledger.discarded();
        self.too_late(key, true, now, effects);
    }

    fn park(&mut self, key: GenerationKey, operation: u64, now: Instant) {
        let Some(asked) = self.generations.get_mut(&key).and_then(|it| it.asked.as_mut()) else {
            return;
        };
        asked.phase = Phase::Parked(operation);
        if std::mem::take(&mut asked.woken) {
            self.woken(key, operation, now);
        }
    }

    /// An operation changed state.
    pub(super) fn woken(&mut self, key: GenerationKey, operation: u64, now: Instant) {
        let Some(generation) = self.generations.get_mut(&key) else {
            return;
        };
        let Some(asked) = &mut generation.asked else { return };
        match asked.phase {
            Phase::Running => asked.woken = true,
            Phase::Parked(parked) if parked == operation && asked.polls < MAX_POLLS => {
                asked.polls += 1;
                asked.phase = Phase::Running;
                let query = asked.query.clone();
                let (since, place) = (now, None);
                let call = Call::Poll { operation, query };
                generation.urgent = Some(Waiting { call, since, place });
                self.make_ready(key);
            }
            _ => {}
        }
    }

    fn propose(&mut self, key: GenerationKey, candidates: Candidates, effects: &mut Vec<Effect>) {
        let Some(generation) = self.generations.get_mut(&key) else {
            return;
        };
        let Some(asked) = &mut generation.asked else { return };
        let place = asked.place.take();
        generation.open += 1;
        self.answer(key, Answer::Candidates(candidates, place), effects);
        self.settle(key, effects);
        self.ledger.proposal(ProposalOutcome::Ready);
        self.health.answered();
    }

    fn answer(&mut self, key: GenerationKey, answer: Answer, effects: &mut Vec<Effect>) {
        let asked = self.generations.get_mut(&key).and_then(|it| it.asked.as_mut());
        if let Some(reply) = asked.and_then(|asked| asked.reply.take()) {
            effects.push(Effect::Answer(reply, answer));
        }
    }

    /// The question is over. Gives when it was asked, unless what came of it was counted already.
    fn settle(&mut self, key: GenerationKey, effects: &mut Vec<Effect>) -> Option<Instant> {
        let asked = self.generations.get_mut(&key)?.asked.take()?;
        self.timers.remove(&(asked.deadline, key));
        if let Some(reply) = asked.reply {
            effects.push(Effect::Answer(reply, Answer::Abstain));
        }
        (!asked.counted).then_some(asked.since)
    }

    /// The plugin answered when nobody waited any more.
    fn too_late(&mut self, key: GenerationKey, with_candidates: bool, now: Instant, effects: &mut Vec<Effect>) {
        let asked = self.generations.get(&key).and_then(|it| it.asked.as_ref());
        let withdrawn = asked.is_some_and(|asked| asked.withdrawn);
        let Some(since) = self.settle(key, effects) else {
            return;
        };
        match (withdrawn, with_candidates) {
            (true, _) => self.ledger.proposal(ProposalOutcome::Cancelled),
            (false, true) => {
                let reason = "its candidates came after the deadline";
                self.missed(ProposalOutcome::Late, reason, Some(since), now);
            }
            (false, false) => {
                let reason = "it answered after the deadline";
                self.missed(ProposalOutcome::ExpiredInPlugin, reason, Some(since), now);
            }
        }
    }

    /// The operation failed, or what came of it does not hold: no more questions about this generation.
    fn broken(&mut self, key: GenerationKey, callback: Option<Callback>, message: &str, effects: &mut Vec<Effect>) {
        self.answer(key, Answer::Off, effects);
        if self.settle(key, effects).is_some() {
            self.ledger.proposal(ProposalOutcome::Error);
        }
        if let Some(generation) = self.generations.get_mut(&key) {
            generation.disabled = true;
        }
        if let Some(callback) = callback {
            self.ledger.failed(callback, message);
        }
        self.health.fault(message);
    }

    fn broken_by(&mut self, key: GenerationKey, callback: Callback, fault: &CallFault, effects: &mut Vec<Effect>) {
        let name = callback.name();
        match fault.kind {
            CallFaultKind::Error => {}
            CallFaultKind::Panicked => self.shut_out(&format!("it unwound in {name}: {}", fault.message)),
            CallFaultKind::UnknownStatus(status) => {
                self.shut_out(&format!("{name} returned {status}, which is no status of it"));
            }
        }
        self.broken(key, None, &fault.message, effects);
    }

    fn missed(&mut self, outcome: ProposalOutcome, reason: &str, asked: Option<Instant>, now: Instant) {
        self.ledger.proposal(outcome);
        self.health.miss(reason, asked, now);
    }

    /// A thread is stuck in a call of this generation: a question in it is counted now, since it may never return.
    pub(super) fn stuck(&mut self, key: GenerationKey) {
        let asked = self.generations.get_mut(&key).and_then(|it| it.asked.as_mut());
        if let Some(asked) = asked.filter(|asked| asked.phase == Phase::Running)
            && !std::mem::replace(&mut asked.counted, true)
        {
            self.ledger.proposal(ProposalOutcome::ExpiredInPlugin);
        }
    }
}

fn cancel(generation: &mut Generation, operation: u64, now: Instant) {
    generation.urgent = Some(Waiting {
        call: Call::Cancel { operation },
        since: now,
        place: None,
    });
}

/// Before everything that waits: the decision came before it. It takes over the place of the question.
fn discard(generation: &mut Generation, decision: Discarded, now: Instant) {
    let place = generation.asked.as_mut().and_then(|asked| asked.place.take());
    generation.queue.push_front(Waiting {
        call: Call::Discard(Box::new(decision)),
        since: now,
        place,
    });
}
