//! A node that starts asks others whether its key is in use: its data directory may be a copy of another's.

use std::{net::SocketAddr, time::Duration};

use futures::{StreamExt as _, stream::FuturesUnordered};
use iroh::endpoint::VarInt;
use mesh_proto::{
    ErrorCode, MeshError, NodeId,
    v1::Node,
    wire::{ClaimKey, ClaimKeyResponse, control_request::Request},
};
use tokio::time::timeout;

use crate::{
    client_key::ClientKey,
    endpoint::NodeEndpoint,
    message,
    peers::{connect, open},
    protocol::{CONTROL_ALPN, UNPROVEN_MESSAGE},
};

/// How long a start waits for the answers. Who does not answer is down, or does not know; whoever is asked takes a
/// second to find that a node that was killed is not there any more.
const CLAIM_LIMIT: Duration = Duration::from_secs(2);

/// Most nodes that are asked: each knows whether the issuer is up.
const MAX_ASKED: usize = 16;

/// Asks these nodes.
///
/// # Errors
///
/// One of them knows of another process that uses the key of this node. That nobody answers is none.
pub async fn claim_key(
    endpoint: &NodeEndpoint,
    own: &Node,
    others: &[(NodeId, Vec<SocketAddr>)],
) -> Result<(), MeshError> {
    let asked = others.iter().take(MAX_ASKED);
    let mut answers: FuturesUnordered<_> = asked
        .map(|(node, addresses)| ask(endpoint, own, *node, addresses))
        .collect();
    let in_use = async {
        while let Some(answer) = answers.next().await {
            match answer {
                Err(error) if error.code == ErrorCode::Conflict => return Err(error),
                Err(error) => tracing::debug!(%error, "a node does not say whether this node's key is in use"),
                Ok(()) => {}
            }
        }
        Ok(())
    };
    timeout(CLAIM_LIMIT, in_use).await.unwrap_or(Ok(()))
}

async fn ask(endpoint: &NodeEndpoint, own: &Node, node: NodeId, addresses: &[SocketAddr]) -> Result<(), MeshError> {
    let connection = connect(endpoint, node, "of this mesh", addresses, CONTROL_ALPN).await?;
    let claim = Request::Claim(ClaimKey {
        node: Some(own.clone()),
    });
    let (_send, mut recv) = open(&connection, claim, &ClientKey::default()).await?;
    let response: ClaimKeyResponse = message::expect(&mut recv, UNPROVEN_MESSAGE).await?;
    connection.close(VarInt::from_u32(0), b"heard");
    response.refused.map_or(Ok(()), |refusal| Err(refusal.into()))
}
