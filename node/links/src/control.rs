//! What a node does for others on control streams.

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
        self, Artifact, ControlRequest, FetchRequest, FetchResponse, JoinRequest, JoinResponse, LanesResponse,
        LeaveResponse, StopDeploymentResponse, control_request::Request, fetch_response, join_response,
    },
};
use tokio::{io::AsyncSeekExt, time::timeout};

pub use join::join;

use crate::{
    error::protocol,
    message,
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

/// Refuses a join or a watch in words.
pub async fn refuse(connection: &Connection, mut send: SendStream, error: MeshError) -> Result<(), MeshError> {
    let result = Some(join_response::Result::Refused(error.into()));
    message::write(&mut send, &JoinResponse { result }).await?;
    let _ = send.finish();
    // The peer closes when it has read the answer.
    let _ = timeout(ADMISSION_LIMIT, connection.closed()).await;
    Ok(())
}

/// Reads the request of a stream and serves it.
pub async fn serve_stream(peer: NodeId, send: SendStream, mut recv: RecvStream, services: Arc<ControlServices>) {
    match message::expect::<ControlRequest>(&mut recv, MAX_MESSAGE).await {
        Ok(request) => dispatch(peer, send, recv, request, services).await,
        Err(error) => tracing::debug!(%peer, %error, "control stream without a request"),
    }
}

/// Serves one request. An error is logged; what the peer must know was written to the stream before.
pub async fn dispatch(
    peer: NodeId,
    mut send: SendStream,
    recv: RecvStream,
    request: ControlRequest,
    services: Arc<ControlServices>,
) {
    let done = match request.request {
        Some(Request::Watch(watch)) => watch::members(peer, send, recv, watch, &services).await,
        Some(Request::WatchDeployments(_)) => watch::deployments(peer, send, recv, &services).await,
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
        Some(Request::Leave(_)) => match services.membership.leave(peer).await {
            Ok(()) => message::write(&mut send, &LeaveResponse {}).await,
            Err(error) => Err(error),
        },
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
                },
            )
            .await
        }
        None => Err(protocol("a peer asked for something that this node does not know")),
    };
    if let Err(error) = done {
        tracing::debug!(%peer, %error, "control stream ended");
    }
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
