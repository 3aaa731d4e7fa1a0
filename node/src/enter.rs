//! Entering a mesh: the ticket's, the one known from before, or a new one of this node alone.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use mesh_actors::{
    membership::{Known, MemberStore, MembershipHandle, Revoked, spawn_membership},
    root::RootHandle,
};
use mesh_links::{ClientKey, NodeEndpoint, Ticket, join};
use mesh_proto::{
    ErrorCode, MeshError, NodeId,
    v1::{Node as Member, NodeState},
};

use crate::{
    NodeError,
    members::MemberFile,
    parts::{Joined, Parts},
};

/// How long a node that joined waits for its first member list.
const FIRST_LIST_LIMIT: Duration = Duration::from_secs(10);

/// Gives the member list, and the issuer if that is another node. A first admission is one of the `parts`: it is given
/// back if the start comes to nothing.
pub(crate) async fn enter_mesh(
    parts: &mut Parts,
    endpoint: &NodeEndpoint,
    root: &RootHandle,
    own: Member,
    ticket: Option<Ticket>,
    file: &Arc<MemberFile>,
    key: &ClientKey,
) -> Result<(MembershipHandle, Option<NodeId>), NodeError> {
    let known = file.load()?;
    let known_issuer = known.nodes.iter().find(|node| node.issuer).map(|node| node.id.clone());
    let Some(ticket) = ticket else {
        let issuer = known_issuer.filter(|id| *id != own.id);
        let own = Member {
            issuer: issuer.is_none(),
            ..own
        };
        let membership = spawn_membership(own, known, file.clone(), root).await?;
        let issuer = issuer
            .map(|id| id.parse())
            .transpose()
            .map_err(|error| MeshError::internal(format!("{error}")))?;
        return Ok((membership, issuer));
    };
    if ticket.issuer.to_string() == own.id {
        let message = "this ticket is the node's own; give it to another node, or use `mesh node start`";
        return Err(MeshError::new(ErrorCode::Conflict, message).into());
    }
    if known_issuer.is_some_and(|id| id != ticket.issuer.to_string()) {
        let message = "this node belongs to another mesh; run `mesh node leave` first, or use another --data-dir";
        return Err(MeshError::new(ErrorCode::Conflict, message).into());
    }
    let issuer = ticket.issuer;
    let list = join(endpoint, &ticket, own.clone(), key).await?;
    if known.nodes.is_empty() {
        parts.joined = Some(Joined {
            endpoint: endpoint.clone(),
            ticket,
            members: file.clone(),
        });
    }
    let joined = Known {
        nodes: list.nodes,
        revoked: Revoked {
            nodes: list.removed.iter().filter_map(|id| id.parse().ok()).collect(),
            ..known.revoked
        },
    };
    file.save(&joined.nodes, &joined.revoked)?;
    let membership = spawn_membership(own, joined, file.clone(), root).await?;
    Ok((membership, Some(issuer)))
}

/// Refuses to start when another process is alive that uses the key of this node, as far as others know: its data
/// directory may be a copy. The issuer knows of its members, and they of the issuer.
pub(crate) async fn claim_key(
    endpoint: &NodeEndpoint,
    own: &Member,
    ticket: Option<&Ticket>,
    file: &MemberFile,
) -> Result<(), NodeError> {
    let known = file.load()?.nodes;
    let issuer = known.iter().find(|node| node.issuer && node.id != own.id);
    let asked: Vec<(NodeId, Vec<SocketAddr>)> = match (ticket, issuer) {
        (Some(ticket), _) => vec![(ticket.issuer, ticket.addresses.clone())],
        (None, Some(issuer)) => reachable(issuer).into_iter().collect(),
        (None, None) => {
            let others = known.iter().filter(|node| node.id != own.id);
            others.filter_map(reachable).collect()
        }
    };
    Ok(mesh_links::claim_key(endpoint, own, &asked).await?)
}

fn reachable(node: &Member) -> Option<(NodeId, Vec<SocketAddr>)> {
    let addresses = node.addresses.iter().filter_map(|address| address.parse().ok());
    Some((node.id.parse().ok()?, addresses.collect()))
}

/// Waits until a node that joined has its first member list from the issuer.
pub(crate) async fn first_list(membership: &MembershipHandle) -> Result<(), MeshError> {
    let mut nodes = membership.nodes();
    let up = nodes.wait_for(|nodes| {
        nodes
            .iter()
            .any(|node| node.issuer && node.state == NodeState::Up as i32)
    });
    match tokio::time::timeout(FIRST_LIST_LIMIT, up).await {
        Ok(Ok(_)) => Ok(()),
        _ => Err(MeshError::new(
            ErrorCode::DeadlineExceeded,
            "the issuer admitted this node, but sends no member list",
        )),
    }
}
