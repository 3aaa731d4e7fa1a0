//! A plugin that follows one model.

use std::fmt;

use mesh_plugin_abi::{MESH_ABSTAIN, MESH_FAILED, MESH_OK, MESH_PENDING, MESH_READY, MeshStatus};

use crate::gate::{Closing, Gate};
use crate::raw::{Handle, HostContext, Table};
use crate::{
    CallError, CallErrorKind, Callback, CandidateBuffer, GenerationAbort, GenerationCommit, GenerationFinish,
    GenerationStart, Library, ProposalDiscard, ProposalOutcome, ProposalQuery,
};

/// How far a proposal is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Poll {
    /// Nothing yet.
    Pending,
    /// Candidates are in the buffer, unchecked. The operation is over; the decision is open.
    Ready,
    /// No candidates this time. The operation is over.
    Abstain,
    /// The operation failed, for the reason that the plugin gives; it must be cancelled.
    Failed(String),
}

/// A plugin that was activated for a model.
///
/// Each call blocks for as long as the plugin does, and may come from any thread. Order, and which calls may run side
/// by side, are the caller's to keep as the header says. A function that the plugin does not want is not called, nor is
/// any after [`Self::shutdown`]: that is a success which does nothing.
///
/// Dropped without a shutdown, the plugin hears nothing, and what it holds for the instance is lost; its wakes go
/// nowhere.
pub struct Instance {
    library: Library,
    handle: Handle,
    host: &'static HostContext,
    gate: Gate,
}

impl Instance {
    pub(crate) fn new(library: Library, handle: Handle, host: &'static HostContext) -> Self {
        Self {
            library,
            handle,
            host,
            gate: Gate::default(),
        }
    }

    /// The plugin.
    pub fn library(&self) -> &Library {
        &self.library
    }

    /// A lane is held and work starts.
    pub fn begin(&self, start: &GenerationStart<'_>) -> Result<(), CallError> {
        let token_ids = self.token_ids();
        self.call(Callback::Begin, |table, handle| table.begin(handle, start, token_ids))
    }

    /// Tokens became part of the output.
    pub fn commit(&self, commit: &GenerationCommit<'_>) -> Result<(), CallError> {
        let token_ids = self.token_ids();
        self.call(Callback::Commit, |table, handle| {
            table.commit(handle, commit, token_ids)
        })
    }

    /// The normal end of a generation.
    pub fn finish(&self, finish: &GenerationFinish<'_>) -> Result<(), CallError> {
        let token_ids = self.token_ids();
        self.call(Callback::Finish, |table, handle| {
            table.finish(handle, finish, token_ids)
        })
    }

    /// Any other end.
    pub fn abort(&self, abort: &GenerationAbort<'_>) -> Result<(), CallError> {
        self.call(Callback::Abort, |table, handle| table.abort(handle, abort))
    }

    /// Starts to look for candidates; the operation to poll or cancel. 0 if the plugin does not propose.
    pub fn start_proposal(&self, query: &ProposalQuery<'_>) -> Result<u64, CallError> {
        let token_ids = self.token_ids();
        let mut started = 0;
        self.call(Callback::Start, |table, handle| {
            let (status, operation) = table.start(handle, query, token_ids)?;
            started = operation;
            Some(status)
        })?;
        Ok(started)
    }

    /// How far an operation is. Resets the buffer first, whatever the answer. A plugin that does not propose abstains.
    pub fn poll_proposal(&self, operation: u64, output: &mut CandidateBuffer) -> Result<Poll, CallError> {
        output.reset();
        let polled = self.enter(Callback::Poll, |table, handle| {
            let status = table.poll(handle, operation, output)?;
            Some(self.polled(status))
        });
        polled.unwrap_or(Ok(Poll::Abstain))
    }

    /// The host has lost interest in an operation.
    pub fn cancel_proposal(&self, operation: u64) -> Result<(), CallError> {
        self.call(Callback::Cancel, |table, handle| table.cancel(handle, operation))
    }

    /// A decision was verified.
    pub fn report(&self, outcome: &ProposalOutcome<'_>) -> Result<(), CallError> {
        let token_ids = self.token_ids();
        self.call(Callback::Report, |table, handle| {
            table.report(handle, outcome, token_ids)
        })
    }

    /// A decision was not used.
    pub fn discard(&self, discard: &ProposalDiscard<'_>) -> Result<(), CallError> {
        self.call(Callback::Discard, |table, handle| table.discard(handle, discard))
    }

    /// The model is gone. Wakes go nowhere from now on. The plugin is called at most once; later calls do nothing.
    ///
    /// While another call runs, the plugin is not called and the error is [`CallErrorKind::Busy`]: try again when it has
    /// returned, or leave a stuck plugin behind.
    pub fn shutdown(&self) -> Result<(), CallError> {
        self.disconnect_wake();
        match self.gate.close() {
            Closing::Before => Ok(()),
            Closing::Busy => Err(self.library.failure(Callback::Shutdown, CallErrorKind::Busy, None)),
            Closing::Done => match self.library.table().shutdown(self.handle) {
                // Without the instance: the plugin may have freed it.
                Some(status) => self.judge(Callback::Shutdown, status, None),
                None => Ok(()),
            },
        }
    }

    /// Wakes go nowhere from now on, but for one that is just coming through. For an instance that is given up.
    pub fn disconnect_wake(&self) {
        self.host.disconnect();
    }

    fn token_ids(&self) -> bool {
        self.library.description().capabilities.wants_token_ids
    }

    fn call(
        &self,
        callback: Callback,
        run: impl FnOnce(&Table, Handle) -> Option<MeshStatus>,
    ) -> Result<(), CallError> {
        let called = self.enter(callback, |table, handle| {
            let status = run(table, handle)?;
            Some(self.judge(callback, status, Some(handle)))
        });
        called.unwrap_or(Ok(()))
    }

    /// Runs a call and whatever asks about it, on this thread. None if it is not wanted, or after the end.
    fn enter<T>(&self, callback: Callback, run: impl FnOnce(&Table, Handle) -> Option<T>) -> Option<T> {
        if !self.library.wants(callback) {
            return None;
        }
        let _pass = self.gate.enter()?;
        run(self.library.table(), self.handle)
    }

    fn judge(&self, callback: Callback, status: MeshStatus, instance: Option<Handle>) -> Result<(), CallError> {
        CallErrorKind::of(status).map_err(|kind| self.library.failure(callback, kind, instance))
    }

    fn polled(&self, status: MeshStatus) -> Result<Poll, CallError> {
        match status {
            MESH_PENDING => Ok(Poll::Pending),
            MESH_READY => Ok(Poll::Ready),
            MESH_ABSTAIN => Ok(Poll::Abstain),
            MESH_FAILED => Ok(Poll::Failed(self.library.reason(Some(self.handle)))),
            // Success is no answer to the question.
            MESH_OK => Err(self
                .library
                .failure(Callback::Poll, CallErrorKind::Unknown(status), None)),
            other => self
                .judge(Callback::Poll, other, Some(self.handle))
                .map(|()| Poll::Abstain),
        }
    }
}

impl Drop for Instance {
    fn drop(&mut self) {
        self.disconnect_wake();
    }
}

impl fmt::Debug for Instance {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("Instance")
            .field("plugin", &self.library.description().name)
            .finish_non_exhaustive()
    }
}
