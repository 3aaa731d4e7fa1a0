//! What comes to a request, at random, and what the world around sees of it.

use proptest::prelude::*;

use super::*;

#[derive(Debug, Clone)]
pub(super) enum Step {
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

pub(super) fn step() -> impl Strategy<Value = Step> {
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
pub(super) struct World {
    pub(super) prompt: usize,
    pub(super) max_tokens: Option<u32>,
    pub(super) answered: bool,
    pub(super) asked_lane: bool,
    pub(super) grants: u64,
    pub(super) session: Option<SessionId>,
    pub(super) freed: Vec<SessionId>,
    pub(super) ended: bool,
    pub(super) prefilled: bool,
    pub(super) total: u32,
    pub(super) expected: Vec<u32>,
    pub(super) shown: String,
    /// Rows under way.
    pub(super) asked: Option<RowSpan>,
    /// Proposers look.
    pub(super) query: Option<Arc<ProposalQuery>>,
    pub(super) queries: u64,
    /// Candidates that were given for it, and are owed a word.
    pub(super) owed: Option<Vec<u32>>,
    pub(super) last: Option<Input>,
    pub(super) refused: bool,
}

impl World {
    pub(super) fn position(&self) -> u32 {
        self.prompt as u32 + self.total
    }

    pub(super) fn see(&mut self, effect: Effect) -> Result<(), TestCaseError> {
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
                prop_assert!(
                    self.session.is_some() && self.freed.is_empty(),
                    "the end comes before the lane is free"
                );
                self.ended = true;
            }
            Effect::Fail(_) => {
                prop_assert!(self.answered);
                prop_assert!(self.freed.is_empty(), "the end comes before the lane is free");
                self.ended = true;
            }
        }
        Ok(())
    }

    pub(super) fn see_query(&mut self, query: Arc<ProposalQuery>) -> Result<(), TestCaseError> {
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

    pub(super) fn see_rows(&mut self, span: RowSpan) -> Result<(), TestCaseError> {
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

    pub(super) fn input(&mut self, step: Step) -> Option<Input> {
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

pub(super) fn copy(input: &Input) -> Input {
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
