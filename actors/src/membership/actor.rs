//! The actor of the member list.

use std::sync::Arc;

use mesh_proto::{MeshError, NodeId, v1::Node, wire::MemberList};
use ractor::{Actor, ActorProcessingErr, ActorRef};
use tokio::sync::{oneshot, watch};

use super::machine::{Incarnation, MemberMachine};
use crate::{policy::ActorKind, root::RootHandle};

/// Keeps the list over a restart.
pub trait MemberStore: Send + Sync + 'static {
    /// Writes the list; called on a blocking thread.
    fn save(&self, nodes: &[Node]) -> Result<(), MeshError>;
}

/// Handle to the member list. Cheap to clone.
#[derive(Debug, Clone)]
pub struct MembershipHandle {
    actor: ActorRef<Message>,
    list: watch::Receiver<MemberList>,
    nodes: watch::Receiver<Vec<Node>>,
}

/// Starts the member list of a node.
///
/// # Errors
///
/// The names or ids are not valid, or the actor does not start.
pub async fn spawn_membership(
    own: Node,
    known: Vec<Node>,
    store: Arc<dyn MemberStore>,
    root: &RootHandle,
) -> Result<MembershipHandle, MeshError> {
    let machine = MemberMachine::new(own, known)?;
    let (list, list_reader) = watch::channel(MemberList {
        version: machine.version(),
        nodes: machine.nodes(),
    });
    let (nodes, nodes_reader) = watch::channel(machine.nodes());
    let (actor, _) = Actor::spawn_linked(
        None,
        MembershipActor,
        State {
            machine,
            list,
            nodes,
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
    })
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

    /// The issuer's list, on a member.
    pub async fn replace(&self, nodes: Vec<Node>) -> Result<(), MeshError> {
        self.ask(|reply| Message::Replace(nodes, reply)).await?
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
    Replace(Vec<Node>, oneshot::Sender<Result<(), MeshError>>),
    IssuerLost,
}

struct State {
    machine: MemberMachine,
    list: watch::Sender<MemberList>,
    nodes: watch::Sender<Vec<Node>>,
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
            Message::Replace(nodes, reply) => {
                let replaced = state.machine.replace(nodes);
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
        let before = self.machine.clone();
        self.machine.admit(node)?;
        let saved = self.save().await;
        match &saved {
            Ok(()) => self.show(),
            Err(_) => self.machine = before,
        }
        saved
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
        let saved = tokio::task::spawn_blocking(move || store.save(&nodes)).await;
        let saved = saved.unwrap_or_else(|error| Err(MeshError::internal(error.to_string())));
        saved.inspect_err(|error| tracing::error!(%error, "the member list could not be saved"))
    }

    fn show(&self) {
        let nodes = self.machine.nodes();
        self.list.send_replace(MemberList {
            version: self.machine.version(),
            nodes: nodes.clone(),
        });
        self.nodes.send_replace(nodes);
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
        fn save(&self, nodes: &[Node]) -> Result<(), MeshError> {
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
    async fn a_node_that_cannot_be_saved_is_not_admitted_and_its_name_stays_free() {
        let root = RootHandle::spawn(CancellationToken::new()).await.unwrap();
        let disk = Arc::new(Disk::default());
        let members = spawn_membership(node(0, "a"), Vec::new(), disk.clone(), &root)
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
        root.stop().await;
    }
}
