//! The rules of the member list.

use std::collections::BTreeMap;

use mesh_proto::{
    ErrorCode, MeshError, NodeId,
    v1::{Node, NodeState},
};

use super::revoked::{MAX_REMOVED, Revoked};

/// Longest name of a node.
const MAX_NAME: usize = 64;

/// Most addresses of a node, and the longest text beside its name.
const MAX_ADDRESSES: usize = 40;
const MAX_FIELD: usize = 64;

/// Longest description of a place: an address, a machine and a run.
const MAX_PLACE: usize = 160;

/// Most members: the list is pushed whole, and travels in one control message.
pub const MAX_MEMBERS: usize = 1024;

/// One life of a member's connection: the end of an older one does not take a newer one down.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Incarnation(u64);

/// The list.
#[derive(Debug, Clone)]
pub struct MemberMachine {
    own: NodeId,
    nodes: BTreeMap<NodeId, Node>,
    revoked: Revoked,
    lives: BTreeMap<NodeId, Incarnation>,
    next_life: u64,
    version: u64,
}

impl MemberMachine {
    /// A mesh of this node, and those it knew before a restart: they are down until they call.
    pub fn new(own: Node, known: Vec<Node>, revoked: Revoked) -> Result<Self, MeshError> {
        check_name(&own.name)?;
        let id = id_of(&own)?;
        let mut nodes = BTreeMap::new();
        for node in known {
            nodes.insert(
                id_of(&node)?,
                Node {
                    state: NodeState::Down.into(),
                    self_: false,
                    ..node
                },
            );
        }
        nodes.insert(
            id,
            Node {
                state: NodeState::Up.into(),
                self_: true,
                ..own
            },
        );
        Ok(Self {
            own: id,
            nodes,
            revoked,
            lives: BTreeMap::new(),
            next_life: 0,
            version: 1,
        })
    }

    /// Grows with every change.
    pub fn version(&self) -> u64 {
        self.version
    }

    /// All members, by name.
    pub fn nodes(&self) -> Vec<Node> {
        let mut nodes: Vec<Node> = self.nodes.values().cloned().collect();
        nodes.sort_by(|a, b| a.name.cmp(&b.name));
        nodes
    }

    /// What removals left behind.
    pub fn revoked(&self) -> &Revoked {
        &self.revoked
    }

    /// Whether a peer was admitted.
    pub fn contains(&self, id: &NodeId) -> bool {
        self.nodes.contains_key(id)
    }

    /// A node with a good ticket joins, or one that is a member already comes again.
    pub fn admit(&mut self, node: Node) -> Result<(), MeshError> {
        check_name(&node.name)?;
        check_size(&node)?;
        let id = id_of(&node)?;
        if let Some(other) = self
            .nodes
            .values()
            .find(|known| known.name == node.name && known.id != node.id)
        {
            let message = format!(
                "the name {} is taken by node {}; join with another --name, or take that one out with `mesh node remove {}`",
                node.name,
                &other.id[..10.min(other.id.len())],
                node.name
            );
            return Err(MeshError::new(ErrorCode::Conflict, message).with_param("name"));
        }
        if id == self.own {
            let message = "this ticket is the node's own; give it to another node";
            return Err(MeshError::new(ErrorCode::Conflict, message));
        }
        if self.nodes.len() >= MAX_MEMBERS && !self.nodes.contains_key(&id) {
            let message = format!("the mesh has {MAX_MEMBERS} members, its limit");
            return Err(MeshError::new(ErrorCode::InsufficientResources, message));
        }
        let state = self.nodes.get(&id).map_or(NodeState::Down as i32, |known| known.state);
        self.nodes.insert(
            id,
            Node {
                state,
                self_: false,
                issuer: false,
                key_in_use_by: String::new(),
                ..node
            },
        );
        self.revoked.forget(id);
        self.version += 1;
        Ok(())
    }

    /// A member's watch stream has opened.
    pub fn up(&mut self, node: Node) -> Result<Incarnation, MeshError> {
        let id = id_of(&node)?;
        if !self.nodes.contains_key(&id) {
            let message = "this node is not a member of the mesh; join it with a ticket";
            return Err(MeshError::new(ErrorCode::PermissionDenied, message));
        }
        self.admit(node)?;
        self.next_life += 1;
        let life = Incarnation(self.next_life);
        self.lives.insert(id, life);
        self.set_state(id, NodeState::Up);
        Ok(life)
    }

    /// A member's watch stream has ended; an older one than the present says nothing.
    pub fn down(&mut self, id: NodeId, life: Incarnation) {
        if self.lives.get(&id) == Some(&life) {
            self.lives.remove(&id);
            self.set_state(id, NodeState::Down);
        }
    }

    /// A node that was admitted did not hear of it; one that has called since has.
    pub fn withdraw(&mut self, id: NodeId) {
        if !self.lives.contains_key(&id) {
            self.leave(id);
        }
    }

    /// A member is taken out.
    pub fn leave(&mut self, id: NodeId) {
        if id != self.own && self.nodes.remove(&id).is_some() {
            self.lives.remove(&id);
            self.version += 1;
        }
    }

    /// A member, by name or id, is taken out: dead or stolen. Gives its id. `now` is the Unix time in seconds; tickets
    /// issued up to then are no longer good.
    pub fn remove(&mut self, name: &str, now: u64) -> Result<NodeId, MeshError> {
        let named = |(_, node): &(&NodeId, &Node)| node.name == name || node.id == name;
        let Some((&id, node)) = self.nodes.iter().find(named) else {
            let message = format!("there is no node {name:?} in this mesh; see `mesh node list`");
            return Err(MeshError::new(ErrorCode::NotFound, message).with_param("name"));
        };
        if id == self.own {
            let message = format!(
                "node {} admits the others and cannot be removed; `mesh node leave` there says what its leaving means",
                node.name
            );
            return Err(MeshError::new(ErrorCode::Conflict, message).with_param("name"));
        }
        self.leave(id);
        self.revoked.add(id, now);
        Ok(id)
    }

    /// Another process tried to use the key of a member, or of this node. `other` says where that is.
    pub fn key_in_use(&mut self, id: NodeId, other: &str) {
        let place: String = other.chars().filter(|c| !c.is_control()).take(MAX_PLACE).collect();
        if let Some(node) = self.nodes.get_mut(&id)
            && node.key_in_use_by != place
        {
            node.key_in_use_by = place;
            self.version += 1;
        }
    }

    /// On a member: the issuer's list, and the ids of nodes that were removed. This node's own entry stays as it is
    /// here, but for what only others know of it.
    pub fn replace(&mut self, nodes: Vec<Node>, removed: &[String]) -> Result<(), MeshError> {
        let own = self.nodes.get(&self.own).cloned();
        let mut list = BTreeMap::new();
        for node in nodes.into_iter().take(MAX_MEMBERS) {
            list.insert(id_of(&node)?, Node { self_: false, ..node });
        }
        if let Some(own) = own {
            let told = list.get(&self.own).map(|listed| listed.key_in_use_by.clone());
            let key_in_use_by = told.unwrap_or_default();
            list.insert(self.own, Node { key_in_use_by, ..own });
        }
        self.nodes = list;
        let removed = removed.iter().rev().take(MAX_REMOVED).rev();
        self.revoked.nodes = removed.filter_map(|id| id.parse().ok()).collect();
        self.version += 1;
        Ok(())
    }

    /// On a member: the issuer cannot be reached; what it said of the others may be old.
    pub fn issuer_lost(&mut self) {
        let issuers: Vec<NodeId> = self
            .nodes
            .iter()
            .filter(|(_, node)| node.issuer)
            .map(|(id, _)| *id)
            .collect();
        for issuer in issuers {
            self.set_state(issuer, NodeState::Down);
        }
    }

    fn set_state(&mut self, id: NodeId, state: NodeState) {
        if let Some(node) = self.nodes.get_mut(&id)
            && node.state != state as i32
        {
            node.state = state.into();
            self.version += 1;
        }
    }
}

fn id_of(node: &Node) -> Result<NodeId, MeshError> {
    node.id
        .parse()
        .map_err(|error| MeshError::new(ErrorCode::Protocol, format!("member list: {error}")))
}

/// The whole list must fit in one control message: 1,024 members of at most 4 KiB.
fn check_size(node: &Node) -> Result<(), MeshError> {
    let short = |text: &String| text.len() <= MAX_FIELD;
    if node.addresses.len() <= MAX_ADDRESSES
        && node.addresses.iter().all(short)
        && [&node.id, &node.host_id, &node.version].into_iter().all(short)
    {
        return Ok(());
    }
    let message = format!("a node may have {MAX_ADDRESSES} addresses, and texts of {MAX_FIELD} bytes");
    Err(MeshError::new(ErrorCode::Protocol, message))
}

fn check_name(name: &str) -> Result<(), MeshError> {
    let allowed = |c: char| c.is_alphanumeric() || "-_.".contains(c);
    if !name.is_empty() && name.len() <= MAX_NAME && name.chars().all(allowed) {
        return Ok(());
    }
    let message = format!("{name:?} is no name for a node; use 1 to {MAX_NAME} letters, digits and the signs - _ .");
    Err(MeshError::invalid("name", message))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(byte: u8, name: &str) -> Node {
        Node {
            id: NodeId([byte; 32]).to_string(),
            name: name.to_owned(),
            ..Node::default()
        }
    }

    fn machine() -> MemberMachine {
        MemberMachine::new(
            Node {
                issuer: true,
                ..node(0, "a")
            },
            Vec::new(),
            Revoked::default(),
        )
        .unwrap()
    }

    fn state(machine: &MemberMachine, name: &str) -> i32 {
        machine.nodes().iter().find(|node| node.name == name).unwrap().state
    }

    #[test]
    fn a_name_belongs_to_one_node() {
        let mut machine = machine();
        machine.admit(node(1, "b")).unwrap();
        let error = machine.admit(node(2, "b")).expect_err("taken");
        assert!(error.message.contains("another --name"), "{error}");
        machine.admit(node(1, "b2")).unwrap();
        assert_eq!(machine.nodes().len(), 2);
    }

    #[test]
    fn an_admission_that_was_not_heard_of_is_taken_back_unless_the_node_has_called() {
        let mut machine = machine();
        machine.admit(node(1, "b")).unwrap();
        machine.withdraw(NodeId([1; 32]));
        machine.admit(node(2, "b")).expect("the name is free");
        machine.up(node(2, "b")).unwrap();
        machine.withdraw(NodeId([2; 32]));
        machine.withdraw(NodeId([0; 32]));
        assert_eq!(machine.nodes().len(), 2);
    }

    #[test]
    fn the_end_of_an_older_life_does_not_take_a_restarted_node_down() {
        let mut machine = machine();
        machine.admit(node(1, "b")).unwrap();
        let mut old = machine.up(node(1, "b")).unwrap();
        for _ in 0..20 {
            let new = machine.up(node(1, "b")).unwrap();
            machine.down(NodeId([1; 32]), old);
            assert_eq!(state(&machine, "b"), NodeState::Up as i32);
            old = new;
        }
        machine.down(NodeId([1; 32]), old);
        assert_eq!(state(&machine, "b"), NodeState::Down as i32);
        assert_eq!(machine.nodes().len(), 2);
    }

    #[test]
    fn a_node_that_would_burst_the_list_is_refused() {
        let long = Node {
            host_id: "x".repeat(65),
            ..node(1, "b")
        };
        let many = Node {
            addresses: vec!["127.0.0.1:1".to_owned(); 41],
            ..node(1, "b")
        };
        assert!(machine().admit(long).is_err() && machine().admit(many).is_err());
    }

    #[test]
    fn a_removed_node_is_no_member_its_name_is_free_and_it_is_remembered_until_it_is_admitted_again() {
        let (mut machine, b) = (machine(), NodeId([1; 32]));
        machine.admit(node(1, "b")).unwrap();
        let life = machine.up(node(1, "b")).unwrap();
        assert_eq!(machine.remove("b", 100).unwrap(), b);
        assert!(!machine.contains(&b) && machine.up(node(1, "b")).is_err());
        machine.down(b, life);
        assert_eq!(machine.revoked().nodes, [b]);
        assert_eq!(machine.revoked().tickets_until, 100);
        machine.admit(node(2, "b")).expect("the name is free");
        machine.admit(node(1, "b2")).unwrap();
        assert!(machine.revoked().nodes.is_empty());
        assert_eq!(machine.revoked().tickets_until, 100, "old tickets do not come back");
        machine.remove(&b.to_string(), 50).expect("by id");
        assert_eq!(machine.revoked().tickets_until, 100);
    }

    #[test]
    fn neither_the_node_that_admits_others_nor_a_stranger_is_removed() {
        let mut machine = machine();
        assert_eq!(machine.remove("a", 1).unwrap_err().code, ErrorCode::Conflict);
        assert_eq!(machine.remove("x", 1).unwrap_err().code, ErrorCode::NotFound);
        assert_eq!(machine.revoked(), &Revoked::default());
    }

    #[test]
    fn a_member_hears_of_removals_and_of_its_own_key_elsewhere() {
        let mut member = MemberMachine::new(node(1, "b"), Vec::new(), Revoked::default()).unwrap();
        let told = Node {
            key_in_use_by: "10.0.0.9:1".to_owned(),
            name: "other".to_owned(),
            ..node(1, "b")
        };
        let removed = [NodeId([2; 32]).to_string(), "no id".to_owned()];
        member.replace(vec![node(0, "a"), told], &removed).unwrap();
        assert_eq!(member.revoked().nodes, [NodeId([2; 32])]);
        let own = member.nodes().into_iter().find(|node| node.self_).unwrap();
        assert_eq!((own.name.as_str(), own.key_in_use_by.as_str()), ("b", "10.0.0.9:1"));
    }

    #[test]
    fn a_node_does_not_say_of_itself_where_its_key_is_used_and_a_new_life_ends_the_word() {
        let mut machine = machine();
        let boastful = Node {
            key_in_use_by: "x".repeat(100_000),
            ..node(1, "b")
        };
        machine.admit(boastful.clone()).unwrap();
        let place = |machine: &MemberMachine| machine.nodes()[1].key_in_use_by.clone();
        assert_eq!(place(&machine), "");
        machine.key_in_use(NodeId([1; 32]), &"x".repeat(100_000));
        assert_eq!(place(&machine).len(), MAX_PLACE);
        machine.up(boastful).unwrap();
        assert_eq!(place(&machine), "");
    }

    #[test]
    fn the_oldest_removals_are_forgotten() {
        let mut revoked = Revoked::default();
        for number in 0..MAX_REMOVED as u64 + 5 {
            let mut id = [0; 32];
            id[..8].copy_from_slice(&number.to_le_bytes());
            revoked.add(NodeId(id), number);
        }
        assert_eq!(revoked.nodes.len(), MAX_REMOVED);
        assert_eq!(revoked.nodes[0].0[0], 5);
    }

    #[test]
    fn strangers_are_not_up() {
        assert!(machine().up(node(7, "x")).is_err());
    }

    #[test]
    fn members_known_before_a_restart_are_down_until_they_call() {
        let machine = MemberMachine::new(
            node(0, "a"),
            vec![Node {
                state: 1,
                ..node(1, "b")
            }],
            Revoked::default(),
        )
        .unwrap();
        assert_eq!(state(&machine, "b"), NodeState::Down as i32);
        assert!(machine.contains(&NodeId([1; 32])));
    }

    #[test]
    fn names_that_would_break_a_stage_list_are_refused() {
        for name in ["", "a:b", "a,b", "a b", &"x".repeat(65)] {
            assert!(machine().admit(node(1, name)).is_err(), "{name}");
        }
    }
}
