//! Calls to free threads, in order, and what they come to.

use std::time::{Duration, Instant};

use super::{
    Effect, PluginMachine,
    generation::{Phase, Waiting},
};
use crate::{
    plugin::call::{Call, CallResult, GenerationKey, InstanceKey, Job, WorkerKey},
    ports::plugin::{AbortReason, CallFault},
};

#[derive(Debug)]
pub(super) struct Worker {
    pub job: Option<(InstanceKey, Option<GenerationKey>, Call)>,
    pub since: Instant,
    pub given_up: bool,
}

impl PluginMachine {
    pub(super) fn limit_of(&self, call: &Call) -> Duration {
        match call {
            Call::Activate => self.limits.activation_limit,
            _ => self.limits.call_limit,
        }
    }

    pub(super) fn make_ready(&mut self, key: GenerationKey) {
        if let Some(generation) = self.generations.get_mut(&key)
            && generation.is_runnable()
            && !std::mem::replace(&mut generation.ready, true)
        {
            self.ready.push_back(key);
        }
    }

    pub(super) fn idle(&self) -> Option<WorkerKey> {
        self.workers
            .iter()
            .position(|worker| worker.job.is_none())
            .map(WorkerKey)
    }

    pub(super) fn dispatch(&mut self, now: Instant, effects: &mut Vec<Effect>) {
        while let Some(worker) = self.idle() {
            if let Some((instance, call)) = self.control.pop_front() {
                let job = Job {
                    worker,
                    instance,
                    generation: None,
                    call,
                };
                self.run(job, now, effects);
                continue;
            }
            let Some(key) = self.ready.pop_front() else {
                return;
            };
            self.dispatch_one(worker, key, now, effects);
        }
    }

    fn dispatch_one(&mut self, worker: WorkerKey, key: GenerationKey, now: Instant, effects: &mut Vec<Effect>) {
        let Some(generation) = self.generations.get_mut(&key) else {
            return;
        };
        generation.ready = false;
        let Some(waiting) = generation.next() else {
            return;
        };
        generation.starved = false;
        if matches!(waiting.call, Call::Propose { .. }) {
            if let Some(asked) = &mut generation.asked {
                asked.phase = Phase::Running;
            }
        } else if matches!(waiting.call, Call::Begin(_)) {
            generation.begun = true;
        }
        self.ledger.waited(now.saturating_duration_since(waiting.since));
        let job = Job {
            worker,
            instance: generation.instance,
            generation: Some((key, generation.ids.clone())),
            call: waiting.call.clone(),
        };
        generation.running = Some((worker, waiting));
        self.run(job, now, effects);
    }

    fn run(&mut self, job: Job, now: Instant, effects: &mut Vec<Effect>) {
        let key = job.generation.as_ref().map(|(key, _)| *key);
        let worker = &mut self.workers[job.worker.0];
        worker.job = Some((job.instance, key, job.call.clone()));
        worker.since = now;
        effects.push(Effect::Run(job));
    }

    pub(super) fn done(&mut self, worker: WorkerKey, result: CallResult, now: Instant, effects: &mut Vec<Effect>) {
        let Some((instance, key, call)) = self.workers.get_mut(worker.0).and_then(|worker| {
            worker.given_up = false;
            worker.job.take()
        }) else {
            return;
        };
        let Some(key) = key else {
            return self.control_done(instance, &call, result, effects);
        };
        let Some(generation) = self.generations.get_mut(&key) else {
            return;
        };
        let Some((_, waiting)) = generation.running.take() else {
            return;
        };
        match result {
            CallResult::Proposed { operation, poll } => self.polled(key, operation, poll, now, effects),
            CallResult::Polled(poll) => {
                let operation = match call {
                    Call::Poll { operation, .. } => Some(operation),
                    _ => None,
                };
                self.polled(key, operation, poll, now, effects);
            }
            CallResult::Returned(result) => self.returned(key, waiting, result, now),
        }
        self.make_ready(key);
    }

    fn control_done(&mut self, instance: InstanceKey, call: &Call, result: CallResult, effects: &mut Vec<Effect>) {
        let CallResult::Returned(result) = result else { return };
        if let Err(fault) = &result {
            self.faulted(call, fault);
        }
        match call {
            Call::Activate => self.activated(instance, result, effects),
            _ => {
                self.instances.remove(&instance);
                effects.push(Effect::Gone(instance));
            }
        }
    }

    fn returned(&mut self, key: GenerationKey, waiting: Waiting, result: Result<(), CallFault>, now: Instant) {
        match &result {
            Ok(()) => self.health.good(),
            Err(fault) => self.faulted(&waiting.call, fault),
        }
        match (&waiting.call, result) {
            (Call::Finish(_), Err(_)) => {
                if let Some(generation) = self.generations.get_mut(&key) {
                    let abort = generation.abort(AbortReason::FinishFailed, true);
                    generation.push(abort, waiting.place, now);
                }
            }
            (Call::Finish(_) | Call::Abort(_), _) => self.forget(key),
            _ => {}
        }
    }
}
