//! What a request does next, without IO, clock or randomness: inputs in, effects out.
//!
//! ```text
//! Preparing ──Prepared──▶ Waiting ──Granted──▶ Running ──┬─ end of generation, stop string, budget ─▶ Ended (Finished)
//!     │                      │                           └─ Break, LaneFailed, Cancel ─────────────▶ Ended (Aborted)
//!     │                      └── Break, Cancel ────────────────────────────────────────────────────▶ Ended (Aborted)
//!     └── refused, Break ──▶ Ended (Rejected);  Cancel ──▶ Ended (Aborted)
//! ```
//!
//! Running, a request either asks proposers for candidates or has rows computed: the last token alone, or with
//! candidates behind it. What comes back is judged the same way for both, so that a token is output only if the model
//! drew it (`verify` below).
//!
//! Everything that comes back carries the session of the lane's occupation; anything of another session is ignored.
//! A recovery (not built yet) will be a second occupation: the machine keeps prompt and committed tokens for it.

use std::sync::Arc;

use mesh_proto::{
    ErrorCode, LaneId, MeshError, SessionId,
    v1::{FinishReason, Sampling},
};

use super::{draft::DraftLength, text::TextAssembler};
use crate::ports::{
    engine::RowSpan,
    plugin::{DiscardReason, Disposition, Outcome, ProposalQuery},
    vocabulary::Vocabulary,
};

/// Most tokens of a query's tail: enough for a proposer that keeps nothing itself.
const MAX_TAIL: usize = 1024;

/// What is known when the request arrives.
#[derive(Debug, Clone)]
pub struct RequestPlan {
    /// Sampling, with its seed.
    pub sampling: Sampling,
    /// The client's limit.
    pub max_tokens: Option<u32>,
    /// Stop strings.
    pub stop: Vec<String>,
    /// Positions of a lane.
    pub context: u32,
    /// Proposers are asked before each step but the first.
    pub speculates: bool,
}

/// What happened to the request.
#[derive(Debug)]
pub enum Input {
    /// Template and tokenizer are done.
    Prepared(Result<Vec<u32>, MeshError>),
    /// The head gave it a lane.
    Granted {
        /// Lane.
        lane: LaneId,
        /// This occupation.
        session: SessionId,
    },
    /// Rows came back from the output stage.
    Returned {
        /// Occupation they belong to.
        session: SessionId,
        /// Position of the first row.
        pos_start: u32,
        /// Rows computed.
        rows: u32,
        /// Tokens drawn, one for each sampled row.
        tokens: Vec<u32>,
    },
    /// Proposers were asked: candidates for what comes next, none if they have none.
    Candidates {
        /// Step of the query.
        step: u64,
        /// As many as were asked for at most, all in the vocabulary; others are not computed.
        tokens: Vec<u32>,
    },
    /// A stage could not compute the lane.
    LaneFailed {
        /// Occupation.
        session: SessionId,
        /// Why.
        error: MeshError,
    },
    /// The client has gone, or an operator cancels.
    Cancel,
    /// The deployment broke or the node stops.
    Break(MeshError),
}

/// What has to be done. `Open` is also the event `Started`; `Prefilled`, `Commit`, `Finish`, `Fail` and `Refuse` are
/// the events of these names (DESIGN §5): one state change, one effect, one event.
#[derive(Debug, Clone, PartialEq)]
pub enum Effect {
    /// Answer the one who asked: admitted, with so many prompt tokens.
    Admit {
        /// Tokens of the prompt.
        prompt_tokens: u32,
    },
    /// Answer the one who asked: refused.
    Refuse(MeshError),
    /// Ask the head for a lane.
    AskLane,
    /// No longer wait for a lane.
    Withdraw,
    /// Start the session on all stages.
    Open {
        /// Lane.
        lane: LaneId,
        /// Occupation.
        session: SessionId,
        /// Sampling for the output stage.
        sampling: Box<Sampling>,
    },
    /// Ask proposers; without any, the answer is no candidates.
    Ask(Arc<ProposalQuery>),
    /// The candidates that were computed are verified.
    Verified(Outcome),
    /// The candidates under way will not be.
    Unverified(DiscardReason),
    /// Compute rows.
    Rows(RowSpan),
    /// End the session on all stages and give the lane back.
    Free {
        /// Lane.
        lane: LaneId,
        /// Occupation.
        session: SessionId,
    },
    /// The prompt is in the cache and the first token is drawn.
    Prefilled,
    /// Tokens became part of the output: show their text to the client.
    Commit {
        /// The new tokens; empty when only held-back text is released.
        tokens: Vec<u32>,
        /// Released text; may be empty.
        text: String,
        /// Tokens committed so far.
        total: u32,
    },
    /// The normal end, for the client.
    Finish(FinishReason),
    /// The other end, for the client.
    Fail(MeshError),
}

#[derive(Debug)]
enum State {
    Preparing,
    Waiting,
    Running {
        lane: LaneId,
        session: SessionId,
        step: Step,
    },
    Ended,
}

#[derive(Debug)]
enum Step {
    /// Proposers look.
    Asking {
        /// Most candidates.
        most: u32,
    },
    /// Rows are under way.
    Computing {
        /// Position of the first row.
        start: u32,
        /// Position after the last row.
        end: u32,
        /// Candidates among the rows, its last ones.
        candidates: Vec<u32>,
    },
}

/// One request.
pub struct RequestMachine {
    plan: RequestPlan,
    vocabulary: Arc<dyn Vocabulary>,
    state: State,
    prompt: Arc<[u32]>,
    generated: Vec<u32>,
    budget: u32,
    /// Queries so far.
    queries: u64,
    draft: DraftLength,
    text: TextAssembler,
    piece: Vec<u8>,
}

impl std::fmt::Debug for RequestMachine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RequestMachine")
            .field("state", &self.state)
            .field("generated", &self.generated.len())
            .finish()
    }
}

impl RequestMachine {
    /// A request that arrived.
    pub fn new(mut plan: RequestPlan, vocabulary: Arc<dyn Vocabulary>) -> Self {
        let text = TextAssembler::new(std::mem::take(&mut plan.stop));
        Self {
            plan,
            vocabulary,
            state: State::Preparing,
            prompt: Arc::default(),
            generated: Vec::new(),
            budget: 0,
            queries: 0,
            draft: DraftLength::default(),
            text,
            piece: Vec::new(),
        }
    }

    /// Tokens of the prompt, once prepared.
    pub fn prompt_tokens(&self) -> u32 {
        self.prompt.len() as u32
    }

    /// Token ids of the prompt, once prepared; shared.
    pub fn prompt(&self) -> Arc<[u32]> {
        self.prompt.clone()
    }

    /// Tokens committed.
    pub fn completion_tokens(&self) -> u32 {
        self.generated.len() as u32
    }

    /// The terminal was reached: nothing will follow.
    pub fn is_ended(&self) -> bool {
        matches!(self.state, State::Ended)
    }

    /// Takes one input; appends what has to be done, in order.
    pub fn handle(&mut self, input: Input, effects: &mut Vec<Effect>) {
        match input {
            Input::Prepared(result) => self.prepared(result, effects),
            Input::Granted { lane, session } => self.granted(lane, session, effects),
            Input::Returned {
                session,
                pos_start,
                rows,
                tokens,
            } => {
                self.returned(session, pos_start, pos_start.checked_add(rows), &tokens, effects);
            }
            Input::Candidates { step, tokens } => self.candidates(step, tokens, effects),
            Input::LaneFailed { session, error } => {
                if self.holds(session) {
                    self.abort(error, effects);
                }
            }
            Input::Cancel => self.abort(MeshError::new(ErrorCode::Cancelled, "the client cancelled"), effects),
            Input::Break(error) => self.abort(error, effects),
        }
    }

    fn prepared(&mut self, result: Result<Vec<u32>, MeshError>, effects: &mut Vec<Effect>) {
        if !matches!(self.state, State::Preparing) {
            return;
        }
        match result.and_then(|prompt| self.check_prompt(prompt)) {
            Ok(prompt) => {
                self.budget = self
                    .plan
                    .max_tokens
                    .unwrap_or(u32::MAX)
                    .min(self.plan.context - prompt.len() as u32);
                self.prompt = prompt.into();
                self.plan.sampling.prompt_tokens = self.prompt_tokens();
                self.state = State::Waiting;
                effects.push(Effect::Admit {
                    prompt_tokens: self.prompt_tokens(),
                });
                effects.push(Effect::AskLane);
            }
            Err(error) => self.reject(error, effects),
        }
    }

    fn check_prompt(&self, prompt: Vec<u32>) -> Result<Vec<u32>, MeshError> {
        let (tokens, context) = (prompt.len(), self.plan.context as usize);
        if prompt.is_empty() {
            return Err(MeshError::invalid(
                "prompt",
                "the prompt has no tokens; send at least one",
            ));
        }
        if let Some(token) = prompt.iter().find(|token| **token as usize >= self.vocabulary.len()) {
            let message = format!(
                "token {token} is not in the vocabulary of {} tokens",
                self.vocabulary.len()
            );
            return Err(MeshError::invalid("prompt", message));
        }
        if let Some(entry) = self
            .plan
            .sampling
            .logit_bias
            .iter()
            .find(|entry| entry.token as usize >= self.vocabulary.len())
        {
            let message = format!(
                "logit_bias names token {}, the vocabulary has {}",
                entry.token,
                self.vocabulary.len()
            );
            return Err(MeshError::invalid("logit_bias", message));
        }
        if tokens >= context {
            let message = format!(
                "the prompt has {tokens} tokens and the context is {context}, of which at least one is needed for the \
                 answer; shorten the prompt or serve the model with a larger --context"
            );
            return Err(MeshError::new(ErrorCode::ContextLengthExceeded, message).with_param("messages"));
        }
        Ok(prompt)
    }

    fn granted(&mut self, lane: LaneId, session: SessionId, effects: &mut Vec<Effect>) {
        if !matches!(self.state, State::Waiting) {
            // Cancelled while the grant was on its way: the lane goes straight back.
            effects.push(Effect::Free { lane, session });
            return;
        }
        effects.push(Effect::Open {
            lane,
            session,
            sampling: Box::new(self.plan.sampling.clone()),
        });
        let step = Step::Computing {
            start: 0,
            end: self.prompt_tokens(),
            candidates: Vec::new(),
        };
        self.state = State::Running { lane, session, step };
        let tokens = self.prompt.to_vec();
        effects.push(Effect::Rows(RowSpan {
            lane,
            session,
            pos_start: 0,
            tokens,
            sampled_rows: 1,
        }));
    }

    fn holds(&self, session: SessionId) -> bool {
        matches!(self.state, State::Running { session: held, .. } if held == session)
    }

    /// Position that the next token will have.
    fn position(&self) -> u32 {
        self.prompt_tokens() + self.completion_tokens()
    }

    /// `start` and `end` are the positions of the first row and after the last.
    fn returned(
        &mut self,
        session: SessionId,
        start: u32,
        end: Option<u32>,
        tokens: &[u32],
        effects: &mut Vec<Effect>,
    ) {
        let first = self.generated.is_empty();
        let State::Running {
            session: held,
            step:
                Step::Computing {
                    start: first_row,
                    end: expected,
                    candidates,
                },
            ..
        } = &mut self.state
        else {
            return;
        };
        // A chunk of the prompt that is not its last, a late answer, or a repeated one: rows behind a wrong candidate
        // may end where those before it did. Only a prompt comes in chunks.
        if *held != session || end != Some(*expected) || !(first || start == *first_row) {
            return;
        }
        let (wanted, vocabulary) = (candidates.len() + 1, self.vocabulary.len());
        // Waiting on would be for ever, and the tokenizer may not survive a token that is none.
        if tokens.len() != wanted || tokens.iter().any(|token| *token as usize >= vocabulary) {
            return self.abort(not_drawn(tokens, wanted, vocabulary), effects);
        }
        let candidates = std::mem::take(candidates);
        let mut accepted = Accepted::default();
        let verified = self.verify(&candidates, tokens, &mut accepted);
        if !candidates.is_empty() {
            self.draft.came_out(candidates.len(), verified.accepted as usize);
            effects.push(Effect::Verified(verified));
        }
        if first {
            effects.push(Effect::Prefilled);
        }
        if !accepted.tokens.is_empty() {
            self.commit(accepted.tokens, accepted.text, effects);
        }
        match accepted.end {
            Some(reason) => self.finish(reason, effects),
            None => self.next_step(effects),
        }
    }

    /// Takes what the model drew at the last token and at each candidate for as long as the candidates agree, and the
    /// first that differs. A row behind a wrong candidate means nothing: its lane is rewound by the next rows.
    fn verify(&mut self, candidates: &[u32], drawn: &[u32], accepted: &mut Accepted) -> Outcome {
        let base = self.position();
        let mut outcome = Outcome {
            disposition: Disposition::FullAccept,
            accepted: 0,
            predictions: Vec::new(),
            committed: 0,
            verified_position: u64::from(base) + candidates.len() as u64,
            canonical_position: 0,
        };
        for (row, token) in drawn.iter().enumerate() {
            outcome.predictions.push(*token);
            let agrees = candidates.get(row).map(|candidate| candidate == token);
            outcome.accepted += u64::from(agrees == Some(true));
            self.accept(*token, accepted);
            let ended = accepted.end.is_some();
            if ended || agrees == Some(false) {
                outcome.disposition = match agrees {
                    Some(true) => Disposition::Stopped,
                    Some(false) => Disposition::FirstMismatch,
                    None => Disposition::FullAccept,
                };
                break;
            }
        }
        outcome.committed = accepted.tokens.len() as u64;
        outcome.canonical_position = u64::from(self.position());
        outcome
    }

    /// Makes one token output, or says why generation ends with it.
    fn accept(&mut self, token: u32, accepted: &mut Accepted) {
        if self.vocabulary.is_end_of_generation(token) {
            accepted.end = Some(FinishReason::Stop);
            return;
        }
        self.generated.push(token);
        self.piece.clear();
        self.vocabulary.piece(token, &mut self.piece);
        let released = self.text.push(&self.piece);
        accepted.tokens.push(token);
        accepted.text.push_str(&released.text);
        if released.stopped {
            accepted.end = Some(FinishReason::Stop);
        } else if self.completion_tokens() >= self.budget {
            accepted.end = Some(FinishReason::Length);
        }
    }

    /// Asks for candidates where they can help, else computes the last token's row.
    fn next_step(&mut self, effects: &mut Vec<Effect>) {
        // The last token of the budget needs no candidates behind it.
        let room = self.budget - self.completion_tokens() - 1;
        let max_tokens = room.min(self.draft.wanted());
        if !self.plan.speculates || max_tokens == 0 {
            return self.compute(Vec::new(), effects);
        }
        self.queries += 1;
        if let State::Running { step, .. } = &mut self.state {
            *step = Step::Asking { most: max_tokens };
        }
        effects.push(Effect::Ask(Arc::new(ProposalQuery {
            prompt_count: u64::from(self.prompt_tokens()),
            committed_count: u64::from(self.completion_tokens()),
            step: self.queries,
            max_tokens,
            vocabulary: self.vocabulary.len() as u32,
            tail: self.tail(),
        })));
    }

    /// The end of prompt and output together.
    fn tail(&self) -> Arc<[u32]> {
        let of_output = self.generated.len().min(MAX_TAIL);
        let of_prompt = self.prompt.len().min(MAX_TAIL - of_output);
        let prompt = &self.prompt[self.prompt.len() - of_prompt..];
        let output = &self.generated[self.generated.len() - of_output..];
        [prompt, output].concat().into()
    }

    fn candidates(&mut self, step: u64, tokens: Vec<u32>, effects: &mut Vec<Effect>) {
        let State::Running {
            step: Step::Asking { most },
            ..
        } = self.state
        else {
            return;
        };
        if step != self.queries {
            return;
        }
        match self.flaw(&tokens, most) {
            Some(reason) => {
                effects.push(Effect::Unverified(reason));
                self.compute(Vec::new(), effects);
            }
            None => self.compute(tokens, effects),
        }
    }

    /// Proposers check what they give. Here it is what the lane has room for, and what the engine can take.
    fn flaw(&self, candidates: &[u32], most: u32) -> Option<DiscardReason> {
        let is_known = |token: &u32| (*token as usize) < self.vocabulary.len();
        if candidates.len() > most as usize {
            Some(DiscardReason::InvalidTokenCount)
        } else if !candidates.iter().all(is_known) {
            Some(DiscardReason::InvalidTokenId)
        } else {
            None
        }
    }

    /// The last token's row, and those of candidates behind it.
    fn compute(&mut self, candidates: Vec<u32>, effects: &mut Vec<Effect>) {
        let pos_start = self.position() - 1;
        let State::Running { lane, session, step } = &mut self.state else {
            return;
        };
        let tokens: Vec<u32> = self
            .generated
            .last()
            .copied()
            .into_iter()
            .chain(candidates.iter().copied())
            .collect();
        let rows = tokens.len() as u32;
        *step = Step::Computing {
            start: pos_start,
            end: pos_start + rows,
            candidates,
        };
        effects.push(Effect::Rows(RowSpan {
            lane: *lane,
            session: *session,
            pos_start,
            tokens,
            sampled_rows: rows,
        }));
    }

    fn commit(&self, tokens: Vec<u32>, text: String, effects: &mut Vec<Effect>) {
        let total = self.completion_tokens();
        effects.push(Effect::Commit { tokens, text, total });
    }

    fn finish(&mut self, reason: FinishReason, effects: &mut Vec<Effect>) {
        let rest = self.text.flush();
        if !rest.is_empty() {
            self.commit(Vec::new(), rest, effects);
        }
        self.free(effects);
        effects.push(Effect::Finish(reason));
    }

    fn free(&mut self, effects: &mut Vec<Effect>) {
        if let State::Running { lane, session, .. } = std::mem::replace(&mut self.state, State::Ended) {
            effects.push(Effect::Free { lane, session });
        }
    }

    fn reject(&mut self, error: MeshError, effects: &mut Vec<Effect>) {
        self.state = State::Ended;
        effects.push(Effect::Refuse(error));
    }

    fn abort(&mut self, error: MeshError, effects: &mut Vec<Effect>) {
        match self.state {
            State::Ended => {}
            State::Preparing => self.reject(error, effects),
            State::Waiting => {
                self.state = State::Ended;
                effects.push(Effect::Withdraw);
                effects.push(Effect::Fail(error));
            }
            State::Running { ref step, .. } => {
                if matches!(step, Step::Computing { candidates, .. } if !candidates.is_empty()) {
                    let reason = match error.code {
                        ErrorCode::Cancelled => DiscardReason::Cancelled,
                        _ => DiscardReason::ExecutionFailed,
                    };
                    effects.push(Effect::Unverified(reason));
                }
                self.free(effects);
                effects.push(Effect::Fail(error));
            }
        }
    }
}

/// What the rows of one step add to the output.
#[derive(Debug, Default)]
struct Accepted {
    tokens: Vec<u32>,
    text: String,
    end: Option<FinishReason>,
}

fn not_drawn(tokens: &[u32], rows: usize, vocabulary: usize) -> MeshError {
    let strange = tokens.iter().find(|token| **token as usize >= vocabulary);
    let message = match strange {
        Some(token) => format!("the output stage drew token {token}, the vocabulary has {vocabulary}"),
        None => format!("the output stage drew {} tokens for {rows} rows", tokens.len()),
    };
    MeshError::new(ErrorCode::Protocol, message)
}

#[cfg(test)]
mod tests;
