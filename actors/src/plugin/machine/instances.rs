//! Instances of a plugin, one for each model: made, used, ended.
//!
//! ```text
//! Activating ── made in time ──▶ Active ── model gone ──▶ Detached ── last generation over ──▶ ShuttingDown ─▶ gone
//!     │                                                                                             ▲
//!     └── too late, nobody waits ──▶ GivenUp ── made after all ─────────────────────────────────────┘
//! ```

use std::time::Instant;

use super::{Effect, PluginMachine};
use crate::{
    plugin::call::{Call, InstanceKey},
    ports::plugin::CallFault,
};

#[derive(Debug, PartialEq, Eq)]
pub(super) enum InstanceState {
    /// Its activation waits or runs, until this.
    Activating(Instant),
    /// Its activation took too long; if it succeeds after all, it is shut down.
    GivenUp,
    Active,
    /// No new generations.
    Detached,
    ShuttingDown,
}

#[derive(Debug)]
pub(super) struct Instance {
    pub state: InstanceState,
    /// Generations that have not ended.
    pub generations: usize,
}

impl PluginMachine {
    pub(super) fn activate(&mut self, instance: InstanceKey, now: Instant, effects: &mut Vec<Effect>) {
        if self.closing.is_some() || self.health.is_shut_out() {
            let reason = match self.closing {
                Some(_) => "the node stops",
                None => self.health.reason(),
            };
            effects.push(Effect::Activated(instance, Err(reason.to_owned())));
            // What was prepared for it is let go.
            effects.push(Effect::Gone(instance));
            return;
        }
        let state = InstanceState::Activating(now + self.limits.activation_limit);
        self.instances.insert(instance, Instance { state, generations: 0 });
        self.control.push_back((instance, Call::Activate));
    }

    pub(super) fn detach(&mut self, key: InstanceKey, effects: &mut Vec<Effect>) {
        let Some(instance) = self.instances.get_mut(&key) else {
            return;
        };
        match instance.state {
            // Whoever waited for it has gone.
            InstanceState::Activating(_) => {
                instance.state = InstanceState::GivenUp;
                if self.unqueue_activation(key) {
                    effects.push(Effect::Gone(key));
                }
            }
            InstanceState::Active => {
                instance.state = InstanceState::Detached;
                self.shut_down_idle(key);
            }
            _ => {}
        }
    }

    /// An activation that no thread has begun yet leaves nothing behind.
    fn unqueue_activation(&mut self, key: InstanceKey) -> bool {
        let queued = self.control.iter().position(|(instance, _)| *instance == key);
        if let Some(at) = queued {
            self.control.remove(at);
            self.instances.remove(&key);
        }
        queued.is_some()
    }

    pub(super) fn shut_down_idle(&mut self, key: InstanceKey) {
        if let Some(instance) = self.instances.get_mut(&key)
            && instance.state == InstanceState::Detached
            && instance.generations == 0
        {
            instance.state = InstanceState::ShuttingDown;
            self.control.push_back((key, Call::Shutdown));
        }
    }

    pub(super) fn activated(&mut self, key: InstanceKey, result: Result<(), CallFault>, effects: &mut Vec<Effect>) {
        let Some(instance) = self.instances.get_mut(&key) else {
            return;
        };
        match (&instance.state, result) {
            (InstanceState::Activating(_), Ok(())) => {
                instance.state = InstanceState::Active;
                effects.push(Effect::Activated(key, Ok(())));
            }
            (_, Ok(())) => {
                // Nobody wants it any more.
                instance.state = InstanceState::ShuttingDown;
                self.control.push_back((key, Call::Shutdown));
            }
            (state, Err(fault)) => {
                if matches!(state, InstanceState::Activating(_)) {
                    effects.push(Effect::Activated(key, Err(fault.message)));
                }
                self.instances.remove(&key);
                effects.push(Effect::Gone(key));
            }
        }
    }

    pub(super) fn give_up_activations(&mut self, now: Instant, effects: &mut Vec<Effect>) {
        let late: Vec<InstanceKey> = self
            .instances
            .iter()
            .filter(|(_, instance)| matches!(instance.state, InstanceState::Activating(until) if until <= now))
            .map(|(key, _)| *key)
            .collect();
        for key in late {
            let seconds = self.limits.activation_limit.as_secs_f32();
            if self.unqueue_activation(key) {
                let message = format!("none of its threads was free to activate it within {seconds} s");
                effects.push(Effect::Activated(key, Err(message)));
                effects.push(Effect::Gone(key));
                continue;
            }
            let message = format!("activate did not return within {seconds} s");
            effects.push(Effect::Activated(key, Err(message)));
            if let Some(instance) = self.instances.get_mut(&key) {
                instance.state = InstanceState::GivenUp;
            }
        }
    }

    /// Of a plugin that is shut out: those that no thread has begun.
    pub(super) fn refuse_queued_activations(&mut self, effects: &mut Vec<Effect>) {
        let is_queued = |(key, call): &(InstanceKey, Call)| matches!(call, Call::Activate).then_some(*key);
        let queued: Vec<InstanceKey> = self.control.iter().filter_map(is_queued).collect();
        for key in queued {
            self.unqueue_activation(key);
            effects.push(Effect::Activated(key, Err(self.health.reason().to_owned())));
            effects.push(Effect::Gone(key));
        }
    }
}
