//! What a node does for others on control streams.

mod claim;
mod generate;
mod host;
mod join;
mod lifecycle;
mod watch;

use std::{path::PathBuf, sync::Arc};

use async_trait::async_trait;
use iroh::endpoint::{Connection, RecvStream, SendStream};
use mesh_actors::{
    deployment::Owner,
    directory::Directory,
    events::EventBus,
    host::{HostEnvironment, StageRegistry},
    membership::MembershipHandle,
};
use mesh_proto::{
    MeshError, NodeId,
    wire::{
        self, Artifact, ControlRequest, FetchRequest, FetchResponse, GenerateReply, HostEvent, JoinRequest,
        JoinResponse, LanesResponse, LeaveResponse, LifecycleReply, RemoveNodeResponse, StopDeploymentResponse,
        SubscribeReply, control_request::Request, fetch_response, generate_reply, host_event, join_response,
        lifecycle_reply, subscribe_reply,
    },
};
use tokio::{io::AsyncSeekExt, time::timeout};

pub use claim::answer_stranger as answer_strangers_claim;
pub use join::join;

use crate::{
    client_key::KeyCheck,
    endpoint::peer_of,
    error::protocol,
    message,
    peers::Peers,
    protocol::{ADMISSION_LIMIT, MAX_MESSAGE},
    ticket::TicketIssuer,
};

/// Finds files of this node by content, for others to fetch.
#[async_trait]
pub trait FileSource: Send + Sync + 'static {
    /// Path and facts of a file, if this node has it or can make it again. It is whole.
    async fn find(&self, digest: &str) -> Option<(PathBuf, Artifact)>;
}

/// What the handlers reach.
pub struct ControlServices {
    /// Member list.
    pub membership: MembershipHandle,
    /// Deployments.
    pub directory: Directory,
    /// Deployments of this node.
    pub owner: Owner,
    /// Stages on this node.
    pub registry: Arc<StageRegistry>,
    /// For hosting stages.
    pub hosts: Arc<HostEnvironment>,
    /// Lifecycle events of requests whose head is here.
    pub events: EventBus,
    /// Files for others.
    pub files: Arc<dyn FileSource>,
    /// Checks joins.
    pub tickets: TicketIssuer,
    /// Other nodes.
    pub peers: Peers,
}

/// Who asks on a connection.
#[derive(Debug, Clone)]
pub struct Peer {
    /// Its id.
    pub id: NodeId,
    /// The connection.
    pub connection: Connection,
    /// What its gateway asks clients for, against what this node's does.
    pub keys: KeyCheck,
}

impl Peer {
    /// At the other end of a connection.
    pub fn new(connection: &Connection, services: &ControlServices) -> Result<Self, MeshError> {
        Ok(Self {
            id: peer_of(connection),
            connection: connection.clone(),
            keys: KeyCheck::new(services.peers.key(), connection)?,
        })
    }

    /// Its name in the mesh.
    fn name(&self, services: &ControlServices) -> String {
        let id = self.id.to_string();
        let members = services.membership.nodes();
        let members = members.borrow();
        let member = members.iter().find(|member| member.id == id);
        member.map_or_else(|| id[..10].to_owned(), |member| member.name.clone())
    }
}

/// The join in a request, if it is one.
pub fn as_join(request: &ControlRequest) -> Option<&JoinRequest> {
    match &request.request {
        Some(Request::Join(join)) => Some(join),
        _ => None,
    }
}

/// The request is a watch of the member list.
pub fn is_watch(request: &ControlRequest) -> bool {
    matches!(request.request, Some(Request::Watch(_)))
}

/// The request asks whether the peer's key is in use.
pub fn is_claim(request: &ControlRequest) -> bool {
    matches!(request.request, Some(Request::Claim(_)))
}

/// Refuses a join or a watch in words.
pub async fn refuse(connection: &Connection, mut send: SendStream, error: MeshError) -> Result<(), MeshError> {
    let result = Some(join_response::Result::Refused(error.into()));
    message::write(&mut send, &JoinResponse { result, keys: 0 }).await?;
    let _ = send.finish();
    // The peer closes when it has read the answer.
    let _ = timeout(ADMISSION_LIMIT, connection.closed()).await;
    Ok(())
}

/// Reads the request of a stream and serves it.
pub async fn serve_stream(peer: Peer, send: SendStream, mut recv: RecvStream, services: Arc<ControlServices>) {
    match message::expect::<ControlRequest>(&mut recv, MAX_MESSAGE).await {
        Ok(request) => dispatch(&peer, send, recv, request, services).await,
        Err(error) => tracing::debug!(peer = %peer.id, %error, "control stream without a request"),
    }
}

/// Serves one request. An error is logged; what the peer must know was written to the stream before.
pub async fn dispatch(
    peer: &Peer,
    mut send: SendStream,
    recv: RecvStream,
    request: ControlRequest,
    services: Arc<ControlServices>,
) {
    let allowed = peer
        .keys
        .allows(&request, &peer.name(&services), &services.hosts.node_name);
    if let Err(error) = allowed {
        tracing::warn!(peer = %peer.id, %error, "refused to a gateway with another key");
        let _ = refuse_request(&mut send, &request, error).await;
        return;
    }
    let keys = peer.keys.agreement(&request.key_proof);
    let done = match request.request {
        Some(Request::Watch(watch)) => watch::members(peer, send, recv, watch, keys, &services).await,
        Some(Request::WatchDeployments(_)) => watch::deployments(peer.id, send, recv, &services).await,
        Some(Request::HostStage(host)) => host::host_stage(peer, send, recv, host, &services).await,
        Some(Request::Generate(request)) => generate::generate(send, recv, request, &services).await,
        Some(Request::Subscribe(subscribe)) => lifecycle::subscribe(send, recv, subscribe, &services.events).await,
        Some(Request::ListRequests(list)) => {
            message::write(&mut send, &lifecycle::requests(&list, &services.events)).await
        }
        Some(Request::GetReceipt(asked)) => {
            message::write(&mut send, &lifecycle::receipt(&asked, &services.events)).await
        }
        Some(Request::Cancel(cancel)) => message::write(&mut send, &lifecycle::cancel(&cancel, &services)).await,
        Some(Request::Fetch(fetch)) => serve_file(&mut send, fetch, services.files.as_ref()).await,
        Some(Request::Lanes(asked)) => {
            let lanes = services.registry.head(&asked.deployment).map(|head| head.lanes());
            message::write(&mut send, &LanesResponse { lanes }).await
        }
        Some(Request::Leave(_)) => match services.membership.leave(peer.id).await {
            Ok(()) => message::write(&mut send, &LeaveResponse {}).await,
            Err(error) => Err(error),
        },
        Some(Request::Remove(remove)) => {
            let refused = services
                .membership
                .remove(&remove.name)
                .await
                .err()
                .map(wire::Refusal::from);
            message::write(&mut send, &RemoveNodeResponse { refused }).await
        }
        Some(Request::Claim(claim)) => claim::answer(peer, &mut send, claim, &services).await,
        Some(Request::KeyInUse(told)) => claim::told(&mut send, told, &services).await,
        Some(Request::Stop(stop)) => {
            let refused = services.owner.stop(&stop.name).await.err().map(wire::Refusal::from);
            message::write(&mut send, &StopDeploymentResponse { refused }).await
        }
        // A member that joins again, after it lost its data directory's member list.
        Some(Request::Join(_)) => {
            let list = services.membership.list().borrow().clone();
            message::write(
                &mut send,
                &JoinResponse {
                    result: Some(join_response::Result::Admitted(list)),
                    keys: keys.into(),
                },
            )
            .await
        }
        None => Err(protocol("a peer asked for something that this node does not know")),
    };
    if let Err(error) = done {
        tracing::debug!(peer = %peer.id, %error, "control stream ended");
    }
}

/// Refuses a request in the words that its asker waits for.
async fn refuse_request(send: &mut SendStream, request: &ControlRequest, error: MeshError) -> Result<(), MeshError> {
    let refused: wire::Refusal = error.into();
    match &request.request {
        Some(Request::Generate(_)) => {
            let reply = Some(generate_reply::Reply::Refused(refused));
            message::write(send, &GenerateReply { reply }).await?;
        }
        Some(Request::Subscribe(_)) => {
            let reply = Some(subscribe_reply::Reply::Refused(refused));
            message::write(send, &SubscribeReply { reply }).await?;
        }
        Some(Request::HostStage(_)) => {
            let event = Some(host_event::Event::Failed(refused));
            message::write(send, &HostEvent { event }).await?;
        }
        _ => {
            let reply = Some(lifecycle_reply::Reply::Refused(refused));
            message::write(send, &LifecycleReply { reply }).await?;
        }
    }
    let _ = send.finish();
    Ok(())
}

/// Another process tried to use the key of this node.
pub fn log_key_in_use(other: &str) {
    tracing::error!(
        other,
        "another process tried to use the key of this node: if its data directory is a copy, give it a new one; if it \
         was stolen, leave the mesh and start on a new data directory yourself"
    );
}

/// Sends a file from an offset on.
async fn serve_file(send: &mut SendStream, fetch: FetchRequest, files: &dyn FileSource) -> Result<(), MeshError> {
    let io = |error: std::io::Error| MeshError::internal(format!("a file could not be read: {error}"));
    let Some((path, artifact)) = files.find(&fetch.digest).await else {
        let error = MeshError::new(
            mesh_proto::ErrorCode::NotFound,
            "this node no longer has the file; serve again",
        );
        let refused = FetchResponse {
            result: Some(fetch_response::Result::Refused(error.into())),
        };
        return message::write(send, &refused).await;
    };
    let mut file = tokio::fs::File::open(&path).await.map_err(io)?;
    file.seek(std::io::SeekFrom::Start(fetch.offset.min(artifact.bytes)))
        .await
        .map_err(io)?;
    message::write(
        send,
        &FetchResponse {
            result: Some(fetch_response::Result::Found(artifact)),
        },
    )
    .await?;
    tokio::io::copy(&mut file, send).await.map_err(io)?;
    let _ = send.finish();
    Ok(())
}
