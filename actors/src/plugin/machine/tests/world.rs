//! Requests that do anything at any time, and what each of them knows.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    sync::{Arc, Mutex},
    time::{Duration, Instant, SystemTime},
};

use mesh_proto::{
    RequestId, SessionId,
    v1::{FinishReason, RequestTimings},
};

use super::*;

/// What the plugin has been told of one generation.
#[derive(Debug, Default)]
pub(super) struct Told {
    pub(super) begun: bool,
    pub(super) total: u64,
    pub(super) running: bool,
    pub(super) operation: Option<u64>,
    pub(super) decisions: BTreeSet<String>,
    pub(super) ended: bool,
    pub(super) finish_failed: bool,
}

/// What one request knows.
#[derive(Debug, Default)]
pub(super) struct Asking {
    pub(super) begun: bool,
    pub(super) incomplete: bool,
    pub(super) total: u64,
    pub(super) step: u64,
    pub(super) waiting: bool,
    pub(super) deadline: Option<Instant>,
    pub(super) decision: Option<(Candidates, Place)>,
    pub(super) ended: bool,
    pub(super) fence: Option<Instant>,
}

pub(super) type Answers = Arc<Mutex<VecDeque<(GenerationKey, u64, Answer)>>>;

pub(super) struct World {
    pub(super) machine: PluginMachine,
    pub(super) ledger: Arc<PluginLedger>,
    pub(super) permits: Permits,
    pub(super) slots: Permits,
    pub(super) now: Instant,
    pub(super) effects: Vec<Effect>,
    pub(super) limits: PluginLimits,
    pub(super) instance: InstanceKey,
    pub(super) detached: bool,
    pub(super) jobs: BTreeMap<WorkerKey, Job>,
    pub(super) told: BTreeMap<GenerationKey, Told>,
    pub(super) asking: BTreeMap<GenerationKey, Asking>,
    pub(super) answers: Answers,
    pub(super) asked: u64,
    pub(super) answered: u64,
    /// Questions that were not let in.
    pub(super) refused: u64,
    pub(super) keys: u64,
    pub(super) operations: u64,
    pub(super) shut_out: bool,
    pub(super) gone: bool,
    pub(super) closed: bool,
}

pub(super) fn ids(key: GenerationKey) -> GenerationIds {
    GenerationIds {
        request: RequestId::random(),
        session: SessionId(key.0),
        agent_session: None,
    }
}

pub(super) fn receipt(total: u64) -> Arc<Receipt> {
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

impl World {
    pub(super) fn new(limits: PluginLimits, abilities: PluginAbilities) -> Self {
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

    pub(super) fn input(&mut self, input: Input) {
        self.machine.handle(input, self.now, &mut self.effects);
        for effect in std::mem::take(&mut self.effects) {
            match effect {
                Effect::Run(job) => self.run(job),
                Effect::Answer(reply, answer) => (reply.0)(answer),
                Effect::Health(health) => self.shut_out |= health >= Health::Quarantined,
                Effect::Gone(_) => self.gone = true,
                Effect::Closed => self.closed = true,
                Effect::Activated(..) | Effect::GaveUp(_) => {}
            }
        }
        while let Some((key, step, answer)) = self.take_answer() {
            self.answered(key, step, answer);
        }
    }

    pub(super) fn take_answer(&self) -> Option<(GenerationKey, u64, Answer)> {
        self.answers.lock().unwrap().pop_front()
    }

    pub(super) fn answered(&mut self, key: GenerationKey, step: u64, answer: Answer) {
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

    pub(super) fn pick(&self, at: usize) -> Option<GenerationKey> {
        let open: Vec<_> = self
            .asking
            .iter()
            .filter(|(_, asking)| !asking.ended)
            .map(|(key, _)| *key)
            .collect();
        (!open.is_empty()).then(|| open[at % open.len()])
    }

    pub(super) fn step(&mut self, step: Step) {
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

    pub(super) fn begin(&mut self) {
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

    /// A request does something, if it may now: one that waits for an answer, or has candidates computed, does not.
    pub(super) fn request(&mut self, key: GenerationKey, step: Step) {
        let asking = self.asking.get_mut(&key).unwrap();
        let is_free = !asking.waiting && asking.decision.is_none();
        match step {
            Step::Commit(_) if is_free => self.commit(key),
            Step::Ask(_) if is_free && asking.begun => self.ask(key),
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
            Step::Finish(_) if is_free => self.end(key, true),
            Step::Abort(_) => self.end(key, false),
            _ => {}
        }
    }

    fn commit(&mut self, key: GenerationKey) {
        let asking = self.asking.get_mut(&key).unwrap();
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

    fn ask(&mut self, key: GenerationKey) {
        let Some(place) = self.permits.try_acquire(Class::Ordinary) else {
            return;
        };
        let deadline = self.now + Duration::from_millis(8);
        let asking = self.asking.get_mut(&key).unwrap();
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

    /// Questions of which the ledger says what they came to.
    pub(super) fn counted(&self) -> u64 {
        self.ledger.figures().proposals.iter().map(|(_, count)| count).sum()
    }

    pub(super) fn end(&mut self, key: GenerationKey, finish: bool) {
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
    pub(super) fn settle(&mut self) {
        while let Some(key) = self.pick(0) {
            self.end(key, key.0 % 2 == 0);
        }
        self.return_all();
        let until = self.now + Duration::from_secs(60);
        self.input(Input::Close(until));
        self.return_all();
    }

    pub(super) fn return_all(&mut self) {
        while let Some(worker) = self.jobs.keys().next().copied() {
            self.finish_call(worker, Return::Ok);
        }
    }
}

pub(super) fn outcome() -> Outcome {
    Outcome {
        disposition: Disposition::FullAccept,
        accepted: 1,
        predictions: vec![1, 2],
        committed: 2,
        verified_position: 3,
        canonical_position: 4,
    }
}
