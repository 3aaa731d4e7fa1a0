//! The actor of a stage: carries out what [`StageMachine`] decides.

use std::sync::Arc;

use mesh_proto::{LaneId, MeshError, SessionId};
use ractor::{Actor, ActorCell, ActorProcessingErr, ActorRef};
use tokio::sync::{mpsc, oneshot};

use super::{
    handle::StageHandle,
    machine::{Effect, StageMachine},
    meter::StageMeter,
    thread::{CancelBoard, EngineReply, EngineStart, EngineThread, Loaded},
};
use crate::{
    link::LinkHandle,
    ports::{
        engine::{EngineError, EngineLoader, RowSpan, StageLoad},
        link::{CreditGrant, LaneOpen, LinkFrame},
    },
};

/// What the host of a stage hears.
#[derive(Debug, Clone, PartialEq)]
pub enum StageNotice {
    /// Loading, from 0 to 1.
    Loading(f32),
    /// A link or the engine is gone: the epoch is over.
    Lost(MeshError),
}

/// What a stage is made of.
pub struct StageOptions {
    /// Loads the engine.
    pub loader: Arc<dyn EngineLoader>,
    /// The stage.
    pub load: StageLoad,
    /// Most prompt rows in one batch; used by stage 0.
    pub prefill_chunk: u32,
    /// Hears of progress and loss. Bounded by the receiver; progress that does not fit is dropped.
    pub notices: mpsc::Sender<StageNotice>,
    /// Hears of batches.
    pub meter: Arc<StageMeter>,
    /// Name for logs and threads.
    pub name: String,
}

/// A stage that is being loaded.
pub struct Spawned {
    /// Handle.
    pub stage: StageHandle,
    /// Outcome of loading.
    pub loaded: oneshot::Receiver<Result<Loaded, EngineError>>,
    /// Resolves when the engine's thread has ended and its memory is free.
    pub ended: oneshot::Receiver<()>,
}

/// Starts a stage under its host.
///
/// # Errors
///
/// The system refuses a thread, or the actor does not start.
pub async fn spawn_stage(options: StageOptions, host: ActorCell) -> Result<Spawned, MeshError> {
    let board = Arc::new(CancelBoard::new(options.load.lanes));
    let (outcome, on_outcome) = oneshot::channel();
    let arguments = Arguments {
        options,
        board: board.clone(),
        outcome,
    };
    let (actor, _) = Actor::spawn_linked(None, StageActor, arguments, host)
        .await
        .map_err(|error| MeshError::internal(format!("the stage's actor did not start: {error}")))?;
    let (loaded, ended) = on_outcome
        .await
        .map_err(|_| MeshError::internal("the stage's actor ended while it started"))?;
    Ok(Spawned {
        stage: StageHandle { actor, board },
        loaded,
        ended,
    })
}

pub(super) enum StageMessage {
    Open(LaneOpen),
    Rows(RowSpan),
    Free { lane: LaneId, session: SessionId },
    Frame(LinkFrame),
    Engine(EngineReply),
    Credit(u32),
    Attach(LinkHandle),
    Accept(Arc<dyn CreditGrant>),
    Lost(MeshError),
}

type Outcome = (oneshot::Receiver<Result<Loaded, EngineError>>, oneshot::Receiver<()>);

struct Arguments {
    options: StageOptions,
    board: Arc<CancelBoard>,
    outcome: oneshot::Sender<Outcome>,
}

struct State {
    machine: StageMachine,
    /// `None` once the actor has stopped: ractor hands the state of a stopped actor to its supervisor, which may keep it.
    engine: Option<EngineThread>,
    link: Option<LinkHandle>,
    grant: Option<Arc<dyn CreditGrant>>,
    notices: mpsc::Sender<StageNotice>,
    effects: Vec<Effect>,
    lost: bool,
}

struct StageActor;

impl Actor for StageActor {
    type Msg = StageMessage;
    type State = State;
    type Arguments = Arguments;

    async fn pre_start(
        &self,
        myself: ActorRef<StageMessage>,
        arguments: Arguments,
    ) -> Result<State, ActorProcessingErr> {
        let Arguments {
            options,
            board,
            outcome,
        } = arguments;
        let (load, notices) = (options.load, options.notices);
        let machine = if load.is_first() {
            StageMachine::head(options.prefill_chunk as usize, load.is_last())
        } else {
            StageMachine::link(load.is_last())
        };
        let progress = notices.clone();
        let (engine, loaded, ended) = EngineThread::start(EngineStart {
            loader: options.loader,
            spec: load,
            board,
            meter: options.meter,
            progress: Box::new(move |done| drop(progress.try_send(StageNotice::Loading(done)))),
            reply: Box::new(move |reply| drop(myself.cast(StageMessage::Engine(reply)))),
            name: &options.name,
        })?;
        let _ = outcome.send((loaded, ended));
        let engine = Some(engine);
        Ok(State {
            machine,
            engine,
            link: None,
            grant: None,
            notices,
            effects: Vec::new(),
            lost: false,
        })
    }

    async fn handle(
        &self,
        _: ActorRef<StageMessage>,
        message: StageMessage,
        state: &mut State,
    ) -> Result<(), ActorProcessingErr> {
        let State { machine, effects, .. } = state;
        match message {
            StageMessage::Open(open) => machine.open(open, effects),
            StageMessage::Rows(span) => machine.rows(span, effects),
            StageMessage::Free { lane, session } => machine.free(lane, session, effects),
            StageMessage::Frame(frame) => machine.frame(frame, effects),
            StageMessage::Credit(frames) => machine.credit(frames, effects),
            StageMessage::Engine(EngineReply::Done(done)) => machine.done(done, effects),
            StageMessage::Engine(EngineReply::Broken(error)) => state.lose(error).await,
            StageMessage::Attach(link) => state.link = Some(link),
            StageMessage::Accept(grant) => state.grant = Some(grant),
            StageMessage::Lost(error) => state.lose(error).await,
        }
        state.act().await;
        Ok(())
    }

    async fn post_stop(&self, _: ActorRef<StageMessage>, state: &mut State) -> Result<(), ActorProcessingErr> {
        state.engine = None;
        state.link = None;
        Ok(())
    }
}

impl State {
    async fn act(&mut self) {
        for effect in std::mem::take(&mut self.effects) {
            match effect {
                Effect::Run(job) => {
                    if let Some(Err(error)) = self.engine.as_ref().map(|engine| engine.run(job)) {
                        self.lose(error.into()).await;
                    }
                }
                Effect::Send(frame) => match &self.link {
                    Some(link) => link.send(frame),
                    None => {
                        self.lose(MeshError::internal("a stage had to send before it was linked"))
                            .await
                    }
                },
                Effect::Grant(frames) => {
                    if let Some(grant) = &self.grant {
                        grant.grant(frames);
                    }
                }
            }
        }
    }

    /// Tells the host once; it ends the stage.
    async fn lose(&mut self, error: MeshError) {
        if !std::mem::replace(&mut self.lost, true) {
            // The host reads until it has heard this or has gone itself.
            let _ = self.notices.send(StageNotice::Lost(error)).await;
        }
    }
}
