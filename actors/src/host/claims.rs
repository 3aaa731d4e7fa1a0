//! Whose a deployment's name is on this node, and which of its stages still hold memory.
//!
//! A host claims the name before anything else, and gives its claim back when its engine's memory is free. So stages of
//! two owners never mix under one name, and a stage is loaded only when those of earlier epochs are gone.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use mesh_proto::{ErrorCode, MeshError, NodeId, wire::StageSpec};
use tokio::sync::Notify;

use super::actor::UNLOAD_LIMIT;

/// How long a stage waits for the memory of earlier ones: their hosts take no longer to end, and a little for the word
/// that they have to.
const FREED_LIMIT: Duration = UNLOAD_LIMIT.saturating_add(Duration::from_secs(5));

/// The node that asked for a stage and holds it: proven by its connection, whatever it says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StageOwner {
    /// Id.
    pub node: NodeId,
    /// Name, for messages.
    pub name: String,
}

/// What the second owner of a name is told.
pub(crate) fn already_served(deployment: &str, owner: &str) -> MeshError {
    let message = format!(
        "{deployment} is already served by node {owner}; stop it there with `mesh stop`, or choose another --name"
    );
    MeshError::new(ErrorCode::Conflict, message).with_param("name")
}

/// All claims on a node.
#[derive(Default)]
pub(super) struct Claims {
    held: Mutex<Held>,
    freed: Notify,
}

#[derive(Default)]
struct Held {
    last: u64,
    /// By order of arrival.
    claims: BTreeMap<u64, Claimed>,
}

struct Claimed {
    owner: StageOwner,
    deployment: String,
    epoch: u64,
    stage: u32,
}

impl Claims {
    /// Claims a deployment's name for one of its stages.
    ///
    /// # Errors
    ///
    /// It is another owner's here.
    pub(super) fn take(self: &Arc<Self>, owner: &StageOwner, spec: &StageSpec) -> Result<Claim, MeshError> {
        let mut held = self.lock();
        let others = |claimed: &&Claimed| claimed.deployment == spec.deployment && claimed.owner.node != owner.node;
        if let Some(other) = held.claims.values().find(others) {
            return Err(already_served(&spec.deployment, &other.owner.name));
        }
        held.last += 1;
        let order = held.last;
        let claimed = Claimed {
            owner: owner.clone(),
            deployment: spec.deployment.clone(),
            epoch: spec.epoch,
            stage: spec.stage,
        };
        held.claims.insert(order, claimed);
        Ok(Claim {
            claims: self.clone(),
            order,
        })
    }

    /// Earlier stages of a claim's deployment that are still in memory: those of other epochs, and one in its own place,
    /// left by an owner that has started anew and counts from one again.
    fn is_waiting(&self, order: u64) -> bool {
        let held = self.lock();
        let Some(own) = held.claims.get(&order) else {
            return false;
        };
        held.claims.range(..order).any(|(_, earlier)| {
            earlier.deployment == own.deployment && (earlier.epoch != own.epoch || earlier.stage == own.stage)
        })
    }

    fn lock(&self) -> MutexGuard<'_, Held> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// One host's claim; dropping it gives it back.
pub(super) struct Claim {
    claims: Arc<Claims>,
    order: u64,
}

impl Claim {
    /// Later claims have higher numbers.
    pub(super) fn order(&self) -> u64 {
        self.order
    }

    /// Resolves when the memory of earlier stages of this deployment is free.
    ///
    /// # Errors
    ///
    /// It is not within [`FREED_LIMIT`].
    pub(super) fn earlier_freed(&self) -> impl Future<Output = Result<(), MeshError>> + Send + use<> {
        let (claims, order) = (self.claims.clone(), self.order);
        async move {
            let freed = async {
                loop {
                    let mut changed = std::pin::pin!(claims.freed.notified());
                    changed.as_mut().enable();
                    if !claims.is_waiting(order) {
                        return;
                    }
                    changed.await;
                }
            };
            tokio::time::timeout(FREED_LIMIT, freed).await.map_err(|_| {
                let message = "stages of an earlier epoch still hold this node's memory; see its log, and start it again \
                               if they never end";
                MeshError::new(ErrorCode::NotReady, message)
            })
        }
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        self.claims.lock().claims.remove(&self.order);
        self.claims.freed.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;

    use super::*;

    fn owner(byte: u8, name: &str) -> StageOwner {
        StageOwner {
            node: NodeId([byte; 32]),
            name: name.to_owned(),
        }
    }

    fn stage(deployment: &str, epoch: u64, stage: u32) -> StageSpec {
        StageSpec {
            deployment: deployment.to_owned(),
            epoch,
            stage,
            ..StageSpec::default()
        }
    }

    #[test]
    fn a_name_is_one_owners_until_its_last_stage_is_gone() {
        let claims = Arc::new(Claims::default());
        let (a, b) = (owner(1, "a"), owner(2, "b"));
        let first = claims.take(&a, &stage("x", 1, 0)).unwrap();
        let second = claims.take(&a, &stage("x", 1, 1)).unwrap();
        for _ in 0..2 {
            let refused = claims.take(&b, &stage("x", 1, 0)).err().unwrap();
            assert_eq!(refused.code, ErrorCode::Conflict);
            assert!(refused.message.contains("already served by node a"), "{refused}");
        }
        claims.take(&b, &stage("y", 1, 0)).expect("another name");
        drop(first);
        assert!(claims.take(&b, &stage("x", 1, 0)).is_err());
        drop(second);
        claims.take(&b, &stage("x", 1, 0)).expect("free");
    }

    #[tokio::test]
    async fn a_stage_waits_for_earlier_epochs_and_not_for_its_own() {
        let claims = Arc::new(Claims::default());
        let a = owner(1, "a");
        let old = claims.take(&a, &stage("x", 1, 0)).unwrap();
        let (left, right) = (
            claims.take(&a, &stage("x", 2, 0)).unwrap(),
            claims.take(&a, &stage("x", 2, 1)).unwrap(),
        );
        let waits = |claim: &Claim| claim.earlier_freed().now_or_never().is_none();
        assert!(waits(&left) && waits(&right) && !waits(&old));
        drop(old);
        assert!(!waits(&left) && !waits(&right));
        // An owner that has started anew counts from one again.
        let again = claims.take(&a, &stage("x", 2, 1)).unwrap();
        assert!(waits(&again) && !waits(&right));
        drop((left, right));
        assert!(!waits(&again));
    }

    #[tokio::test(start_paused = true)]
    async fn waiting_has_an_end() {
        let claims = Arc::new(Claims::default());
        let _old = claims.take(&owner(1, "a"), &stage("x", 1, 0)).unwrap();
        let new = claims.take(&owner(1, "a"), &stage("x", 2, 0)).unwrap();
        let since = tokio::time::Instant::now();
        assert_eq!(new.earlier_freed().await.expect_err("held").code, ErrorCode::NotReady);
        assert_eq!(since.elapsed(), FREED_LIMIT);
    }
}
