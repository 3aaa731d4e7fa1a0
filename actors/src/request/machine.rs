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
//! drew it (`machine/verify.rs`).
//!
//! Everything that comes back carries the session of the lane's occupation; anything of another session is ignored.
//! A recovery (not built yet) will be a second occupation: the machine keeps prompt and committed tokens for it.

mod message;
mod prompt;
mod steps;
#[cfg(test)]
mod tests;
mod verify;

use std::sync::Arc;

use mesh_proto::{ErrorCode, LaneId, MeshError, SessionId, v1::FinishReason};

pub use message::{Effect, Input, RequestPlan};

use super::{draft::DraftLength, text::TextAssembler};
use crate::ports::{engine::RowSpan, plugin::DiscardReason, vocabulary::Vocabulary};

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
        let draft = DraftLength::new(plan.max_candidates);
        Self {
            plan,
            vocabulary,
            state: State::Preparing,
            prompt: Arc::default(),
            generated: Vec::new(),
            budget: 0,
            queries: 0,
            draft,
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

    fn commit(&self, tokens: Vec<u32>, text: String, effects: &mut Vec<Effect>) {
        let total = self.completion_tokens();
        effects.push(Effect::Commit { tokens, text, total });
    }

    fn finish(&mut self, reason: FinishReason, effects: &mut Vec<Effect>) {
        let rest = self.text.flush();
        if !rest.is_empty() {
            self.commit(Vec::new(), rest, effects);
        }
        // The end is told before another request can begin on the lane.
        effects.push(Effect::Finish(reason));
        self.free(effects);
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
                effects.push(Effect::Fail(error));
                self.free(effects);
            }
        }
    }
}
