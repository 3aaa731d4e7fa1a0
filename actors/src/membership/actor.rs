//! The actor of the member list.

use std::{
    sync::Arc,
    time::{SystemTime, UNIX_EPOCH},
};

use mesh_proto::{MeshError, NodeId, v1::Node, wire::MemberList};
use ractor::{Actor, ActorProcessingErr, ActorRef};
use tokio::sync::{oneshot, watch};

use super::{
    machine::{Incarnation, MemberMachine},
    revoked::Revoked,
};
use crate::{policy::ActorKind, root::RootHandle};

/// Keeps the list over a restart.
pub trait MemberStore: Send + Sync + 'static {
    /// Writes the list, and what removals left behind; called on a blocking thread.
    fn save(&self, nodes: &[Node], revoked: &Revoked) -> Result<(), MeshError>;
}

/// What a node knows of its mesh from before.
#[derive(Debug, Clone, Default)]
pub struct Known {
    /// Members.
    pub nodes: Vec<Node>,
    /// What removals left behind.
    pub revoked: Revoked,
}

/// Handle to the member list. Cheap to clone.
#[derive(Debug, Clone)]
pub struct MembershipHandle {
    actor: ActorRef<Message>,
    list: watch::Receiver<MemberList>,
    nodes: watch::Receiver<Vec<Node>>,
    revoked: watch::Receiver<Revoked>,
}

/// Starts the member list of a node.
///
/// # Errors
///
/// The names or ids are not valid, or the actor does not start.
pub async fn spawn_membership(
    own: Node,
    known: Known,
    store: Arc<dyn MemberStore>,
    root: &RootHandle,
) -> Result<MembershipHandle, MeshError> {
    let machine = MemberMachine::new(own, known.nodes, known.revoked)?;
    let (list, list_reader) = watch::channel(list_of(&machine));
    let (nodes, nodes_reader) = watch::channel(machine.nodes());
    let (revoked, revoked_reader) = watch::channel(machine.revoked().clone());
    let (actor, _) = Actor::spawn_linked(
        None,
        MembershipActor,
        State {
            machine,
            list,
            nodes,
            revoked,
            store,
        },
        root.cell(),
    )
    .await
    .map_err(|error| MeshError::internal(format!("the member list's actor did not start: {error}")))?;
    root.adopt(&actor.get_cell(), ActorKind::Membership);
    Ok(MembershipHandle {
        actor,
        list: list_reader,
        nodes: nodes_reader,
        revoked: revoked_reader,
    })
}

/// The list as it is pushed.
fn list_of(machine: &MemberMachine) -> MemberList {
    MemberList {
        version: machine.version(),
        nodes: machine.nodes(),
        removed: machine.revoked().nodes.iter().map(ToString::to_string).collect(),
    }
}

impl MembershipHandle {
    /// Members, now and on every change.
    pub fn nodes(&self) -> watch::Receiver<Vec<Node>> {
        self.nodes.clone()
    }

    /// The list as it is pushed to members.
    pub fn list(&self) -> watch::Receiver<MemberList> {
        self.list.clone()
    }

    /// What removals left behind, now and on every change.
    pub fn revoked(&self) -> watch::Receiver<Revoked> {
        self.revoked.clone()
    }

    /// A node with a good ticket joins.
    pub async fn admit(&self, node: Node) -> Result<(), MeshError> {
        self.ask(|reply| Message::Admit(Box::new(node), reply)).await?
    }

    /// A node that was admitted did not hear of it: it is taken out again, unless it has called since.
    pub fn withdraw(&self, id: NodeId) {
        let _ = self.actor.cast(Message::Withdraw(id));
    }

    /// A member's watch stream has opened.
    pub async fn up(&self, node: Node) -> Result<Incarnation, MeshError> {
        self.ask(|reply| Message::Up(Box::new(node), reply)).await?
    }

    /// A member's watch stream has ended.
    pub fn down(&self, id: NodeId, life: Incarnation) {
        let _ = self.actor.cast(Message::Down(id, life));
    }

    /// A member is taken out; resolves when the list is changed and saved.
    pub async fn leave(&self, id: NodeId) -> Result<(), MeshError> {
        self.ask(|reply| Message::Leave(id, reply)).await
    }

    /// A dead or stolen member, by name or id, is taken out, and tickets issued so far are no longer good; resolves when
    /// that is saved.
    ///
    /// # Errors
    ///
    /// There is no such member, it is this node, or the list cannot be saved; nothing is changed then.
    pub async fn remove(&self, name: &str) -> Result<NodeId, MeshError> {
        self.ask(|reply| Message::Remove(name.to_owned(), reply)).await?
    }

    /// Another process tried to use the key of a node.
    pub fn key_in_use(&self, id: NodeId, other: String) {
        let _ = self.actor.cast(Message::KeyInUse(id, other));
    }

    /// The issuer's list, on a member.
    pub async fn replace(&self, list: MemberList) -> Result<(), MeshError> {
        self.ask(|reply| Message::Replace(list, reply)).await?
    }

    /// The issuer cannot be reached.
    pub fn issuer_lost(&self) {
        let _ = self.actor.cast(Message::IssuerLost);
    }

    async fn ask<T>(&self, message: impl FnOnce(oneshot::Sender<T>) -> Message) -> Result<T, MeshError> {
        let (reply, answer) = oneshot::channel();
        let gone = || MeshError::internal("the member list has ended");
        self.actor.cast(message(reply)).map_err(|_| gone())?;
        answer.await.map_err(|_| gone())
    }
}

#[derive(Debug)]
enum Message {
    Admit(Box<Node>, oneshot::Sender<Result<(), MeshError>>),
    Withdraw(NodeId),
    Up(Box<Node>, oneshot::Sender<Result<Incarnation, MeshError>>),
    Down(NodeId, Incarnation),
    Leave(NodeId, oneshot::Sender<()>),
    Remove(String, oneshot::Sender<Result<NodeId, MeshError>>),
    KeyInUse(NodeId, String),
    Replace(MemberList, oneshot::Sender<Result<(), MeshError>>),
    IssuerLost,
}

struct State {
    machine: MemberMachine,
    list: watch::Sender<MemberList>,
    nodes: watch::Sender<Vec<Node>>,
    revoked: watch::Sender<Revoked>,
    store: Arc<dyn MemberStore>,
}

struct MembershipActor;

impl Actor for MembershipActor {
    type Msg = Message;
    type State = State;
    type Arguments = State;

    async fn pre_start(&self, _: ActorRef<Message>, state: State) -> Result<State, ActorProcessingErr> {
        Ok(state)
    }

    async fn handle(
        &self,
        _: ActorRef<Message>,
        message: Message,
        state: &mut State,
    ) -> Result<(), ActorProcessingErr> {
        match message {
            Message::Admit(node, reply) => {
                let _ = reply.send(state.admit(*node).await);
            }
            Message::Withdraw(id) => {
                state.machine.withdraw(id);
                state.publish().await;
            }
            Message::Up(node, reply) => {
                let life = state.machine.up(*node);
                state.publish().await;
                let _ = reply.send(life);
            }
            Message::Down(id, life) => {
                state.machine.down(id, life);
                state.publish().await;
            }
            Message::Leave(id, reply) => {
                state.machine.leave(id);
                state.publish().await;
                let _ = reply.send(());
            }
            Message::Remove(name, reply) => {
                let _ = reply.send(state.remove(&name).await);
            }
            Message::KeyInUse(id, other) => {
                state.machine.key_in_use(id, &other);
                state.publish().await;
            }
            Message::Replace(list, reply) => {
                let replaced = state.machine.replace(list.nodes, &list.removed);
                state.publish().await;
                let _ = reply.send(replaced);
            }
            Message::IssuerLost => {
                state.machine.issuer_lost();
                state.publish().await;
            }
        }
        Ok(())
    }
}

impl State {
    /// A node that cannot be saved is not admitted: nobody has seen it in the list.
    async fn admit(&mut self, node: Node) -> Result<(), MeshError> {
        self.change(|machine| machine.admit(node)).await
    }

    /// A removal that cannot be saved would come back with a restart: it is none.
    async fn remove(&mut self, name: &str) -> Result<NodeId, MeshError> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let removed = self.change(|machine| machine.remove(name, now.as_secs())).await;
        removed.inspect(|node| tracing::info!(name, %node, "node removed"))
    }

    /// Changes the list if that can be saved.
    async fn change<T>(
        &mut self,
        change: impl FnOnce(&mut MemberMachine) -> Result<T, MeshError>,
    ) -> Result<T, MeshError> {
        let before = self.machine.clone();
        let changed = change(&mut self.machine)?;
        match self.save().await {
            Ok(()) => {
                self.show();
                Ok(changed)
            }
            Err(error) => {
                self.machine = before;
                Err(error)
            }
        }
    }

    /// Saves and shows the list, if it changed. What others have done is so whether it can be saved or not.
    async fn publish(&mut self) {
        if self.list.borrow().version != self.machine.version() {
            let _ = self.save().await;
            self.show();
        }
    }

    async fn save(&self) -> Result<(), MeshError> {
        let (store, nodes) = (self.store.clone(), self.machine.nodes());
        let revoked = self.machine.revoked().clone();
        let saved = tokio::task::spawn_blocking(move || store.save(&nodes, &revoked)).await;
        let saved = saved.unwrap_or_else(|error| Err(MeshError::internal(error.to_string())));
        saved.inspect_err(|error| tracing::error!(%error, "the member list could not be saved"))
    }

    fn show(&self) {
        self.revoked.send_replace(self.machine.revoked().clone());
        self.nodes.send_replace(self.machine.nodes());
        self.list.send_replace(list_of(&self.machine));
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{
        Mutex,
        atomic::{AtomicBool, Ordering},
    };

    use mesh_proto::ErrorCode;
    use tokio_util::sync::CancellationToken;

    use super::*;

    #[derive(Default)]
    struct Disk {
        is_full: AtomicBool,
        saved: Mutex<Vec<String>>,
    }

    impl MemberStore for Disk {
        fn save(&self, nodes: &[Node], _: &Revoked) -> Result<(), MeshError> {
            if self.is_full.load(Ordering::SeqCst) {
                return Err(MeshError::internal("the disk is full"));
            }
            *self.saved.lock().unwrap() = names(nodes);
            Ok(())
        }
    }

    fn names(nodes: &[Node]) -> Vec<String> {
        nodes.iter().map(|node| node.name.clone()).collect()
    }

    fn node(byte: u8, name: &str) -> Node {
        Node {
            id: NodeId([byte; 32]).to_string(),
            name: name.to_owned(),
            ..Node::default()
        }
    }

    #[tokio::test]
    async fn what_cannot_be_saved_is_neither_an_admission_nor_a_removal() {
        let root = RootHandle::spawn(CancellationToken::new()).await.unwrap();
        let disk = Arc::new(Disk::default());
        let members = spawn_membership(node(0, "a"), Known::default(), disk.clone(), &root)
            .await
            .unwrap();
        disk.is_full.store(true, Ordering::SeqCst);
        let refused = members.admit(node(1, "b")).await.expect_err("not saved");
        assert!(refused.message.contains("full"), "{refused}");
        assert_eq!(names(&members.nodes().borrow()), ["a"]);
        assert_eq!(
            members.up(node(1, "b")).await.expect_err("no member").code,
            ErrorCode::PermissionDenied
        );
        disk.is_full.store(false, Ordering::SeqCst);
        members.admit(node(2, "b")).await.expect("the name is free");
        assert_eq!(names(&members.nodes().borrow()), ["a", "b"]);
        assert_eq!(*disk.saved.lock().unwrap(), ["a", "b"]);

        disk.is_full.store(true, Ordering::SeqCst);
        members.remove("b").await.expect_err("not saved");
        assert_eq!(names(&members.nodes().borrow()), ["a", "b"]);
        assert_eq!(*members.revoked().borrow(), Revoked::default());
        disk.is_full.store(false, Ordering::SeqCst);
        assert_eq!(members.remove("b").await.unwrap(), NodeId([2; 32]));
        assert_eq!(names(&members.nodes().borrow()), ["a"]);
        assert_eq!(members.list().borrow().removed, [NodeId([2; 32]).to_string()]);
        root.stop().await;
    }
}
