//! What the machine of a request is told, and what it wants done.

use std::sync::Arc;

use mesh_proto::{
    LaneId, MeshError, SessionId,
    v1::{FinishReason, Sampling},
};

use crate::ports::{
    engine::RowSpan,
    plugin::{DiscardReason, Outcome, ProposalQuery},
};

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
    /// Most candidates of a step.
    pub max_candidates: u32,
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
/// the events of these names: one state change, one effect, one event.
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
