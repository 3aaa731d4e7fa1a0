//! What goes wrong: calls that fail, threads that are stuck, time that runs out, and a plugin that is shut out.

use std::time::Instant;

use super::{Effect, PluginMachine};
use crate::{
    plugin::{
        call::{Call, GenerationKey, WorkerKey},
        ledger::Loss,
    },
    ports::plugin::{AbortReason, CallFault, CallFaultKind},
};

impl PluginMachine {
    /// An error is counted; what must not be shuts the plugin out.
    pub(super) fn faulted(&mut self, call: &Call, fault: &CallFault) {
        let name = call.callback().name();
        match fault.kind {
            CallFaultKind::Error => self.health.trouble(&format!("{name} failed: {}", fault.message)),
            CallFaultKind::Panicked => self.shut_out(&format!("it unwound in {name}: {}", fault.message)),
            CallFaultKind::UnknownStatus(status) => {
                self.shut_out(&format!("{name} returned {status}, which is no status of it"))
            }
        }
    }

    /// From now on only what ends something is called.
    pub(super) fn shut_out(&mut self, reason: &str) {
        self.health.quarantine(reason);
    }

    pub(super) fn expire(&mut self, now: Instant, effects: &mut Vec<Effect>) {
        while let Some((at, key)) = self.timers.first().copied().filter(|(at, _)| *at <= now) {
            self.timers.remove(&(at, key));
            self.expire_question(key, now, effects);
            self.expire_fence(key, now);
        }
        self.give_up_threads(now, effects);
        self.give_up_activations(now, effects);
        if self.health.is_shut_out() {
            self.drop_what_is_not_called(now, effects);
        }
    }

    fn expire_fence(&mut self, key: GenerationKey, now: Instant) {
        let Some(generation) = self.generations.get_mut(&key) else {
            return;
        };
        if generation.fence.is_none_or(|fence| fence > now) {
            return;
        }
        generation.fence = None;
        let abort = generation.abort(AbortReason::FenceTimeout, false);
        if let Some(end) = generation
            .waiting_end()
            .filter(|end| matches!(end.call, Call::Finish(_)))
        {
            end.call = abort;
            self.ledger.lost(Loss::Fence);
            self.health.trouble("a finish waited too long for the calls before it");
        }
    }

    fn give_up_threads(&mut self, now: Instant, effects: &mut Vec<Effect>) {
        for index in 0..self.workers.len() {
            let Some((_, key, call)) = &self.workers[index].job else {
                continue;
            };
            let (key, callback, names, limit) = (*key, call.callback(), call.names(), self.limit_of(call));
            if self.workers[index].given_up || now < self.workers[index].since + limit {
                continue;
            }
            self.workers[index].given_up = true;
            effects.push(Effect::GaveUp(WorkerKey(index)));
            self.ledger.lost(Loss::Thread);
            let seconds = limit.as_secs_f32();
            self.ledger
                .failed(callback, &format!("did not return within {seconds} s"));
            self.shut_out(&format!("{names} did not return within {seconds} s"));
            if let Some(key) = key {
                self.stuck(key);
            }
        }
    }

    /// What waits and is not called any more is dropped; generations that never began are forgotten.
    fn drop_what_is_not_called(&mut self, now: Instant, effects: &mut Vec<Effect>) {
        let keys: Vec<GenerationKey> = self.generations.keys().copied().collect();
        for key in keys {
            self.withdraw_any(key, now, effects);
            let Some(generation) = self.generations.get_mut(&key) else {
                continue;
            };
            let waited = generation.queue.len();
            generation.queue.retain(|waiting| waiting.call.ends());
            generation.incomplete |= generation.queue.len() < waited;
            let incomplete = generation.incomplete;
            match generation.waiting_end().map(|end| &mut end.call) {
                Some(Call::Finish(finish)) => finish.incomplete = incomplete,
                Some(Call::Abort(abort)) => abort.incomplete = incomplete,
                _ => {}
            }
            if !generation.begun && generation.running.is_none() {
                self.forget(key);
            } else {
                self.make_ready(key);
            }
        }
        self.refuse_queued_activations(effects);
    }
}
