//! Entering a mesh: the ticket's, the one known from before, or a new one of this node alone.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use mesh_actors::{
    membership::{Known, MemberStore, MembershipHandle, Revoked, spawn_membership},
    root::RootHandle,
};
use mesh_links::{ClientKey, NodeEndpoint, Ticket, claim_key, join};
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

/// What a node comes to the mesh with.
pub(crate) struct Entrance<'a> {
    pub endpoint: &'a NodeEndpoint,
    pub root: &'a RootHandle,
    pub file: &'a Arc<MemberFile>,
    pub key: &'a ClientKey,
    /// No node has started on its data directory before: nobody else has its key.
    pub is_new: bool,
}

impl Entrance<'_> {
    /// Gives the member list, and the issuer if that is another node. A first admission is one of the `parts`: it is
    /// given back if the start comes to nothing.
    pub async fn enter(
        &self,
        parts: &mut Parts,
        own: Member,
        ticket: Option<Ticket>,
    ) -> Result<(MembershipHandle, Option<NodeId>), NodeError> {
        let known = self.file.load()?;
        let known_issuer = known
            .nodes
            .iter()
            .find(|node| node.issuer && node.id != own.id)
            .cloned();
        match ticket {
            Some(ticket) => self.join(parts, own, known, known_issuer, ticket).await,
            None => self.come_back(own, known, known_issuer).await,
        }
    }

    async fn come_back(
        &self,
        own: Member,
        known: Known,
        issuer: Option<Member>,
    ) -> Result<(MembershipHandle, Option<NodeId>), NodeError> {
        let asked: Vec<(NodeId, Vec<SocketAddr>)> = match &issuer {
            Some(issuer) => reachable(issuer).into_iter().collect(),
            None => {
                let others = known.nodes.iter().filter(|node| node.id != own.id);
                others.filter_map(reachable).collect()
            }
        };
        self.claim_key(&own, &asked).await?;
        let own = Member {
            issuer: issuer.is_none(),
            ..own
        };
        let membership = spawn_membership(own, known, self.file.clone(), self.root).await?;
        let issuer = issuer
            .map(|issuer| issuer.id.parse())
            .transpose()
            .map_err(|error| MeshError::internal(format!("{error}")))?;
        Ok((membership, issuer))
    }

    async fn join(
        &self,
        parts: &mut Parts,
        own: Member,
        known: Known,
        known_issuer: Option<Member>,
        ticket: Ticket,
    ) -> Result<(MembershipHandle, Option<NodeId>), NodeError> {
        if ticket.issuer.to_string() == own.id {
            let message = "this ticket is the node's own; give it to another node, or use `mesh node start`";
            return Err(MeshError::new(ErrorCode::Conflict, message).into());
        }
        // A node that admitted others belongs to its own mesh.
        let is_issuer = known.nodes.iter().any(|node| node.issuer && node.id == own.id);
        if is_issuer || known_issuer.is_some_and(|known| known.id != ticket.issuer.to_string()) {
            let message = "this node belongs to another mesh; run `mesh node leave` first, or use another --data-dir";
            return Err(MeshError::new(ErrorCode::Conflict, message).into());
        }
        let issuer = ticket.issuer;
        self.claim_key(&own, &[(issuer, ticket.addresses.clone())]).await?;
        let list = join(self.endpoint, &ticket, own.clone(), self.key).await?;
        if known.nodes.is_empty() {
            parts.joined = Some(Joined {
                endpoint: self.endpoint.clone(),
                ticket,
                members: self.file.clone(),
            });
        }
        let joined = Known {
            nodes: list.nodes,
            revoked: Revoked {
                nodes: list.removed.iter().filter_map(|id| id.parse().ok()).collect(),
                ..known.revoked
            },
        };
        self.file.save(&joined.nodes, &joined.revoked)?;
        let membership = spawn_membership(own, joined, self.file.clone(), self.root).await?;
        Ok((membership, Some(issuer)))
    }

    /// Refuses to start when another process is alive that uses the key of this node, as far as others know: its data
    /// directory may be a copy. The issuer knows of its members, and they of the issuer.
    async fn claim_key(&self, own: &Member, asked: &[(NodeId, Vec<SocketAddr>)]) -> Result<(), MeshError> {
        if self.is_new {
            return Ok(());
        }
        claim_key(self.endpoint, own, asked).await
    }
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
