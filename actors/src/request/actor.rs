//! The actor of a request: carries out what [`RequestMachine`] decides, and is the only source of its events.

use std::{
    panic::AssertUnwindSafe,
    sync::{Arc, atomic::Ordering},
    time::{Instant, UNIX_EPOCH},
};

use futures::FutureExt as _;
use mesh_proto::{
    ErrorCode, LaneId, MeshError, RequestId, SessionId,
    sampling::{default_sampling, validate_sampling},
    v1::{FinishReason, GenerateFinished, GenerateRequest, GenerateStarted, Sampling, generate_request::Prompt},
};
use ractor::{Actor, ActorCell, ActorProcessingErr, ActorRef};
use tokio::{
    sync::{OwnedSemaphorePermit, oneshot},
    task::AbortHandle,
};

use super::{
    RequestHandle, RequestOptions,
    clock::RequestClock,
    draft::candidates_for,
    events::{Arrival, RequestEvents},
    journal::{JournalReader, JournalWriter, journal},
    machine::{Effect, Input, RequestMachine, RequestPlan},
    proposals::Proposals,
};
use crate::{
    head::HeadMessage,
    ports::{
        inference::Generation,
        link::LaneOpen,
        plugin::{DiscardReason, Outcome, ProposalQuery},
        proposer::ProposalAnswer,
        vocabulary::Vocabulary,
    },
    stage::StageHandle,
};

/// A request that was let in.
pub struct RequestStart {
    pub arrival: Arrival,
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
    Returned {
        input: Input,
        engine_ns: Arc<[u64]>,
    },
    /// A proposer has answered.
    Answered {
        proposer: usize,
        step: u64,
        answer: ProposalAnswer,
    },
}

/// Starts the actor of a request under its head.
pub async fn spawn_request(
    start: RequestStart,
    options: &RequestOptions,
    desk: LaneDesk,
    head: ActorCell,
) -> Result<RequestHandle, MeshError> {
    let RequestStart {
        arrival,
        mut request,
        place,
        reply,
    } = start;
    let id = arrival.id;
    let arrived = Instant::now();
    let Some(mut events) = RequestEvents::queued(options, &arrival, arrived) else {
        let _ = reply.send(Err(id_taken(id)));
        return Err(id_taken(id));
    };
    let plan = plan_of(&mut request, options);
    let seed = plan.sampling.seed.unwrap_or_default();
    events.seed(seed);
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
        proposals: Proposals::default(),
        created: options.events.clock().at(arrived),
        clock: RequestClock::new(arrived),
        effects: Vec::new(),
        context: options.context,
        tasks: Vec::new(),
        _place: place,
    };
    let (actor, _) = Actor::spawn_linked(None, RequestActor, state, head)
        .await
        .map_err(|error| MeshError::internal(format!("the request's actor did not start: {error}")))?;
    let _ = actor.cast(RequestMessage::Prepare(request));
    Ok(RequestHandle { actor })
}

/// Takes from a request what its machine needs.
fn plan_of(request: &mut GenerateRequest, options: &RequestOptions) -> RequestPlan {
    // A copy: `check` looks at what the request asks when it is prepared.
    let mut sampling = request.sampling.clone().unwrap_or_else(default_sampling);
    // A seed is drawn here, not in the machine, and returned: the answer can be asked for again.
    // Below 2^53 (the last 53 random bits of the UUID): JavaScript clients hold it exactly and can send it back.
    sampling
        .seed
        .get_or_insert_with(|| uuid::Uuid::new_v4().as_u64_pair().1 & ((1 << 53) - 1));
    RequestPlan {
        sampling,
        max_tokens: request.max_tokens,
        stop: std::mem::take(&mut request.stop),
        context: options.context,
        // Otherwise the shape of a batch could turn a token into another: candidates would show in the output.
        speculates: options.rewinds && options.exact.load(Ordering::Relaxed) && options.plugins.propose(),
        max_candidates: candidates_for(options.lanes),
    }
}

struct State {
    id: RequestId,
    seed: u64,
    machine: RequestMachine,
    vocabulary: Arc<dyn Vocabulary>,
    desk: LaneDesk,
    writer: JournalWriter,
    admission: Option<(oneshot::Sender<Result<Generation, MeshError>>, JournalReader)>,
    /// Dropped before the events, which tell the end: a plugin is owed the decision first.
    proposals: Proposals,
    events: RequestEvents,
    created: std::time::SystemTime,
    clock: RequestClock,
    effects: Vec<Effect>,
    /// Most tokens of prompt and answer.
    context: u32,
    /// One waits for the reader to go, one has the prompt tokenized.
    tasks: Vec<Task>,
    _place: OwnedSemaphorePermit,
}

/// A task that ends with the actor, also when that panics.
struct Task(AbortHandle);

impl Drop for Task {
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
        state.tasks.push(Task(watching.abort_handle()));
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
                state.clock.step(engine_ns);
                state.machine.handle(input, &mut state.effects);
            }
            RequestMessage::Answered { proposer, step, answer } => state.answered(proposer, step, answer),
        }
        state.act(&myself);
        if state.machine.is_ended() {
            myself.stop(None);
        }
        Ok(())
    }

    async fn post_stop(&self, _: ActorRef<RequestMessage>, state: &mut State) -> Result<(), ActorProcessingErr> {
        state.tasks.clear();
        Ok(())
    }
}

impl State {
    /// Template and tokenizer may take milliseconds for a long prompt. The work is abandoned with the request.
    fn prepare(&mut self, request: GenerateRequest, myself: ActorRef<RequestMessage>) {
        let (vocabulary, context) = (self.vocabulary.clone(), self.context);
        let preparing = tokio::spawn(async move {
            let prepare = async {
                check(&request)?;
                tokenize(vocabulary.as_ref(), request, context).await
            };
            let prepared = AssertUnwindSafe(prepare).catch_unwind().await.unwrap_or_else(|_| {
                Err(MeshError::internal(
                    "the tokenizer panicked on this prompt; see the node's log",
                ))
            });
            let _ = myself.cast(RequestMessage::Input(Input::Prepared(prepared)));
        });
        self.tasks.push(Task(preparing.abort_handle()));
    }

    fn act(&mut self, myself: &ActorRef<RequestMessage>) {
        // Asking nobody is answered at once, which gives more to do.
        while !self.effects.is_empty() {
            for effect in std::mem::take(&mut self.effects) {
                self.perform(effect, myself);
            }
        }
    }

    fn perform(&mut self, effect: Effect, myself: &ActorRef<RequestMessage>) {
        let head = &self.desk.head;
        match effect {
            Effect::Admit { prompt_tokens } => self.admit(prompt_tokens),
            Effect::Refuse(error) => self.refuse(error),
            Effect::AskLane => drop(head.cast(HeadMessage::AskLane(self.id))),
            Effect::Withdraw => drop(head.cast(HeadMessage::Withdraw(self.id))),
            Effect::Open {
                lane,
                session,
                sampling,
            } => self.open(lane, session, sampling),
            Effect::Ask(query) => self.ask(&query, myself),
            Effect::Verified(outcome) => self.verified(outcome),
            Effect::Unverified(reason) => self.unverified(reason),
            Effect::Rows(span) => self.desk.stage.rows(span),
            Effect::Free { lane, session } => self.free(lane, session),
            Effect::Prefilled => {
                let prefill_us = self.clock.prefilled();
                self.events.prefilled(prefill_us);
            }
            Effect::Commit { tokens, text, total } => {
                self.writer.commit(&text, total);
                self.events.committed(tokens, text, &self.clock);
            }
            Effect::Finish(reason) => self.finish(reason),
            Effect::Fail(error) => {
                self.events.aborted(error.clone(), self.clock.timings());
                self.writer.fail(error);
            }
        }
    }

    fn ask(&mut self, query: &Arc<ProposalQuery>, myself: &ActorRef<RequestMessage>) {
        let step = query.step;
        let on_answer = |proposer| {
            let myself = myself.clone();
            let tell = move |answer| drop(myself.cast(RequestMessage::Answered { proposer, step, answer }));
            Box::new(tell) as Box<dyn FnOnce(ProposalAnswer) + Send>
        };
        if !self.proposals.ask(query, on_answer) {
            let tokens = Vec::new();
            self.machine
                .handle(Input::Candidates { step, tokens }, &mut self.effects);
        }
    }

    fn answered(&mut self, proposer: usize, step: u64, answer: ProposalAnswer) {
        let Some(tokens) = self.proposals.answered(proposer, step, answer) else {
            return;
        };
        if let Some(proposal) = self.proposals.chosen() {
            self.events.proposed(proposal);
        }
        self.machine
            .handle(Input::Candidates { step, tokens }, &mut self.effects);
    }

    fn verified(&mut self, outcome: Outcome) {
        if let Some(proposal) = self.proposals.take() {
            if let Some(candidates) = proposal.candidates() {
                let accepted = outcome.accepted as u32;
                let decision = candidates.decision.clone();
                self.events.resolved(decision, accepted, outcome.disposition.name());
            }
            proposal.verified(outcome);
        }
    }

    fn unverified(&mut self, reason: DiscardReason) {
        if let Some(proposal) = self.proposals.take() {
            if let Some(candidates) = proposal.candidates() {
                self.events.resolved(candidates.decision.clone(), 0, reason.name());
            }
            proposal.discard(reason);
        }
    }

    fn admit(&mut self, prompt_tokens: u32) {
        let Some((reply, events)) = self.admission.take() else {
            return;
        };
        let created = self.created.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        let started = GenerateStarted {
            request_id: self.id.to_string(),
            prompt_tokens,
            seed: self.seed,
            created,
        };
        // If nobody waits any more, the reader is dropped with the message, and that cancels.
        let _ = reply.send(Ok(Generation { started, events }));
    }

    fn refuse(&mut self, error: MeshError) {
        // Nobody refused what its client gave up.
        if error.code == ErrorCode::Cancelled {
            self.events.aborted(error.clone(), self.clock.timings());
        } else {
            self.events.rejected(error.clone());
        }
        if let Some((reply, _)) = self.admission.take() {
            let _ = reply.send(Err(error));
        }
    }

    fn open(&mut self, lane: LaneId, session: SessionId, sampling: Box<Sampling>) {
        let queued_us = self.clock.started();
        let proposers = self.events.started(self.machine.prompt(), lane, session, queued_us);
        self.proposals = Proposals::new(proposers);
        let trace = self.events.trace().map(|trace| trace.own);
        self.desk.stage.open(LaneOpen {
            lane,
            session,
            sampling,
            trace,
        });
    }

    fn free(&self, lane: LaneId, session: SessionId) {
        // In this order: whoever gets the lane next opens it behind this free.
        self.desk.stage.free(lane, session);
        let _ = self.desk.head.cast(HeadMessage::Release { lane, session });
    }

    fn finish(&mut self, reason: FinishReason) {
        let (prompt_tokens, completion_tokens) = (self.machine.prompt_tokens(), self.machine.completion_tokens());
        let timings = self.clock.timings();
        self.events.finished(reason, timings.clone());
        self.writer.finish(GenerateFinished {
            reason: reason.into(),
            prompt_tokens,
            completion_tokens,
            timings: Some(timings),
        });
    }
}

/// The client chose an id that is in use.
pub fn id_taken(id: RequestId) -> MeshError {
    let message = format!("a request with id {id} is running; use a new id");
    MeshError::new(ErrorCode::Conflict, message)
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

async fn tokenize(vocabulary: &dyn Vocabulary, request: GenerateRequest, context: u32) -> Result<Vec<u32>, MeshError> {
    match request.prompt {
        Some(Prompt::Chat(chat)) => vocabulary.tokenize_chat(chat.messages, context).await,
        Some(Prompt::Text(text)) => vocabulary.tokenize_raw(text, context).await,
        Some(Prompt::Tokens(tokens)) => Ok(tokens.ids),
        None => Err(MeshError::invalid(
            "prompt",
            "there is no prompt; send messages, text or token ids",
        )),
    }
}
