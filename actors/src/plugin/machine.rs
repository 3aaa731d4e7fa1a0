//! What a plugin is told next, without IO, clock or threads: inputs in, effects out.
//!
//! ```text
//!                 ┌────────────── per generation ───────────────┐
//! begin, commit, ─▶ queue, in order ─▶ one call at a time ──────┼─▶ a free thread ── done ─▶ next call
//! ask, resolve,   │ operation: poll or cancel before the queue  │
//! finish, abort   └─ end, when no decision is open ─▶ forgotten ┘
//! ```
//!
//! Rules that hold whatever comes (property test in `machine/tests/rules.rs`): calls of a generation never overlap and keep
//! their order; begin, then commits, then one end; each decision is resolved once, before the end; each question is
//! answered and counted once; what a message took is given back.

mod closing;
mod dispatch;
mod generation;
mod instances;
mod lifecycle;
mod limits;
mod message;
mod proposals;
#[cfg(test)]
mod tests;
mod trouble;

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    sync::Arc,
    time::Instant,
};

use dispatch::Worker;
use generation::Generation;
use instances::{Instance, InstanceState};
pub use limits::PluginLimits;
pub use message::{Answer, Beginning, Effect, End, Ending, Input, Question, Reply, Resolution};

use super::{
    call::{Call, GenerationKey, InstanceKey},
    health::HealthMonitor,
    ledger::PluginLedger,
};
use crate::ports::plugin::PluginAbilities;

/// One plugin.
#[derive(Debug)]
pub struct PluginMachine {
    abilities: PluginAbilities,
    limits: PluginLimits,
    ledger: Arc<PluginLedger>,
    health: HealthMonitor,
    instances: BTreeMap<InstanceKey, Instance>,
    /// Activations and shutdowns that wait for a thread.
    control: VecDeque<(InstanceKey, Call)>,
    generations: BTreeMap<GenerationKey, Generation>,
    ready: VecDeque<GenerationKey>,
    workers: Vec<Worker>,
    /// Deadlines of questions and fences.
    timers: BTreeSet<(Instant, GenerationKey)>,
    closing: Option<Instant>,
    closed: bool,
}

impl PluginMachine {
    /// A plugin that was loaded.
    pub fn new(abilities: PluginAbilities, limits: PluginLimits, ledger: Arc<PluginLedger>, now: Instant) -> Self {
        let threads = if abilities.serial { 1 } else { limits.threads.max(1) };
        let idle = || Worker {
            job: None,
            since: now,
            given_up: false,
        };
        Self {
            abilities,
            limits,
            ledger,
            health: HealthMonitor::new(limits.faults),
            instances: BTreeMap::new(),
            control: VecDeque::new(),
            generations: BTreeMap::new(),
            ready: VecDeque::new(),
            workers: std::iter::repeat_with(idle).take(threads).collect(),
            timers: BTreeSet::new(),
            closing: None,
            closed: false,
        }
    }

    /// Threads it uses.
    pub fn threads(&self) -> usize {
        self.workers.len()
    }

    /// When it wants a [`Input::Tick`] at the latest.
    pub fn next_alarm(&self) -> Option<Instant> {
        let timers = self.timers.first().map(|(at, _)| *at);
        let running = self
            .workers
            .iter()
            .filter(|worker| !worker.given_up)
            .filter_map(|worker| Some(worker.since + self.limit_of(&worker.job.as_ref()?.2)))
            .min();
        let activations = self
            .instances
            .values()
            .filter_map(|instance| match instance.state {
                InstanceState::Activating(until) => Some(until),
                _ => None,
            })
            .min();
        let closing = self.closing.filter(|_| !self.closed);
        [timers, running, activations, closing].into_iter().flatten().min()
    }

    /// Takes one input; appends what has to be done, in order.
    pub fn handle(&mut self, input: Input, now: Instant, effects: &mut Vec<Effect>) {
        let before = self.health.health();
        match input {
            Input::Activate(instance) => self.activate(instance, now, effects),
            Input::Detach(instance) => self.detach(instance, effects),
            Input::Begin(beginning) => self.begin(beginning, now),
            Input::Commit {
                key,
                tokens,
                total,
                place,
            } => self.commit(key, tokens, total, place, now),
            Input::Ask(question) => self.ask(question, now, effects),
            Input::Withdraw { key, step } => self.withdraw(key, step, now, effects),
            Input::Resolve { key, resolution, place } => self.resolve(key, resolution, place, now),
            Input::End { key, ending, place } => self.end(key, *ending, place, now, effects),
            Input::Done { worker, result } => self.done(worker, result, now, effects),
            Input::Woken { key, operation } => self.woken(key, operation, now),
            Input::Tick => {}
            Input::Close(until) => self.close(until, now, effects),
        }
        self.expire(now, effects);
        self.dispatch(now, effects);
        self.finish_closing(now, effects);
        self.ledger.following(self.generations.len());
        let health = self.health.health();
        if health != before {
            self.ledger.health(health, self.health.reason());
            effects.push(Effect::Health(health));
        }
    }
}
