//! Calls on their way to a plugin's threads and back.

use std::{sync::Arc, time::Instant};

use super::{ledger::Callback, permits::Permit};
use crate::ports::plugin::{
    CallFault, Candidates, Discarded, GenerationAbort, GenerationFinish, GenerationIds, GenerationStart, Outcome, Poll,
    ProposalQuery,
};

/// One generation of one plugin.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GenerationKey(pub u64);

/// A plugin's instance for one model.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct InstanceKey(pub u64);

/// One of a plugin's threads.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WorkerKey(pub usize);

/// A call.
#[derive(Debug, Clone)]
pub enum Call {
    /// Make the instance.
    Activate,
    /// End the instance.
    Shutdown,
    /// A lane is held.
    Begin(Arc<GenerationStart>),
    /// Tokens became output.
    Commit {
        /// The new ones.
        tokens: Vec<u32>,
        /// These included.
        total: u64,
    },
    /// The normal end.
    Finish(Box<GenerationFinish>),
    /// The other end.
    Abort(Box<GenerationAbort>),
    /// Start an operation, and poll it once.
    Propose {
        /// What is asked.
        query: Arc<ProposalQuery>,
        /// Until when.
        deadline: Instant,
    },
    /// Poll an operation again.
    Poll {
        /// The operation.
        operation: u64,
        /// What was asked.
        query: Arc<ProposalQuery>,
    },
    /// End an operation.
    Cancel {
        /// The operation.
        operation: u64,
    },
    /// A decision was verified.
    Report(Box<(Candidates, Outcome)>),
    /// A decision was not used.
    Discard(Box<Discarded>),
}

impl Call {
    /// The function that is called, first if there are two.
    pub fn callback(&self) -> Callback {
        match self {
            Self::Activate => Callback::Activate,
            Self::Shutdown => Callback::Shutdown,
            Self::Begin(_) => Callback::Begin,
            Self::Commit { .. } => Callback::Commit,
            Self::Finish(_) => Callback::Finish,
            Self::Abort(_) => Callback::Abort,
            Self::Propose { .. } => Callback::Start,
            Self::Poll { .. } => Callback::Poll,
            Self::Cancel { .. } => Callback::Cancel,
            Self::Report(_) => Callback::Report,
            Self::Discard(_) => Callback::Discard,
        }
    }

    /// What is said of a call that does not return.
    pub fn names(&self) -> &'static str {
        match self {
            Self::Propose { .. } => "start_proposal or the poll_proposal behind it",
            other => other.callback().name(),
        }
    }

    /// It ends something, so that it is made even to a plugin that is shut out.
    pub fn ends(&self) -> bool {
        !matches!(
            self,
            Self::Activate | Self::Begin(_) | Self::Commit { .. } | Self::Propose { .. } | Self::Poll { .. }
        )
    }

    /// Nothing of its generation follows it.
    pub fn is_terminal(&self) -> bool {
        matches!(self, Self::Finish(_) | Self::Abort(_))
    }
}

/// A call for a thread.
#[derive(Debug, Clone)]
pub struct Job {
    /// Who makes it.
    pub worker: WorkerKey,
    /// On which instance.
    pub instance: InstanceKey,
    /// For which generation, with its names; none for activation and shutdown.
    pub generation: Option<(GenerationKey, Arc<GenerationIds>)>,
    /// What.
    pub call: Call,
}

/// What a call came to.
#[derive(Debug, Clone)]
pub enum CallResult {
    /// It returned.
    Returned(Result<(), CallFault>),
    /// An operation was started, if it could be, and polled.
    Proposed {
        /// Open until the poll says otherwise.
        operation: Option<u64>,
        /// Of the start, if that failed, else of the poll.
        poll: Result<Poll, CallFault>,
    },
    /// An operation was polled.
    Polled(Result<Poll, CallFault>),
}

/// A place in the mailbox that a message has, or had no need of.
pub type Place = Option<Permit>;
