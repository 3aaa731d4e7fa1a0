//! The QUIC endpoint of a node.

use std::{
    collections::BTreeSet,
    net::{IpAddr, Ipv4Addr, SocketAddr},
};

use iroh::{
    Endpoint, EndpointAddr, RelayMode, SecretKey, TransportAddr,
    endpoint::{Connection, IdleTimeout, QuicTransportConfig, VarInt, presets},
};
use mesh_proto::{ErrorCode, MeshError, NodeId};

use crate::protocol::{
    CONTROL_ALPN, IDLE_LIMIT, KEEP_ALIVE, MEMBER_STREAMS, MEMBER_WINDOW, STAGE_ALPN, STREAM_WINDOW, UNPROVEN_STREAMS,
    UNPROVEN_WINDOW,
};

/// How to open the endpoint.
#[derive(Clone)]
pub struct LinkOptions {
    /// The node's own key.
    pub secret: [u8; 32],
    /// UDP address to listen on; port 0 takes a free one.
    pub listen: SocketAddr,
}

/// The endpoint. Cheap to clone.
#[derive(Debug, Clone)]
pub struct NodeEndpoint {
    pub(crate) iroh: Endpoint,
    id: NodeId,
}

impl NodeEndpoint {
    /// Opens the endpoint. No outside service is contacted.
    ///
    /// # Errors
    ///
    /// The address is taken or not this machine's.
    pub async fn bind(options: &LinkOptions) -> Result<Self, MeshError> {
        let secret = SecretKey::from_bytes(&options.secret);
        let id = NodeId(*secret.public().as_bytes());
        let refused = |error: &dyn std::fmt::Display| {
            let message = format!(
                "cannot listen on UDP {}: {error}; use another --listen address",
                options.listen
            );
            MeshError::new(ErrorCode::Conflict, message).with_param("listen")
        };
        let iroh = Endpoint::builder(presets::Minimal)
            .relay_mode(RelayMode::Disabled)
            .secret_key(secret)
            .alpns(vec![CONTROL_ALPN.to_vec(), STAGE_ALPN.to_vec()])
            .transport_config(transport()?)
            .clear_ip_transports()
            .bind_addr(options.listen)
            .map_err(|error| refused(&error))?
            .bind()
            .await
            .map_err(|error| refused(&error))?;
        Ok(Self { iroh, id })
    }

    /// This node.
    pub fn id(&self) -> NodeId {
        self.id
    }

    /// UDP port that it listens on.
    pub fn port(&self) -> Option<u16> {
        self.iroh.bound_sockets().first().map(SocketAddr::port)
    }

    /// Where other nodes may reach this one: the interfaces' addresses, and loopback for nodes on the same machine.
    pub fn addresses(&self) -> Vec<SocketAddr> {
        let mut addresses: BTreeSet<SocketAddr> = self.iroh.addr().ip_addrs().copied().collect();
        for socket in self.iroh.bound_sockets() {
            if !socket.ip().is_unspecified() {
                addresses.insert(socket);
            } else if socket.is_ipv4() {
                addresses.insert(SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), socket.port()));
            }
        }
        addresses.into_iter().collect()
    }

    /// Closes all connections, telling the peers.
    pub async fn close(&self) {
        self.iroh.close().await;
    }
}

/// Windows and streams are those of an unproven peer; [`admit`] widens them.
fn transport() -> Result<QuicTransportConfig, MeshError> {
    let idle = IdleTimeout::try_from(IDLE_LIMIT).map_err(|error| MeshError::internal(error.to_string()))?;
    Ok(QuicTransportConfig::builder()
        .max_idle_timeout(Some(idle))
        .keep_alive_interval(KEEP_ALIVE)
        .default_path_max_idle_timeout(IDLE_LIMIT)
        .default_path_keep_alive_interval(KEEP_ALIVE)
        .max_concurrent_bidi_streams(VarInt::from_u32(UNPROVEN_STREAMS))
        .max_concurrent_uni_streams(VarInt::from_u32(0))
        .stream_receive_window(VarInt::from_u32(STREAM_WINDOW))
        .receive_window(VarInt::from_u32(UNPROVEN_WINDOW))
        .send_window(u64::from(MEMBER_WINDOW))
        .datagram_receive_buffer_size(None)
        .build())
}

/// The peer has proven itself, or is the one this node chose to connect to.
pub(crate) fn admit(connection: &Connection) {
    connection.set_max_concurrent_bi_streams(VarInt::from_u32(MEMBER_STREAMS));
    connection.set_receive_window(VarInt::from_u32(MEMBER_WINDOW));
}

/// Id of the node at the other end.
pub(crate) fn peer_of(connection: &Connection) -> NodeId {
    NodeId(*connection.remote_id().as_bytes())
}

/// Address of a node, for connecting.
pub(crate) fn address_of(node: NodeId, addresses: &[SocketAddr]) -> Result<EndpointAddr, MeshError> {
    let id = iroh::EndpointId::from_bytes(&node.0)
        .map_err(|error| MeshError::new(ErrorCode::Protocol, format!("{node} is not the id of a node: {error}")))?;
    Ok(EndpointAddr::from_parts(
        id,
        addresses.iter().copied().map(TransportAddr::Ip),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_port_in_use_is_told_with_the_remedy() {
        let taken = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        let options = LinkOptions {
            secret: [1; 32],
            listen: taken.local_addr().unwrap(),
        };
        let error = NodeEndpoint::bind(&options).await.expect_err("taken");
        assert!(error.message.contains("--listen"), "{error}");
    }
}
