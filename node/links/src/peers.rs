//! Connections to other nodes: one control connection each, opened when first needed and opened again when lost.

use std::{
    collections::HashMap,
    net::SocketAddr,
    sync::{Arc, Mutex, PoisonError},
};

use iroh::{
    EndpointAddr,
    endpoint::{ConnectError, Connection, RecvStream, SendStream},
};
use mesh_proto::{
    MeshError, NodeId,
    v1::Node,
    wire::{ControlRequest, control_request},
};
use tokio::{
    sync::{OnceCell, watch},
    time::timeout,
};

use crate::{
    admission::is_member,
    client_key::ClientKey,
    connections::{Connections, close_removed, removed},
    endpoint::{NodeEndpoint, address_of, admit},
    error::{lost, too_late, unreachable, with_causes},
    lives::Lives,
    message,
    pause::Pause,
    protocol::{CONNECT_LIMIT, CONNECT_TRIES, CONTROL_ALPN},
};

type Cell = Arc<OnceCell<Connection>>;

/// Cheap to clone.
#[derive(Debug, Clone)]
pub struct Peers {
    endpoint: NodeEndpoint,
    members: watch::Receiver<Vec<Node>>,
    open: Arc<Mutex<HashMap<NodeId, Cell>>>,
    key: ClientKey,
    connections: Connections,
    lives: Lives,
}

impl Peers {
    /// No connection is open yet. Addresses come from the member list; `key` is what this node's gateway asks for.
    pub fn new(endpoint: NodeEndpoint, members: watch::Receiver<Vec<Node>>, key: ClientKey) -> Self {
        Self {
            endpoint,
            members,
            open: Arc::default(),
            key,
            connections: Connections::default(),
            lives: Lives::default(),
        }
    }

    /// What this node's gateway asks clients for.
    pub(crate) fn key(&self) -> &ClientKey {
        &self.key
    }

    /// Runs of other nodes.
    pub(crate) fn lives(&self) -> &Lives {
        &self.lives
    }

    /// A connection with a member has opened, here or there.
    ///
    /// # Errors
    ///
    /// It is no member any more: a removal that came before this would not have found the connection.
    pub(crate) fn note(&self, node: NodeId, connection: &Connection) -> Result<(), MeshError> {
        self.connections.note(node, connection);
        if is_member(&self.members.borrow(), node) {
            return Ok(());
        }
        Err(removed())
    }

    /// A node was removed: all connections with it end.
    pub(crate) fn end(&self, node: NodeId) {
        self.connections.end(node);
    }

    /// Name and addresses of a member.
    pub fn lookup(&self, node: NodeId) -> Result<(String, Vec<SocketAddr>), MeshError> {
        let id = node.to_string();
        let members = self.members.borrow();
        let member = members
            .iter()
            .find(|member| member.id == id)
            .ok_or_else(|| unreachable(&id[..10], &"it is not a member of this mesh"))?;
        let addresses = member
            .addresses
            .iter()
            .filter_map(|address| address.parse().ok())
            .collect();
        Ok((member.name.clone(), addresses))
    }

    /// Opens a connection of its own, for a stage link.
    pub async fn connect(&self, node: NodeId, alpn: &[u8]) -> Result<Connection, MeshError> {
        let (name, addresses) = self.lookup(node)?;
        let connection = connect(&self.endpoint, node, &name, &addresses, alpn).await?;
        self.note(node, &connection)
            .inspect_err(|_| close_removed(&connection))?;
        Ok(connection)
    }

    /// Opens a control stream and sends its request.
    pub async fn request(
        &self,
        node: NodeId,
        request: control_request::Request,
    ) -> Result<(SendStream, RecvStream), MeshError> {
        let connection = self.control(node).await?;
        open(&connection, request, &self.key).await
    }

    pub(crate) async fn control(&self, node: NodeId) -> Result<Connection, MeshError> {
        let cell = self.cell(node);
        let connection = cell.get_or_try_init(|| self.connect(node, CONTROL_ALPN)).await?;
        Ok(connection.clone())
    }

    /// The cell of a node, a new one if its connection has closed.
    fn cell(&self, node: NodeId) -> Cell {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        let cell = open.entry(node).or_default();
        if cell.get().is_some_and(|connection| connection.close_reason().is_some()) {
            *cell = Cell::default();
        }
        cell.clone()
    }
}

/// Opens a control stream on a connection and sends its request, with the proof of the key.
pub async fn open(
    connection: &Connection,
    request: control_request::Request,
    key: &ClientKey,
) -> Result<(SendStream, RecvStream), MeshError> {
    let (mut send, recv) = connection
        .open_bi()
        .await
        .map_err(|error| lost("the control connection", &error))?;
    let request = ControlRequest {
        request: Some(request),
        key_proof: key.proof(connection)?,
    };
    message::write(&mut send, &request).await?;
    Ok((send, recv))
}

/// Connects within a limit.
pub async fn connect(
    endpoint: &NodeEndpoint,
    node: NodeId,
    name: &str,
    addresses: &[SocketAddr],
    alpn: &[u8],
) -> Result<Connection, MeshError> {
    let address = address_of(node, addresses)?;
    let connection = match timeout(CONNECT_LIMIT, try_connect(endpoint, address, alpn)).await {
        Ok(Ok(connection)) => connection,
        Ok(Err(error)) => return Err(unreachable(name, &with_causes(&error))),
        Err(_) => return Err(too_late(&format!("node {name}"), CONNECT_LIMIT.as_secs())),
    };
    admit(&connection);
    Ok(connection)
}

async fn try_connect(endpoint: &NodeEndpoint, address: EndpointAddr, alpn: &[u8]) -> Result<Connection, ConnectError> {
    let mut pause = Pause::new();
    for _ in 1..CONNECT_TRIES {
        match endpoint.iroh.connect(address.clone(), alpn).await {
            Ok(connection) => return Ok(connection),
            Err(error) => tracing::debug!(%error, "a connection did not open"),
        }
        pause.wait().await;
    }
    endpoint.iroh.connect(address, alpn).await
}
