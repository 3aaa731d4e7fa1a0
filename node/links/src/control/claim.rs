//! Two processes with one key: the second is refused while the first is alive, and both are told.

use iroh::endpoint::{Connection, SendStream};
use mesh_proto::{
    ErrorCode, MeshError,
    v1::Node,
    wire::{ClaimKey, ClaimKeyResponse, KeyInUse, KeyInUseResponse},
};

use tokio::time::timeout;

use super::{ControlServices, Peer};
use crate::{error::protocol, lives, message, protocol::ADMISSION_LIMIT};

/// A node starts, and asks whether its key is in use.
pub async fn answer(
    peer: &Peer,
    send: &mut SendStream,
    claim: ClaimKey,
    services: &ControlServices,
) -> Result<(), MeshError> {
    let node = claim.node.filter(|node| node.id == peer.id.to_string());
    let node = node.ok_or_else(|| protocol("a claim names another node than the one that connects"))?;
    let refused = check(peer, &node, services).await.err().map(Into::into);
    message::write(send, &ClaimKeyResponse { refused }).await?;
    let _ = send.finish();
    Ok(())
}

/// A stranger asks whether its key is in use: it has no other life here.
pub async fn answer_stranger(connection: &Connection, mut send: SendStream) -> Result<(), MeshError> {
    message::write(&mut send, &ClaimKeyResponse { refused: None }).await?;
    let _ = send.finish();
    // The peer closes when it has read the answer.
    let _ = timeout(ADMISSION_LIMIT, connection.closed()).await;
    Ok(())
}

/// # Errors
///
/// Another run of the peer is alive.
pub async fn check(peer: &Peer, node: &Node, services: &ControlServices) -> Result<(), MeshError> {
    let Some(first) = services.peers.lives().other(peer.id, node.run).await else {
        return Ok(());
    };
    let second = lives::place(node, &peer.connection);
    tracing::error!(node = %node.name, %first, %second, "the key of a node is used by two processes; the second is refused");
    let is_issuers = {
        let members = services.membership.nodes();
        let members = members.borrow();
        members.iter().any(|member| member.id == node.id && member.issuer)
    };
    if is_issuers {
        // The list is its own: it hears of it, and tells the others.
        if let Err(error) = services.peers.key_in_use(peer.id, second).await {
            tracing::warn!(%error, "the first process could not be told");
        }
    } else {
        services.membership.key_in_use(peer.id, second);
    }
    let message = format!(
        "the key of this node is in use by a process at {first}; stop that one, or start this one with a new --data-dir"
    );
    Err(MeshError::new(ErrorCode::Conflict, message))
}

/// Another process tried to use the key of this node.
pub async fn told(send: &mut SendStream, told: KeyInUse, services: &ControlServices) -> Result<(), MeshError> {
    super::log_key_in_use(&told.other);
    let own = services.hosts.node;
    services.membership.key_in_use(own, told.other);
    message::write(send, &KeyInUseResponse {}).await
}
