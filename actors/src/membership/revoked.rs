//! What a removal leaves behind.

use std::collections::VecDeque;

use mesh_proto::NodeId;

/// Most removed nodes that are remembered, the newest: of an older one its place in the list is gone all the same, only
/// connections of members that have not heard of it for that long are not ended.
pub const MAX_REMOVED: usize = 1024;

/// Nodes that were removed, and the tickets that ended with them. Kept over a restart.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Revoked {
    /// The oldest first.
    pub nodes: VecDeque<NodeId>,
    /// Tickets issued up to then are no longer good, Unix time in seconds: a stolen node may have one.
    pub tickets_until: u64,
}

impl Revoked {
    /// A node was removed.
    pub(super) fn add(&mut self, node: NodeId, now: u64) {
        self.forget(node);
        self.nodes.push_back(node);
        while self.nodes.len() > MAX_REMOVED {
            self.nodes.pop_front();
        }
        self.tickets_until = self.tickets_until.max(now);
    }

    /// A node was admitted again.
    pub(super) fn forget(&mut self, node: NodeId) {
        self.nodes.retain(|removed| *removed != node);
    }
}
