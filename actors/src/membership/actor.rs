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
                let admitted = state.machine.admit(*node);
                let published = state.publish().await;
                let _ = reply.send(admitted.and(published));
            }
            Message::Up(node, reply) => {
                let life = state.machine.up(*node);
                let _ = state.publish().await;
                let _ = reply.send(life);
            }
            Message::Down(id, life) => {
                state.machine.down(id, life);
                let _ = state.publish().await;
            }
            Message::Leave(id, reply) => {
                state.machine.leave(id);
                let _ = state.publish().await;
                let _ = reply.send(());
            }
            Message::Replace(nodes, reply) => {
                let replaced = state.machine.replace(nodes);
                let _ = state.publish().await;
                let _ = reply.send(replaced);
            }
            Message::IssuerLost => {
                state.machine.issuer_lost();
                let _ = state.publish().await;
            }
        }
        Ok(())
    }
}

impl State {
    /// Saves and publishes the list, if it changed.
    async fn publish(&mut self) -> Result<(), MeshError> {
        let version = self.machine.version();
        if self.list.borrow().version == version {
            return Ok(());
        }
        let nodes = self.machine.nodes();
        let (store, copy) = (self.store.clone(), nodes.clone());
        let saved = tokio::task::spawn_blocking(move || store.save(&copy)).await;
        let saved = saved.unwrap_or_else(|error| Err(MeshError::internal(error.to_string())));
        if let Err(error) = &saved {
            tracing::error!(%error, "the member list could not be saved");
        }
        self.list.send_replace(MemberList {
            version,
            nodes: nodes.clone(),
        });
        self.nodes.send_replace(nodes);
        saved
    }
}
