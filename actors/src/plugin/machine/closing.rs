//! The end of a plugin: what is left is told, until the deadline.

use std::time::Instant;

use super::{Effect, PluginMachine, Worker};
use crate::{
    plugin::{
        call::{GenerationKey, InstanceKey},
        ledger::Loss,
    },
    ports::plugin::AbortReason,
};

impl PluginMachine {
    pub(super) fn close(&mut self, until: Instant, now: Instant, effects: &mut Vec<Effect>) {
        if self.closing.replace(until).is_some() {
            return;
        }
        let open: Vec<GenerationKey> = self.generations.keys().copied().collect();
        for key in open {
            self.withdraw_any(key, now, effects);
            if let Some(generation) = self.generations.get_mut(&key)
                && !std::mem::replace(&mut generation.ended, true)
            {
                let abort = generation.abort(AbortReason::Shutdown, false);
                generation.push(abort, None, now);
                self.make_ready(key);
            }
        }
        let instances: Vec<InstanceKey> = self.instances.keys().copied().collect();
        for key in instances {
            self.detach(key, effects);
        }
    }

    /// Nothing more can be told: all that is left waits for threads that were given up.
    fn is_stuck(&self) -> bool {
        let is_quiet = |worker: &Worker| worker.job.is_none() || worker.given_up;
        let waits = !self.ready.is_empty() || !self.control.is_empty();
        self.workers.iter().any(|worker| worker.given_up)
            && self.workers.iter().all(is_quiet)
            && (!waits || self.idle().is_none())
            && self.generations.values().all(|generation| generation.open == 0)
    }

    pub(super) fn finish_closing(&mut self, now: Instant, effects: &mut Vec<Effect>) {
        let Some(until) = self.closing.filter(|_| !self.closed) else {
            return;
        };
        if self.instances.is_empty() || until <= now || self.is_stuck() {
            self.closed = true;
            for _ in self.generations.values().filter(|generation| generation.begun) {
                self.ledger.lost(Loss::Abandoned);
            }
            self.health.stop();
            effects.push(Effect::Closed);
        }
    }
}
