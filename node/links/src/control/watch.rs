//! Watch streams: the member list, and the deployments that this node owns.

use iroh::endpoint::{RecvStream, SendStream};
use mesh_actors::membership::Incarnation;
use mesh_proto::{
    MeshError, NodeId,
    v1::Node,
    wire::{DeploymentListSeen, JoinResponse, KeyAgreement, MemberList, WatchRequest, join_response},
};
use tokio::sync::watch::Receiver;

use super::{ControlServices, Peer, claim};
use crate::{error::protocol, message};

/// Largest acknowledgement.
const SEEN_MESSAGE: usize = 64;

/// Pushes the member list; the peer is up while this stream lives.
pub async fn members(
    peer: &Peer,
    mut send: SendStream,
    mut recv: RecvStream,
    request: WatchRequest,
    keys: KeyAgreement,
    services: &ControlServices,
) -> Result<(), MeshError> {
    let node = request.node.filter(|node| node.id == peer.id.to_string());
    let node = node.ok_or_else(|| protocol("a watch names another node than the one that connects"))?;
    let life = match come_up(peer, node, services).await {
        Ok(life) => life,
        Err(error) => {
            let refused = JoinResponse {
                result: Some(join_response::Result::Refused(error.into())),
                keys: keys.into(),
            };
            return message::write(&mut send, &refused).await;
        }
    };
    let _down = OnDrop(|| services.membership.down(peer.id, life));
    let mut list = services.membership.list();
    let first = list.borrow_and_update().clone();
    message::write(
        &mut send,
        &JoinResponse {
            result: Some(join_response::Result::Admitted(first)),
            keys: keys.into(),
        },
    )
    .await?;
    tokio::select! {
        pushed = push_members(&mut send, &mut list) => pushed,
        // Nothing more is due from the peer: anything that ends the stream ends the watch.
        ended = message::read::<WatchRequest>(&mut recv, SEEN_MESSAGE) => ended.map(drop),
    }
}

/// The peer is up from now on, unless another process with its key is.
async fn come_up(peer: &Peer, node: Node, services: &ControlServices) -> Result<Incarnation, MeshError> {
    claim::check(peer, &node, services).await?;
    let life = services.membership.up(node.clone()).await?;
    services.peers.lives().note(peer.id, &node, &peer.connection);
    Ok(life)
}

async fn push_members(send: &mut SendStream, list: &mut Receiver<MemberList>) -> Result<(), MeshError> {
    while list.changed().await.is_ok() {
        let next = list.borrow_and_update().clone();
        message::write(send, &next).await?;
    }
    Ok(())
}

/// Pushes the own deployments and hears what the peer has seen.
pub async fn deployments(
    peer: NodeId,
    mut send: SendStream,
    mut recv: RecvStream,
    services: &ControlServices,
) -> Result<(), MeshError> {
    let mut own = services.directory.watch_own();
    own.mark_changed();
    services.directory.watcher_came(peer);
    let _left = OnDrop(|| services.directory.watcher_left(peer));
    let push = async {
        while own.changed().await.is_ok() {
            let list = own.borrow_and_update().clone();
            message::write(&mut send, &list).await?;
        }
        Ok(())
    };
    let hear = async {
        while let Some(seen) = message::read::<DeploymentListSeen>(&mut recv, SEEN_MESSAGE).await? {
            services.directory.watcher_saw(peer, seen.version);
        }
        Ok(())
    };
    tokio::select! {
        ended = push => ended,
        ended = hear => ended,
    }
}

/// Runs when the stream's task ends, however it ends.
struct OnDrop<F: FnMut()>(F);

impl<F: FnMut()> Drop for OnDrop<F> {
    fn drop(&mut self) {
        (self.0)();
    }
}
