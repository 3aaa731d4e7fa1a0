//! Accepts connections: proves the peer, then serves control streams or a stage link.
//!
//! Every connection and every stream is a task in a set that its owner ends; a panic in one is logged and ends it
//! alone.

use std::sync::Arc;

use iroh::endpoint::{Connection, Incoming, VarInt};
use mesh_proto::MeshError;
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore},
    task::{JoinError, JoinSet},
    time::timeout,
};
use tokio_util::sync::CancellationToken;

use crate::{
    admission::{is_member, wait_for_member},
    control::{self, ControlServices},
    endpoint::{NodeEndpoint, admit, peer_of},
    error::{lost, too_late},
    message,
    protocol::{ADMISSION_LIMIT, CONTROL_ALPN, JOIN_LIMIT, MAX_UNPROVEN, UNPROVEN_MESSAGE},
    stage_in,
};

/// The accepting side of a node.
#[derive(Debug)]
pub struct Server {
    task: tokio::task::JoinHandle<()>,
    stop: CancellationToken,
}

impl Server {
    /// Starts to accept.
    pub fn start(endpoint: NodeEndpoint, services: Arc<ControlServices>) -> Self {
        let stop = CancellationToken::new();
        let task = tokio::spawn(accept(endpoint, services, stop.clone()));
        Self { task, stop }
    }

    /// Ends all connections.
    pub async fn stop(self) {
        self.stop.cancel();
        let _ = self.task.await;
    }
}

async fn accept(endpoint: NodeEndpoint, services: Arc<ControlServices>, stop: CancellationToken) {
    let unproven = Arc::new(Semaphore::new(MAX_UNPROVEN));
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            () = stop.cancelled() => break,
            Some(ended) = connections.join_next() => report(ended),
            incoming = endpoint.iroh.accept() => {
                let Some(incoming) = incoming else { break };
                match unproven.clone().try_acquire_owned() {
                    Ok(place) => drop(connections.spawn(serve(incoming, place, services.clone()))),
                    Err(_) => incoming.refuse(),
                }
            }
        }
    }
    connections.shutdown().await;
}

fn report(ended: Result<(), JoinError>) {
    if let Err(error) = ended
        && error.is_panic()
    {
        tracing::error!(%error, "a connection's task panicked");
    }
}

async fn serve(incoming: Incoming, place: OwnedSemaphorePermit, services: Arc<ControlServices>) {
    let opened = match timeout(ADMISSION_LIMIT, incoming).await {
        Ok(Ok(connection)) => prove_and_serve(&connection, place, services)
            .await
            .map_err(|error| (connection, error)),
        Ok(Err(error)) => return tracing::debug!(%error, "a connection did not open"),
        Err(_) => return,
    };
    if let Err((connection, error)) = opened {
        tracing::debug!(peer = %peer_of(&connection), %error, "connection ended");
        connection.close(VarInt::from_u32(error.code.reset_code()), error.message.as_bytes());
    }
}

async fn prove_and_serve(
    connection: &Connection,
    place: OwnedSemaphorePermit,
    services: Arc<ControlServices>,
) -> Result<(), MeshError> {
    let members = services.membership.nodes();
    let peer = peer_of(connection);
    if connection.alpn() == CONTROL_ALPN {
        let known = is_member(&members.borrow(), peer);
        if !known {
            return strangers_stream(connection, place, services).await;
        }
        drop(place);
        admit(connection);
        return serve_control(connection, services).await;
    }
    wait_for_member(members, peer).await?;
    drop(place);
    admit(connection);
    stage_in::serve(connection.clone(), services.registry.clone()).await;
    Ok(())
}

/// A peer that is not a member has one stream: a join with a ticket, or the first request of a member whose admission
/// is still on its way here.
async fn strangers_stream(
    connection: &Connection,
    place: OwnedSemaphorePermit,
    services: Arc<ControlServices>,
) -> Result<(), MeshError> {
    let first = async {
        let (send, mut recv) = connection
            .accept_bi()
            .await
            .map_err(|error| lost("a new connection", &error))?;
        let request = message::expect(&mut recv, UNPROVEN_MESSAGE).await?;
        Ok::<_, MeshError>((send, recv, request))
    };
    let (send, recv, request) = timeout(ADMISSION_LIMIT, first)
        .await
        .map_err(|_| too_late("a new connection", ADMISSION_LIMIT.as_secs()))??;
    if let Some(join) = control::as_join(&request) {
        // A stranger that takes no answer must not hold its place.
        return timeout(
            JOIN_LIMIT,
            control::join(connection, send, join, &services.tickets, &services.membership),
        )
        .await
        .map_err(|_| too_late("a node that joins", JOIN_LIMIT.as_secs()))?;
    }
    if let Err(error) = wait_for_member(services.membership.nodes(), peer_of(connection)).await {
        // A node that was taken out hears why, and does not try for ever.
        if control::is_watch(&request) {
            let _ = timeout(ADMISSION_LIMIT, control::refuse(connection, send, error.clone())).await;
        }
        return Err(error);
    }
    drop(place);
    admit(connection);
    let first = control::dispatch(peer_of(connection), send, recv, request, services.clone());
    let (served, ()) = tokio::join!(serve_control(connection, services), first);
    served
}

async fn serve_control(connection: &Connection, services: Arc<ControlServices>) -> Result<(), MeshError> {
    let peer = peer_of(connection);
    let mut streams = JoinSet::new();
    let error = loop {
        tokio::select! {
            Some(ended) = streams.join_next() => report(ended),
            stream = connection.accept_bi() => match stream {
                Ok((send, recv)) => drop(streams.spawn(control::serve_stream(peer, send, recv, services.clone()))),
                Err(error) => break error,
            },
        }
    };
    // Whatever the peer asked for ends with its connection: hosts, requests, watches.
    streams.shutdown().await;
    Err(lost("the control connection", &error))
}
