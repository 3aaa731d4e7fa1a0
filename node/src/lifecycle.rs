//! Requests of the whole mesh, through one node: subscriptions, lists, receipts, cancellation.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
};

use async_trait::async_trait;
use futures::{
    FutureExt as _, StreamExt as _,
    future::join_all,
    stream::{self, FuturesUnordered},
};
use mesh_actors::{
    events::{EventBus, Subscription},
    host::StageRegistry,
    ports::lifecycle::{Lifecycles, NoticeStream},
};
use mesh_links::Peers;
use mesh_proto::{
    ErrorCode, MeshError, NodeId, RequestId,
    v1::{
        CancelRequestRequest, Cursor, GetReceiptRequest, ListRequestsRequest, ListRequestsResponse, Node, NodeState,
        Receipt, Scope, SubscribeRequest, SubscribeResponse,
    },
};
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore, mpsc, watch},
    task::{AbortHandle, JoinSet},
};

/// Notices of other nodes that wait for one subscriber. When it is full, the subscription to that node ends until there
/// is room, so that nothing piles up on connections that others use.
const MERGE_QUEUE: usize = 256;

/// Subscribers of the whole mesh at once: each takes a control stream to every other node, of the 1,024 that a member
/// may open.
const MAX_MESH_SUBSCRIBERS: usize = 256;

/// The [`Lifecycles`] of a node.
pub struct MeshLifecycles {
    /// Events of this node.
    events: EventBus,
    /// Stages on this node.
    registry: Arc<StageRegistry>,
    /// Other nodes.
    peers: Peers,
    /// All nodes.
    members: watch::Receiver<Vec<Node>>,
    /// This node.
    own: NodeId,
    mesh_places: Arc<Semaphore>,
}

impl MeshLifecycles {
    /// Of this node, in the mesh of these members.
    pub fn new(
        own: NodeId,
        events: EventBus,
        registry: Arc<StageRegistry>,
        peers: Peers,
        members: watch::Receiver<Vec<Node>>,
    ) -> Self {
        Self {
            events,
            registry,
            peers,
            members,
            own,
            mesh_places: Arc::new(Semaphore::new(MAX_MESH_SUBSCRIBERS)),
        }
    }

    fn subscribe_node(&self, request: &SubscribeRequest) -> Result<NoticeStream, MeshError> {
        if let Some(cursor) = &request.cursor {
            check_cursor(cursor, self.events.node())?;
        }
        let subscription = self.events.subscribe(request)?;
        let next = |mut subscription: Subscription| async {
            let message = subscription.next_message().await?;
            Some((Ok(message), subscription))
        };
        Ok(stream::unfold(subscription, next).boxed())
    }

    fn subscribe_mesh(&self, mut request: SubscribeRequest) -> Result<NoticeStream, MeshError> {
        let Ok(place) = self.mesh_places.clone().try_acquire_owned() else {
            let message = format!(
                "{MAX_MESH_SUBSCRIBERS} subscribers follow the whole mesh through this node; use another one, or \
                 SCOPE_NODE"
            );
            return Err(MeshError::new(ErrorCode::QueueFull, message));
        };
        let local = self.events.subscribe(&request)?;
        request.scope = Scope::Node.into();
        let (sender, remote) = mpsc::channel(MERGE_QUEUE);
        let mut followers = JoinSet::new();
        followers.spawn(follow_members(
            self.peers.clone(),
            self.members.clone(),
            self.own,
            request,
            sender,
        ));
        let merged = Merged {
            local,
            remote,
            _followers: followers,
            _place: place,
        };
        let next = |mut merged: Merged| async {
            let message = merged.next().await?;
            Some((message, merged))
        };
        Ok(stream::unfold(merged, next).boxed())
    }

    fn others(&self) -> Vec<(NodeId, String)> {
        let members = self.members.borrow();
        let up = members.iter().filter(|member| member.state == NodeState::Up as i32);
        up.filter_map(|member| Some((member.id.parse().ok()?, member.name.clone())))
            .filter(|(id, _)| *id != self.own)
            .collect()
    }

    /// Asks all other nodes at once; the first that knows answers.
    async fn ask_others<T, F: Future<Output = Result<T, MeshError>>>(
        &self,
        id: RequestId,
        ask: impl Fn(NodeId) -> F,
    ) -> Result<T, MeshError> {
        let others = self.others();
        let mut answers: FuturesUnordered<_> = others
            .iter()
            .map(|(node, name)| ask(*node).map(move |answer| (answer, name.as_str())))
            .collect();
        let (mut silent, mut refused) = (Vec::new(), None);
        while let Some((answer, name)) = answers.next().await {
            match answer {
                Ok(found) => return Ok(found),
                Err(error) if error.code == ErrorCode::NotFound => {}
                Err(error) if error.code == ErrorCode::PermissionDenied => refused = Some(error),
                Err(_) => silent.push(name),
            }
        }
        if let Some(error) = refused {
            return Err(error);
        }
        let mut message = format!("request {id} is not known; receipts are kept for the last 1,024 requests of a node");
        if !silent.is_empty() {
            message = format!("{message}; {} could not say", silent.join(", "));
        }
        Err(MeshError::new(ErrorCode::NotFound, message))
    }
}

#[async_trait]
impl Lifecycles for MeshLifecycles {
    async fn subscribe(&self, request: SubscribeRequest) -> Result<NoticeStream, MeshError> {
        match scope(request.scope)? {
            Scope::Mesh => self.subscribe_mesh(request),
            Scope::Node | Scope::Unspecified => self.subscribe_node(&request),
        }
    }

    async fn requests(&self, request: ListRequestsRequest) -> Result<ListRequestsResponse, MeshError> {
        let whole_mesh = scope(request.scope)? == Scope::Mesh;
        let mut requests = self.events.requests(&request);
        let mut missing = Vec::new();
        if whole_mesh {
            let others = self.others();
            let ask = |node| self.peers.list_requests(node, request.clone());
            let answers = join_all(others.iter().map(|(node, _)| ask(*node))).await;
            for (answer, (_, name)) in answers.into_iter().zip(others) {
                match answer {
                    Ok(more) => requests.extend(more),
                    // Not silence: this node has not the mesh's key.
                    Err(error) if error.code == ErrorCode::PermissionDenied => return Err(error),
                    Err(_) => missing.push(name),
                }
            }
        }
        Ok(ListRequestsResponse { requests, missing })
    }

    async fn receipt(&self, request: GetReceiptRequest) -> Result<Receipt, MeshError> {
        let id = RequestId::asked(&request.request_id)?;
        if let Some(receipt) = self.events.receipt(id) {
            return Ok(receipt.to_message(self.events.node(), request.include_token_ids));
        }
        self.ask_others(id, |node| self.peers.receipt(node, request.clone()))
            .await
    }

    async fn cancel(&self, request: CancelRequestRequest) -> Result<(), MeshError> {
        let id = RequestId::asked(&request.request_id)?;
        let deployment = self.events.deployment_of(id);
        if let Some(head) = deployment.and_then(|deployment| self.registry.head(&deployment)) {
            head.cancel(id);
            return Ok(());
        }
        self.ask_others(id, |node| self.peers.cancel_request(node, request.clone()))
            .await
    }

    async fn close(&self) {
        let error = MeshError::new(ErrorCode::Draining, "the node of this request stops; send it again");
        join_all(self.registry.heads().iter().map(|head| head.drain(error.clone()))).await;
        self.events.close();
    }
}

/// This node's subscription and those of all others.
struct Merged {
    local: Subscription,
    remote: mpsc::Receiver<Result<SubscribeResponse, MeshError>>,
    _followers: JoinSet<()>,
    _place: OwnedSemaphorePermit,
}

impl Merged {
    async fn next(&mut self) -> Option<Result<SubscribeResponse, MeshError>> {
        tokio::select! {
            own = self.local.next_message() => own.map(Ok),
            Some(other) = self.remote.recv() => Some(other),
        }
    }
}

/// One follower for each other member, for as long as it is one: while it is down, from where it broke off.
async fn follow_members(
    peers: Peers,
    mut members: watch::Receiver<Vec<Node>>,
    own: NodeId,
    request: SubscribeRequest,
    notices: mpsc::Sender<Result<SubscribeResponse, MeshError>>,
) {
    let mut followed: HashMap<NodeId, AbortHandle> = HashMap::new();
    let mut followers = JoinSet::new();
    loop {
        let known: HashSet<NodeId> = {
            let members = members.borrow_and_update();
            let ids = members.iter().filter_map(|member| member.id.parse().ok());
            ids.filter(|id| *id != own).collect()
        };
        followed.retain(|node, follower| {
            let stays = known.contains(node);
            if !stays {
                follower.abort();
            }
            stays
        });
        for node in known {
            let (peers, request, notices) = (peers.clone(), request.clone(), notices.clone());
            let follow = async move { peers.follow_requests(node, request, &notices).await };
            followed.entry(node).or_insert_with(|| followers.spawn(follow));
        }
        while followers.try_join_next().is_some() {}
        if members.changed().await.is_err() {
            return;
        }
    }
}

fn scope(number: i32) -> Result<Scope, MeshError> {
    Scope::try_from(number)
        .map_err(|_| MeshError::invalid("scope", format!("{number} is no scope; use SCOPE_NODE or SCOPE_MESH")))
}

/// A cursor without this node's position was made elsewhere.
fn check_cursor(cursor: &Cursor, node: &str) -> Result<(), MeshError> {
    if cursor.positions.iter().any(|position| position.node == node) {
        return Ok(());
    }
    let names: Vec<&str> = cursor.positions.iter().map(|position| position.node.as_str()).collect();
    let message = format!(
        "the cursor is of {}, this is node {node}; resume there, or with SCOPE_MESH",
        if names.is_empty() {
            "no node".to_owned()
        } else {
            names.join(", ")
        }
    );
    Err(MeshError::invalid("cursor", message))
}
