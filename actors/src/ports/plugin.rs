//! Native plugins as the plugin actors call them: synchronous, one call at a time, from threads made for that. The
//! adapter over loaded libraries lives in `mesh-node`; the contract is the header of `mesh-plugin-abi`.

use std::{
    fmt,
    path::PathBuf,
    sync::Arc,
    time::{Duration, Instant},
};

use mesh_proto::{AgentSession, RequestId, SessionId};

use super::vocabulary::Vocabulary;
use crate::events::Receipt;

/// What a plugin wants and can.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PluginAbilities {
    /// It hears of commits.
    pub commits: bool,
    /// It gets token ids.
    pub token_ids: bool,
    /// It hears how its decisions came out.
    pub reports: bool,
    /// It proposes tokens.
    pub proposes: bool,
    /// No two calls into it overlap.
    pub serial: bool,
}

/// What a loaded library says of itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PluginFacts {
    /// Its name; unique on a node.
    pub name: Arc<str>,
    /// Its version.
    pub version: String,
    /// Version of the interface that it was built against, major and minor.
    pub abi: (u16, u16),
    /// The file.
    pub path: PathBuf,
    /// BLAKE3 of the file, hex.
    pub digest: String,
    /// What it wants and can.
    pub abilities: PluginAbilities,
}

/// A model for which this node is the head.
#[derive(Clone)]
pub struct ModelFacts {
    /// What clients call it.
    pub model: Arc<str>,
    /// BLAKE3 identity of the source, hex.
    pub model_id: Arc<str>,
    /// BLAKE3 of the vocabulary file, hex.
    pub tokenizer_id: Arc<str>,
    /// Tokenizer.
    pub vocabulary: Arc<dyn Vocabulary>,
    /// Positions of a lane.
    pub context: u32,
}

/// Called when an operation changed state: from any thread, at any time. Must not block.
pub type Wake = Arc<dyn Fn(u64) + Send + Sync>;

/// Takes a thread's time away for good. Called from another thread.
pub type Demotion = Box<dyn Fn() + Send + Sync>;

/// A loaded library.
pub trait NativePlugin: Send + Sync + fmt::Debug + 'static {
    /// What it says of itself.
    fn facts(&self) -> &PluginFacts;

    /// Makes an instance for a model. May block.
    ///
    /// # Errors
    ///
    /// The plugin refuses the model or its configuration.
    fn activate(&self, model: &ModelFacts, wake: Wake) -> Result<Arc<dyn PluginInstance>, CallFault>;

    /// Asked by each thread that is made for this plugin: how others can see to it that it takes no time from them, when
    /// it is stuck in a call, maybe in a loop. None where that cannot be done.
    fn demotion(&self) -> Option<Demotion> {
        None
    }
}

/// A plugin's instance for one model. Calls may block, though they should not: they come from threads that can be
/// given up. Calls of one generation never overlap.
pub trait PluginInstance: Send + Sync + 'static {
    /// A lane is held.
    fn begin(&self, start: &GenerationStart) -> Result<(), CallFault>;
    /// Tokens became output.
    fn commit(&self, commit: &GenerationCommit<'_>) -> Result<(), CallFault>;
    /// The normal end.
    fn finish(&self, finish: &GenerationFinish) -> Result<(), CallFault>;
    /// The other end.
    fn abort(&self, abort: &GenerationAbort) -> Result<(), CallFault>;
    /// Starts looking for candidates; gives the operation.
    fn start_proposal(&self, ids: &GenerationIds, query: &ProposalQuery, deadline: Instant) -> Result<u64, CallFault>;
    /// How far an operation is; candidates are checked against what was asked.
    fn poll_proposal(&self, operation: u64, query: &ProposalQuery) -> Result<Poll, CallFault>;
    /// The operation is over.
    fn cancel_proposal(&self, operation: u64) -> Result<(), CallFault>;
    /// A decision was verified.
    fn report(&self, ids: &GenerationIds, candidates: &Candidates, outcome: &Outcome) -> Result<(), CallFault>;
    /// A decision was not used.
    fn discard(&self, ids: &GenerationIds, decision: &Discarded) -> Result<(), CallFault>;
    /// The model is gone.
    fn shutdown(&self) -> Result<(), CallFault>;
}

/// How a call failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CallFaultKind {
    /// The plugin said so.
    Error,
    /// It unwound, and its own wrapper caught that.
    Panicked,
    /// A status that the function does not have.
    UnknownStatus(i32),
}

/// A call that failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct CallFault {
    /// How.
    pub kind: CallFaultKind,
    /// Why, in the plugin's words where it has any.
    pub message: String,
}

/// Names of a generation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GenerationIds {
    /// Request.
    pub request: RequestId,
    /// Occupation of a lane.
    pub session: SessionId,
    /// As the client's side names it.
    pub agent_session: Option<AgentSession>,
}

/// A lane is held and work starts.
#[derive(Debug, Clone)]
pub struct GenerationStart {
    /// Names.
    pub ids: GenerationIds,
    /// From 1.
    pub attempt: u32,
    /// Token ids of the prompt, shared with the request.
    pub prompt: Arc<[u32]>,
}

/// Tokens became output.
#[derive(Debug, Clone, Copy)]
pub struct GenerationCommit<'a> {
    /// Names.
    pub ids: &'a GenerationIds,
    /// The new ones.
    pub tokens: &'a [u32],
    /// Generated so far, these included.
    pub total: u64,
}

/// The receipt of a generation that ended normally.
#[derive(Debug, Clone)]
pub struct GenerationFinish {
    /// Names.
    pub ids: GenerationIds,
    /// The account.
    pub receipt: Arc<Receipt>,
    /// Begin and commits do not add up to it.
    pub incomplete: bool,
}

/// Why a generation was aborted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum AbortReason {
    /// Something failed.
    Failed,
    /// By the client or an operator.
    Cancelled,
    /// A stage went away, or the model was stopped.
    StageLost,
    /// This node stops.
    Shutdown,
    /// It finished, but calls before did not return in time.
    FenceTimeout,
    /// The plugin's finish failed.
    FinishFailed,
    /// Its end found no place.
    Overloaded,
}

/// It ended in any other way.
#[derive(Debug, Clone)]
pub struct GenerationAbort {
    /// Names.
    pub ids: GenerationIds,
    /// From 1.
    pub attempt: u32,
    /// Why.
    pub reason: AbortReason,
    /// Tokens generated by then.
    pub committed: u64,
    /// Begin and commits do not add up.
    pub incomplete: bool,
    /// A finish was called before and failed.
    pub after_failed_finish: bool,
}

/// What the host asks a proposer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProposalQuery {
    /// Tokens of the prompt.
    pub prompt_count: u64,
    /// Tokens generated.
    pub committed_count: u64,
    /// Grows with every query of the request.
    pub step: u64,
    /// Most candidates.
    pub max_tokens: u32,
    /// Ids below this exist.
    pub vocabulary: u32,
    /// The end of prompt and output together.
    pub tail: Arc<[u32]>,
}

impl ProposalQuery {
    /// Position of the first candidate.
    pub fn base_position(&self) -> u64 {
        self.prompt_count + self.committed_count
    }
}

/// Name of a decision: 1 to 64 bytes, chosen by the proposer.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct DecisionId(Arc<[u8]>);

impl DecisionId {
    /// Longest one, bytes.
    pub const MAX: usize = 64;

    /// `None` if it is empty or too long.
    pub fn new(bytes: &[u8]) -> Option<Self> {
        (1..=Self::MAX).contains(&bytes.len()).then(|| Self(bytes.into()))
    }

    /// The bytes.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

/// As text if it is some, else in hex.
impl fmt::Display for DecisionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.iter().all(u8::is_ascii_graphic) {
            return f.write_str(&String::from_utf8_lossy(&self.0));
        }
        f.write_str("0x")?;
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for DecisionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "DecisionId({self})")
    }
}

/// Candidates with the decision they belong to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Candidates {
    /// The decision.
    pub decision: DecisionId,
    /// Step of the query.
    pub step: u64,
    /// One or more, all in the vocabulary.
    pub tokens: Vec<u32>,
    /// Position of the first.
    pub base_position: u64,
}

/// What an operation came to so far.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Poll {
    /// Nothing yet.
    Pending,
    /// Candidates; the operation is over.
    Ready(Candidates),
    /// Candidates that do not hold; the operation has to be cancelled.
    Invalid {
        /// What is wrong.
        message: String,
        /// What to discard, if the decision has a name.
        decision: Option<Discarded>,
    },
    /// None this time; the operation is over.
    Abstain,
    /// It failed; the operation has to be cancelled.
    Failed(String),
}

/// Why a decision was not used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum DiscardReason {
    /// The request has gone, or another proposer was first.
    Cancelled,
    /// It came after the deadline.
    DeadlineExceeded,
    /// None, more than asked for, or more than the buffer holds.
    InvalidTokenCount,
    /// A token is not in the vocabulary.
    InvalidTokenId,
    /// Not for the position that was asked about.
    PositionMismatch,
    /// The model could not verify it.
    ExecutionFailed,
}

impl DiscardReason {
    /// As events and metrics name it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Cancelled => "cancelled",
            Self::DeadlineExceeded => "deadline_exceeded",
            Self::InvalidTokenCount => "invalid_token_count",
            Self::InvalidTokenId => "invalid_token_id",
            Self::PositionMismatch => "position_mismatch",
            Self::ExecutionFailed => "execution_failed",
        }
    }
}

/// A decision that was not used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Discarded {
    /// The decision.
    pub decision: DecisionId,
    /// Step of the query.
    pub step: u64,
    /// Candidates there were.
    pub proposed: u64,
    /// Position of the first.
    pub base_position: u64,
    /// Why.
    pub reason: DiscardReason,
}

impl Candidates {
    /// Not used.
    pub fn discarded(&self, reason: DiscardReason) -> Discarded {
        Discarded {
            decision: self.decision.clone(),
            step: self.step,
            proposed: self.tokens.len() as u64,
            base_position: self.base_position,
            reason,
        }
    }
}

/// How a verified decision came out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Disposition {
    /// A candidate was not what the model produced.
    FirstMismatch,
    /// All candidates were right.
    FullAccept,
    /// Generation ended within the accepted candidates.
    Stopped,
}

impl Disposition {
    /// As events and metrics name it.
    pub fn name(self) -> &'static str {
        match self {
            Self::FirstMismatch => "first_mismatch",
            Self::FullAccept => "full_accept",
            Self::Stopped => "stopped",
        }
    }
}

/// The outcome of a verified decision.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Outcome {
    /// How it came out.
    pub disposition: Disposition,
    /// Candidates that the model produced too.
    pub accepted: u64,
    /// What the model produced, from the base position to the decision, it included.
    pub predictions: Vec<u32>,
    /// How many of the predictions became output.
    pub committed: u64,
    /// Behind the last candidate that was computed.
    pub verified_position: u64,
    /// Behind the last token that became output.
    pub canonical_position: u64,
}

/// Shortest and longest time that a proposer may be given. Timers tick in milliseconds, and a step of the slowest
/// model worth speculating for takes about a second.
pub const PROPOSAL_DEADLINES: std::ops::RangeInclusive<Duration> = Duration::from_millis(1)..=Duration::from_secs(1);
