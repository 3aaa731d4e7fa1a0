//! Who may know what comes next: plugins today, n-gram and draft models beside them later. Whoever proposes, the same
//! verifier decides (`request/machine.rs`), so output does not depend on it.

use std::{fmt, sync::Arc};

use super::plugin::{Candidates, DiscardReason, Outcome, ProposalQuery};

/// Called once with the answer to a query, from any thread.
pub type OnAnswer = Box<dyn FnOnce(ProposalAnswer) + Send>;

/// A proposer, for one request.
pub trait Proposer: Send + fmt::Debug {
    /// As events and metrics name it.
    fn name(&self) -> &Arc<str>;

    /// It will not answer this request any more.
    fn is_off(&self) -> bool;

    /// Starts looking for candidates. Must not block; the answer comes at the proposer's own deadline at the latest,
    /// whatever happens to it.
    fn propose(&mut self, query: Arc<ProposalQuery>, on_answer: OnAnswer);

    /// The answer to this step is no longer wanted.
    fn withdraw(&mut self, step: u64);
}

/// What a proposer says to a query.
#[derive(Debug)]
pub enum ProposalAnswer {
    /// Candidates.
    Candidates(Proposal),
    /// None.
    Abstain,
}

/// What became of a decision.
#[derive(Debug)]
pub enum Resolved {
    /// It was verified.
    Verified(Outcome),
    /// It was not used.
    Discarded(DiscardReason),
}

/// Tells the proposer what became of its candidates.
pub type Resolve = Box<dyn FnOnce(Candidates, Resolved) + Send>;

/// Candidates whose proposer is owed a word: exactly one, whatever happens. Dropped, they are discarded.
pub struct Proposal {
    proposer: Arc<str>,
    owed: Option<(Candidates, Resolve)>,
}

impl Proposal {
    /// Candidates of a proposer.
    pub fn new(proposer: Arc<str>, candidates: Candidates, resolve: Resolve) -> Self {
        Self {
            proposer,
            owed: Some((candidates, resolve)),
        }
    }

    /// Who proposes.
    pub fn proposer(&self) -> &Arc<str> {
        &self.proposer
    }

    /// The candidates.
    pub fn candidates(&self) -> Option<&Candidates> {
        self.owed.as_ref().map(|(candidates, _)| candidates)
    }

    /// They were verified.
    pub fn verified(mut self, outcome: Outcome) {
        self.resolve(Resolved::Verified(outcome));
    }

    /// They were not used.
    pub fn discard(mut self, reason: DiscardReason) {
        self.resolve(Resolved::Discarded(reason));
    }

    fn resolve(&mut self, resolved: Resolved) {
        if let Some((candidates, resolve)) = self.owed.take() {
            resolve(candidates, resolved);
        }
    }
}

impl Drop for Proposal {
    fn drop(&mut self) {
        self.resolve(Resolved::Discarded(DiscardReason::Cancelled));
    }
}

impl fmt::Debug for Proposal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Proposal")
            .field("proposer", &self.proposer)
            .field("candidates", &self.candidates())
            .finish()
    }
}
