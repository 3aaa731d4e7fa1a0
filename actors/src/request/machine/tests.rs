use mesh_proto::sampling::greedy_sampling;
use proptest::prelude::*;

use super::*;
use crate::scripted::{BYTES_VOCABULARY, END, ScriptedVocabulary, model::mix};

const CONTEXT: u32 = 24;

fn plan(max_tokens: Option<u32>) -> RequestPlan {
    RequestPlan {
        sampling: greedy_sampling(),
        max_tokens,
        stop: Vec::new(),
        context: CONTEXT,
        speculates: false,
    }
}

fn machine_of(plan: RequestPlan) -> RequestMachine {
    RequestMachine::new(plan, Arc::new(ScriptedVocabulary::default()))
}

fn machine(max_tokens: Option<u32>) -> RequestMachine {
    machine_of(plan(max_tokens))
}

fn handle(machine: &mut RequestMachine, input: Input) -> Vec<Effect> {
    let mut effects = Vec::new();
    machine.handle(input, &mut effects);
    effects
}

fn running(max_tokens: Option<u32>, prompt: usize) -> RequestMachine {
    running_of(plan(max_tokens), prompt)
}

fn running_of(plan: RequestPlan, prompt: usize) -> RequestMachine {
    let mut machine = machine_of(plan);
    handle(&mut machine, Input::Prepared(Ok(vec![1; prompt])));
    handle(
        &mut machine,
        Input::Granted {
            lane: LaneId(0),
            session: SessionId(1),
        },
    );
    machine
}

fn returned(pos_start: u32, rows: u32, tokens: Vec<u32>) -> Input {
    Input::Returned {
        session: SessionId(1),
        pos_start,
        rows,
        tokens,
    }
}

#[test]
fn prompts_at_the_limit_of_the_context() {
    let fits = handle(&mut machine(None), Input::Prepared(Ok(vec![1; CONTEXT as usize - 1])));
    assert_eq!(
        fits,
        [
            Effect::Admit {
                prompt_tokens: CONTEXT - 1
            },
            Effect::AskLane
        ]
    );
    for tokens in [CONTEXT as usize, CONTEXT as usize + 1] {
        let effects = handle(&mut machine(None), Input::Prepared(Ok(vec![1; tokens])));
        let [Effect::Refuse(error)] = effects.as_slice() else {
            panic!("{effects:?}")
        };
        assert_eq!(error.code, ErrorCode::ContextLengthExceeded);
        assert!(
            error.message.contains(&tokens.to_string()) && error.message.contains("24"),
            "{error}"
        );
    }
}

#[test]
fn the_last_place_of_the_context_holds_no_row_that_is_computed() {
    let mut machine = running(None, CONTEXT as usize - 1);
    let effects = handle(&mut machine, returned(0, CONTEXT - 1, vec![5]));
    assert!(
        matches!(effects.last(), Some(Effect::Finish(FinishReason::Length))),
        "{effects:?}"
    );
    assert!(!effects.iter().any(|effect| matches!(effect, Effect::Rows(_))));
}

#[test]
fn the_last_row_without_a_token_is_an_error_and_not_silence() {
    for (tokens, words) in [
        (vec![], "0 tokens"),
        (vec![1, 2], "2 tokens"),
        (vec![BYTES_VOCABULARY], "vocabulary"),
    ] {
        let mut machine = running(None, 4);
        assert_eq!(handle(&mut machine, returned(0, 2, vec![])), [], "a chunk");
        let effects = handle(&mut machine, returned(2, 2, tokens));
        let [Effect::Free { .. }, Effect::Fail(error)] = effects.as_slice() else {
            panic!("{effects:?}")
        };
        assert!(
            error.code == ErrorCode::Protocol && error.message.contains(words),
            "{error}"
        );
    }
}

#[test]
fn positions_that_overflow_are_ignored() {
    let mut machine = running(None, 4);
    assert_eq!(handle(&mut machine, returned(u32::MAX, 5, vec![3])), []);
}

/// A machine that speculates, behind the first of its tokens.
fn asking(max_tokens: Option<u32>) -> (RequestMachine, Arc<ProposalQuery>) {
    let plan = RequestPlan {
        speculates: true,
        ..plan(max_tokens)
    };
    let mut machine = running_of(plan, 4);
    let query = asked(&handle(&mut machine, returned(0, 4, vec![5])));
    (machine, query)
}

fn asked(effects: &[Effect]) -> Arc<ProposalQuery> {
    match effects.last() {
        Some(Effect::Ask(query)) => query.clone(),
        _ => panic!("{effects:?}"),
    }
}

fn candidates(step: u64, tokens: &[u32]) -> Input {
    let tokens = tokens.to_vec();
    Input::Candidates { step, tokens }
}

fn rows(pos_start: u32, tokens: &[u32]) -> Effect {
    Effect::Rows(RowSpan {
        lane: LaneId(0),
        session: SessionId(1),
        pos_start,
        tokens: tokens.to_vec(),
        sampled_rows: tokens.len() as u32,
    })
}

#[test]
fn candidates_are_computed_behind_the_last_token_and_every_row_is_sampled() {
    let (mut machine, query) = asking(None);
    assert_eq!((query.step, query.base_position(), query.prompt_count), (1, 5, 4));
    assert_eq!(*query.tail, [1, 1, 1, 1, 5]);
    let effects = handle(&mut machine, candidates(1, &[6, 7]));
    assert_eq!(effects, [rows(4, &[5, 6, 7])]);
    let effects = handle(&mut machine, returned(4, 3, vec![6, 9, 3]));
    let outcome = Outcome {
        disposition: Disposition::FirstMismatch,
        accepted: 1,
        predictions: vec![6, 9],
        committed: 2,
        verified_position: 7,
        canonical_position: 7,
    };
    assert_eq!(effects[0], Effect::Verified(outcome));
    let query = asked(&effects);
    assert_eq!((query.step, query.base_position()), (2, 7));
    // The rows behind the wrong candidate are computed again from where they begin.
    assert_eq!(handle(&mut machine, candidates(2, &[])), [rows(6, &[9])]);
}

#[test]
fn more_candidates_than_were_asked_for_or_none_that_are_tokens_are_not_computed() {
    for (tokens, reason) in [
        (vec![6; 9], DiscardReason::InvalidTokenCount),
        (vec![6, BYTES_VOCABULARY], DiscardReason::InvalidTokenId),
    ] {
        let (mut machine, query) = asking(None);
        assert_eq!(query.max_tokens, 8);
        let effects = handle(&mut machine, candidates(1, &tokens));
        assert_eq!(effects, [Effect::Unverified(reason), rows(4, &[5])]);
    }
}

#[test]
fn candidates_of_another_step_or_a_second_time_are_ignored() {
    let (mut machine, _) = asking(None);
    assert_eq!(handle(&mut machine, candidates(0, &[6])), []);
    assert_eq!(handle(&mut machine, candidates(2, &[6])), []);
    assert_eq!(handle(&mut machine, candidates(1, &[6])), [rows(4, &[5, 6])]);
    assert_eq!(handle(&mut machine, candidates(1, &[6])), []);
}

#[test]
fn a_repeated_answer_is_ignored_though_the_rows_under_way_end_where_it_did() {
    let (mut machine, _) = asking(None);
    handle(&mut machine, candidates(1, &[6]));
    handle(&mut machine, returned(4, 2, vec![9, 3]));
    assert_eq!(handle(&mut machine, candidates(2, &[])), [rows(5, &[9])]);
    assert_eq!(handle(&mut machine, returned(4, 2, vec![9, 3])), []);
    assert!(!handle(&mut machine, returned(5, 1, vec![4])).is_empty());
}

#[test]
fn the_last_token_of_the_budget_is_not_asked_about() {
    let (mut machine, query) = asking(Some(3));
    assert_eq!(query.max_tokens, 1);
    handle(&mut machine, candidates(1, &[]));
    let effects = handle(&mut machine, returned(4, 1, vec![6]));
    assert_eq!(effects.last(), Some(&rows(5, &[6])));
}

#[test]
fn candidates_under_way_at_an_abort_are_told_before_the_lane_is_free() {
    for (error, reason) in [
        (Input::Cancel, DiscardReason::Cancelled),
        (
            Input::Break(MeshError::new(ErrorCode::StageLost, "lost")),
            DiscardReason::ExecutionFailed,
        ),
        // One row short.
        (returned(4, 2, vec![6]), DiscardReason::ExecutionFailed),
    ] {
        let (mut machine, _) = asking(None);
        handle(&mut machine, candidates(1, &[6]));
        let effects = handle(&mut machine, error);
        assert!(
            matches!(effects.as_slice(), [Effect::Unverified(told), Effect::Free { .. }, Effect::Fail(_)] if *told == reason),
            "{effects:?}"
        );
    }
    let (mut machine, _) = asking(None);
    let effects = handle(&mut machine, Input::Cancel);
    assert!(
        matches!(effects.as_slice(), [Effect::Free { .. }, Effect::Fail(_)]),
        "nothing was under way: {effects:?}"
    );
}

#[derive(Debug, Clone)]
enum Step {
    Prepare(usize),
    FailToPrepare,
    Grant,
    /// What was asked for: so many candidates are right, then this token.
    Answer(usize, u32),
    /// What was answered before.
    Repeat,
    Foreign(u64),
    Odd {
        pos_start: u32,
        rows: u32,
        tokens: Vec<u32>,
    },
    /// To the query: these.
    Candidates(Vec<u32>),
    /// To another one.
    OldCandidates(u64),
    LaneFailed(u64),
    Cancel,
    Break,
}

fn step() -> impl Strategy<Value = Step> {
    let token = prop_oneof![20 => 1..BYTES_VOCABULARY, 1 => Just(END), 1 => any::<u32>()];
    let tokens = |most| proptest::collection::vec(prop_oneof![50 => 1u32..9, 1 => any::<u32>()], 0..most);
    prop_oneof![
        3 => (0usize..30).prop_map(Step::Prepare),
        1 => Just(Step::FailToPrepare),
        4 => Just(Step::Grant),
        40 => (0usize..9, token.clone()).prop_map(|(right, token)| Step::Answer(right, token)),
        4 => Just(Step::Repeat),
        2 => (0u64..9).prop_map(Step::Foreign),
        1 => (any::<u32>(), any::<u32>(), proptest::collection::vec(token, 0..3))
            .prop_map(|(pos_start, rows, tokens)| Step::Odd { pos_start, rows, tokens }),
        30 => tokens(5).prop_map(Step::Candidates),
        2 => tokens(30).prop_map(Step::Candidates),
        2 => (0u64..9).prop_map(Step::OldCandidates),
        1 => (0u64..3).prop_map(Step::LaneFailed),
        1 => Just(Step::Cancel),
        1 => Just(Step::Break),
    ]
}

/// What the world around sees of a machine, and what it must never see.
#[derive(Default)]
struct World {
    prompt: usize,
    max_tokens: Option<u32>,
    answered: bool,
    asked_lane: bool,
    grants: u64,
    session: Option<SessionId>,
    freed: Vec<SessionId>,
    ended: bool,
    prefilled: bool,
    total: u32,
    expected: Vec<u32>,
    shown: String,
    /// Rows under way.
    asked: Option<RowSpan>,
    /// Proposers look.
    query: Option<Arc<ProposalQuery>>,
    queries: u64,
    /// Candidates that were given for it, and are owed a word.
    owed: Option<Vec<u32>>,
    last: Option<Input>,
    refused: bool,
}

impl World {
    fn position(&self) -> u32 {
        self.prompt as u32 + self.total
    }

    fn see(&mut self, effect: Effect) -> Result<(), TestCaseError> {
        let late_grant = matches!(effect, Effect::Free { .. });
        prop_assert!(!self.ended || late_grant, "after the terminal: {effect:?}");
        match effect {
            Effect::Admit { prompt_tokens } => {
                prop_assert!(!std::mem::replace(&mut self.answered, true));
                prop_assert_eq!(prompt_tokens as usize, self.prompt);
            }
            Effect::Refuse(_) => {
                prop_assert!(!std::mem::replace(&mut self.answered, true));
                (self.ended, self.refused) = (true, true);
            }
            Effect::AskLane => self.asked_lane = true,
            Effect::Withdraw => prop_assert!(self.asked_lane && self.session.is_none()),
            Effect::Open { session, .. } => {
                prop_assert!(self.answered && self.session.is_none());
                self.session = Some(session);
            }
            Effect::Ask(query) => self.see_query(query)?,
            Effect::Verified(outcome) => {
                let owed = self.owed.take();
                prop_assert!(owed.is_some(), "nothing was under way");
                let (base, proposed) = (u64::from(self.position()), owed.unwrap_or_default().len() as u64);
                prop_assert_eq!(outcome.verified_position, base + proposed);
                prop_assert_eq!(outcome.canonical_position, base + outcome.committed);
                prop_assert!(outcome.accepted <= proposed && outcome.predictions.len() as u64 <= proposed + 1);
            }
            Effect::Unverified(_) => prop_assert!(self.owed.take().is_some(), "nothing is under way"),
            Effect::Rows(span) => self.see_rows(span)?,
            Effect::Free { session, .. } => {
                prop_assert!(!self.freed.contains(&session), "freed twice");
                prop_assert!(self.owed.is_none(), "freed, and candidates are owed a word");
                self.freed.push(session);
                (self.asked, self.query) = (None, None);
            }
            Effect::Prefilled => prop_assert!(!std::mem::replace(&mut self.prefilled, true) && self.session.is_some()),
            Effect::Commit { tokens, text, total } => {
                prop_assert!(self.prefilled);
                self.total += tokens.len() as u32;
                prop_assert_eq!(total, self.total);
                prop_assert!(total <= self.max_tokens.unwrap_or(u32::MAX).max(1) && self.position() <= CONTEXT);
                self.expected.extend(tokens);
                self.shown.push_str(&text);
            }
            Effect::Finish(_) => {
                let bytes: Vec<u8> = self.expected.iter().map(|token| (token - 1) as u8).collect();
                prop_assert_eq!(&self.shown, &String::from_utf8_lossy(&bytes).into_owned());
                prop_assert_eq!(self.session.map(|session| vec![session]), Some(self.freed.clone()));
                self.ended = true;
            }
            Effect::Fail(_) => {
                prop_assert!(self.answered);
                prop_assert!(self.session.is_none_or(|session| self.freed.contains(&session)));
                self.ended = true;
            }
        }
        Ok(())
    }

    fn see_query(&mut self, query: Arc<ProposalQuery>) -> Result<(), TestCaseError> {
        prop_assert!(self.prefilled && self.asked.is_none() && self.query.is_none() && self.owed.is_none());
        prop_assert_eq!(
            (query.step, query.base_position()),
            (self.queries + 1, u64::from(self.position()))
        );
        let budget = self.max_tokens.unwrap_or(u32::MAX).min(CONTEXT - self.prompt as u32);
        prop_assert!(
            query.max_tokens > 0 && self.total + query.max_tokens < budget,
            "{query:?}"
        );
        let tokens = [vec![1; self.prompt], self.expected.clone()].concat();
        prop_assert_eq!(query.tail.as_ref(), tokens.as_slice());
        self.queries += 1;
        self.query = Some(query);
        Ok(())
    }

    fn see_rows(&mut self, span: RowSpan) -> Result<(), TestCaseError> {
        prop_assert!(Some(span.session) == self.session && !self.freed.contains(&span.session));
        prop_assert!(self.asked.is_none() && span.pos_start + (span.rows() as u32) < CONTEXT + 1);
        if self.prefilled {
            prop_assert_eq!(
                (span.pos_start, span.sampled_rows),
                (self.position() - 1, span.rows() as u32)
            );
            prop_assert_eq!(span.tokens.first(), self.expected.last());
            prop_assert_eq!(&span.tokens[1..], self.owed.clone().unwrap_or_default());
        } else {
            prop_assert_eq!((span.pos_start, span.rows(), span.sampled_rows), (0, self.prompt, 1));
        }
        self.asked = Some(span);
        Ok(())
    }

    fn input(&mut self, step: Step) -> Option<Input> {
        Some(match step {
            Step::Prepare(tokens) => {
                if !self.answered && !self.ended {
                    self.prompt = tokens;
                }
                Input::Prepared(Ok(vec![1; tokens]))
            }
            Step::FailToPrepare => Input::Prepared(Err(MeshError::invalid("prompt", "bad"))),
            Step::Grant if self.asked_lane && self.grants == 0 => {
                self.grants += 1;
                Input::Granted {
                    lane: LaneId(2),
                    session: SessionId(self.grants),
                }
            }
            Step::Answer(right, token) => {
                let span = self.asked.take()?;
                let sampled = span.sampled_rows as usize;
                let mut tokens = span.tokens[span.rows() + 1 - sampled..].to_vec();
                tokens.push(token);
                tokens[right.min(sampled - 1)..].fill(token);
                self.last = Some(Input::Returned {
                    session: span.session,
                    pos_start: span.pos_start,
                    rows: span.rows() as u32,
                    tokens,
                });
                copy(self.last.as_ref()?)
            }
            Step::Repeat => copy(self.last.as_ref()?),
            Step::Foreign(session) => {
                let span = self.asked.clone().filter(|span| span.session.0 != session)?;
                let (rows, tokens) = (span.rows() as u32, vec![3]);
                Input::Returned {
                    session: SessionId(session),
                    pos_start: span.pos_start,
                    rows,
                    tokens,
                }
            }
            Step::Odd {
                pos_start,
                rows,
                tokens,
            } => Input::Returned {
                session: SessionId(1),
                pos_start,
                rows,
                tokens,
            },
            Step::Candidates(tokens) => {
                let query = self.query.take()?;
                self.owed = Some(tokens.clone()).filter(|tokens| !tokens.is_empty());
                candidates(query.step, &tokens)
            }
            Step::OldCandidates(back) => candidates(self.queries.checked_sub(back + 1)?, &[1]),
            Step::LaneFailed(session) => Input::LaneFailed {
                session: SessionId(session),
                error: MeshError::internal("failed"),
            },
            Step::Cancel => Input::Cancel,
            Step::Break => Input::Break(MeshError::new(ErrorCode::StageLost, "lost")),
            Step::Grant => return None,
        })
    }
}

fn copy(input: &Input) -> Input {
    match input {
        Input::Returned {
            session,
            pos_start,
            rows,
            tokens,
        } => Input::Returned {
            session: *session,
            pos_start: *pos_start,
            rows: *rows,
            tokens: tokens.clone(),
        },
        other => panic!("{other:?}"),
    }
}

/// What the model draws behind these tokens: a pure function of them.
fn drawn(seed: u64, tokens: &[u32]) -> u32 {
    const SOME: [u8; 8] = [b'a', b'a', b'b', b'b', b'c', b' ', 0xC3, 0xA9];
    let noise = tokens.iter().fold(seed, |sum, token| mix(sum, u64::from(*token)));
    match noise % 40 {
        0 => END,
        _ => u32::from(SOME[(noise >> 8) as usize % SOME.len()]) + 1,
    }
}

/// How good a proposer is at one query.
#[derive(Debug, Clone, Copy)]
enum Guess {
    None,
    /// So many tokens of the model, then so many of another.
    Right(usize, usize),
    /// More than were asked for.
    TooMany,
}

fn guess() -> impl Strategy<Value = Guess> {
    prop_oneof![
        2 => Just(Guess::None),
        8 => (0usize..30, 0usize..4).prop_map(|(right, wrong)| Guess::Right(right, wrong)),
        1 => Just(Guess::TooMany),
    ]
}

impl Guess {
    fn candidates(self, seed: u64, query: &ProposalQuery) -> Vec<u32> {
        let most = query.max_tokens as usize;
        let (right, tokens) = match self {
            Self::None => (0, 0),
            Self::Right(right, wrong) => (right, (right + wrong).min(most)),
            Self::TooMany => (most + 1, most + 1),
        };
        let mut all = query.tail.to_vec();
        for place in 0..tokens {
            // Now and then a token of another model is the right one.
            let seed = if place < right { seed } else { seed ^ 1 };
            all.push(drawn(seed, &all));
        }
        all.split_off(query.tail.len())
    }
}

/// What a request came to.
#[derive(Debug, PartialEq)]
struct Came {
    tokens: Vec<u32>,
    text: String,
    reason: Option<FinishReason>,
}

/// One verified decision: where it began, its candidates, how it came out.
type Decided = (usize, Vec<u32>, Outcome);

/// Runs a request to its end over a lane that computes rows as an engine does.
fn run(seed: u64, plan: RequestPlan, prompt: &[u32], guesses: &[Guess]) -> (Came, Vec<Decided>) {
    let mut machine = machine_of(plan);
    let mut effects = handle(&mut machine, Input::Prepared(Ok(prompt.to_vec())));
    effects.extend(handle(
        &mut machine,
        Input::Granted {
            lane: LaneId(0),
            session: SessionId(1),
        },
    ));
    let (mut lane, mut decided, mut owed) = (Vec::new(), Vec::new(), Vec::new());
    let mut came = Came {
        tokens: Vec::new(),
        text: String::new(),
        reason: None,
    };
    let mut guesses = guesses.iter().cycle();
    while !effects.is_empty() {
        let mut input = None;
        for effect in effects {
            match effect {
                Effect::Ask(query) => {
                    let guess = guesses.next().copied().unwrap_or(Guess::None);
                    owed = guess.candidates(seed, &query);
                    input = Some(candidates(query.step, &owed));
                }
                Effect::Rows(span) => {
                    let start = span.pos_start as usize;
                    assert!(start <= lane.len(), "a gap in the lane");
                    lane.truncate(start);
                    lane.extend(&span.tokens);
                    let sampled = lane.len() + 1 - span.sampled_rows as usize..=lane.len();
                    let tokens = sampled.map(|end| drawn(seed, &lane[..end])).collect();
                    input = Some(returned(span.pos_start, span.rows() as u32, tokens));
                }
                Effect::Verified(outcome) => decided.push((came.tokens.len(), std::mem::take(&mut owed), outcome)),
                Effect::Unverified(reason) => {
                    assert_eq!(reason, DiscardReason::InvalidTokenCount);
                    owed.clear();
                }
                Effect::Commit { tokens, text, .. } => {
                    came.tokens.extend(tokens);
                    came.text.push_str(&text);
                }
                Effect::Finish(reason) => came.reason = Some(reason),
                Effect::Fail(error) => panic!("{error}"),
                _ => {}
            }
        }
        effects = input.map(|input| handle(&mut machine, input)).unwrap_or_default();
    }
    (came, decided)
}

/// What a decision has to come to, from what the model draws without it.
fn outcome_of(prompt: usize, base: usize, candidates: &[u32], came: &Came, ended_itself: bool) -> Outcome {
    let output = &came.tokens[base..];
    let end = ended_itself.then_some(END);
    let stream: Vec<u32> = output.iter().copied().chain(end).collect();
    let accepted = stream.iter().zip(candidates).take_while(|(a, b)| a == b).count();
    let (disposition, predictions) = if accepted == stream.len() {
        (Disposition::Stopped, accepted)
    } else if accepted == candidates.len() {
        (Disposition::FullAccept, accepted + 1)
    } else {
        (Disposition::FirstMismatch, accepted + 1)
    };
    let committed = predictions.min(output.len());
    Outcome {
        disposition,
        accepted: accepted as u64,
        predictions: stream[..predictions].to_vec(),
        committed: committed as u64,
        verified_position: (prompt + base + candidates.len()) as u64,
        canonical_position: (prompt + base + committed) as u64,
    }
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
    #![proptest_config(at_least(2000))]

    /// Whatever comes, late, twice or of others: answered once, ended once, each lane given back once, nothing after.
    #[test]
    fn whatever_comes_a_request_is_answered_once_and_ends_once(
        max_tokens in proptest::option::of(1u32..30),
        speculates: bool,
        steps in proptest::collection::vec(step(), 0..60),
    ) {
        let mut machine = machine_of(RequestPlan { speculates, ..plan(max_tokens) });
        let mut world = World { max_tokens, ..World::default() };
        for step in steps {
            let foreign = matches!(step, Step::Foreign(_) | Step::Repeat | Step::OldCandidates(_));
            let Some(input) = world.input(step) else { continue };
            let effects = handle(&mut machine, input);
            prop_assert!(!foreign || effects.is_empty(), "{effects:?}");
            for effect in effects {
                world.see(effect)?;
            }
            prop_assert_eq!(machine.is_ended(), world.ended);
        }
        for effect in handle(&mut machine, Input::Cancel) {
            world.see(effect)?;
        }
        prop_assert!(world.ended && world.answered && world.owed.is_none());
        // A grant that was on its way when it ended goes straight back.
        if world.asked_lane && world.grants == 0 {
            let back = handle(&mut machine, Input::Granted { lane: LaneId(1), session: SessionId(7) });
            prop_assert_eq!(back, [Effect::Free { lane: LaneId(1), session: SessionId(7) }]);
        } else {
            prop_assert_eq!(world.freed.len() as u64, world.grants);
        }
        for late in [
            Input::Cancel,
            Input::Break(MeshError::internal("late")),
            returned(0, 1, vec![1]),
            candidates(world.queries, &[1]),
        ] {
            prop_assert_eq!(handle(&mut machine, late), []);
        }
    }

    /// Whoever proposes whatever: tokens, text and reason are those without, and each outcome says what happened.
    #[test]
    fn proposals_change_nothing_but_the_number_of_steps(
        seed: u64,
        prompt in 1usize..20,
        context in 21u32..90,
        max_tokens in proptest::option::of(1u32..60),
        stop in proptest::collection::vec("[abcé]{1,3}", 0..3),
        guesses in proptest::collection::vec(guess(), 1..12),
    ) {
        let plan = RequestPlan { stop, context, ..plan(max_tokens) };
        let prompt = vec![7; prompt];
        let (alone, decided) = run(seed, plan.clone(), &prompt, &[]);
        prop_assert!(alone.reason.is_some() && decided.is_empty());
        let (with, decided) = run(seed, RequestPlan { speculates: true, ..plan }, &prompt, &guesses);
        prop_assert_eq!(&with, &alone);
        let whole = [prompt.as_slice(), alone.tokens.as_slice()].concat();
        // The text may also have ended by a stop string: then the model was not asked what comes next.
        let ended_itself = alone.reason == Some(FinishReason::Stop) && !stopped_by_string(&alone);
        prop_assert!(!ended_itself || drawn(seed, &whole) == END);
        for (base, candidates, outcome) in decided {
            prop_assert_eq!(outcome, outcome_of(prompt.len(), base, &candidates, &alone, ended_itself));
        }
    }
}

/// A stop string is cut off, so that the text is shorter than its tokens.
fn stopped_by_string(came: &Came) -> bool {
    let bytes: Vec<u8> = came.tokens.iter().map(|token| (token - 1) as u8).collect();
    String::from_utf8_lossy(&bytes) != came.text
}
