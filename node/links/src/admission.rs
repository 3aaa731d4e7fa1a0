//! Who may talk to this node: members by their endpoint id, others with a ticket.

use iroh::endpoint::Connection;
use mesh_proto::{ErrorCode, MeshError, NodeId, v1::Node};
use tokio::{sync::watch, time::timeout};

use crate::protocol::ADMISSION_LIMIT;

/// Label of the exporter that a joiner's proof covers (RFC 5705 §4: experimental labels start so).
pub const JOIN_LABEL: &[u8] = b"EXPERIMENTAL mesh join 1";

/// 32 bytes that only the two ends of this TLS session know, of their own for each label.
pub fn exporter(connection: &Connection, label: &[u8]) -> Result<[u8; 32], MeshError> {
    let mut bytes = [0; 32];
    connection
        .export_keying_material(&mut bytes, label, &[])
        .map_err(|error| MeshError::internal(format!("the TLS session gives no exporter: {error:?}")))?;
    Ok(bytes)
}

/// Whether a peer is a member now.
pub fn is_member(members: &[Node], peer: NodeId) -> bool {
    let id = peer.to_string();
    members.iter().any(|member| member.id == id)
}

/// Waits until a peer is a member: the issuer's push may be on its way.
///
/// # Errors
///
/// It is not one within [`ADMISSION_LIMIT`].
pub async fn wait_for_member(mut members: watch::Receiver<Vec<Node>>, peer: NodeId) -> Result<(), MeshError> {
    let wait = members.wait_for(|members| is_member(members, peer));
    match timeout(ADMISSION_LIMIT, wait).await {
        Ok(Ok(_)) => Ok(()),
        _ => Err(not_a_member()),
    }
}

/// What a peer is told that does not belong here.
pub fn not_a_member() -> MeshError {
    let message = "this node is not a member of the mesh; join it with a ticket";
    MeshError::new(ErrorCode::PermissionDenied, message)
}
