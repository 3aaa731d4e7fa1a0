//! The actor of a stage's host.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use mesh_proto::{
    Epoch, ErrorCode, MeshError, NodeId,
    wire::{HostActivated, HostCommand, HostConnected, HostEvent, HostLoaded, StageSpec, host_command, host_event},
};
use ractor::{Actor, ActorCell, ActorProcessingErr, ActorRef, SupervisionEvent};
use tokio::{
    sync::{
        mpsc::{self, error::TrySendError},
        oneshot,
    },
    task::JoinSet,
};

use super::{
    claims::{Claim, StageOwner},
    files::{Files, obtain_files, progress_event},
    plugins::seat_plugins,
    registry::{Registration, StageRegistry},
};
use crate::{
    events::EventBus,
    head::{HeadHandle, HeadOptions, spawn_head},
    link::{
        LinkHandle,
        memory::{MemoryGrant, MemoryWriter},
        spawn_link,
    },
    plugin::{ModelPlugins, PluginHandle},
    policy::{ActorKind, on_failure},
    ports::{
        deployment::ModelStore,
        engine::{EngineLoader, StageLoad},
        link::{FrameWriter, LinkAcceptor, LinkEvents, LinkHello, StageLinks},
        plugin::ModelFacts,
        telemetry::Telemetry,
        vocabulary::{Vocabulary, VocabularyLoader},
    },
    request::RequestOptions,
    root::RootHandle,
    stage::{StageHandle, StageMeter, StageNotice, StageOptions, spawn_stage, thread::Loaded},
};

/// Notices of one host: two senders, one loss each, and progress that may be dropped.
const NOTICES: usize = 16;

/// How long a stage may take to give back its memory after its last call: one forward pass of a large chunk.
pub(super) const UNLOAD_LIMIT: Duration = Duration::from_secs(30);

/// What hosts of a node share.
pub struct HostEnvironment {
    /// This node.
    pub node: NodeId,
    /// Its name, for progress.
    pub node_name: String,
    /// Most compute threads of a stage.
    pub threads: u32,
    /// Layers to offload; `None` is all.
    pub gpu_layers: Option<u32>,
    /// The process runs exact mode.
    pub exact: bool,
    /// Loads stages.
    pub loader: Arc<dyn EngineLoader>,
    /// Loads vocabularies.
    pub vocabularies: Arc<dyn VocabularyLoader>,
    /// Model files.
    pub store: Arc<dyn ModelStore>,
    /// Links to other nodes.
    pub links: Arc<dyn StageLinks>,
    /// Stages on this node.
    pub registry: Arc<StageRegistry>,
    /// Lifecycle events.
    pub events: EventBus,
    /// Traces and measurements.
    pub telemetry: Arc<dyn Telemetry>,
    /// They follow the requests whose head is here.
    pub plugins: Arc<[PluginHandle]>,
    /// Supervises hosts.
    pub root: RootHandle,
}

/// The owner's hold on a host.
#[derive(Debug, Clone)]
pub struct HostHandle {
    actor: ActorRef<HostMessage>,
}

impl HostHandle {
    /// Passes on what the owner says.
    pub fn command(&self, command: HostCommand) {
        let _ = self.actor.cast(HostMessage::Command(command));
    }

    /// Takes the stage down without waiting for it.
    pub fn stop_soon(&self) {
        self.actor.stop(None);
    }

    /// Takes the stage down; resolves when its memory is free, or after a limit.
    pub async fn stop(&self) {
        let _ = self.actor.stop_and_wait(None, Some(UNLOAD_LIMIT)).await;
    }
}

/// Starts a host for an owner; `events` goes there.
///
/// # Errors
///
/// The actor does not start.
pub async fn spawn_host(
    owner: StageOwner,
    spec: StageSpec,
    environment: Arc<HostEnvironment>,
    events: mpsc::Sender<HostEvent>,
) -> Result<HostHandle, MeshError> {
    let supervisor = environment.root.clone();
    let (actor, _) = Actor::spawn_linked(None, HostActor, (owner, spec, environment, events), supervisor.cell())
        .await
        .map_err(|error| MeshError::internal(format!("the host's actor did not start: {error}")))?;
    supervisor.adopt(&actor.get_cell(), ActorKind::Host);
    Ok(HostHandle { actor })
}

enum HostMessage {
    Files(Result<Files, MeshError>),
    Loaded(Result<(Loaded, ModelPlugins), MeshError>),
    Command(HostCommand),
    Linked(Result<Box<dyn FrameWriter>, MeshError>),
    Notice(StageNotice),
}

impl std::fmt::Debug for HostMessage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("HostMessage")
    }
}

struct State {
    spec: StageSpec,
    environment: Arc<HostEnvironment>,
    events: mpsc::Sender<HostEvent>,
    notices: mpsc::Sender<StageNotice>,
    vocabulary: Option<Arc<dyn Vocabulary>>,
    stage: Option<StageHandle>,
    meter: Arc<StageMeter>,
    head: Option<HeadHandle>,
    /// The deployment's name is the owner's here, until the stage's memory is free.
    claim: Option<Claim>,
    /// Links and requests find the stage; the link from the stage before ends with it.
    registration: Option<Registration>,
    /// All stages of the deployment are exact, as its owner says.
    exact: Arc<AtomicBool>,
    /// To the stage behind.
    link: Option<LinkHandle>,
    ended: Option<oneshot::Receiver<()>>,
    tasks: JoinSet<()>,
    failed: bool,
}

struct HostActor;

impl Actor for HostActor {
    type Msg = HostMessage;
    type State = State;
    type Arguments = (StageOwner, StageSpec, Arc<HostEnvironment>, mpsc::Sender<HostEvent>);

    async fn pre_start(
        &self,
        myself: ActorRef<HostMessage>,
        (owner, spec, environment, events): Self::Arguments,
    ) -> Result<State, ActorProcessingErr> {
        let (notices, mut inbox) = mpsc::channel(NOTICES);
        let mut tasks = JoinSet::new();
        let relay = myself.clone();
        tasks.spawn(async move {
            while let Some(notice) = inbox.recv().await {
                let _ = relay.cast(HostMessage::Notice(notice));
            }
        });
        let claim = environment.registry.claim(&owner, &spec);
        let claimed = claim.as_ref().map(Claim::earlier_freed).map_err(MeshError::clone);
        let files = obtain_files(spec.clone(), environment.clone(), events.clone());
        tasks.spawn(async move {
            let files = async {
                let freed = claimed?;
                let files = files.await?;
                freed.await.map(|()| files)
            };
            let _ = myself.cast(HostMessage::Files(files.await));
        });
        let meter = StageMeter::new(environment.telemetry.clone(), &spec.deployment, spec.stage, spec.lanes);
        Ok(State {
            spec,
            meter: Arc::new(meter),
            environment,
            events,
            notices,
            vocabulary: None,
            stage: None,
            head: None,
            claim: claim.ok(),
            registration: None,
            exact: Arc::default(),
            link: None,
            ended: None,
            tasks,
            failed: false,
        })
    }

    async fn handle(
        &self,
        myself: ActorRef<HostMessage>,
        message: HostMessage,
        state: &mut State,
    ) -> Result<(), ActorProcessingErr> {
        if state.failed {
            // What was still under way comes to nothing.
            return Ok(());
        }
        let outcome = match message {
            HostMessage::Files(Ok(files)) => state.load(files, &myself).await,
            HostMessage::Loaded(Ok((loaded, plugins))) => state.loaded(loaded, plugins, myself.get_cell()).await,
            HostMessage::Command(HostCommand {
                command: Some(host_command::Command::Connect(_)),
            }) => {
                state.connect(myself);
                Ok(())
            }
            HostMessage::Command(HostCommand {
                command: Some(host_command::Command::Activate(activate)),
            }) => {
                state.exact.store(activate.exact, Ordering::Relaxed);
                state.activate().await;
                Ok(())
            }
            HostMessage::Command(HostCommand { command: None }) => Err(MeshError::new(
                ErrorCode::Protocol,
                "the owner sent a command that this node does not know",
            )),
            HostMessage::Linked(Ok(writer)) => state.linked(writer, myself.get_cell()).await,
            HostMessage::Notice(StageNotice::Loading(done)) => {
                state.progress("load", (done * 1000.0) as u64, 1000);
                Ok(())
            }
            HostMessage::Files(Err(error))
            | HostMessage::Loaded(Err(error))
            | HostMessage::Linked(Err(error))
            | HostMessage::Notice(StageNotice::Lost(error)) => Err(error),
        };
        if let Err(error) = outcome {
            state.fail(error).await;
        }
        Ok(())
    }

    async fn handle_supervisor_evt(
        &self,
        _: ActorRef<HostMessage>,
        event: SupervisionEvent,
        state: &mut State,
    ) -> Result<(), ActorProcessingErr> {
        if let SupervisionEvent::ActorFailed(_, error) = event {
            on_failure(ActorKind::Stage, &error);
            state
                .fail(MeshError::internal(format!("an actor of the stage failed: {error}")))
                .await;
        }
        Ok(())
    }

    async fn post_stop(&self, _: ActorRef<HostMessage>, state: &mut State) -> Result<(), ActorProcessingErr> {
        state.take_down().await;
        Ok(())
    }
}

impl State {
    async fn load(&mut self, files: Files, myself: &ActorRef<HostMessage>) -> Result<(), MeshError> {
        let spec = &self.spec;
        self.vocabulary = files.vocabulary;
        let options = StageOptions {
            loader: self.environment.loader.clone(),
            load: StageLoad {
                path: files.stage,
                digest: spec.file.as_ref().map_or_else(String::new, |file| file.digest.clone()),
                layers: spec.layer_start..spec.layer_end,
                total_layers: spec.layers,
                lanes: spec.lanes,
                context: spec.context,
                threads: self.threads(),
                exact: spec.exact && self.environment.exact,
                exact_calls: None,
                gpu_layers: self.environment.gpu_layers,
                n_embd: spec.n_embd,
                n_vocab: spec.n_vocab,
            },
            prefill_chunk: spec.prefill_chunk,
            notices: self.notices.clone(),
            meter: self.meter.clone(),
            name: format!("{}-{}", spec.deployment, spec.stage),
        };
        let spawned = spawn_stage(options, myself.get_cell()).await?;
        self.stage = Some(spawned.stage);
        self.ended = Some(spawned.ended);
        let (loaded, myself, plugins) = (spawned.loaded, myself.clone(), self.environment.plugins.clone());
        let model = self.model();
        self.tasks.spawn(async move {
            let ready = async {
                let gone = |_| MeshError::internal("the engine's thread ended while it loaded");
                let loaded = loaded.await.map_err(gone)??;
                // Plugins hear of a model when it is ready, and of one whose head is here.
                match model {
                    Some(model) => Ok((loaded, seat_plugins(&plugins, &model).await?)),
                    None => Ok((loaded, ModelPlugins::default())),
                }
            };
            let _ = myself.cast(HostMessage::Loaded(ready.await));
        });
        Ok(())
    }

    /// The model as plugins are told of it; none where its head is not.
    fn model(&self) -> Option<ModelFacts> {
        let spec = &self.spec;
        Some(ModelFacts {
            model: spec.deployment.as_str().into(),
            model_id: spec.source_id.as_str().into(),
            tokenizer_id: spec.vocabulary.as_ref().map_or("", |file| &file.digest).into(),
            vocabulary: self.vocabulary.clone()?,
            context: spec.context,
        })
    }

    async fn loaded(&mut self, loaded: Loaded, plugins: ModelPlugins, cell: ActorCell) -> Result<(), MeshError> {
        let (Some(stage), Some(claim)) = (self.stage.clone(), &self.claim) else {
            return Ok(());
        };
        let mut template = String::new();
        if let Some(vocabulary) = self.vocabulary.take() {
            template = vocabulary.chat_template().to_owned();
            let request = RequestOptions {
                deployment: self.spec.deployment.as_str().into(),
                vocabulary,
                context: self.spec.context,
                model_id: self.spec.source_id.as_str().into(),
                events: self.environment.events.clone(),
                telemetry: self.environment.telemetry.clone(),
                plugins,
                // Stage 0 speaks for all: the stages are files of one architecture, and llama.cpp decides by architecture
                // whether a memory can rewind (`is_recurrent` in `node/engine/src/raw/model.rs`).
                rewinds: loaded.rewinds,
                exact: self.exact.clone(),
                lanes: self.spec.lanes,
            };
            let options = HeadOptions {
                lanes: self.spec.lanes,
                request,
                stage: stage.clone(),
                notices: self.notices.clone(),
            };
            self.head = Some(spawn_head(options, cell).await?);
        }
        let registry = &self.environment.registry;
        self.registration = Some(registry.insert(claim, self.spec.clone(), stage, self.head.clone())?);
        let loaded = HostLoaded {
            memory_bytes: loaded.memory.total(),
            exact: loaded.exact,
            chat_template: template,
            threads: self.threads(),
        };
        self.tell(host_event::Event::Loaded(loaded)).await;
        Ok(())
    }

    async fn activate(&self) {
        let Some(registration) = &self.registration else { return };
        registration.activate();
        self.tell(host_event::Event::Activated(HostActivated {})).await;
    }

    /// Compute threads: what the plan says, capped by this node's own limit.
    fn threads(&self) -> u32 {
        self.spec.threads.clamp(1, self.environment.threads.max(1))
    }

    /// Links this stage to the next; the output stage to the head.
    fn connect(&mut self, myself: ActorRef<HostMessage>) {
        let Some(stage) = self.stage.clone() else { return };
        let (spec, environment) = (self.spec.clone(), self.environment.clone());
        self.tasks.spawn(async move {
            let linked = open_link(&spec, &environment, stage).await;
            let _ = myself.cast(HostMessage::Linked(linked));
        });
    }

    async fn linked(&mut self, writer: Box<dyn FrameWriter>, cell: ActorCell) -> Result<(), MeshError> {
        let Some(stage) = self.stage.clone() else { return Ok(()) };
        let link = spawn_link(writer, Arc::new(stage.clone()), self.meter.clone(), cell).await?;
        self.link = Some(link.clone());
        stage.attach(link);
        self.tell(host_event::Event::Connected(HostConnected {})).await;
        Ok(())
    }

    /// Reports the end of the epoch once and closes the stage's links; the owner takes the host down.
    async fn fail(&mut self, error: MeshError) {
        if std::mem::replace(&mut self.failed, true) {
            return;
        }
        tracing::warn!(deployment = %self.spec.deployment, stage = self.spec.stage, %error, "stage ended");
        // The owner hears why before the neighbours tell it that a link has ended; but they do not wait for it.
        let unsaid = self.events.try_send(HostEvent {
            event: Some(host_event::Event::Failed(error.clone().into())),
        });
        self.close_links();
        if let Some(head) = &self.head {
            // Whatever it was, to a request it is a stage that went away: trying again can help.
            head.end(MeshError {
                code: ErrorCode::StageLost,
                ..error
            });
        }
        if let Err(TrySendError::Full(event)) = unsaid {
            let _ = self.events.send(event).await;
        }
    }

    /// Neighbours hear at once that the stage has ended.
    fn close_links(&mut self) {
        self.registration = None;
        if let Some(link) = self.link.take() {
            link.stop();
        }
    }

    async fn tell(&self, event: host_event::Event) {
        // The owner's stream reads until it ends, and its end stops this actor.
        let _ = self.events.send(HostEvent { event: Some(event) }).await;
    }

    fn progress(&self, step: &str, done: u64, total: u64) {
        let _ = self.events.try_send(progress_event(
            &self.spec,
            &self.environment.node_name,
            step,
            done,
            total,
        ));
    }

    async fn take_down(&mut self) {
        self.tasks.abort_all();
        self.registration = None;
        if let Some(head) = self.head.take() {
            head.finish(MeshError::new(ErrorCode::StageLost, "the deployment was stopped"))
                .await;
        }
        self.close_links();
        if let Some(stage) = self.stage.take() {
            stage.stop();
        }
        if let Some(ended) = self.ended.take()
            && tokio::time::timeout(UNLOAD_LIMIT, ended).await.is_err()
        {
            tracing::error!(deployment = %self.spec.deployment, stage = self.spec.stage, "engine thread left behind");
        }
        self.claim = None;
    }
}

/// Opens the link of a stage to the next one, or of the output stage to the head.
async fn open_link(
    spec: &StageSpec,
    environment: &HostEnvironment,
    stage: StageHandle,
) -> Result<Box<dyn FrameWriter>, MeshError> {
    let to_stage = (spec.stage + 1) % spec.stages.max(1);
    let hello = LinkHello {
        deployment: spec.deployment.clone(),
        epoch: Epoch(spec.epoch),
        from_stage: spec.stage,
        to_stage,
        n_embd: spec.n_embd,
        source_id: spec.source_id.clone(),
        layer: if to_stage == 0 { 0 } else { spec.layer_end },
    };
    let to: NodeId = spec
        .stage_nodes
        .get(to_stage as usize)
        .and_then(|node| node.parse().ok())
        .ok_or_else(|| MeshError::new(ErrorCode::Protocol, "the stage spec names no next node"))?;
    if to != environment.node {
        return environment.links.connect(to, hello, Arc::new(stage)).await;
    }
    let grant = Arc::new(MemoryGrant::new(Arc::new(stage.clone())));
    let accepted = environment.registry.accept(environment.node, &hello, grant)?;
    stage.credit(accepted.credits);
    Ok(Box::new(MemoryWriter::new(accepted.sink)))
}
