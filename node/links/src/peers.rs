//! Connections to other nodes: one control connection each, opened when first needed and opened again when lost.

use std::{
    collections::HashMap,
    net::SocketAddr,
    sync::{Arc, Mutex, PoisonError},
};

use iroh::endpoint::{Connection, RecvStream, SendStream};
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
    endpoint::{NodeEndpoint, address_of, admit},
    error::{lost, too_late, unreachable},
    message,
    protocol::{CONNECT_LIMIT, CONTROL_ALPN},
};

type Cell = Arc<OnceCell<Connection>>;

/// Cheap to clone.
#[derive(Debug, Clone)]
pub struct Peers {
    endpoint: NodeEndpoint,
    members: watch::Receiver<Vec<Node>>,
    open: Arc<Mutex<HashMap<NodeId, Cell>>>,
}

impl Peers {
    /// No connection is open yet. Addresses come from the member list.
    pub fn new(endpoint: NodeEndpoint, members: watch::Receiver<Vec<Node>>) -> Self {
        Self {
            endpoint,
            members,
            open: Arc::default(),
        }
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
        connect(&self.endpoint, node, &name, &addresses, alpn).await
    }

    /// Opens a control stream and sends its request.
    pub async fn request(
        &self,
        node: NodeId,
        request: control_request::Request,
    ) -> Result<(SendStream, RecvStream), MeshError> {
        let connection = self.control(node).await?;
        open(&connection, request).await
    }

    async fn control(&self, node: NodeId) -> Result<Connection, MeshError> {
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

/// Opens a control stream on a connection and sends its request.
pub async fn open(
    connection: &Connection,
    request: control_request::Request,
) -> Result<(SendStream, RecvStream), MeshError> {
    let (mut send, recv) = connection
        .open_bi()
        .await
        .map_err(|error| lost("the control connection", &error))?;
    message::write(&mut send, &ControlRequest { request: Some(request) }).await?;
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
    let connection = match timeout(CONNECT_LIMIT, endpoint.iroh.connect(address, alpn)).await {
        Ok(Ok(connection)) => connection,
        Ok(Err(error)) => return Err(unreachable(name, &error)),
        Err(_) => return Err(too_late(&format!("node {name}"), CONNECT_LIMIT.as_secs())),
    };
    admit(&connection);
    Ok(connection)
}
