//! The root supervisor of a node: what fails without a supervisor of its own ends up here, is logged, and follows the
//! policy table.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
};

use mesh_proto::MeshError;
use ractor::{Actor, ActorCell, ActorId, ActorProcessingErr, ActorRef, SupervisionEvent};
use tokio_util::sync::CancellationToken;

use crate::policy::{ActorKind, Policy, on_failure};

/// Handle to the root supervisor. Cheap to clone.
#[derive(Debug, Clone)]
pub struct RootHandle {
    actor: ActorRef<()>,
    kinds: Kinds,
}

type Kinds = Arc<Mutex<HashMap<ActorId, ActorKind>>>;

impl RootHandle {
    /// Starts the root of a node. `end_node` is cancelled when an actor fails that the node cannot do without.
    ///
    /// # Errors
    ///
    /// The actor does not start.
    pub async fn spawn(end_node: CancellationToken) -> Result<Self, MeshError> {
        let kinds = Kinds::default();
        let (actor, _) = Actor::spawn(None, RootActor, (kinds.clone(), end_node))
            .await
            .map_err(|error| MeshError::internal(format!("the root supervisor did not start: {error}")))?;
        Ok(Self { actor, kinds })
    }

    /// The supervisor to link children to.
    pub fn cell(&self) -> ActorCell {
        self.actor.get_cell()
    }

    /// Says what a child is, so that its failure follows the right policy.
    pub fn adopt(&self, child: &ActorCell, kind: ActorKind) {
        self.kinds
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .insert(child.get_id(), kind);
    }

    /// Stops what is left and the root itself.
    pub async fn stop(&self) {
        self.actor.stop_children_and_wait(None, None).await;
        self.actor.stop(None);
    }
}

struct RootActor;

impl Actor for RootActor {
    type Msg = ();
    type State = (Kinds, CancellationToken);
    type Arguments = (Kinds, CancellationToken);

    async fn pre_start(&self, _: ActorRef<()>, state: Self::State) -> Result<Self::State, ActorProcessingErr> {
        Ok(state)
    }

    async fn handle_supervisor_evt(
        &self,
        _: ActorRef<()>,
        event: SupervisionEvent,
        (kinds, end_node): &mut Self::State,
    ) -> Result<(), ActorProcessingErr> {
        let forget = |child: &ActorCell| {
            kinds
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .remove(&child.get_id())
        };
        match event {
            SupervisionEvent::ActorTerminated(child, ..) => drop(forget(&child)),
            SupervisionEvent::ActorFailed(child, error) => {
                // One that fails before it was adopted is no member list: that is adopted before anybody calls it.
                let policy = forget(&child).map(|kind| on_failure(kind, &error));
                match policy {
                    Some(Policy::EndNode) => end_node.cancel(),
                    Some(_) => {}
                    None => tracing::error!(%error, "an actor failed as it started"),
                }
            }
            _ => {}
        }
        Ok(())
    }
}
