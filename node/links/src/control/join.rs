//! A node that joins with a ticket.

use iroh::endpoint::{Connection, ConnectionError, SendStream};
use mesh_actors::membership::MembershipHandle;
use mesh_proto::{
    MeshError, NodeId,
    wire::{JoinRequest, JoinResponse, KeyAgreement, join_response},
};
use tokio::time::timeout;

use crate::{
    admission::{JOIN_LABEL, exporter},
    endpoint::peer_of,
    error::protocol,
    message,
    protocol::{ADMISSION_LIMIT, JOINED},
    ticket::TicketIssuer,
};

/// An admission that its node has not heard of yet. Dropped like that, it is taken back: the name is free again.
struct Admission<'a> {
    membership: &'a MembershipHandle,
    node: Option<NodeId>,
}

impl Admission<'_> {
    /// There is nothing to take back.
    fn settled(mut self) {
        self.node = None;
    }
}

impl Drop for Admission<'_> {
    fn drop(&mut self) {
        if let Some(node) = self.node {
            tracing::warn!(peer = %node, "a node that joined has gone before it heard so");
            self.membership.withdraw(node);
        }
    }
}

/// Admits a node that proves that it holds a ticket.
pub async fn join(
    connection: &Connection,
    mut send: SendStream,
    join: &JoinRequest,
    keys: KeyAgreement,
    tickets: &TicketIssuer,
    membership: &MembershipHandle,
) -> Result<(), MeshError> {
    let peer = peer_of(connection);
    let admitted = async {
        let revoked = membership.revoked().borrow().tickets_until;
        tickets.check(
            &join.ticket_id,
            &join.proof,
            &exporter(connection, JOIN_LABEL)?,
            revoked,
        )?;
        let node = join.node.clone().ok_or_else(|| protocol("a join names no node"))?;
        if node.id != peer.to_string() {
            return Err(protocol("a join names another node than the one that connects"));
        }
        let admission = Admission {
            membership,
            node: Some(peer),
        };
        match membership.admit(node).await {
            Ok(()) => Ok(admission),
            Err(error) => {
                admission.settled();
                Err(error)
            }
        }
    };
    let admission = match admitted.await {
        Ok(admission) => admission,
        Err(error) => {
            tracing::warn!(%peer, %error, "join refused");
            return super::refuse(connection, send, error).await;
        }
    };
    let result = Some(join_response::Result::Admitted(membership.list().borrow().clone()));
    let response = JoinResponse {
        result,
        keys: keys.into(),
    };
    message::write(&mut send, &response).await?;
    let _ = send.finish();
    if let Ok(ConnectionError::ApplicationClosed(close)) = timeout(ADMISSION_LIMIT, connection.closed()).await
        && close.reason == JOINED
    {
        tracing::info!(%peer, "node joined");
        admission.settled();
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::{sync::Arc, time::Duration};

    use iroh::endpoint::VarInt;
    use mesh_actors::{
        membership::{Known, MemberStore, Revoked, spawn_membership},
        root::RootHandle,
    };
    use mesh_proto::{
        v1::Node,
        wire::{ControlRequest, control_request::Request},
    };
    use tokio_util::sync::CancellationToken;

    use super::*;
    use crate::{
        ClientKey, LinkOptions, NodeEndpoint, Ticket,
        peers::{connect, open},
        protocol::{CONTROL_ALPN, MAX_MESSAGE},
    };

    struct NoFile;

    impl MemberStore for NoFile {
        fn save(&self, _: &[Node], _: &Revoked) -> Result<(), MeshError> {
            Ok(())
        }
    }

    /// A node that admits whoever comes with a ticket, one after the other.
    struct Issuer {
        endpoint: NodeEndpoint,
        tickets: TicketIssuer,
        membership: MembershipHandle,
    }

    impl Issuer {
        async fn start() -> Arc<Self> {
            let endpoint = endpoint(1).await;
            let root = RootHandle::spawn(CancellationToken::new()).await.unwrap();
            let own = member(&endpoint, "a");
            let membership = spawn_membership(own, Known::default(), Arc::new(NoFile), &root)
                .await
                .unwrap();
            let issuer = Arc::new(Self {
                endpoint,
                tickets: TicketIssuer::new(&[1; 32]),
                membership,
            });
            tokio::spawn(issuer.clone().admit_all());
            issuer
        }

        async fn admit_all(self: Arc<Self>) {
            while let Some(incoming) = self.endpoint.iroh.accept().await {
                let connection = incoming.await.unwrap();
                let (send, mut recv) = connection.accept_bi().await.unwrap();
                let request: ControlRequest = message::expect(&mut recv, MAX_MESSAGE).await.unwrap();
                let Some(Request::Join(request)) = request.request else {
                    panic!("{request:?}")
                };
                let keys = KeyAgreement::Same;
                let _ = join(&connection, send, &request, keys, &self.tickets, &self.membership).await;
            }
        }

        fn ticket(&self) -> Ticket {
            self.tickets
                .issue(self.endpoint.id(), self.endpoint.addresses(), 0)
                .unwrap()
        }

        async fn lists(&self, count: usize) {
            let mut nodes = self.membership.nodes();
            let listed = nodes.wait_for(|nodes| nodes.len() == count);
            timeout(Duration::from_secs(20), listed)
                .await
                .expect("in time")
                .unwrap();
        }
    }

    async fn endpoint(key: u8) -> NodeEndpoint {
        let options = LinkOptions {
            secret: [key; 32],
            listen: "127.0.0.1:0".parse().unwrap(),
        };
        NodeEndpoint::bind(&options).await.unwrap()
    }

    fn member(endpoint: &NodeEndpoint, name: &str) -> Node {
        Node {
            id: endpoint.id().to_string(),
            name: name.to_owned(),
            ..Node::default()
        }
    }

    #[tokio::test]
    async fn a_node_that_goes_before_it_hears_that_it_was_admitted_leaves_its_name_free() {
        let (issuer, gone) = (Issuer::start().await, endpoint(2).await);
        let ticket = issuer.ticket();
        let connection = connect(&gone, ticket.issuer, "a", &ticket.addresses, CONTROL_ALPN)
            .await
            .unwrap();
        let request = JoinRequest {
            ticket_id: ticket.id.to_vec(),
            proof: ticket.proof(&exporter(&connection, JOIN_LABEL).unwrap()),
            node: Some(member(&gone, "b")),
        };
        let _stream = open(&connection, Request::Join(request), &ClientKey::default())
            .await
            .unwrap();
        issuer.lists(2).await;
        connection.close(VarInt::from_u32(0), b"");
        issuer.lists(1).await;

        let stays = endpoint(3).await;
        crate::join(&stays, &ticket, member(&stays, "b"), &ClientKey::default())
            .await
            .expect("the name is free");
        issuer.lists(2).await;
        // The next is only served when the one before is done.
        let other = endpoint(4).await;
        crate::join(&other, &ticket, member(&other, "c"), &ClientKey::default())
            .await
            .expect("admitted");
        issuer.lists(3).await;
    }
}
