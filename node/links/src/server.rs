//! Accepts connections: proves the peer, then serves control streams or a stage link.
//!
//! Every connection and every stream is a task in a set that its owner ends; a panic in one is logged and ends it
//! alone.

use std::sync::Arc;

use iroh::endpoint::{Connection, Incoming, VarInt};
use mesh_actors::ports::telemetry::TurnedAway;
use mesh_proto::{ErrorCode, MeshError, NodeId};
use tokio::{
    task::{JoinError, JoinSet},
    time::timeout,
};
use tokio_util::sync::CancellationToken;

use crate::{
    admission::{is_member, wait_for_member},
    connections::removed,
    control::{self, ControlServices, Peer},
    door::Door,
    endpoint::{NodeEndpoint, admit, peer_of},
    error::{lost, too_late},
    message,
    places::Place,
    protocol::{ADMISSION_LIMIT, CONTROL_ALPN, HANDSHAKE_LIMIT, JOIN_LIMIT, UNPROVEN_MESSAGE},
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
    let door = Arc::new(Door::new(services.hosts.telemetry.clone()));
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            () = stop.cancelled() => break,
            Some(ended) = connections.join_next() => report(ended),
            incoming = endpoint.iroh.accept() => {
                let Some(incoming) = incoming else { break };
                if let Some((incoming, place)) = door.knock(incoming) {
                    connections.spawn(serve(incoming, place, door.clone(), services.clone()));
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

async fn serve(incoming: Incoming, place: Place, door: Arc<Door>, services: Arc<ControlServices>) {
    let Some(connection) = shake_hands(incoming, &place, &door).await else {
        return;
    };
    if let Err(error) = prove_and_serve(&connection, place, &door, services).await {
        tracing::debug!(peer = %peer_of(&connection), %error, "connection ended");
        connection.close(VarInt::from_u32(error.code.reset_code()), error.message.as_bytes());
    }
}

async fn shake_hands(incoming: Incoming, place: &Place, door: &Door) -> Option<Connection> {
    tokio::select! {
        opened = timeout(HANDSHAKE_LIMIT, incoming) => match opened {
            Ok(Ok(connection)) => return Some(connection),
            Ok(Err(error)) => tracing::debug!(%error, "a connection did not open"),
            Err(_) => door.turned_away(TurnedAway::SlowHandshake),
        },
        () = place.displaced() => door.turned_away(TurnedAway::Handshake),
    }
    None
}

/// A member needs no place: strangers, however many, cannot take it from it.
async fn prove_and_serve(
    connection: &Connection,
    place: Place,
    door: &Door,
    services: Arc<ControlServices>,
) -> Result<(), MeshError> {
    let peer = peer_of(connection);
    if is_member(&services.membership.nodes().borrow(), peer) {
        drop(place);
        return serve_member(connection, services).await;
    }
    let place = {
        let strangers = door.stranger(place.origin());
        drop(place);
        strangers
    };
    let displaced = place.displaced();
    let served = async {
        if connection.alpn() == CONTROL_ALPN {
            return strangers_stream(connection, place, services).await;
        }
        may_become_member(peer, &services).await?;
        drop(place);
        serve_member(connection, services).await
    };
    let served = tokio::select! {
        served = served => served,
        () = displaced => {
            door.turned_away(TurnedAway::Stranger);
            let message = "too many connect at once that do not belong here; try again";
            return Err(MeshError::new(ErrorCode::QueueFull, message));
        }
    };
    served.inspect_err(|error| match error.code {
        ErrorCode::DeadlineExceeded | ErrorCode::PermissionDenied => door.turned_away(TurnedAway::SlowStranger),
        _ => {}
    })
}

async fn serve_member(connection: &Connection, services: Arc<ControlServices>) -> Result<(), MeshError> {
    admit(connection);
    services.peers.note(peer_of(connection), connection)?;
    if connection.alpn() == CONTROL_ALPN {
        return serve_control(connection, services).await;
    }
    stage_in::serve(connection.clone(), services.registry.clone()).await;
    Ok(())
}

/// A peer that is not a member has one stream: a join with a ticket, or the first request of a member whose admission
/// is still on its way here.
async fn strangers_stream(
    connection: &Connection,
    place: Place,
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
    let peer = Peer::new(connection, &services)?;
    if let Some(join) = control::as_join(&request) {
        let keys = peer.keys.agreement(&request.key_proof);
        // A stranger that takes no answer must not hold its place.
        return timeout(
            JOIN_LIMIT,
            control::join(connection, send, join, keys, &services.tickets, &services.membership),
        )
        .await
        .map_err(|_| too_late("a node that joins", JOIN_LIMIT.as_secs()))?;
    }
    if control::is_claim(&request) {
        return control::answer_strangers_claim(connection, send).await;
    }
    if let Err(error) = may_become_member(peer.id, &services).await {
        // A node that was taken out hears why, and does not try for ever.
        if control::is_watch(&request) {
            let _ = timeout(ADMISSION_LIMIT, control::refuse(connection, send, error.clone())).await;
        }
        return Err(error);
    }
    drop(place);
    admit(connection);
    services.peers.note(peer.id, connection)?;
    let first = control::dispatch(&peer, send, recv, request, services.clone());
    let (served, ()) = tokio::join!(serve_control(connection, services.clone()), first);
    served
}

/// Waits for a peer that the next list may name. One that was removed is not awaited.
async fn may_become_member(peer: NodeId, services: &ControlServices) -> Result<(), MeshError> {
    if services.membership.revoked().borrow().nodes.contains(&peer) {
        return Err(removed());
    }
    wait_for_member(services.membership.nodes(), peer).await
}

async fn serve_control(connection: &Connection, services: Arc<ControlServices>) -> Result<(), MeshError> {
    let peer = Peer::new(connection, &services)?;
    let mut streams = JoinSet::new();
    let error = loop {
        tokio::select! {
            Some(ended) = streams.join_next() => report(ended),
            stream = connection.accept_bi() => match stream {
                Ok((send, recv)) => drop(streams.spawn(control::serve_stream(peer.clone(), send, recv, services.clone()))),
                Err(error) => break error,
            },
        }
    };
    // Whatever the peer asked for ends with its connection: hosts, requests, watches.
    streams.shutdown().await;
    Err(lost("the control connection", &error))
}
