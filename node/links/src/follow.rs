//! Watch streams to others: the issuer's member list, and the deployments of every member that is up.
//!
//! ```text
//! Followers ── one task for the issuer (on a member) ──▶ MembershipActor
//!           └─ one task for each member that is up ────▶ Directory
//! ```
//!
//! A stream that ends is opened again after a pause that doubles, with jitter; the tasks end with the node.

use std::collections::HashMap;

use iroh::endpoint::Connection;
use mesh_actors::{directory::Directory, membership::MembershipHandle};
use mesh_proto::{
    ErrorCode, MeshError, NodeId,
    v1::{Node, NodeState},
    wire::{
        DeploymentList, DeploymentListSeen, JoinResponse, KeyAgreement, MemberList, WatchDeployments, WatchRequest,
        control_request::Request,
    },
};
use tokio::{
    sync::watch,
    task::{AbortHandle, JoinSet},
    time::timeout,
};

use crate::{
    client::admitted,
    client_key,
    control::log_key_in_use,
    error::{lost, too_late},
    message,
    pause::Pause,
    peers::{Peers, open},
    protocol::{ANSWER_LIMIT, MAX_MESSAGE},
};

/// All following tasks of a node; dropping it ends them.
#[derive(Debug)]
pub struct Followers {
    _tasks: JoinSet<()>,
}

impl Followers {
    /// Starts to follow. `issuer` is `None` on the issuer itself. `own` is what this node says of itself. `expelled`
    /// hears when the issuer no longer knows this node.
    pub fn start(
        peers: Peers,
        membership: MembershipHandle,
        directory: Directory,
        own: Node,
        issuer: Option<NodeId>,
    ) -> (Self, watch::Receiver<Option<MeshError>>) {
        let (expelled, on_expelled) = watch::channel(None);
        let mut tasks = JoinSet::new();
        if let Some(issuer) = issuer {
            tasks.spawn(follow_issuer(
                peers.clone(),
                membership.clone(),
                own.clone(),
                issuer,
                expelled,
            ));
        }
        tasks.spawn(end_removed(peers.clone(), membership.list()));
        tasks.spawn(follow_owners(peers, membership.nodes(), directory, own.id));
        (Self { _tasks: tasks }, on_expelled)
    }
}

async fn follow_issuer(
    peers: Peers,
    membership: MembershipHandle,
    own: Node,
    issuer: NodeId,
    expelled: watch::Sender<Option<MeshError>>,
) {
    let (mut pause, mut told) = (Pause::new(), Told::default());
    loop {
        match watch_members(&peers, &membership, &own, issuer, &mut pause, &mut told).await {
            Err(error) if matches!(error.code, ErrorCode::PermissionDenied | ErrorCode::Conflict) => {
                tracing::error!(%error, "the mesh does not take this node");
                expelled.send_replace(Some(error));
                return;
            }
            Err(error) => tracing::warn!(%error, "the issuer cannot be reached"),
            Ok(()) => tracing::warn!("the issuer ended the member list"),
        }
        membership.issuer_lost();
        pause.wait().await;
    }
}

async fn watch_members(
    peers: &Peers,
    membership: &MembershipHandle,
    own: &Node,
    issuer: NodeId,
    pause: &mut Pause,
    told: &mut Told,
) -> Result<(), MeshError> {
    let connection = peers.control(issuer).await?;
    let watch = Request::Watch(WatchRequest {
        node: Some(own.clone()),
    });
    let (_send, mut recv) = open(&connection, watch, peers.key()).await?;
    let first = timeout(ANSWER_LIMIT, message::expect::<JoinResponse>(&mut recv, MAX_MESSAGE))
        .await
        .map_err(|_| too_late("the issuer", ANSWER_LIMIT.as_secs()))??;
    told.keys(first.keys());
    let first = admitted(first)?;
    if let Some(node) = first.nodes.iter().find(|node| node.id == issuer.to_string()) {
        peers.lives().note(issuer, node, &connection);
    }
    told.list(&first, own);
    membership.replace(first).await?;
    pause.reset();
    let lists = async {
        while let Some(list) = message::read::<MemberList>(&mut recv, MAX_MESSAGE).await? {
            told.list(&list, own);
            membership.replace(list).await?;
        }
        Ok(())
    };
    tokio::select! {
        ended = lists => ended,
        error = take_probes(&connection) => Err(error),
    }
}

/// The issuer opens empty streams to see whether this node is alive; taking them makes room for the next.
async fn take_probes(connection: &Connection) -> MeshError {
    loop {
        if let Err(error) = connection.accept_bi().await {
            return lost("the control connection", &error);
        }
    }
}

/// What the log has been told already.
#[derive(Debug, Default)]
struct Told {
    keys: KeyAgreement,
    key_in_use_by: String,
}

impl Told {
    fn keys(&mut self, keys: KeyAgreement) {
        if std::mem::replace(&mut self.keys, keys) != keys {
            client_key::tell(keys);
        }
    }

    fn list(&mut self, list: &MemberList, own: &Node) {
        let own = list.nodes.iter().find(|node| node.id == own.id);
        let place = own.map(|own| own.key_in_use_by.clone()).unwrap_or_default();
        if !place.is_empty() && place != self.key_in_use_by {
            log_key_in_use(&place);
        }
        self.key_in_use_by = place;
    }
}

/// Ends the connections with nodes that were removed.
async fn end_removed(peers: Peers, mut list: watch::Receiver<MemberList>) {
    loop {
        let removed = list.borrow_and_update().removed.clone();
        for node in removed.iter().filter_map(|id| id.parse().ok()) {
            peers.end(node);
        }
        if list.changed().await.is_err() {
            return;
        }
    }
}

/// Keeps one watch for each member that is up.
async fn follow_owners(peers: Peers, mut members: watch::Receiver<Vec<Node>>, directory: Directory, own: String) {
    let mut tasks = JoinSet::new();
    let mut watched: HashMap<NodeId, AbortHandle> = HashMap::new();
    loop {
        let list = members.borrow_and_update().clone();
        let ids = |wanted: &dyn Fn(&Node) -> bool| -> Vec<NodeId> {
            list.iter()
                .filter(|node| node.id != own && wanted(node))
                .filter_map(|node| node.id.parse().ok())
                .collect()
        };
        let (known, up) = (ids(&|_| true), ids(&|node| node.state == NodeState::Up as i32));
        watched.retain(|node, task| {
            let keep = up.contains(node) && !task.is_finished();
            if !keep {
                task.abort();
                directory.peer_lost(*node);
            }
            if !known.contains(node) {
                directory.peer_removed(*node);
            }
            keep
        });
        for node in up {
            watched
                .entry(node)
                .or_insert_with(|| tasks.spawn(follow_owner(peers.clone(), directory.clone(), node)));
        }
        tokio::select! {
            changed = members.changed() => if changed.is_err() { return },
            Some(_) = tasks.join_next() => {}
        }
    }
}

async fn follow_owner(peers: Peers, directory: Directory, owner: NodeId) {
    let mut pause = Pause::new();
    loop {
        if let Err(error) = watch_deployments(&peers, &directory, owner, &mut pause).await {
            tracing::debug!(%owner, %error, "deployments of a node cannot be watched");
        }
        directory.peer_lost(owner);
        pause.wait().await;
    }
}

async fn watch_deployments(
    peers: &Peers,
    directory: &Directory,
    owner: NodeId,
    pause: &mut Pause,
) -> Result<(), MeshError> {
    let (mut send, mut recv) = peers
        .request(owner, Request::WatchDeployments(WatchDeployments {}))
        .await?;
    while let Some(list) = message::read::<DeploymentList>(&mut recv, MAX_MESSAGE).await? {
        pause.reset();
        let version = list.version;
        directory.peer_list(owner, list);
        message::write(&mut send, &DeploymentListSeen { version }).await?;
    }
    Ok(())
}
