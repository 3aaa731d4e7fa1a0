use mesh_proto::sampling::greedy_sampling;
use proptest::prelude::*;

use super::*;
use crate::scripted::{BYTES_VOCABULARY, END, ScriptedVocabulary};

const CONTEXT: u32 = 24;

fn machine(max_tokens: Option<u32>, stop: Vec<String>) -> RequestMachine {
    let plan = RequestPlan {
        sampling: greedy_sampling(),
        max_tokens,
        stop,
        context: CONTEXT,
        speculates: false,
    };
    RequestMachine::new(plan, Arc::new(ScriptedVocabulary::default()))
}

fn handle(machine: &mut RequestMachine, input: Input) -> Vec<Effect> {
    let mut effects = Vec::new();
    machine.handle(input, &mut effects);
    effects
}

fn running(max_tokens: Option<u32>, prompt: usize) -> RequestMachine {
    let mut machine = machine(max_tokens, Vec::new());
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
    let fits = handle(
        &mut machine(None, Vec::new()),
        Input::Prepared(Ok(vec![1; CONTEXT as usize - 1])),
    );
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
        let effects = handle(&mut machine(None, Vec::new()), Input::Prepared(Ok(vec![1; tokens])));
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

#[derive(Debug, Clone)]
enum Step {
    Prepare(usize),
    FailToPrepare,
    Grant,
    /// What was asked for, with this token.
    Answer(u32),
    /// What was answered before.
    Repeat,
    Foreign(u64),
    Odd {
        pos_start: u32,
        rows: u32,
        tokens: Vec<u32>,
    },
    LaneFailed(u64),
    Cancel,
    Break,
}

fn step() -> impl Strategy<Value = Step> {
    let token = prop_oneof![20 => 1..BYTES_VOCABULARY, 1 => Just(END), 1 => any::<u32>()];
    prop_oneof![
        3 => (0usize..30).prop_map(Step::Prepare),
        1 => Just(Step::FailToPrepare),
        4 => Just(Step::Grant),
        40 => token.clone().prop_map(Step::Answer),
        4 => Just(Step::Repeat),
        2 => (0u64..9).prop_map(Step::Foreign),
        1 => (any::<u32>(), any::<u32>(), proptest::collection::vec(token, 0..3))
            .prop_map(|(pos_start, rows, tokens)| Step::Odd { pos_start, rows, tokens }),
        1 => (0u64..3).prop_map(Step::LaneFailed),
        1 => Just(Step::Cancel),
        1 => Just(Step::Break),
    ]
}

/// What the world around sees of a machine, and what it must never see.
#[derive(Default)]
struct World {
    answered: bool,
    asked_lane: bool,
    session: Option<SessionId>,
    freed: Vec<SessionId>,
    ended: bool,
    prefilled: bool,
    total: u32,
    expected: Vec<u32>,
    shown: String,
    asked: Option<RowSpan>,
    last: Option<Input>,
    refused: bool,
}

impl World {
    fn see(&mut self, effect: Effect, prompt: usize, max_tokens: Option<u32>) -> Result<(), TestCaseError> {
        let late_grant = matches!(effect, Effect::Free { .. });
        prop_assert!(!self.ended || late_grant, "after the terminal: {effect:?}");
        match effect {
            Effect::Admit { prompt_tokens } => {
                prop_assert!(!std::mem::replace(&mut self.answered, true));
                prop_assert_eq!(prompt_tokens as usize, prompt);
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
            Effect::Rows(span) => {
                prop_assert!(Some(span.session) == self.session && !self.freed.contains(&span.session));
                prop_assert_eq!(span.sampled_rows, 1);
                prop_assert!(span.pos_start + (span.rows() as u32) < CONTEXT);
                self.asked = Some(span);
            }
            Effect::Free { session, .. } => {
                prop_assert!(!self.freed.contains(&session), "freed twice");
                self.freed.push(session);
                self.asked = None;
            }
            Effect::Prefilled => prop_assert!(!std::mem::replace(&mut self.prefilled, true) && self.session.is_some()),
            Effect::Commit { tokens, text, total } => {
                prop_assert!(self.prefilled);
                self.total += tokens.len() as u32;
                prop_assert_eq!(total, self.total);
                prop_assert!(total <= max_tokens.unwrap_or(u32::MAX).max(1) && prompt as u32 + total <= CONTEXT);
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

    fn input(&mut self, step: Step, prompt: &mut usize, grants: &mut u64) -> Option<Input> {
        Some(match step {
            Step::Prepare(tokens) => {
                if !self.answered && !self.ended {
                    *prompt = tokens;
                }
                Input::Prepared(Ok(vec![1; tokens]))
            }
            Step::FailToPrepare => Input::Prepared(Err(MeshError::invalid("prompt", "bad"))),
            Step::Grant if self.asked_lane && *grants == 0 => {
                *grants += 1;
                Input::Granted {
                    lane: LaneId(2),
                    session: SessionId(*grants),
                }
            }
            Step::Answer(token) => {
                let span = self.asked.clone()?;
                let (rows, tokens) = (span.rows() as u32, vec![token]);
                self.last = Some(Input::Returned {
                    session: span.session,
                    pos_start: span.pos_start,
                    rows,
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

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    /// Whatever comes, late, twice or of others: answered once, ended once, each lane given back once, nothing after.
    #[test]
    fn whatever_comes_a_request_is_answered_once_and_ends_once(
        max_tokens in proptest::option::of(1u32..30),
        steps in proptest::collection::vec(step(), 0..60),
    ) {
        let mut machine = machine(max_tokens, Vec::new());
        let (mut world, mut prompt, mut grants) = (World::default(), 0, 0);
        for step in steps {
            let foreign = matches!(step, Step::Foreign(_) | Step::Repeat);
            let Some(input) = world.input(step, &mut prompt, &mut grants) else { continue };
            let effects = handle(&mut machine, input);
            prop_assert!(!foreign || effects.is_empty(), "{effects:?}");
            for effect in effects {
                world.see(effect, prompt, max_tokens)?;
            }
            prop_assert_eq!(machine.is_ended(), world.ended);
        }
        for effect in handle(&mut machine, Input::Cancel) {
            world.see(effect, prompt, max_tokens)?;
        }
        prop_assert!(world.ended && world.answered);
        // A grant that was on its way when it ended goes straight back.
        if world.asked_lane && grants == 0 {
            let back = handle(&mut machine, Input::Granted { lane: LaneId(1), session: SessionId(7) });
            prop_assert_eq!(back, [Effect::Free { lane: LaneId(1), session: SessionId(7) }]);
        } else {
            prop_assert_eq!(world.freed.len() as u64, grants);
        }
        for late in [Input::Cancel, Input::Break(MeshError::internal("late")), returned(0, 1, vec![1])] {
            prop_assert_eq!(handle(&mut machine, late), []);
        }
    }
}
