//! The actor of a request: carries out what [`RequestMachine`] decides, and is the only source of its events.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use mesh_proto::{
    LaneId, MeshError, RequestId, SessionId,
    sampling::{default_sampling, validate_sampling},
    v1::{FinishReason, GenerateFinished, GenerateRequest, GenerateStarted, RequestTimings, generate_request::Prompt},
};
use ractor::{Actor, ActorCell, ActorProcessingErr, ActorRef};
use tokio::{
    sync::{OwnedSemaphorePermit, oneshot},
    task::AbortHandle,
};

use super::{
    RequestHandle, RequestOptions,
    events::RequestEvents,
    journal::{JournalReader, JournalWriter, journal},
    machine::{Effect, Input, RequestMachine, RequestPlan},
};
use crate::{
    head::HeadMessage,
    ports::{inference::Generation, vocabulary::Vocabulary},
    stage::StageHandle,
};

/// A request that was let in.
pub struct RequestStart {
    pub id: RequestId,
    pub request: Box<GenerateRequest>,
    /// Its place among those that run or wait; given back when the actor ends.
    pub place: OwnedSemaphorePermit,
    pub reply: oneshot::Sender<Result<Generation, MeshError>>,
}

/// Whom a request asks for a lane, and where its rows go.
#[derive(Clone)]
pub struct LaneDesk {
    pub head: ActorRef<HeadMessage>,
    pub stage: StageHandle,
}

pub enum RequestMessage {
    Prepare(Box<GenerateRequest>),
    Input(Input),
    Returned { input: Input, engine_ns: u64 },
}

/// Starts the actor of a request under its head.
pub async fn spawn_request(
    start: RequestStart,
    options: &RequestOptions,
    desk: LaneDesk,
    head: ActorCell,
) -> Result<RequestHandle, MeshError> {
    let RequestStart {
        id,
        mut request,
        place,
        reply,
    } = start;
    let mut sampling = request.sampling.take().unwrap_or_else(default_sampling);
    // A seed is drawn here, not in the machine, and returned: the answer can be asked for again.
    // Below 2^53 (the last 53 random bits of the UUID): JavaScript clients hold it exactly and can send it back.
    sampling
        .seed
        .get_or_insert_with(|| uuid::Uuid::new_v4().as_u64_pair().1 & ((1 << 53) - 1));
    let seed = sampling.seed.unwrap_or_default();
    let plan = RequestPlan {
        sampling,
        max_tokens: request.max_tokens,
        stop: std::mem::take(&mut request.stop),
        context: options.context,
    };
    let mut events = RequestEvents::new(options, id);
    events.queued();
    let (writer, reader) = journal();
    let state = State {
        id,
        seed,
        machine: RequestMachine::new(plan, options.vocabulary.clone()),
        vocabulary: options.vocabulary.clone(),
        desk,
        writer,
        admission: Some((reply, reader)),
        events,
        clock: Clock::new(),
        effects: Vec::new(),
        watcher: None,
        place: Arc::new(place),
    };
    let (actor, _) = Actor::spawn_linked(None, RequestActor, state, head)
        .await
        .map_err(|error| MeshError::internal(format!("the request's actor did not start: {error}")))?;
    let _ = actor.cast(RequestMessage::Prepare(request));
    Ok(RequestHandle { actor })
}

struct State {
    id: RequestId,
    seed: u64,
    machine: RequestMachine,
    vocabulary: Arc<dyn Vocabulary>,
    desk: LaneDesk,
    writer: JournalWriter,
    admission: Option<(oneshot::Sender<Result<Generation, MeshError>>, JournalReader)>,
    events: RequestEvents,
    clock: Clock,
    effects: Vec<Effect>,
    watcher: Option<Watcher>,
    /// Shared with the blocking thread that tokenizes: a request that was cancelled meanwhile keeps its place until
    /// that thread is free again.
    place: Arc<OwnedSemaphorePermit>,
}

/// The task that waits for the reader to go; it ends with the actor, also when that panics.
struct Watcher(AbortHandle);

impl Drop for Watcher {
    fn drop(&mut self) {
        self.0.abort();
    }
}

struct RequestActor;

impl Actor for RequestActor {
    type Msg = RequestMessage;
    type State = State;
    type Arguments = State;

    async fn pre_start(&self, myself: ActorRef<RequestMessage>, mut state: State) -> Result<State, ActorProcessingErr> {
        let gone = state.writer.cancelled();
        let watching = tokio::spawn(async move {
            gone.cancelled().await;
            let _ = myself.cast(RequestMessage::Input(Input::Cancel));
        });
        state.watcher = Some(Watcher(watching.abort_handle()));
        Ok(state)
    }

    async fn handle(
        &self,
        myself: ActorRef<RequestMessage>,
        message: RequestMessage,
        state: &mut State,
    ) -> Result<(), ActorProcessingErr> {
        match message {
            RequestMessage::Prepare(request) => state.prepare(*request, myself.clone()),
            RequestMessage::Input(input) => state.machine.handle(input, &mut state.effects),
            RequestMessage::Returned { input, engine_ns } => {
                state.clock.engine(engine_ns);
                state.machine.handle(input, &mut state.effects);
            }
        }
        state.act();
        if state.machine.is_ended() {
            myself.stop(None);
        }
        Ok(())
    }

    async fn post_stop(&self, _: ActorRef<RequestMessage>, state: &mut State) -> Result<(), ActorProcessingErr> {
        state.watcher = None;
        Ok(())
    }
}

impl State {
    /// Template and tokenizer may take milliseconds for a long prompt: they run on a blocking thread, at most one for
    /// each request that was let in.
    fn prepare(&self, request: GenerateRequest, myself: ActorRef<RequestMessage>) {
        let (vocabulary, place) = (self.vocabulary.clone(), self.place.clone());
        tokio::task::spawn_blocking(move || {
            let prepare = || check(&request).and_then(|()| tokenize(vocabulary.as_ref(), request));
            let prepared = catch_unwind(AssertUnwindSafe(prepare)).unwrap_or_else(|_| {
                Err(MeshError::internal(
                    "the tokenizer panicked on this prompt; see the node's log",
                ))
            });
            let _ = myself.cast(RequestMessage::Input(Input::Prepared(prepared)));
            drop(place);
        });
    }

    fn act(&mut self) {
        for effect in std::mem::take(&mut self.effects) {
            self.perform(effect);
        }
    }

    fn perform(&mut self, effect: Effect) {
        let head = &self.desk.head;
        match effect {
            Effect::Admit { prompt_tokens } => self.admit(prompt_tokens),
            Effect::Refuse(error) => {
                self.events.rejected(&error);
                if let Some((reply, _)) = self.admission.take() {
                    let _ = reply.send(Err(error));
                }
            }
            Effect::AskLane => drop(head.cast(HeadMessage::AskLane(self.id))),
            Effect::Withdraw => drop(head.cast(HeadMessage::Withdraw(self.id))),
            Effect::Open {
                lane,
                session,
                sampling,
            } => {
                self.clock.started();
                self.events.started(self.machine.prompt_tokens(), lane);
                self.desk.stage.open(lane, session, sampling);
            }
            Effect::Rows(span) => self.desk.stage.rows(span),
            Effect::Free { lane, session } => self.free(lane, session),
            Effect::Prefilled => {
                self.clock.prefilled();
                self.events.prefilled();
            }
            Effect::Commit { tokens, text, total } => {
                self.events.committed(&tokens, &text, total);
                self.writer.commit(&text, total);
            }
            Effect::Finish(reason) => self.finish(reason),
            Effect::Fail(error) => {
                self.events.aborted(&error);
                self.writer.fail(error);
            }
        }
    }

    fn admit(&mut self, prompt_tokens: u32) {
        let Some((reply, events)) = self.admission.take() else {
            return;
        };
        let created = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default()
            .as_secs();
        let started = GenerateStarted {
            request_id: self.id.to_string(),
            prompt_tokens,
            seed: self.seed,
            created,
        };
        // If nobody waits any more, the reader is dropped with the message, and that cancels.
        let _ = reply.send(Ok(Generation { started, events }));
    }

    fn free(&self, lane: LaneId, session: SessionId) {
        // In this order: whoever gets the lane next opens it behind this free.
        self.desk.stage.free(lane, session);
        let _ = self.desk.head.cast(HeadMessage::Release { lane, session });
    }

    fn finish(&mut self, reason: FinishReason) {
        let (prompt_tokens, completion_tokens) = (self.machine.prompt_tokens(), self.machine.completion_tokens());
        self.events.finished(reason, prompt_tokens, completion_tokens);
        self.writer.finish(GenerateFinished {
            reason: reason.into(),
            prompt_tokens,
            completion_tokens,
            timings: Some(self.clock.timings()),
        });
    }
}

fn check(request: &GenerateRequest) -> Result<(), MeshError> {
    if request.max_tokens == Some(0) {
        return Err(MeshError::invalid(
            "max_tokens",
            "max_tokens is 0; ask for at least one token",
        ));
    }
    request.sampling.as_ref().map_or(Ok(()), validate_sampling)
}

fn tokenize(vocabulary: &dyn Vocabulary, request: GenerateRequest) -> Result<Vec<u32>, MeshError> {
    match request.prompt {
        Some(Prompt::Chat(chat)) => vocabulary.tokenize_chat(&chat.messages),
        Some(Prompt::Text(text)) => vocabulary.tokenize_raw(&text),
        Some(Prompt::Tokens(tokens)) => Ok(tokens.ids),
        None => Err(MeshError::invalid(
            "prompt",
            "there is no prompt; send messages, text or token ids",
        )),
    }
}

/// Where the time of a request goes.
#[derive(Debug)]
struct Clock {
    arrived: Instant,
    started: Option<Instant>,
    prefilled: Option<Instant>,
    engine_ns: u64,
    engine_steps: u32,
}

impl Clock {
    fn new() -> Self {
        Self {
            arrived: Instant::now(),
            started: None,
            prefilled: None,
            engine_ns: 0,
            engine_steps: 0,
        }
    }

    fn started(&mut self) {
        self.started = Some(Instant::now());
    }

    fn prefilled(&mut self) {
        self.prefilled = Some(Instant::now());
    }

    /// Engine time counts after the first token: it is what decoding is compared with.
    fn engine(&mut self, nanoseconds: u64) {
        if self.prefilled.is_some() {
            self.engine_ns = self.engine_ns.saturating_add(nanoseconds);
            self.engine_steps += 1;
        }
    }

    fn timings(&self) -> RequestTimings {
        let now = Instant::now();
        let started = self.started.unwrap_or(now);
        let prefilled = self.prefilled.unwrap_or(now);
        let us = |duration: Duration| u64::try_from(duration.as_micros()).unwrap_or(u64::MAX);
        RequestTimings {
            queued_us: us(started - self.arrived),
            prefill_us: us(prefilled.saturating_duration_since(started)),
            decode_us: us(now - prefilled),
            engine_us: self.engine_ns / 1_000,
            engine_steps: self.engine_steps,
        }
    }
}
