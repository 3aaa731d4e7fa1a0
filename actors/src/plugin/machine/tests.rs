//! The rules of a plugin's calls, held by a plugin and requests that do anything at any time.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    sync::{Arc, Mutex},
    time::{Duration, Instant, SystemTime},
};

use mesh_proto::{
    RequestId, SessionId,
    v1::{FinishReason, RequestTimings},
};
use proptest::prelude::*;

use super::*;
use crate::{
    events::{Receipt, ReceiptEnd},
    plugin::{
        ledger::ProposalOutcome,
        permits::{Class, Permits},
    },
    ports::plugin::{DecisionId, DiscardReason, Discarded, Disposition, Outcome, Poll},
};

/// What a plugin does with the call that a thread is in.
#[derive(Debug, Clone, Copy)]
enum Return {
    Ok,
    Error,
    Panicked,
    Unknown,
    Pending,
    Ready,
    Abstain,
    Invalid {
        named: bool,
    },
    Failed,
    StartFails,
    /// The node's side of the call panicked.
    Ours,
}

#[derive(Debug, Clone, Copy)]
enum Step {
    Begin,
    Commit(usize),
    Ask(usize),
    Withdraw(usize),
    Resolve(usize, bool),
    Finish(usize),
    Abort(usize),
    Return(usize, Return),
    Wake(usize),
    Advance(u16),
    /// The model is gone, if no request holds it.
    Detach,
    Close(u16),
}

fn returns() -> impl Strategy<Value = Return> {
    prop_oneof![
        20 => Just(Return::Ok),
        3 => Just(Return::Error),
        8 => Just(Return::Pending),
        10 => Just(Return::Ready),
        5 => Just(Return::Abstain),
        1 => any::<bool>().prop_map(|named| Return::Invalid { named }),
        1 => Just(Return::Failed),
        1 => Just(Return::StartFails),
    ]
}

fn step() -> impl Strategy<Value = Step> {
    let of = any::<usize>;
    prop_oneof![
        4 => Just(Step::Begin),
        6 => of().prop_map(Step::Commit),
        6 => of().prop_map(Step::Ask),
        1 => of().prop_map(Step::Withdraw),
        5 => (of(), any::<bool>()).prop_map(|(at, report)| Step::Resolve(at, report)),
        2 => of().prop_map(Step::Finish),
        1 => of().prop_map(Step::Abort),
        20 => (of(), returns()).prop_map(|(at, how)| Step::Return(at, how)),
        3 => of().prop_map(Step::Wake),
        4 => (0u16..40).prop_map(Step::Advance),
        1 => (0u16..9000).prop_map(Step::Advance),
        1 => Just(Step::Detach),
    ]
}

/// What the plugin has been told of one generation.
#[derive(Debug, Default)]
struct Told {
    begun: bool,
    total: u64,
    running: bool,
    operation: Option<u64>,
    decisions: BTreeSet<String>,
    ended: bool,
    finish_failed: bool,
}

/// What one request knows.
#[derive(Debug, Default)]
struct Asking {
    begun: bool,
    incomplete: bool,
    total: u64,
    step: u64,
    waiting: bool,
    deadline: Option<Instant>,
    decision: Option<(Candidates, Place)>,
    ended: bool,
    fence: Option<Instant>,
}

type Answers = Arc<Mutex<VecDeque<(GenerationKey, u64, Answer)>>>;

struct World {
    machine: PluginMachine,
    ledger: Arc<PluginLedger>,
    permits: Permits,
    slots: Permits,
    now: Instant,
    effects: Vec<Effect>,
    limits: PluginLimits,
    instance: InstanceKey,
    detached: bool,
    jobs: BTreeMap<WorkerKey, Job>,
    told: BTreeMap<GenerationKey, Told>,
    asking: BTreeMap<GenerationKey, Asking>,
    answers: Answers,
    asked: u64,
    answered: u64,
    /// Questions that were not let in.
    refused: u64,
    keys: u64,
    operations: u64,
    shut_out: bool,
    gone: bool,
    closed: bool,
}

fn ids(key: GenerationKey) -> GenerationIds {
    GenerationIds {
        request: RequestId::random(),
        session: SessionId(key.0),
        agent_session: None,
    }
}

fn receipt(total: u64) -> Arc<Receipt> {
    Arc::new(Receipt {
        request: RequestId::random(),
        attempt: 1,
        deployment: "d".into(),
        model_id: "m".into(),
        session: SessionId(1),
        agent_session: None,
        prompt_tokens: 1,
        prompt_digest: [0; 32],
        generated: (0..total as u32).collect(),
        token_us: vec![0; total as usize],
        end: ReceiptEnd::Finished(FinishReason::Stop),
        seed: 0,
        arrived: SystemTime::UNIX_EPOCH,
        ended: SystemTime::UNIX_EPOCH,
        timings: RequestTimings::default(),
    })
}

fn fault(kind: CallFaultKind) -> CallFault {
    let message = "as scripted".to_owned();
    CallFault { kind, message }
}

impl World {
    fn new(limits: PluginLimits, abilities: PluginAbilities) -> Self {
        let ledger = Arc::new(PluginLedger::default());
        let now = Instant::now();
        let mut world = Self {
            machine: PluginMachine::new(abilities, limits, ledger.clone(), now),
            ledger,
            permits: Permits::new(limits.queue, limits.reserve),
            slots: Permits::new(limits.generations, 0),
            now,
            effects: Vec::new(),
            limits,
            instance: InstanceKey(0),
            detached: false,
            jobs: BTreeMap::new(),
            told: BTreeMap::new(),
            asking: BTreeMap::new(),
            answers: Answers::default(),
            asked: 0,
            answered: 0,
            refused: 0,
            keys: 0,
            operations: 0,
            shut_out: false,
            gone: false,
            closed: false,
        };
        world.input(Input::Activate(world.instance));
        world.finish_call(WorkerKey(0), Return::Ok);
        world
    }

    fn input(&mut self, input: Input) {
        self.machine.handle(input, self.now, &mut self.effects);
        for effect in std::mem::take(&mut self.effects) {
            match effect {
                Effect::Run(job) => self.run(job),
                Effect::Answer(reply, answer) => (reply.0)(answer),
                Effect::Health(health) => self.shut_out |= health >= Health::Quarantined,
                Effect::Gone(_) => self.gone = true,
                Effect::Closed => self.closed = true,
                Effect::Activated(..) => {}
            }
        }
        while let Some((key, step, answer)) = self.take_answer() {
            self.answered(key, step, answer);
        }
    }

    fn take_answer(&self) -> Option<(GenerationKey, u64, Answer)> {
        self.answers.lock().unwrap().pop_front()
    }

    fn answered(&mut self, key: GenerationKey, step: u64, answer: Answer) {
        self.answered += 1;
        let asking = self.asking.get_mut(&key).unwrap();
        assert!(asking.step >= step, "nobody asked this");
        let wanted = asking.waiting && asking.step == step;
        asking.waiting &= asking.step != step;
        if let Answer::Candidates(candidates, place) = answer {
            if wanted && !asking.ended {
                assert!(asking.deadline.is_some_and(|deadline| self.now < deadline), "too late");
                asking.decision = Some((candidates, place));
            } else {
                // As the drop of a proposal does.
                let discarded = candidates.discarded(DiscardReason::Cancelled);
                let resolution = Resolution::Discard(Box::new(discarded));
                self.input(Input::Resolve { key, resolution, place });
            }
        }
    }

    /// A call begins: it must be allowed.
    fn run(&mut self, job: Job) {
        if let Some((key, _)) = &job.generation {
            let told = self.told.entry(*key).or_default();
            assert!(!told.running, "calls overlap: {job:?}");
            assert!(!told.ended || told.finish_failed, "a call after the end: {job:?}");
            told.running = true;
            if self.shut_out {
                assert!(job.call.ends(), "called though it is shut out: {job:?}");
            }
            match &job.call {
                Call::Begin(_) => assert!(!std::mem::replace(&mut told.begun, true) && told.total == 0),
                Call::Commit { tokens, total } => {
                    assert!(told.begun, "a commit without begin");
                    told.total += tokens.len() as u64;
                    assert_eq!(told.total, *total, "a gap");
                }
                Call::Propose { .. } => {
                    assert!(told.begun && told.operation.is_none(), "an operation is open");
                    assert!(self.now < deadline_of(&job.call), "it was expired");
                }
                Call::Poll { operation, .. } => assert_eq!(told.operation, Some(*operation)),
                Call::Cancel { operation } => assert_eq!(told.operation.take(), Some(*operation)),
                Call::Report(report) => {
                    assert!(told.decisions.remove(&report.0.decision.to_string()), "resolved twice");
                }
                Call::Discard(discarded) => {
                    assert!(told.decisions.remove(&discarded.decision.to_string()), "resolved twice");
                }
                Call::Finish(finish) => {
                    assert!(told.begun || finish.incomplete);
                    assert!(
                        self.asking[key].fence.is_some_and(|fence| self.now < fence),
                        "it waited too long"
                    );
                    assert!(told.decisions.is_empty() && told.operation.is_none(), "{told:?}");
                    if !finish.incomplete {
                        assert_eq!(
                            told.total as usize,
                            finish.receipt.generated.len(),
                            "begin + commits = receipt"
                        );
                    }
                    told.ended = true;
                }
                Call::Abort(abort) => {
                    assert!(told.begun || abort.incomplete);
                    assert_eq!(abort.after_failed_finish, told.finish_failed);
                    assert!(told.decisions.is_empty() && told.operation.is_none(), "{told:?}");
                    told.ended = true;
                    told.finish_failed = false;
                }
                Call::Activate | Call::Shutdown => unreachable!("they have no generation"),
            }
        } else if matches!(job.call, Call::Shutdown) {
            assert!(
                self.told
                    .values()
                    .all(|told| !told.running && (told.ended || !told.begun))
            );
        }
        assert!(self.jobs.insert(job.worker, job).is_none(), "the thread is busy");
    }

    /// A call returns.
    fn finish_call(&mut self, worker: WorkerKey, how: Return) {
        let Some(job) = self.jobs.remove(&worker) else { return };
        let result = match (&job.generation, &job.call) {
            (Some((key, _)), _) if matches!(how, Return::Ours) => {
                let told = self.told.get_mut(key).unwrap();
                told.running = false;
                let finished = matches!(job.call, Call::Finish(_));
                told.finish_failed |= finished;
                told.ended &= !finished;
                CallResult::Returned(plain(how))
            }
            (Some((key, _)), Call::Propose { query, .. }) => {
                self.operations += 1;
                let operation = self.operations;
                if matches!(how, Return::StartFails) {
                    self.told.get_mut(key).unwrap().running = false;
                    CallResult::Proposed {
                        operation: None,
                        poll: Err(fault(CallFaultKind::Error)),
                    }
                } else {
                    let poll = self.poll(*key, operation, query, how);
                    let operation = Some(operation);
                    CallResult::Proposed { operation, poll }
                }
            }
            (Some((key, _)), Call::Poll { operation, query }) => {
                CallResult::Polled(self.poll(*key, *operation, query, how))
            }
            (Some((key, _)), call) => {
                let told = self.told.get_mut(key).unwrap();
                told.running = false;
                let result = plain(how);
                if matches!(call, Call::Finish(_)) && result.is_err() {
                    told.finish_failed = true;
                    told.ended = false;
                }
                CallResult::Returned(result)
            }
            (None, _) => CallResult::Returned(plain(how)),
        };
        self.input(Input::Done { worker, result });
    }

    fn poll(
        &mut self,
        key: GenerationKey,
        operation: u64,
        query: &ProposalQuery,
        how: Return,
    ) -> Result<Poll, CallFault> {
        let told = self.told.get_mut(&key).unwrap();
        told.running = false;
        told.operation = Some(operation);
        let decision = DecisionId::new(format!("{operation}").as_bytes()).unwrap();
        match how {
            Return::Ready | Return::Ok => {
                told.operation = None;
                told.decisions.insert(decision.to_string());
                Ok(Poll::Ready(Candidates {
                    decision,
                    step: query.step,
                    tokens: vec![1],
                    base_position: query.base_position(),
                }))
            }
            Return::Abstain => {
                told.operation = None;
                Ok(Poll::Abstain)
            }
            Return::Invalid { named } => {
                let discarded = Discarded {
                    decision: decision.clone(),
                    step: query.step,
                    proposed: 9,
                    base_position: 0,
                    reason: DiscardReason::InvalidTokenCount,
                };
                if named {
                    told.decisions.insert(decision.to_string());
                }
                Ok(Poll::Invalid {
                    message: "too many".to_owned(),
                    decision: named.then_some(discarded),
                })
            }
            Return::Failed => Ok(Poll::Failed("as scripted".to_owned())),
            Return::Pending | Return::StartFails => Ok(Poll::Pending),
            Return::Error => Err(fault(CallFaultKind::Error)),
            Return::Panicked | Return::Ours => Err(fault(CallFaultKind::Panicked)),
            Return::Unknown => Err(fault(CallFaultKind::UnknownStatus(77))),
        }
    }

    fn pick(&self, at: usize) -> Option<GenerationKey> {
        let open: Vec<_> = self
            .asking
            .iter()
            .filter(|(_, asking)| !asking.ended)
            .map(|(key, _)| *key)
            .collect();
        (!open.is_empty()).then(|| open[at % open.len()])
    }

    fn step(&mut self, step: Step) {
        match step {
            Step::Begin if self.detached => {}
            Step::Begin => self.begin(),
            Step::Detach if self.pick(0).is_some() => {}
            Step::Detach => {
                self.detached = true;
                self.input(Input::Detach(self.instance));
            }
            Step::Close(ms) => {
                let until = self.now + Duration::from_millis(u64::from(ms));
                self.input(Input::Close(until));
            }
            Step::Advance(ms) => {
                self.now += Duration::from_millis(u64::from(ms));
                // The alarm may come behind other inputs.
                if ms % 4 != 3 {
                    self.input(Input::Tick);
                }
            }
            Step::Return(at, how) => {
                let busy: Vec<_> = self.jobs.keys().copied().collect();
                if !busy.is_empty() {
                    self.finish_call(busy[at % busy.len()], how);
                }
            }
            Step::Wake(at) => {
                let open: Vec<_> = self
                    .told
                    .iter()
                    .filter_map(|(key, told)| Some((*key, told.operation?)))
                    .collect();
                if !open.is_empty() {
                    let (key, operation) = open[at % open.len()];
                    self.input(Input::Woken { key, operation });
                }
            }
            Step::Commit(at)
            | Step::Ask(at)
            | Step::Withdraw(at)
            | Step::Resolve(at, _)
            | Step::Finish(at)
            | Step::Abort(at) => {
                if let Some(key) = self.pick(at) {
                    self.request(key, step);
                }
            }
        }
    }

    fn begin(&mut self) {
        let key = GenerationKey(self.keys);
        self.keys += 1;
        let asking = self.asking.entry(key).or_default();
        let places = self
            .slots
            .try_acquire(Class::Ordinary)
            .zip(self.permits.try_acquire(Class::Ordinary));
        asking.begun = places.is_some();
        asking.incomplete = places.is_none();
        if let Some((slot, place)) = places {
            let start = Arc::new(GenerationStart {
                ids: ids(key),
                attempt: 1,
                prompt: [1].into(),
            });
            self.input(Input::Begin(Beginning {
                key,
                instance: self.instance,
                start,
                place,
                slot,
            }));
        }
    }

    fn request(&mut self, key: GenerationKey, step: Step) {
        let asking = self.asking.get_mut(&key).unwrap();
        match step {
            // A request that waits for an answer, or has candidates computed, does nothing else.
            Step::Commit(_) if !asking.waiting && asking.decision.is_none() => {
                asking.total += 1;
                let total = asking.total;
                match self.permits.try_acquire(Class::Ordinary).filter(|_| !asking.incomplete) {
                    Some(place) => self.input(Input::Commit {
                        key,
                        tokens: vec![total as u32],
                        total,
                        place,
                    }),
                    None => asking.incomplete = true,
                }
            }
            Step::Ask(_) if asking.begun && !asking.waiting && asking.decision.is_none() => {
                let Some(place) = self.permits.try_acquire(Class::Ordinary) else {
                    return;
                };
                let deadline = self.now + Duration::from_millis(8);
                asking.waiting = true;
                asking.deadline = Some(deadline);
                asking.step += 1;
                self.asked += 1;
                let (step, answers) = (asking.step, self.answers.clone());
                let query = Arc::new(ProposalQuery {
                    prompt_count: 1,
                    committed_count: asking.total,
                    step,
                    max_tokens: 4,
                    vocabulary: 9,
                    tail: [1].into(),
                });
                let reply = Reply(Box::new(move |answer| {
                    answers.lock().unwrap().push_back((key, step, answer));
                }));
                // What expires now is not counted for this one.
                self.input(Input::Tick);
                let counted = self.counted();
                self.input(Input::Ask(Question {
                    key,
                    query,
                    deadline,
                    reply,
                    place,
                }));
                let refused = !self.asking[&key].waiting && self.counted() == counted;
                self.refused += u64::from(refused);
            }
            Step::Withdraw(_) if asking.waiting => {
                let step = asking.step;
                asking.waiting = false;
                self.input(Input::Withdraw { key, step });
            }
            Step::Resolve(_, report) => {
                if let Some((candidates, place)) = asking.decision.take() {
                    let resolution = if report {
                        Resolution::Report(Box::new((candidates, outcome())))
                    } else {
                        Resolution::Discard(Box::new(candidates.discarded(DiscardReason::ExecutionFailed)))
                    };
                    self.input(Input::Resolve { key, resolution, place });
                }
            }
            Step::Finish(_) if !asking.waiting && asking.decision.is_none() => self.end(key, true),
            Step::Abort(_) => self.end(key, false),
            _ => {}
        }
    }

    /// Questions of which the ledger says what they came to.
    fn counted(&self) -> u64 {
        self.ledger.figures().proposals.iter().map(|(_, count)| count).sum()
    }

    fn end(&mut self, key: GenerationKey, finish: bool) {
        let fence = self.now + self.limits.finish_budget;
        let asking = self.asking.get_mut(&key).unwrap();
        asking.ended = true;
        asking.fence = Some(fence);
        let (begun, incomplete, total) = (asking.begun, asking.incomplete, asking.total);
        let late = asking.decision.take();
        let end = if finish {
            End::Finish(Box::new(GenerationFinish {
                ids: ids(key),
                // Of every other generation, a last token was not committed.
                receipt: receipt(total + key.0 % 2),
                incomplete,
            }))
        } else {
            End::Abort {
                reason: AbortReason::Cancelled,
                committed: total,
            }
        };
        let class = if finish { Class::Fence } else { Class::Ending };
        let place = self.permits.try_acquire(class);
        if begun || place.is_some() {
            let ending = Box::new(Ending {
                instance: self.instance,
                ids: Arc::new(ids(key)),
                attempt: 1,
                begun,
                incomplete,
                end,
            });
            self.input(Input::End { key, ending, place });
        }
        // A request that panicked: its end is told before its proposal is dropped.
        if let Some((candidates, place)) = late {
            let resolution = Resolution::Discard(Box::new(candidates.discarded(DiscardReason::Cancelled)));
            self.input(Input::Resolve { key, resolution, place });
        }
    }

    /// Everything returns, everything ends.
    fn settle(&mut self) {
        while let Some(key) = self.pick(0) {
            self.end(key, key.0 % 2 == 0);
        }
        self.return_all();
        let until = self.now + Duration::from_secs(60);
        self.input(Input::Close(until));
        self.return_all();
    }

    fn return_all(&mut self) {
        while let Some(worker) = self.jobs.keys().next().copied() {
            self.finish_call(worker, Return::Ok);
        }
    }
}

fn plain(how: Return) -> Result<(), CallFault> {
    match how {
        Return::Error | Return::Failed | Return::StartFails => Err(fault(CallFaultKind::Error)),
        Return::Panicked | Return::Ours => Err(fault(CallFaultKind::Panicked)),
        Return::Unknown => Err(fault(CallFaultKind::UnknownStatus(77))),
        _ => Ok(()),
    }
}

fn outcome() -> Outcome {
    Outcome {
        disposition: Disposition::FullAccept,
        accepted: 1,
        predictions: vec![1, 2],
        committed: 2,
        verified_position: 3,
        canonical_position: 4,
    }
}

fn deadline_of(call: &Call) -> Instant {
    match call {
        Call::Propose { deadline, .. } => *deadline,
        _ => unreachable!("only proposals have one"),
    }
}

const ALL: PluginAbilities = PluginAbilities {
    commits: true,
    token_ids: true,
    reports: true,
    proposes: true,
    serial: false,
};

fn check(world: &World) -> Result<(), TestCaseError> {
    prop_assert!(world.closed && world.gone);
    prop_assert_eq!(world.permits.taken(), 0, "places that were not given back");
    prop_assert_eq!(world.slots.taken(), 0);
    prop_assert_eq!(world.answered, world.asked, "each question is answered once");
    prop_assert_eq!(
        world.counted() + world.refused,
        world.asked,
        "each question is counted once"
    );
    let bookkeeping = world.ledger.figures().losses.contains(&(Loss::Bookkeeping, 0));
    prop_assert!(bookkeeping, "totals that do not add up");
    for (key, told) in &world.told {
        prop_assert!(!told.begun || told.ended, "{key:?} has no end: {told:?}");
        prop_assert!(told.decisions.is_empty(), "{key:?} is owed a word: {told:?}");
    }
    Ok(())
}

/// More with `PROPTEST_CASES`.
fn at_least(cases: u32) -> ProptestConfig {
    let asked = ProptestConfig::default();
    ProptestConfig {
        cases: asked.cases.max(cases),
        ..asked
    }
}

proptest! {
    #![proptest_config(at_least(1500))]

    #[test]
    fn whatever_a_plugin_and_requests_do_the_rules_hold(
        steps in proptest::collection::vec(step(), 1..160),
        queue in 2usize..40,
        threads in 1usize..4,
        serial: bool,
        faults in 1u32..40,
        wild in proptest::option::of((0usize..160, 0usize..3)),
        close in proptest::option::weighted(0.2, (0usize..160, 0u16..200)),
    ) {
        let limits = PluginLimits { queue, reserve: 3, generations: 6, threads, faults, ..PluginLimits::default() };
        let mut world = World::new(limits, PluginAbilities { serial, ..ALL });
        let wilds = [Return::Panicked, Return::Unknown, Return::Ours];
        for (index, step) in steps.into_iter().enumerate() {
            match (wild, step) {
                (Some((at, how)), Step::Return(which, _)) if at <= index && !world.shut_out => {
                    world.step(Step::Return(which, wilds[how]));
                }
                _ => world.step(step),
            }
            if let Some((at, ms)) = close && at == index {
                world.step(Step::Close(ms));
            }
            prop_assert!(world.permits.taken() <= world.permits.capacity());
        }
        world.settle();
        check(&world)?;
    }
}

#[test]
fn a_stuck_thread_is_given_up_and_the_end_comes_when_its_call_returns() {
    let mut world = World::new(
        PluginLimits {
            threads: 1,
            ..PluginLimits::default()
        },
        ALL,
    );
    world.begin();
    world.step(Step::Advance(4_999));
    assert!(!world.shut_out);
    world.step(Step::Advance(1));
    assert!(world.shut_out);
    world.step(Step::Finish(0));
    assert_eq!(world.jobs.len(), 1, "the thread is in begin");
    world.finish_call(WorkerKey(0), Return::Ok);
    assert!(matches!(world.jobs[&WorkerKey(0)].call, Call::Finish(_)));
    world.settle();
    check(&world).unwrap();
}

#[test]
fn a_finish_whose_fence_times_out_becomes_an_abort() {
    let mut world = World::new(PluginLimits::default(), ALL);
    world.begin();
    world.step(Step::Ask(0));
    world.finish_call(WorkerKey(0), Return::Ok);
    world.finish_call(WorkerKey(0), Return::Ready);
    world.step(Step::Resolve(0, false));
    world.step(Step::Finish(0));
    assert!(matches!(world.jobs[&WorkerKey(0)].call, Call::Discard(_)), "it is slow");
    world.step(Step::Advance(5_000));
    world.finish_call(WorkerKey(0), Return::Ok);
    let Call::Abort(abort) = &world.jobs[&WorkerKey(0)].call else {
        panic!("{:?}", world.jobs)
    };
    assert_eq!(abort.reason, AbortReason::FenceTimeout);
    assert!(world.ledger.figures().losses.contains(&(Loss::Fence, 1)));
    world.settle();
    check(&world).unwrap();
}

#[test]
fn a_failed_finish_is_followed_by_one_abort_that_says_so() {
    let mut world = World::new(PluginLimits::default(), ALL);
    world.begin();
    world.finish_call(WorkerKey(0), Return::Ok);
    world.step(Step::Finish(0));
    world.finish_call(WorkerKey(0), Return::Error);
    let Call::Abort(abort) = &world.jobs[&WorkerKey(0)].call else {
        panic!("{:?}", world.jobs)
    };
    assert!(abort.after_failed_finish && abort.reason == AbortReason::FinishFailed);
    world.settle();
    check(&world).unwrap();
}

#[test]
fn each_outcome_of_a_proposal_is_counted_under_its_name() {
    let count = |world: &World, wanted| {
        let figures = world.ledger.figures();
        figures
            .proposals
            .iter()
            .find(|(outcome, _)| *outcome == wanted)
            .map_or(0, |(_, count)| *count)
    };
    let asked = || {
        let mut world = World::new(
            PluginLimits {
                threads: 1,
                ..PluginLimits::default()
            },
            ALL,
        );
        world.begin();
        world.finish_call(WorkerKey(0), Return::Ok);
        world.step(Step::Ask(0));
        world
    };
    let late = |how| {
        let mut world = asked();
        world.step(Step::Advance(8));
        world.finish_call(WorkerKey(0), how);
        world
    };
    let mut world = asked();
    world.finish_call(WorkerKey(0), Return::Ready);
    assert_eq!(count(&world, ProposalOutcome::Ready), 1);
    let mut world = asked();
    world.finish_call(WorkerKey(0), Return::Abstain);
    assert_eq!(count(&world, ProposalOutcome::Abstained), 1);
    // At the deadline, before the alarm: one reading of the clock decides.
    let mut world = asked();
    world.now += Duration::from_millis(8);
    world.finish_call(WorkerKey(0), Return::Ready);
    assert_eq!(count(&world, ProposalOutcome::Late), 1);
    assert_eq!(world.answered, 1);
    let world = late(Return::Ready);
    assert_eq!(count(&world, ProposalOutcome::Late), 1);
    let Call::Discard(discarded) = &world.jobs[&WorkerKey(0)].call else {
        panic!("{:?}", world.jobs)
    };
    assert_eq!(discarded.reason, DiscardReason::DeadlineExceeded);
    let world = late(Return::Pending);
    assert_eq!(count(&world, ProposalOutcome::ExpiredInPlugin), 1);
    assert!(matches!(world.jobs[&WorkerKey(0)].call, Call::Cancel { .. }));
    let mut world = asked();
    world.finish_call(WorkerKey(0), Return::Pending);
    world.step(Step::Advance(8));
    assert_eq!(count(&world, ProposalOutcome::ExpiredInPlugin), 1);
    let mut world = asked();
    world.finish_call(WorkerKey(0), Return::Failed);
    assert_eq!(count(&world, ProposalOutcome::Error), 1);
    let mut world = asked();
    world.step(Step::Withdraw(0));
    world.finish_call(WorkerKey(0), Return::Ready);
    assert_eq!(count(&world, ProposalOutcome::Cancelled), 1);

    let mut world = World::new(
        PluginLimits {
            threads: 1,
            ..PluginLimits::default()
        },
        ALL,
    );
    world.begin();
    world.step(Step::Ask(0));
    world.step(Step::Advance(8));
    assert_eq!(
        count(&world, ProposalOutcome::ExpiredBeforeDispatch),
        1,
        "begin took too long"
    );
    let mut hung = asked();
    hung.step(Step::Advance(5_000));
    assert_eq!(count(&hung, ProposalOutcome::ExpiredInPlugin), 1);
    hung.finish_call(WorkerKey(0), Return::Ready);
    assert_eq!(count(&hung, ProposalOutcome::Late), 0, "once");
}

#[test]
fn an_error_ends_the_questions_of_its_request_only() {
    let mut world = World::new(PluginLimits::default(), ALL);
    world.begin();
    world.begin();
    world.return_all();
    world.step(Step::Ask(0));
    world.finish_call(WorkerKey(0), Return::Invalid { named: true });
    let calls: Vec<&'static str> = std::iter::from_fn(|| {
        let job = world.jobs.get(&WorkerKey(0))?;
        let name = job.call.callback().name();
        world.finish_call(WorkerKey(0), Return::Ok);
        Some(name)
    })
    .collect();
    assert_eq!(calls, ["cancel_proposal", "discard_proposal"]);
    world.step(Step::Ask(0));
    assert!(world.jobs.is_empty(), "it is asked no more");
    world.step(Step::Ask(1));
    assert_eq!(world.jobs.len(), 1);
    world.settle();
    check(&world).unwrap();
}

#[test]
fn the_fence_takes_the_last_place_and_ends_without_one_become_aborts() {
    let limits = PluginLimits {
        threads: 1,
        queue: 4,
        reserve: 2,
        ..PluginLimits::default()
    };
    let mut world = World::new(limits, ALL);
    for _ in 0..4 {
        world.begin();
    }
    world.begin();
    assert!(world.asking[&GenerationKey(4)].incomplete, "begin found no place");
    world.end(GenerationKey(0), false);
    world.end(GenerationKey(1), false);
    world.end(GenerationKey(2), true);
    world.end(GenerationKey(3), true);
    assert_eq!(world.permits.taken(), 6);
    assert!(world.ledger.figures().losses.contains(&(Loss::End, 2)));
    world.settle();
    check(&world).unwrap();
}

#[test]
fn an_end_that_is_being_told_is_over_before_shutdown() {
    let limits = PluginLimits {
        threads: 2,
        queue: 2,
        ..PluginLimits::default()
    };
    let mut world = World::new(limits, ALL);
    for _ in 0..3 {
        world.begin();
    }
    assert!(world.asking[&GenerationKey(2)].incomplete, "begin found no place");
    world.return_all();
    world.end(GenerationKey(2), false);
    assert!(matches!(world.jobs[&WorkerKey(0)].call, Call::Abort(_)));
    world.step(Step::Commit(0));
    world.finish_call(WorkerKey(1), Return::Panicked);
    for key in [0, 1] {
        world.end(GenerationKey(key), false);
        world.finish_call(WorkerKey(1), Return::Ok);
    }
    world.step(Step::Detach);
    assert_eq!(world.jobs.len(), 1, "the instance still has a call: {:?}", world.jobs);
    world.finish_call(WorkerKey(0), Return::Ok);
    assert!(matches!(world.jobs[&WorkerKey(0)].call, Call::Shutdown));
    world.settle();
    check(&world).unwrap();
}

#[test]
fn a_plugin_is_not_blamed_for_questions_that_were_withdrawn() {
    let limits = PluginLimits {
        threads: 1,
        faults: 2,
        ..PluginLimits::default()
    };
    let mut world = World::new(limits, ALL);
    world.begin();
    world.return_all();
    for _ in 0..9 {
        // Another proposer is first each time, and the next question comes while the plugin still looks.
        world.step(Step::Ask(0));
        world.step(Step::Withdraw(0));
        world.step(Step::Ask(0));
        world.return_all();
    }
    assert_eq!(world.machine.health.health(), Health::Healthy);
    // Past its deadline it is slow, which is said; the question behind it cost nothing.
    for _ in 0..9 {
        world.step(Step::Ask(0));
        world.step(Step::Withdraw(0));
        world.step(Step::Advance(8));
        world.step(Step::Ask(0));
    }
    assert_eq!(world.machine.health.health(), Health::Degraded);
    world.settle();
    check(&world).unwrap();
}

#[test]
fn tokens_that_were_not_committed_are_told_before_finish() {
    let mut world = World::new(PluginLimits::default(), ALL);
    world.begin();
    world.begin();
    world.return_all();
    world.end(GenerationKey(1), true);
    let Call::Commit { tokens, total } = &world.jobs[&WorkerKey(0)].call else {
        panic!("{:?}", world.jobs)
    };
    assert_eq!((tokens.as_slice(), *total), ([0].as_slice(), 1));
    world.finish_call(WorkerKey(0), Return::Ok);
    assert!(matches!(world.jobs[&WorkerKey(0)].call, Call::Finish(_)));
    world.settle();
    check(&world).unwrap();
}

#[test]
fn totals_with_a_gap_end_what_is_told_of_a_generation_but_not_the_generation() {
    let mut world = World::new(PluginLimits::default(), ALL);
    world.begin();
    world.return_all();
    for _ in 0..3 {
        let place = world.permits.try_acquire(Class::Ordinary).unwrap();
        let key = GenerationKey(0);
        let (tokens, total) = (vec![1], 7);
        world.input(Input::Commit {
            key,
            tokens,
            total,
            place,
        });
    }
    assert!(world.jobs.is_empty(), "{:?}", world.jobs);
    assert!(
        world.ledger.figures().losses.contains(&(Loss::Bookkeeping, 1)),
        "counted once"
    );
    world.step(Step::Ask(0));
    assert!(world.jobs.is_empty(), "it is not asked either");
    world.end(GenerationKey(0), true);
    let Call::Finish(finish) = &world.jobs[&WorkerKey(0)].call else {
        panic!("{:?}", world.jobs)
    };
    assert!(finish.incomplete);
}
