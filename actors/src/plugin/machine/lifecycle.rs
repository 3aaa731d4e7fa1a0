//! Generations from begin to their one end, as requests tell of them.

use std::{sync::Arc, time::Instant};

use super::{
    Beginning, Effect, End, Ending, PluginMachine, Resolution, generation::Generation, instances::InstanceState,
};
use crate::{
    plugin::{
        call::{Call, GenerationKey, Place},
        ledger::Loss,
        permits::Permit,
    },
    ports::plugin::AbortReason,
};

impl PluginMachine {
    pub(super) fn begin(&mut self, beginning: Beginning, now: Instant) {
        let Beginning {
            key,
            instance,
            start,
            place,
            slot,
        } = beginning;
        let wanted = self.closing.is_none() && !self.health.is_shut_out();
        let Some(active) = self
            .instances
            .get_mut(&instance)
            .filter(|instance| wanted && instance.state == InstanceState::Active)
        else {
            return;
        };
        active.generations += 1;
        let mut generation = Generation::new(instance, Arc::new(start.ids.clone()), start.attempt, Some(slot));
        generation.push(Call::Begin(start), Some(place), now);
        self.generations.insert(key, generation);
        self.make_ready(key);
    }

    pub(super) fn commit(&mut self, key: GenerationKey, tokens: Vec<u32>, total: u64, place: Permit, now: Instant) {
        let shut_out = self.health.is_shut_out();
        let Some(generation) = self.generations.get_mut(&key).filter(|generation| !generation.ended) else {
            return;
        };
        if generation.incomplete || shut_out {
            generation.incomplete = true;
            return;
        }
        if generation.total + tokens.len() as u64 != total {
            self.ledger.lost(Loss::Bookkeeping);
            generation.incomplete = true;
            return;
        }
        generation.total = total;
        if self.abilities.commits {
            generation.push(Call::Commit { tokens, total }, Some(place), now);
            self.make_ready(key);
        }
    }

    pub(super) fn resolve(&mut self, key: GenerationKey, resolution: Resolution, place: Place, now: Instant) {
        let Some(generation) = self.generations.get_mut(&key) else {
            return;
        };
        generation.open = generation.open.saturating_sub(1);
        let call = match resolution {
            Resolution::Report(report) => {
                let (candidates, outcome) = &*report;
                self.ledger.verified(candidates.tokens.len() as u64, outcome.accepted);
                self.abilities.reports.then_some(Call::Report(report))
            }
            Resolution::Discard(discarded) => {
                self.ledger.discarded();
                Some(Call::Discard(discarded))
            }
        };
        if let Some(call) = call {
            generation.push_before_end(call, place, now);
        }
        self.make_ready(key);
    }

    pub(super) fn end(
        &mut self,
        key: GenerationKey,
        ending: Ending,
        place: Place,
        now: Instant,
        effects: &mut Vec<Effect>,
    ) {
        if !self.generations.contains_key(&key) && !self.follow_unheard(key, &ending) {
            return;
        }
        self.withdraw_any(key, now, effects);
        let Some(generation) = self.generations.get_mut(&key).filter(|generation| !generation.ended) else {
            return;
        };
        generation.ended = true;
        generation.incomplete |= ending.incomplete;
        let call = match ending.end {
            End::Finish(mut finish) if place.is_some() => {
                if !generation.incomplete
                    && self.abilities.commits
                    && let Some(rest) = generation.rest(&finish)
                {
                    generation.push(rest, None, now);
                }
                generation.total = generation.total.max(finish.receipt.generated.len() as u64);
                finish.incomplete = generation.incomplete;
                let fence = now + self.limits.finish_budget;
                generation.fence = Some(fence);
                self.timers.insert((fence, key));
                Call::Finish(finish)
            }
            End::Finish(finish) => {
                generation.total = generation.total.max(finish.receipt.generated.len() as u64);
                generation.abort(AbortReason::Overloaded, false)
            }
            End::Abort { reason, committed } => {
                generation.total = generation.total.max(committed);
                generation.abort(reason, false)
            }
        };
        if place.is_none() {
            self.ledger.lost(Loss::End);
        }
        generation.push(call, place, now);
        self.make_ready(key);
    }

    /// A generation of which only the end is told, since its begin was lost. False if not even that is.
    fn follow_unheard(&mut self, key: GenerationKey, ending: &Ending) -> bool {
        // Begun, it was dropped when the plugin was shut out before it heard of it.
        if ending.begun || self.closing.is_some() || self.health.is_shut_out() {
            return false;
        }
        let instance = self.instances.get_mut(&ending.instance);
        let Some(active) = instance.filter(|instance| instance.state == InstanceState::Active) else {
            return false;
        };
        active.generations += 1;
        let mut unheard = Generation::new(ending.instance, ending.ids.clone(), ending.attempt, None);
        unheard.incomplete = true;
        self.generations.insert(key, unheard);
        true
    }

    /// It is told no more.
    pub(super) fn forget(&mut self, key: GenerationKey) {
        let Some(generation) = self.generations.remove(&key) else {
            return;
        };
        if let Some(fence) = generation.fence {
            self.timers.remove(&(fence, key));
        }
        if let Some(instance) = self.instances.get_mut(&generation.instance) {
            instance.generations -= 1;
        }
        self.shut_down_idle(generation.instance);
    }
}
