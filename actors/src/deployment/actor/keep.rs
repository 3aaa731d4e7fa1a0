//! A deployment over restarts of its owner: written down when it is ready for the first time, brought back afterwards.

use mesh_proto::{ErrorCode, MeshError, v1};
use ractor::ActorRef;

use super::{Message, RETRY_FIRST, State};
use crate::{
    deployment::{
        caller::Caller,
        machine::{EpochMachine, Phase},
        restore::bring_back,
    },
    ports::desired::DesiredDeployment,
};

impl State {
    /// Tries to bring it back.
    pub(super) fn restore(&mut self, myself: &ActorRef<Message>) {
        let Some(desired) = self.desired.clone() else { return };
        while self.tasks.try_join_next().is_some() {}
        self.machine = EpochMachine::new(0);
        let sender = self.caller.as_ref().map(|caller| caller.progress().clone());
        let (environment, myself) = (self.environment.clone(), myself.clone());
        self.tasks.spawn(async move {
            let restored = bring_back(desired, environment, sender).await;
            let _ = myself.cast(Message::Restored(restored.map(Box::new)));
        });
    }

    /// Somebody asks for what is being brought back, and waits for it from now on.
    pub(super) fn again(&mut self, caller: Caller, myself: &ActorRef<Message>) {
        if self.was_ready {
            return caller.answer(match self.machine.phase() {
                Phase::Ready => Ok(self.describe()),
                _ => Err(MeshError::new(
                    ErrorCode::NotReady,
                    "it was ready and was lost again; see `mesh status`",
                )),
            });
        }
        self.caller = Some(caller);
        self.retry = RETRY_FIRST;
        self.try_again(myself);
    }

    /// Unless an attempt is under way.
    pub(super) fn try_again(&mut self, myself: &ActorRef<Message>) {
        match (self.machine.phase(), &self.prepared) {
            (Phase::Over(_), Some(_)) => self.arrange(myself),
            (Phase::Over(_), None) => self.restore(myself),
            _ => {}
        }
    }

    /// Writes it down when it was ready for the first time, before anybody hears of it.
    pub(super) fn keep(&mut self, ready: v1::Deployment, myself: &ActorRef<Message>) {
        let Some(prepared) = &self.prepared else { return };
        let kept = DesiredDeployment {
            name: self.name.clone(),
            request: self.request.clone(),
            placed: prepared.placed(),
            source_id: self.facts.source_id.clone(),
            created: self.created,
        };
        if self.desired.as_ref() == Some(&kept) {
            return self.kept(Ok(Box::new(ready)));
        }
        let (desired, myself) = (self.environment.desired.clone(), myself.clone());
        self.keeping = Some(tokio::task::spawn_blocking(move || {
            let kept = desired.keep(&kept).map(|()| Box::new(ready));
            let _ = myself.cast(Message::Kept(kept));
        }));
    }

    pub(super) fn kept(&mut self, kept: Result<Box<v1::Deployment>, MeshError>) {
        self.keeping = None;
        match (kept, self.caller.take()) {
            (Ok(_), None) => {}
            (Ok(ready), Some(caller)) => {
                // Not here: a loss must be published at once, whoever is slow to see what was before.
                let directory = self.environment.directory.clone();
                self.tasks.spawn(async move {
                    directory.seen_by_all().await;
                    caller.answer(Ok(*ready));
                });
            }
            (Err(error), caller) => {
                // It would be gone after the next start, and nobody would know.
                tracing::error!(deployment = %self.name, %error, "a deployment cannot be kept");
                if let Some(caller) = caller {
                    caller.answer(Err(error));
                }
                self.served = false;
            }
        }
    }
}
