//! What a plugin is.

use crate::{Abort, Activation, Capabilities, Commit, Discard, Error, Finish, Operation, Outcome, Poll, Query, Start};

/// An instance of a plugin: one for each model that the node is the head of.
///
/// Calls of one generation come in order and never overlap; those of different generations run side by side, unless
/// [`Capabilities::SERIAL`] is set. No method but [`Plugin::activate`] and [`Plugin::shutdown`] may block: a method that
/// does not return in time costs the plugin its place. Errors are counted and shown; generation goes on.
pub trait Plugin: Send + Sync + Sized + 'static {
    /// 1 to 64 bytes.
    const NAME: &'static str;
    /// At most 64 bytes.
    const VERSION: &'static str;
    /// What it wants and can. Methods that need a capability which is not here are never called.
    const CAPABILITIES: Capabilities;

    /// A model is ready. May block briefly: the node waits 5 s.
    fn activate(activation: &Activation<'_>) -> Result<Self, Error>;

    /// The model is gone; the last call. The instance is dropped afterwards. May block briefly.
    fn shutdown(&self) -> Result<(), Error> {
        Ok(())
    }

    /// First call of a generation.
    fn begin(&self, start: &Start<'_>) -> Result<(), Error> {
        let _ = start;
        Ok(())
    }

    /// Tokens became part of the output. Needs [`Capabilities::WANTS_COMMITS`].
    fn commit(&self, commit: &Commit<'_>) -> Result<(), Error> {
        let _ = commit;
        Ok(())
    }

    /// The normal end. After an error one [`Plugin::abort`] follows.
    fn finish(&self, finish: &Finish<'_>) -> Result<(), Error> {
        let _ = finish;
        Ok(())
    }

    /// Any other end.
    fn abort(&self, abort: &Abort<'_>) -> Result<(), Error> {
        let _ = abort;
        Ok(())
    }

    /// Start looking for candidates, and return. The operation is a number that no other open one of the instance has.
    /// Needs [`Capabilities::PROPOSES`], as all that follows.
    fn start_proposal(&self, query: &Query<'_>) -> Result<Operation, Error> {
        let _ = query;
        Err(Error::new("this plugin proposes nothing"))
    }

    /// How far an operation is: called once after the start, then after each [`crate::Waker::wake`].
    fn poll_proposal(&self, operation: Operation) -> Poll {
        let _ = operation;
        Poll::Abstain
    }

    /// The node has lost interest: the operation is over.
    fn cancel_proposal(&self, operation: Operation) -> Result<(), Error> {
        let _ = operation;
        Ok(())
    }

    /// A decision was verified. Needs [`Capabilities::WANTS_REPORTS`] too.
    fn report(&self, outcome: &Outcome<'_>) -> Result<(), Error> {
        let _ = outcome;
        Ok(())
    }

    /// A decision was not used.
    fn discard(&self, discard: &Discard<'_>) -> Result<(), Error> {
        let _ = discard;
        Ok(())
    }
}
