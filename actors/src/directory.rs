//! All deployments this node knows: its own, and those that other owners tell it about.
//!
//! ```text
//! DeploymentActors ── set_own ──▶ Directory ── own list ──▶ watch streams of other nodes (they answer "seen")
//! watch streams to other owners ── peer list, peer lost ──▶ Directory ── snapshot ──▶ gateway, status
//! ```
//!
//! A watch stream that ends means that the owner is gone: its deployments are not ready at once.

use std::{
    collections::{BTreeMap, HashMap},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use mesh_proto::{
    NodeId,
    v1::{Deployment, DeploymentPhase},
    wire::{DeploymentList, DeploymentRoute},
};
use tokio::sync::{Notify, watch};

/// How long `serve` waits until every watching node has seen the new deployment; a stalled one must not hold it up.
const SEEN_LIMIT: Duration = Duration::from_secs(2);

/// Cheap to clone.
#[derive(Debug, Clone)]
pub struct Directory {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    own: watch::Sender<DeploymentList>,
    peers: Mutex<BTreeMap<NodeId, DeploymentList>>,
    /// Newest version of the own list that each watching node has seen.
    seen: Mutex<HashMap<NodeId, u64>>,
    seen_changed: Notify,
}

impl Default for Directory {
    fn default() -> Self {
        let (own, _) = watch::channel(DeploymentList::default());
        let shared = Shared {
            own,
            peers: Mutex::default(),
            seen: Mutex::default(),
            seen_changed: Notify::new(),
        };
        Self {
            shared: Arc::new(shared),
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Directory {
    /// Adds, replaces or (with `None`) removes a deployment of this node.
    pub fn set_own(&self, name: &str, route: Option<DeploymentRoute>) {
        self.shared.own.send_modify(|list| {
            list.version += 1;
            list.deployments.retain(|known| name_of(known) != name);
            list.deployments.extend(route);
        });
    }

    /// The own list, for a watch stream.
    pub fn watch_own(&self) -> watch::Receiver<DeploymentList> {
        self.shared.own.subscribe()
    }

    /// A node watches the own list now.
    pub fn watcher_came(&self, node: NodeId) {
        lock(&self.shared.seen).insert(node, 0);
    }

    /// A watching node has seen a version of the own list.
    pub fn watcher_saw(&self, node: NodeId, version: u64) {
        if let Some(seen) = lock(&self.shared.seen).get_mut(&node) {
            *seen = version.max(*seen);
        }
        self.shared.seen_changed.notify_waiters();
    }

    /// A node no longer watches.
    pub fn watcher_left(&self, node: NodeId) {
        lock(&self.shared.seen).remove(&node);
        self.shared.seen_changed.notify_waiters();
    }

    /// Waits until every watching node has seen the present own list, or a limit passes.
    pub async fn seen_by_all(&self) {
        let version = self.shared.own.borrow().version;
        let wait = async {
            loop {
                let mut changed = std::pin::pin!(self.shared.seen_changed.notified());
                changed.as_mut().enable();
                if lock(&self.shared.seen).values().all(|seen| *seen >= version) {
                    return;
                }
                changed.await;
            }
        };
        let _ = tokio::time::timeout(SEEN_LIMIT, wait).await;
    }

    /// A list from another owner.
    pub fn peer_list(&self, owner: NodeId, list: DeploymentList) {
        lock(&self.shared.peers).insert(owner, list);
    }

    /// An owner's stream has ended.
    pub fn peer_lost(&self, owner: NodeId) {
        if let Some(list) = lock(&self.shared.peers).get_mut(&owner) {
            for deployment in list
                .deployments
                .iter_mut()
                .filter_map(|route| route.deployment.as_mut())
            {
                deployment.ready = false;
                deployment.phase = DeploymentPhase::Lost.into();
                deployment.reason = format!("its owner {} cannot be reached", deployment.owner);
            }
        }
    }

    /// An owner has left the mesh.
    pub fn peer_removed(&self, owner: NodeId) {
        lock(&self.shared.peers).remove(&owner);
    }

    /// A deployment of an owner that cannot be reached is no longer listed.
    pub fn forget(&self, owner: NodeId, name: &str) {
        if let Some(list) = lock(&self.shared.peers).get_mut(&owner) {
            list.deployments.retain(|route| name_of(route) != name);
        }
    }

    /// Everything known, own ones first.
    pub fn all(&self) -> Vec<DeploymentRoute> {
        let mut all = self.shared.own.borrow().deployments.clone();
        all.extend(
            lock(&self.shared.peers)
                .values()
                .flat_map(|list| list.deployments.iter().cloned()),
        );
        all
    }

    /// The deployment of this name; a ready one before one that is not.
    pub fn find(&self, name: &str) -> Option<DeploymentRoute> {
        let mut named: Vec<_> = self.all().into_iter().filter(|route| name_of(route) == name).collect();
        let ready = named
            .iter()
            .position(|route| deployment_of(route).is_some_and(|deployment| deployment.ready));
        (!named.is_empty()).then(|| named.swap_remove(ready.unwrap_or(0)))
    }

    /// As [`Self::find`], without this node's own.
    pub fn find_peer(&self, name: &str) -> Option<DeploymentRoute> {
        let peers = lock(&self.shared.peers);
        let mut routes = peers.values().flat_map(|list| &list.deployments);
        routes.find(|route| name_of(route) == name).cloned()
    }

    /// The owner of a deployment that is not this node's own.
    pub fn peer_owner(&self, name: &str) -> Option<NodeId> {
        let peers = lock(&self.shared.peers);
        let owns = |list: &DeploymentList| list.deployments.iter().any(|route| name_of(route) == name);
        peers.iter().find(|(_, list)| owns(list)).map(|(owner, _)| *owner)
    }
}

fn deployment_of(route: &DeploymentRoute) -> Option<&Deployment> {
    route.deployment.as_ref()
}

fn name_of(route: &DeploymentRoute) -> &str {
    deployment_of(route).map_or("", |deployment| deployment.name.as_str())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn route(name: &str, ready: bool) -> DeploymentRoute {
        let deployment = Deployment {
            name: name.to_owned(),
            ready,
            ..Deployment::default()
        };
        DeploymentRoute {
            deployment: Some(deployment),
            head: String::new(),
        }
    }

    #[test]
    fn a_lost_owner_makes_its_deployments_not_ready_at_once() {
        let directory = Directory::default();
        let owner = NodeId([1; 32]);
        directory.peer_list(
            owner,
            DeploymentList {
                version: 1,
                deployments: vec![route("x", true)],
            },
        );
        assert!(
            directory
                .find("x")
                .and_then(|route| route.deployment)
                .is_some_and(|deployment| deployment.ready)
        );
        directory.peer_lost(owner);
        let lost = directory.find("x").and_then(|route| route.deployment).unwrap();
        assert!(!lost.ready && lost.reason.contains("owner"));
    }

    #[tokio::test(start_paused = true)]
    async fn serve_waits_for_watchers_but_not_for_ever() {
        let directory = Directory::default();
        directory.watcher_came(NodeId([1; 32]));
        directory.set_own("x", Some(route("x", true)));
        let stalled = tokio::time::Instant::now();
        directory.seen_by_all().await;
        assert_eq!(stalled.elapsed(), SEEN_LIMIT);
        directory.watcher_saw(NodeId([1; 32]), 1);
        directory.seen_by_all().await;
        assert_eq!(stalled.elapsed(), SEEN_LIMIT);
    }
}
