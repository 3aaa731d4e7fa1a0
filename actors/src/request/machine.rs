//! What a request does next, without IO, clock or randomness: inputs in, effects out.
//!
//! ```text
//! Preparing ──Prepared──▶ Waiting ──Granted──▶ Running ──┬─ end of generation, stop string, budget ─▶ Ended (Finished)
//!     │                      │                           └─ Break, LaneFailed, Cancel ─────────────▶ Ended (Aborted)
//!     │                      └── Break, Cancel ────────────────────────────────────────────────────▶ Ended (Aborted)
//!     └── refused, Break ──▶ Ended (Rejected);  Cancel ──▶ Ended (Aborted)
//! ```
//!
//! Everything that comes back carries the session of the lane's occupation; anything of another session is ignored.
//! A recovery (not built yet) will be a second occupation: the machine keeps prompt and committed tokens for it.

use std::sync::Arc;

use mesh_proto::{
    ErrorCode, LaneId, MeshError, SessionId,
    v1::{FinishReason, Sampling},
};

use super::text::TextAssembler;
use crate::ports::{engine::RowSpan, vocabulary::Vocabulary};

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
        /// Tokens drawn, for the last of the rows.
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
        next: u32,
    },
    Ended,
}

/// One request.
pub struct RequestMachine {
    plan: RequestPlan,
    vocabulary: Arc<dyn Vocabulary>,
    state: State,
    prompt: Arc<[u32]>,
    generated: Vec<u32>,
    budget: u32,
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
                self.returned(session, pos_start.checked_add(rows), &tokens, effects);
            }
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
        let prompt_tokens = self.prompt_tokens();
        self.state = State::Running {
            lane,
            session,
            next: prompt_tokens,
        };
        effects.push(Effect::Open {
            lane,
            session,
            sampling: Box::new(self.plan.sampling.clone()),
        });
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

    /// `end` is the position after the last row: where the token drawn belongs.
    fn returned(&mut self, session: SessionId, end: Option<u32>, tokens: &[u32], effects: &mut Vec<Effect>) {
        let State::Running {
            lane,
            session: held,
            next,
        } = self.state
        else {
            return;
        };
        // A chunk of the prompt that is not its last, a late answer, or a repeated one.
        if held != session || end != Some(next) {
            return;
        }
        let token = match tokens {
            [token] if (*token as usize) < self.vocabulary.len() => *token,
            // Waiting on would be for ever, and the tokenizer may not survive a token that is none.
            _ => return self.abort(not_drawn(tokens, self.vocabulary.len()), effects),
        };
        if self.generated.is_empty() {
            effects.push(Effect::Prefilled);
        }
        if let Some(reason) = self.accept(token, effects) {
            return self.finish(reason, effects);
        }
        self.state = State::Running {
            lane,
            session,
            next: next + 1,
        };
        effects.push(Effect::Rows(RowSpan {
            lane,
            session,
            pos_start: next,
            tokens: vec![token],
            sampled_rows: 1,
        }));
    }

    /// Commits one token, or says why generation ends with it.
    fn accept(&mut self, token: u32, effects: &mut Vec<Effect>) -> Option<FinishReason> {
        if self.vocabulary.is_end_of_generation(token) {
            return Some(FinishReason::Stop);
        }
        self.generated.push(token);
        self.piece.clear();
        self.vocabulary.piece(token, &mut self.piece);
        let released = self.text.push(&self.piece);
        self.commit(vec![token], released.text, effects);
        if released.stopped {
            return Some(FinishReason::Stop);
        }
        (self.completion_tokens() >= self.budget).then_some(FinishReason::Length)
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
            State::Running { .. } => {
                self.free(effects);
                effects.push(Effect::Fail(error));
            }
        }
    }
}

fn not_drawn(tokens: &[u32], vocabulary: usize) -> MeshError {
    let message = match tokens {
        [token] => format!("the output stage drew token {token}, the vocabulary has {vocabulary}"),
        _ => format!("the output stage drew {} tokens for one row", tokens.len()),
    };
    MeshError::new(ErrorCode::Protocol, message)
}

#[cfg(test)]
mod tests;
