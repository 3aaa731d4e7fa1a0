//! Connections with members, both ways: those with a node that is removed end at once.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
};

use iroh::endpoint::{Connection, VarInt, WeakConnectionHandle};
use mesh_proto::{ErrorCode, MeshError, NodeId};

/// Holds none of them open. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub struct Connections {
    open: Arc<Mutex<HashMap<NodeId, Vec<WeakConnectionHandle>>>>,
}

impl Connections {
    /// A connection with a member has opened.
    pub fn note(&self, node: NodeId, connection: &Connection) {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        let of_node = open.entry(node).or_default();
        of_node.retain(is_open);
        of_node.push(connection.weak_handle());
    }

    /// A node is no member any more.
    pub fn end(&self, node: NodeId) {
        let ended = self.open.lock().unwrap_or_else(PoisonError::into_inner).remove(&node);
        for connection in ended.iter().flatten().filter_map(WeakConnectionHandle::upgrade) {
            close_removed(&connection);
        }
    }
}

/// Closes the connection with a node that was removed, in words.
pub fn close_removed(connection: &Connection) {
    let error = removed();
    connection.close(VarInt::from_u32(error.code.reset_code()), error.message.as_bytes());
}

/// What a removed node is told.
pub fn removed() -> MeshError {
    let message = "this node was removed from the mesh; join it again with a new ticket";
    MeshError::new(ErrorCode::PermissionDenied, message)
}

fn is_open(connection: &WeakConnectionHandle) -> bool {
    let connection = connection.upgrade();
    connection.is_some_and(|connection| connection.close_reason().is_none())
}
