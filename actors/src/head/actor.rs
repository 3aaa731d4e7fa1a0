//! The actor of a head: gives lanes, starts requests, hands out what comes back.

use std::{
    collections::HashMap,
    sync::{Arc, OnceLock},
};

use mesh_proto::{
    ErrorCode, LaneId, MeshError, RequestId, SessionId,
    v1::{GenerateRequest, Lanes},
};
use ractor::{Actor, ActorCell, ActorProcessingErr, ActorRef, SupervisionEvent};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot, watch};

use super::{
    WAITING_LIMIT,
    handle::{HeadHandle, HeadShared},
    machine::{Grant, HeadMachine},
};
use crate::{
    policy::{ActorKind, on_failure},
    ports::{
        inference::Generation,
        link::{CreditGrant, LinkFrame},
    },
    request::{Arrival, LaneDesk, RequestEvents, RequestHandle, RequestOptions, RequestStart, id_taken, spawn_request},
    stage::{StageHandle, StageNotice},
};

/// What a head is made of.
pub struct HeadOptions {
    /// Lanes of the deployment.
    pub lanes: u32,
    /// For its requests.
    pub request: RequestOptions,
    /// Stage 0.
    pub stage: StageHandle,
    /// Hears when the return link is lost.
    pub notices: mpsc::Sender<StageNotice>,
}

pub(crate) enum HeadMessage {
    Generate {
        arrival: Arrival,
        request: Box<GenerateRequest>,
        place: OwnedSemaphorePermit,
        reply: oneshot::Sender<Result<Generation, MeshError>>,
    },
    AskLane(RequestId),
    Withdraw(RequestId),
    Release {
        lane: LaneId,
        session: SessionId,
    },
    Frame(LinkFrame),
    Accept(Arc<dyn CreditGrant>),
    Lost(MeshError),
    Cancel(RequestId),
    End(MeshError),
}

/// Starts a head under the host of stage 0.
///
/// # Errors
///
/// The actor does not start.
pub async fn spawn_head(options: HeadOptions, host: ActorCell) -> Result<HeadHandle, MeshError> {
    let (figures, lanes) = watch::channel(Lanes {
        used: 0,
        total: options.lanes,
        waiting: 0,
    });
    let shared = Arc::new(HeadShared {
        options: options.request,
        places: Arc::new(Semaphore::new(options.lanes as usize + WAITING_LIMIT)),
        lanes,
        ended: OnceLock::new(),
    });
    let state = State {
        machine: HeadMachine::new(options.lanes),
        requests: HashMap::new(),
        stage: options.stage,
        shared: shared.clone(),
        notices: options.notices,
        grant: None,
        lost: false,
        figures,
    };
    let (actor, _) = Actor::spawn_linked(None, HeadActor, state, host)
        .await
        .map_err(|error| MeshError::internal(format!("the head's actor did not start: {error}")))?;
    Ok(HeadHandle { actor, shared })
}

struct State {
    machine: HeadMachine,
    requests: HashMap<RequestId, RequestHandle>,
    stage: StageHandle,
    shared: Arc<HeadShared>,
    notices: mpsc::Sender<StageNotice>,
    grant: Option<Arc<dyn CreditGrant>>,
    lost: bool,
    figures: watch::Sender<Lanes>,
}

struct HeadActor;

impl Actor for HeadActor {
    type Msg = HeadMessage;
    type State = State;
    type Arguments = State;

    async fn pre_start(&self, _: ActorRef<HeadMessage>, state: State) -> Result<State, ActorProcessingErr> {
        Ok(state)
    }

    async fn handle(
        &self,
        myself: ActorRef<HeadMessage>,
        message: HeadMessage,
        state: &mut State,
    ) -> Result<(), ActorProcessingErr> {
        match message {
            HeadMessage::Generate {
                arrival,
                request,
                place,
                reply,
            } => {
                let start = RequestStart {
                    arrival,
                    request,
                    place,
                    reply,
                };
                state.start(start, myself).await;
            }
            HeadMessage::AskLane(request) => {
                let grant = state.machine.ask(request);
                state.give(grant);
            }
            HeadMessage::Withdraw(request) => state.machine.withdraw(request),
            HeadMessage::Release { lane, session } => {
                let grant = state.machine.release(lane, session);
                state.give(grant);
            }
            HeadMessage::Frame(frame) => state.frame(frame),
            HeadMessage::Accept(grant) => state.grant = Some(grant),
            HeadMessage::Lost(error) => state.lost(error).await,
            HeadMessage::Cancel(request) => {
                if let Some(handle) = state.requests.get(&request) {
                    handle.cancel();
                }
            }
            HeadMessage::End(error) => state.end(error),
        }
        state.publish();
        Ok(())
    }

    async fn handle_supervisor_evt(
        &self,
        _: ActorRef<HeadMessage>,
        event: SupervisionEvent,
        state: &mut State,
    ) -> Result<(), ActorProcessingErr> {
        match event {
            SupervisionEvent::ActorTerminated(child, ..) => state.gone(&child),
            SupervisionEvent::ActorFailed(child, error) => {
                on_failure(ActorKind::Request, &error);
                state.gone(&child);
            }
            _ => {}
        }
        state.publish();
        Ok(())
    }
}

impl State {
    async fn start(&mut self, start: RequestStart, myself: ActorRef<HeadMessage>) {
        let id = start.arrival.id;
        if let Some(error) = self.shared.ended.get() {
            RequestEvents::refused(&self.shared.options, &start.arrival, error);
            let _ = start.reply.send(Err(error.clone()));
            return;
        }
        if self.requests.contains_key(&id) {
            let _ = start.reply.send(Err(id_taken(id)));
            return;
        }
        let desk = LaneDesk {
            head: myself.clone(),
            stage: self.stage.clone(),
        };
        match spawn_request(start, &self.shared.options, desk, myself.get_cell()).await {
            Ok(handle) => drop(self.requests.insert(id, handle)),
            Err(error) => tracing::warn!(request = %id, %error, "request did not start"),
        }
    }

    fn give(&mut self, grant: Option<Grant>) {
        let mut next = grant;
        while let Some(Grant { request, lane, session }) = next {
            match self.requests.get(&request) {
                Some(handle) => {
                    handle.granted(lane, session);
                    return;
                }
                // It died while it waited: the lane was never opened, so the next one gets it.
                None => next = self.machine.release(lane, session),
            }
        }
    }

    fn frame(&mut self, frame: LinkFrame) {
        if let Some(grant) = &self.grant {
            grant.grant(1);
        }
        match frame {
            LinkFrame::Returned { spans, engine_ns } => {
                let engine_ns: Arc<[u64]> = engine_ns.into();
                for (span, tokens) in spans {
                    if let Some(handle) = self.holder(span.lane, span.session) {
                        handle.returned(
                            span.session,
                            span.pos_start,
                            span.rows() as u32,
                            tokens,
                            engine_ns.clone(),
                        );
                    }
                }
            }
            LinkFrame::Failed { lane, session, error } => {
                if let Some(handle) = self.holder(lane, session) {
                    handle.lane_failed(session, error);
                }
            }
            LinkFrame::Open(_) | LinkFrame::Forward { .. } | LinkFrame::Free { .. } => {
                tracing::warn!("the return link carried a frame that does not belong there");
            }
        }
    }

    fn holder(&self, lane: LaneId, session: SessionId) -> Option<&RequestHandle> {
        self.machine
            .holder(lane, session)
            .and_then(|request| self.requests.get(&request))
    }

    /// A request's actor has ended. Normally its lane is back already; if it failed, the lane is freed here.
    fn gone(&mut self, child: &ActorCell) {
        let Some(id) = self
            .requests
            .iter()
            .find(|(_, handle)| handle.is(child))
            .map(|(id, _)| *id)
        else {
            return;
        };
        self.requests.remove(&id);
        self.machine.withdraw(id);
        if let Some(Grant { lane, session, .. }) = self.machine.held_by(id) {
            self.stage.free(lane, session);
            let grant = self.machine.release(lane, session);
            self.give(grant);
        }
    }

    async fn lost(&mut self, error: MeshError) {
        if !std::mem::replace(&mut self.lost, true) {
            self.end(MeshError {
                code: ErrorCode::StageLost,
                ..error.clone()
            });
            // The host reads until it has heard this or has gone itself.
            let _ = self.notices.send(StageNotice::Lost(error)).await;
        }
    }

    fn end(&mut self, error: MeshError) {
        let _ = self.shared.ended.set(error.clone());
        for handle in self.requests.values() {
            handle.end(error.clone());
        }
    }

    fn publish(&self) {
        let (used, waiting) = (self.machine.used() as u32, self.machine.waiting() as u32);
        self.figures.send_if_modified(|lanes| {
            let changed = lanes.used != used || lanes.waiting != waiting;
            (lanes.used, lanes.waiting) = (used, waiting);
            changed
        });
    }
}
