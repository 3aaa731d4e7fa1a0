//! The handle to a plugin: bounded ways in.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use mesh_proto::{ErrorCode, MeshError};
use ractor::ActorRef;
use tokio::sync::oneshot;

use super::{
    actor::{PluginMessage, PluginOptions},
    call::{GenerationKey, InstanceKey, Place},
    ledger::{Loss, PluginFigures, PluginLedger, ProposalOutcome},
    machine::{Answer, Beginning, Ending, Input, Question, Reply, Resolution},
    permits::{Class, Permits},
};
use crate::ports::plugin::{GenerationStart, ModelFacts, PluginFacts, ProposalQuery};

/// How much longer than an activation or closing may take its actor may take to say that the time is up.
const ANSWER_LIMIT: Duration = Duration::from_secs(1);

/// Cheap to clone.
#[derive(Clone)]
pub struct PluginHandle {
    pub(super) actor: ActorRef<PluginMessage>,
    pub(super) shared: Arc<PluginShared>,
}

impl std::fmt::Debug for PluginHandle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("PluginHandle").field(&self.shared.facts.name).finish()
    }
}

/// What needs no trip to the actor.
pub(super) struct PluginShared {
    pub facts: PluginFacts,
    /// Places in the mailbox.
    pub permits: Permits,
    /// Places among the generations that are followed.
    pub slots: Permits,
    /// Keys given so far.
    pub keys: AtomicU64,
    pub ledger: Arc<PluginLedger>,
    pub options: PluginOptions,
}

/// A plugin as commands show it.
#[derive(Debug, Clone)]
pub struct PluginReading {
    /// What it says of itself.
    pub facts: PluginFacts,
    /// How it is served.
    pub options: PluginOptions,
    /// What was counted.
    pub figures: PluginFigures,
    /// Places taken in its mailbox.
    pub queued: usize,
    /// All places there.
    pub capacity: usize,
}

impl PluginHandle {
    /// What the plugin says of itself.
    pub fn facts(&self) -> &PluginFacts {
        &self.shared.facts
    }

    /// A model without it is not served.
    pub fn is_required(&self) -> bool {
        self.shared.options.required
    }

    /// Everything that is known of it, now.
    pub fn read(&self) -> PluginReading {
        PluginReading {
            facts: self.shared.facts.clone(),
            options: self.shared.options.clone(),
            figures: self.shared.ledger.figures(),
            queued: self.shared.permits.taken(),
            capacity: self.shared.permits.capacity(),
        }
    }

    /// Makes an instance for a model; the seat ends it when it is dropped.
    ///
    /// # Errors
    ///
    /// The plugin refuses, takes too long, or is shut out.
    pub async fn activate(&self, model: ModelFacts) -> Result<Seat, MeshError> {
        let name = &self.facts().name;
        let instance = InstanceKey(self.next_key());
        let seat = Seat {
            handle: self.clone(),
            instance,
        };
        let (reply, activated) = oneshot::channel();
        let model = Box::new(model);
        let refused = |reason: &str| {
            let message = format!("plugin {name} does not follow this model: {reason}; see `mesh plugins show {name}`");
            // Trying again does not help: it is its configuration, or it is shut out.
            MeshError::new(ErrorCode::Conflict, message)
        };
        self.actor
            .cast(PluginMessage::Activate { model, instance, reply })
            .map_err(|_| refused("its actor has ended"))?;
        let limit = self.shared.options.limits.activation_limit + ANSWER_LIMIT;
        match tokio::time::timeout(limit, activated).await {
            Ok(Ok(Ok(()))) => Ok(seat),
            Ok(Ok(Err(reason))) => Err(refused(&reason)),
            Ok(Err(_)) => Err(refused("its actor has ended")),
            Err(_) => Err(refused("its actor did not answer")),
        }
    }

    /// Tells what is left, ends all instances; returns when that is done, or at the deadline.
    pub async fn close(&self, until: Instant) {
        let (reply, closed) = oneshot::channel();
        if self.actor.cast(PluginMessage::Close { until, reply }).is_ok() {
            // The actor answers at the deadline, when it has counted what is left behind.
            let _ = tokio::time::timeout_at((until + ANSWER_LIMIT).into(), closed).await;
        }
        self.actor.stop(None);
    }

    pub(super) fn next_key(&self) -> u64 {
        self.shared.keys.fetch_add(1, Ordering::Relaxed)
    }

    fn send(&self, input: Input) -> bool {
        self.actor.cast(PluginMessage::Input(input)).is_ok()
    }

    /// A generation begins; `None` if there is no place for it.
    pub(super) fn begin(&self, instance: InstanceKey, start: Arc<GenerationStart>) -> Option<GenerationKey> {
        let key = GenerationKey(self.next_key());
        let places = self
            .shared
            .slots
            .try_acquire(Class::Ordinary)
            .zip(self.shared.permits.try_acquire(Class::Ordinary));
        let Some((slot, place)) = places else {
            self.lost(Loss::Begin);
            return None;
        };
        let begin = Beginning {
            key,
            instance,
            start,
            place,
            slot,
        };
        self.send(Input::Begin(begin)).then_some(key)
    }

    /// Tokens became output; false if there is no place.
    pub(super) fn commit(&self, key: GenerationKey, tokens: &[u32], total: u64) -> bool {
        let Some(place) = self.shared.permits.try_acquire(Class::Ordinary) else {
            return false;
        };
        let tokens = tokens.to_vec();
        self.send(Input::Commit {
            key,
            tokens,
            total,
            place,
        })
    }

    pub(super) fn lost(&self, loss: Loss) {
        self.shared.ledger.lost(loss);
    }

    /// It ended.
    pub(super) fn end(&self, key: Option<GenerationKey>, ending: Ending) {
        let class = match ending.end {
            super::machine::End::Finish(_) => Class::Fence,
            super::machine::End::Abort { .. } => Class::Ending,
        };
        let place = self.shared.permits.try_acquire(class);
        if key.is_none() && place.is_none() {
            // The plugin never heard of it, and there is no place to tell it of its end.
            return self.lost(Loss::End);
        }
        // Without a place, its place among the followed generations bounds these messages.
        let key = key.unwrap_or_else(|| GenerationKey(self.next_key()));
        let ending = Box::new(ending);
        self.send(Input::End { key, ending, place });
    }

    /// Candidates are wanted. The reply comes at the deadline at the latest, at once if there is no place.
    pub(super) fn ask(&self, key: GenerationKey, query: Arc<ProposalQuery>, reply: Reply) {
        let deadline = Instant::now() + self.shared.options.deadline;
        let Some(place) = self.shared.permits.try_acquire(Class::Ordinary) else {
            self.shared.ledger.proposal(ProposalOutcome::QueueFull);
            return (reply.0)(Answer::Abstain);
        };
        // Without an actor the message is dropped, and with it the reply, which answers then.
        self.send(Input::Ask(Question {
            key,
            query,
            deadline,
            reply,
            place,
        }));
    }

    pub(super) fn withdraw(&self, key: GenerationKey, step: u64) {
        self.send(Input::Withdraw { key, step });
    }

    pub(super) fn resolve(&self, key: GenerationKey, resolution: Resolution, place: Place) {
        self.send(Input::Resolve { key, resolution, place });
    }
}

/// A plugin's instance for one model. Dropping it ends the instance, behind the last generation.
#[derive(Debug)]
pub struct Seat {
    pub(super) handle: PluginHandle,
    pub(super) instance: InstanceKey,
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.handle.send(Input::Detach(self.instance));
    }
}
