//! Which run of a node is at the other end: a second process with the same key is told from a node that was started
//! again.
//!
//! A member's life is its watch stream at the issuer; the issuer's are those same streams, at the members.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use iroh::{
    TransportAddr,
    endpoint::{Connection, Path, VarInt, WeakConnectionHandle},
};
use mesh_proto::{NodeId, v1::Node};
use tokio::time::timeout;

/// How long a node that ran before may take to show that it still does, which costs it no more than a round trip. A
/// node that was killed and started again waits for this.
const ALIVE_LIMIT: Duration = Duration::from_secs(1);

/// Longest id of a machine that is shown: twice that of this release.
const MACHINE: usize = 32;

/// The lives that this node knows of. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub struct Lives {
    known: Arc<Mutex<HashMap<NodeId, Life>>>,
}

#[derive(Debug, Clone)]
struct Life {
    run: u64,
    place: String,
    connection: WeakConnectionHandle,
}

impl Lives {
    /// A run of a node is at the other end of this connection.
    pub fn note(&self, id: NodeId, node: &Node, connection: &Connection) {
        let life = Life {
            run: node.run,
            place: place(node, connection),
            connection: connection.weak_handle(),
        };
        self.lock().insert(id, life);
    }

    /// Where another run of this node is alive, if one is.
    pub async fn other(&self, id: NodeId, run: u64) -> Option<String> {
        let life = self.lock().get(&id).filter(|life| life.run != run).cloned()?;
        let connection = life.connection.upgrade()?;
        if is_alive(&connection).await {
            return Some(life.place);
        }
        // It was killed: nobody need wait for that again.
        connection.close(VarInt::from_u32(0), b"the node was started again");
        None
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<NodeId, Life>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Where a process is, for people.
pub fn place(node: &Node, connection: &Connection) -> String {
    let paths = connection.paths();
    let path = paths
        .iter()
        .find(|path| path.is_selected())
        .or_else(|| paths.iter().next());
    let address = match path.as_ref().map(Path::remote_addr) {
        Some(TransportAddr::Ip(address)) => address.to_string(),
        _ => "an unknown address".to_owned(),
    };
    // The peer says it of itself: nothing of it but a short id goes into logs and onto terminals.
    let machine: String = node
        .host_id
        .chars()
        .filter(char::is_ascii_alphanumeric)
        .take(MACHINE)
        .collect();
    format!("{address} (machine {machine}, run {})", node.run)
}

/// The other end acknowledges an empty stream, or does not.
async fn is_alive(connection: &Connection) -> bool {
    let acknowledged = async {
        let (mut send, _recv) = connection.open_bi().await.ok()?;
        send.finish().ok()?;
        send.stopped().await.ok()
    };
    timeout(ALIVE_LIMIT, acknowledged)
        .await
        .is_ok_and(|answer| answer.is_some())
}
