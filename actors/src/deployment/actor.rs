//! The actor of one deployment at its owner.

mod again;
mod keep;
mod view;

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use mesh_proto::{
    ErrorCode, MeshError, NodeId,
    v1::{self, ServeRequest, ServeResponse},
    wire::{DeploymentRoute, HostActivate, HostCommand, HostConnect, HostEvent, StageSpec, host_command, host_event},
};
use ractor::{Actor, ActorProcessingErr, ActorRef};
use tokio::{
    sync::{mpsc, watch},
    task::{JoinHandle, JoinSet},
};

use super::{
    caller::Caller,
    follow::{Said, follow_host},
    machine::{Effect, EpochMachine, Phase},
    owner::Listing,
    prepare::{Prepared, prepare},
};
use crate::{
    directory::Directory,
    host::already_served,
    policy::ActorKind,
    ports::deployment::{Hosts, ModelFacts, ModelStore},
    ports::desired::{DesiredDeployment, DesiredState},
    root::RootHandle,
};

/// First and longest pause before the stages are arranged anew; it doubles while that keeps failing.
const RETRY_FIRST: Duration = Duration::from_millis(500);
const RETRY_LONGEST: Duration = Duration::from_secs(30);

/// What deployments of a node share.
pub struct DeploymentEnvironment {
    /// This node.
    pub node: NodeId,
    /// Its name.
    pub node_name: String,
    /// Model files.
    pub store: Arc<dyn ModelStore>,
    /// Hosts on all nodes.
    pub hosts: Arc<dyn Hosts>,
    /// Members of the mesh.
    pub members: watch::Receiver<Vec<v1::Node>>,
    /// Where changes are published.
    pub directory: Directory,
    /// What outlives this run of the node.
    pub desired: Arc<dyn DesiredState>,
    /// Supervises deployments.
    pub root: RootHandle,
}

/// The owner's hold on a deployment.
#[derive(Debug, Clone)]
pub struct DeploymentRef {
    actor: ActorRef<Message>,
    restoring: Restoring,
}

/// As it was asked for, while it is being brought back.
type Restoring = Arc<Mutex<Option<ServeRequest>>>;

impl DeploymentRef {
    /// One who asks for just what is being brought back is answered with what comes of it. False if this is not that.
    pub(super) fn ask_again(
        &self,
        request: &ServeRequest,
        progress: &mpsc::Sender<Result<ServeResponse, MeshError>>,
    ) -> bool {
        let restoring = self.restoring.lock().unwrap_or_else(PoisonError::into_inner);
        restoring.as_ref() == Some(request) && self.actor.cast(Message::Again(Caller::new(progress.clone()))).is_ok()
    }

    /// Takes it down; resolves when it is no longer listed.
    pub async fn stop(&self) {
        let _ = self.actor.stop_and_wait(None, None).await;
    }
}

/// The owner has taken the name; `listing` gives it back.
pub(super) async fn spawn_deployment(
    request: ServeRequest,
    facts: ModelFacts,
    environment: Arc<DeploymentEnvironment>,
    listing: Listing,
    caller: Caller,
) -> Result<(), MeshError> {
    let created = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default()
        .as_secs();
    let state = State::new(request, facts, environment, listing, created);
    spawn(State {
        caller: Some(caller),
        ..state
    })
    .await
}

/// As [`spawn_deployment`], for one that an earlier run of the node has served.
pub(super) async fn restore_deployment(
    desired: DesiredDeployment,
    environment: Arc<DeploymentEnvironment>,
    listing: Listing,
) -> Result<(), MeshError> {
    // All that is known of the model until its file is read.
    let facts = ModelFacts {
        label: desired.request.model.clone(),
        ..ModelFacts::default()
    };
    let state = State::new(desired.request.clone(), facts, environment, listing, desired.created);
    spawn(State {
        restoring: Arc::new(Mutex::new(Some(desired.request.clone()))),
        desired: Some(desired),
        served: true,
        ..state
    })
    .await
}

async fn spawn(state: State) -> Result<(), MeshError> {
    let root = state.environment.root.clone();
    let (actor, _) = Actor::spawn_linked(None, DeploymentActor, state, root.cell())
        .await
        .map_err(|error| MeshError::internal(format!("the deployment's actor did not start: {error}")))?;
    root.adopt(&actor.get_cell(), ActorKind::Deployment);
    Ok(())
}

#[derive(Debug)]
pub(super) enum Message {
    Prepared(Result<Box<Prepared>, MeshError>),
    Restored(Result<Box<(ModelFacts, Prepared)>, MeshError>),
    Again(Caller),
    Kept(Result<Box<v1::Deployment>, MeshError>),
    HostOpened {
        epoch: u64,
        stage: u32,
        commands: mpsc::Sender<HostCommand>,
    },
    HostSaid {
        epoch: u64,
        stage: u32,
        event: HostEvent,
    },
    GiveUp,
    /// Nodes of the plan are no members any more.
    Missing {
        epoch: u64,
        nodes: String,
    },
    Rearrange,
}

struct State {
    name: String,
    request: ServeRequest,
    facts: ModelFacts,
    environment: Arc<DeploymentEnvironment>,
    /// Its name and place in the lists, until it ends.
    listing: Option<Listing>,
    created: u64,
    /// The one who called `serve`, until the first `ready` or error.
    caller: Option<Caller>,
    prepared: Option<Prepared>,
    epoch: u64,
    machine: EpochMachine,
    hosts: Vec<Option<mpsc::Sender<HostCommand>>>,
    /// Hold the stages of the epoch; end with it.
    followers: JoinSet<()>,
    tasks: JoinSet<()>,
    retry: Duration,
    /// It was ready once, in this run of the node or before: a loss is no longer an answer to `serve`.
    served: bool,
    /// Nodes of the plan that are no members any more: the stages cannot be arranged again.
    missing: Option<String>,
    /// It was ready once in this run.
    was_ready: bool,
    /// As an earlier run has written it down.
    desired: Option<DesiredDeployment>,
    restoring: Restoring,
    /// It is being written down.
    keeping: Option<JoinHandle<()>>,
}

struct DeploymentActor;

impl Actor for DeploymentActor {
    type Msg = Message;
    type State = State;
    type Arguments = State;

    async fn pre_start(&self, myself: ActorRef<Message>, mut state: State) -> Result<State, ActorProcessingErr> {
        if let Some(listing) = &state.listing {
            let restoring = state.restoring.clone();
            listing.runs(DeploymentRef {
                actor: myself.clone(),
                restoring,
            });
        }
        if state.desired.is_some() {
            state.set_route(state.describe());
            state.restore(&myself);
            return Ok(state);
        }
        if let Some(caller) = &mut state.caller {
            let progress = caller.progress().clone();
            let preparing = prepare(
                state.request.clone(),
                state.facts.clone(),
                state.environment.clone(),
                Some(progress.clone()),
            );
            let watcher = state.tasks.spawn(async move {
                let prepared = tokio::select! {
                    prepared = preparing => prepared,
                    () = progress.closed() => return drop(myself.cast(Message::GiveUp)),
                };
                let _ = myself.cast(Message::Prepared(prepared.map(Box::new)));
                progress.closed().await;
                let _ = myself.cast(Message::GiveUp);
            });
            caller.watched_by(watcher);
        }
        Ok(state)
    }

    async fn handle(
        &self,
        myself: ActorRef<Message>,
        message: Message,
        state: &mut State,
    ) -> Result<(), ActorProcessingErr> {
        let mut effects = Vec::new();
        match message {
            Message::Prepared(Ok(prepared)) => {
                state.prepared = Some(*prepared);
                state.arrange(&myself);
            }
            Message::Prepared(Err(error)) => state.give_answer(Err(error)),
            Message::Restored(Ok(restored)) => {
                (state.facts, state.prepared) = (restored.0, Some(restored.1));
                state.arrange(&myself);
            }
            Message::Restored(Err(error)) => state.machine.end(error, &mut effects),
            Message::Again(caller) => state.again(caller, &myself),
            Message::Kept(kept) => state.kept(kept),
            Message::HostOpened { epoch, stage, commands } if epoch == state.epoch => {
                // There is no place any more when another stage has ended the epoch meanwhile.
                if let Some(place) = state.hosts.get_mut(stage as usize) {
                    *place = Some(commands);
                }
            }
            Message::HostSaid { epoch, stage, event } if epoch == state.epoch => {
                state.host_said(stage, event, &mut effects);
            }
            Message::Missing { epoch, nodes } if epoch == state.epoch => {
                state.missing = Some(nodes);
                state.set_route(state.describe());
            }
            Message::HostOpened { .. } | Message::HostSaid { .. } | Message::Missing { .. } => {}
            Message::GiveUp => state.give_up(),
            Message::Rearrange => state.try_again(&myself),
        }
        for effect in effects {
            state.perform(effect, &myself);
        }
        if state.is_stillborn() {
            myself.stop(None);
        }
        Ok(())
    }

    async fn post_stop(&self, _: ActorRef<Message>, state: &mut State) -> Result<(), ActorProcessingErr> {
        state.drop_hosts();
        state.tasks.abort_all();
        if let Some(keeping) = state.keeping.take() {
            // Whoever stops it forgets it next.
            let _ = keeping.await;
        }
        if let Some(caller) = state.caller.take() {
            let message = "the deployment was stopped before it was ready";
            caller.answer(Err(MeshError::new(ErrorCode::Cancelled, message)));
        }
        // Here, not where the state is dropped: that is when the supervisor gets to it.
        state.listing = None;
        Ok(())
    }
}

impl State {
    fn new(
        request: ServeRequest,
        facts: ModelFacts,
        environment: Arc<DeploymentEnvironment>,
        listing: Listing,
        created: u64,
    ) -> Self {
        Self {
            name: listing.name().to_owned(),
            request,
            facts,
            environment,
            listing: Some(listing),
            created,
            caller: None,
            prepared: None,
            epoch: 0,
            machine: EpochMachine::new(0),
            hosts: Vec::new(),
            followers: JoinSet::new(),
            tasks: JoinSet::new(),
            retry: RETRY_FIRST,
            served: false,
            missing: None,
            was_ready: false,
            desired: None,
            restoring: Restoring::default(),
            keeping: None,
        }
    }

    /// Nobody waits for an answer, and it never was ready: nothing half-made stays behind.
    fn is_stillborn(&self) -> bool {
        self.caller.is_none() && !self.served
    }

    fn give_answer(&mut self, answer: Result<v1::Deployment, MeshError>) {
        if let Some(caller) = self.caller.take() {
            caller.answer(answer);
        }
    }

    /// The caller of `serve` has gone before it was ready.
    fn give_up(&mut self) {
        self.caller = None;
    }

    /// Starts a new epoch.
    fn arrange(&mut self, myself: &ActorRef<Message>) {
        let (Some(prepared), Some(listing)) = (&self.prepared, &self.listing) else {
            return;
        };
        // What has ended, out of the set: it would keep them for ever.
        while self.tasks.try_join_next().is_some() {}
        self.epoch = listing.next_epoch();
        self.missing = None;
        let stages = prepared.plan.stages.len();
        self.machine = EpochMachine::new(stages as u32);
        self.hosts = vec![None; stages];
        for stage in 0..stages as u32 {
            let spec = self.spec(prepared, stage);
            let (hosts, epoch, myself) = (self.environment.hosts.clone(), self.epoch, myself.clone());
            let node = &prepared.plan.stages[stage as usize].node;
            let (id, name) = (node.id.clone(), node.name.clone());
            self.followers
                .spawn(follow_host(hosts, id, name, spec, move |message| match message {
                    Said::Opened(commands) => drop(myself.cast(Message::HostOpened { epoch, stage, commands })),
                    Said::Event(event) => drop(myself.cast(Message::HostSaid { epoch, stage, event })),
                }));
        }
    }

    fn spec(&self, prepared: &Prepared, stage: u32) -> StageSpec {
        let Prepared {
            plan,
            files,
            vocabulary,
        } = prepared;
        let planned = &plan.stages[stage as usize];
        StageSpec {
            deployment: self.name.clone(),
            epoch: self.epoch,
            stage,
            stages: plan.stages.len() as u32,
            layer_start: planned.layers.start,
            layer_end: planned.layers.end,
            layers: self.facts.layers,
            source_id: self.facts.source_id.clone(),
            n_embd: self.facts.n_embd,
            n_vocab: self.facts.n_vocab,
            context: plan.context,
            lanes: plan.lanes,
            threads: planned.threads,
            exact: plan.exact,
            prefill_chunk: plan.prefill_chunk,
            file: files.get(stage as usize).cloned(),
            vocabulary: (stage == 0).then(|| vocabulary.clone()),
            source_node: self.environment.node.to_string(),
            stage_nodes: plan.stages.iter().map(|stage| stage.node.id.clone()).collect(),
        }
    }

    fn host_said(&mut self, stage: u32, event: HostEvent, effects: &mut Vec<Effect>) {
        match event.event {
            Some(host_event::Event::Progress(progress)) => {
                if let Some(caller) = &self.caller {
                    caller.progress().show(progress);
                }
            }
            Some(event) => {
                self.machine.event(stage, event, effects);
                if effects.contains(&Effect::ConnectAll) && self.request.exact && !self.exact() {
                    effects.clear();
                    let message = "--exact, but the self-check of a stage found that its results depend on the batch; \
                                   serve without --exact";
                    self.machine
                        .end(MeshError::new(ErrorCode::InsufficientResources, message), effects);
                }
                if let Some(owner) = self.first_owner() {
                    effects.clear();
                    self.machine.end(already_served(&self.name, &owner), effects);
                }
            }
            None => {
                let message = "a host sent an event that this node does not know; run the same release on all nodes";
                self.machine.end(MeshError::new(ErrorCode::Protocol, message), effects);
            }
        }
    }

    /// Another node that has served this name first, while this one prepared: it keeps the name.
    fn first_owner(&self) -> Option<String> {
        if self.was_ready || *self.machine.phase() != Phase::Ready {
            return None;
        }
        let listed = self.environment.directory.find_peer(&self.name)?;
        listed.deployment.map(|deployment| deployment.owner)
    }

    fn perform(&mut self, effect: Effect, myself: &ActorRef<Message>) {
        match effect {
            Effect::ConnectAll => {
                let connect = HostCommand {
                    command: Some(host_command::Command::Connect(HostConnect {})),
                };
                for host in self.hosts.iter().flatten() {
                    let _ = host.try_send(connect);
                }
            }
            Effect::Activate => {
                let activate = HostCommand {
                    command: Some(host_command::Command::Activate(HostActivate { exact: self.exact() })),
                };
                if let Some(Some(head)) = self.hosts.first() {
                    let _ = head.try_send(activate);
                }
            }
            Effect::Publish => self.publish(myself),
            Effect::DropHosts => {
                self.drop_hosts();
                self.rearrange_later(myself);
            }
        }
    }

    fn drop_hosts(&mut self) {
        self.hosts.clear();
        // A node that does not answer would hold its task, and its stage, for as long as its connection lives.
        self.followers = JoinSet::new();
    }

    fn publish(&mut self, myself: &ActorRef<Message>) {
        let deployment = self.describe();
        match self.machine.phase().clone() {
            Phase::Ready => {
                tracing::info!(deployment = %self.name, epoch = self.epoch, "deployment ready");
                self.retry = RETRY_FIRST;
                self.served = true;
                self.set_route(deployment.clone());
                if !std::mem::replace(&mut self.was_ready, true) {
                    *self.restoring.lock().unwrap_or_else(PoisonError::into_inner) = None;
                    self.keep(deployment, myself);
                }
            }
            Phase::Over(error) => {
                tracing::warn!(deployment = %self.name, epoch = self.epoch, %error, "deployment not ready");
                if self.served {
                    self.set_route(deployment);
                }
                if !self.was_ready {
                    self.give_answer(Err(error));
                }
            }
            Phase::Loading | Phase::Connecting | Phase::Activating => {}
        }
    }

    fn set_route(&self, deployment: v1::Deployment) {
        let head = self.prepared.as_ref().and_then(|prepared| prepared.plan.stages.first());
        let head = head.map(|stage| stage.node.id.clone()).unwrap_or_default();
        let route = DeploymentRoute {
            deployment: Some(deployment),
            head,
        };
        self.environment.directory.set_own(&self.name, Some(route));
    }
}
