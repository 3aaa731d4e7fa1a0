//! Calls into a plugin.

use std::ffi::c_void;
use std::path::Path;
use std::ptr::null_mut;

use mesh_plugin_abi::{
    InstanceCall, MESH_MAX_ERROR_BYTES, MESH_READY, MeshActivation, MeshBytes, MeshPluginTable, MeshProposalOutput,
    MeshStatus,
};

use super::context::HostContext;
use super::{open, pass};
use crate::{
    ActivationRequest, Callback, CandidateBuffer, GenerationAbort, GenerationCommit, GenerationFinish, GenerationStart,
    LoadError, LoadWatch, ProposalDiscard, ProposalOutcome, ProposalQuery,
};

/// The functions of a loaded plugin. Its own copy: what the plugin's table lacks is zero, and what the plugin does to
/// its table changes nothing.
#[derive(Debug)]
pub(crate) struct Table {
    inner: MeshPluginTable,
}

/// What `activate` set, as opaque as it came; may be null.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Handle(*mut c_void);

// SAFETY: the header lets every function be called from any of the host's threads.
unsafe impl Send for Handle {}
// SAFETY: as above, and side by side; the pointer itself is never written.
unsafe impl Sync for Handle {}

/// Why a text of the table cannot be read.
#[derive(Debug)]
pub(crate) enum TextFault {
    Null,
    TooLong(u64),
}

impl Table {
    /// Loads a library and takes its table, checked for size and version only. `watch` says how far that is.
    pub(crate) fn open(path: &Path, watch: &LoadWatch) -> Result<Self, LoadError> {
        open::open(path, watch).map(|inner| Self { inner })
    }

    /// Bytes of the plugin's own table.
    pub(crate) fn size(&self) -> u32 {
        self.inner.struct_size
    }

    /// Major and minor version that it was built against.
    pub(crate) fn version(&self) -> (u16, u16) {
        open::version(self.inner.abi_version)
    }

    /// `MESH_CAP_*`.
    pub(crate) fn capabilities(&self) -> u64 {
        self.inner.capabilities
    }

    /// The plugin's name, if it has no more than `most` bytes.
    pub(crate) fn name(&self, most: usize) -> Result<Vec<u8>, TextFault> {
        text(self.inner.name, most)
    }

    /// Its version, likewise.
    pub(crate) fn version_text(&self, most: usize) -> Result<Vec<u8>, TextFault> {
        text(self.inner.version, most)
    }

    /// Whether a function is there.
    pub(crate) fn has(&self, callback: Callback) -> bool {
        match callback {
            Callback::Activate => self.inner.activate.is_some(),
            Callback::Shutdown => self.inner.shutdown.is_some(),
            Callback::Begin => self.inner.begin_generation.is_some(),
            Callback::Commit => self.inner.commit_generation.is_some(),
            Callback::Finish => self.inner.finish_generation.is_some(),
            Callback::Abort => self.inner.abort_generation.is_some(),
            Callback::Start => self.inner.start_proposal.is_some(),
            Callback::Poll => self.inner.poll_proposal.is_some(),
            Callback::Cancel => self.inner.cancel_proposal.is_some(),
            Callback::Report => self.inner.report_proposal.is_some(),
            Callback::Discard => self.inner.discard_proposal.is_some(),
        }
    }

    /// None, here and below, if the function is not there.
    pub(crate) fn activate(
        &self,
        request: &ActivationRequest<'_>,
        host: &'static HostContext,
    ) -> Option<(MeshStatus, Handle)> {
        let activate = self.inner.activate?;
        let activation = MeshActivation {
            struct_size: pass::struct_size::<MeshActivation>(),
            reserved: 0,
            model_id: pass::bytes(request.model_id.as_bytes()),
            model_digest: request.model_digest,
            tokenizer_id: pass::bytes(request.tokenizer_id.as_bytes()),
            tokenizer: host.tokenizer_view(),
            config_path: pass::path(request.config_path),
            state_dir: pass::path(request.state_dir),
            proposal_budget_ns: crate::clock::nanoseconds(request.proposal_budget),
            context_length: request.context_length,
            max_candidates: request.max_candidates,
            host: host.pointer(),
            now_ns: HostContext::NOW_NS,
            wake: HostContext::WAKE,
        };
        let mut instance = null_mut();
        // SAFETY: the function has the header's type; what the activation points to outlives the call, and the host's
        // context is never freed.
        let status = unsafe { activate(&activation, &mut instance) };
        Some((status, Handle(instance)))
    }

    pub(crate) fn shutdown(&self, instance: Handle) -> Option<MeshStatus> {
        let shutdown = self.inner.shutdown?;
        // SAFETY: the function has the header's type, and the instance is one that it returned.
        Some(unsafe { shutdown(instance.0) })
    }

    pub(crate) fn begin(&self, instance: Handle, start: &GenerationStart<'_>, token_ids: bool) -> Option<MeshStatus> {
        call(self.inner.begin_generation, instance, &pass::start(start, token_ids))
    }

    pub(crate) fn commit(
        &self,
        instance: Handle,
        commit: &GenerationCommit<'_>,
        token_ids: bool,
    ) -> Option<MeshStatus> {
        call(self.inner.commit_generation, instance, &pass::commit(commit, token_ids))
    }

    pub(crate) fn finish(
        &self,
        instance: Handle,
        finish: &GenerationFinish<'_>,
        token_ids: bool,
    ) -> Option<MeshStatus> {
        call(self.inner.finish_generation, instance, &pass::finish(finish, token_ids))
    }

    pub(crate) fn abort(&self, instance: Handle, abort: &GenerationAbort<'_>) -> Option<MeshStatus> {
        call(self.inner.abort_generation, instance, &pass::abort(abort))
    }

    /// With the operation, which means something only after success.
    pub(crate) fn start(
        &self,
        instance: Handle,
        query: &ProposalQuery<'_>,
        token_ids: bool,
    ) -> Option<(MeshStatus, u64)> {
        let start = self.inner.start_proposal?;
        let query = pass::query(query, token_ids);
        let mut operation = 0;
        // SAFETY: as for `shutdown`; the query, what it points to, and the operation outlive the call.
        let status = unsafe { start(instance.0, &query, &mut operation) };
        Some((status, operation))
    }

    /// The buffer is reset. Only what comes with `MESH_READY` stays in it.
    pub(crate) fn poll(&self, instance: Handle, operation: u64, buffer: &mut CandidateBuffer) -> Option<MeshStatus> {
        let poll = self.inner.poll_proposal?;
        let mut output = MeshProposalOutput {
            struct_size: pass::struct_size::<MeshProposalOutput>(),
            // A few thousand.
            token_capacity: buffer.tokens.len() as u32,
            tokens: buffer.tokens.as_mut_ptr(),
            decision_id: buffer.decision_id.as_mut_ptr(),
            token_count: 0,
            decision_id_length: 0,
            base_position: 0,
            reserved: 0,
        };
        // SAFETY: as for `shutdown`; the output and the rooms that it points to outlive the call, have the sizes that
        // it states, and are initialised.
        let status = unsafe { poll(instance.0, operation, &mut output) };
        if status == MESH_READY {
            buffer.token_count = output.token_count;
            buffer.decision_id_length = output.decision_id_length;
            buffer.base_position = output.base_position;
        }
        Some(status)
    }

    pub(crate) fn cancel(&self, instance: Handle, operation: u64) -> Option<MeshStatus> {
        let cancel = self.inner.cancel_proposal?;
        // SAFETY: as for `shutdown`.
        Some(unsafe { cancel(instance.0, operation) })
    }

    pub(crate) fn report(
        &self,
        instance: Handle,
        outcome: &ProposalOutcome<'_>,
        token_ids: bool,
    ) -> Option<MeshStatus> {
        call(self.inner.report_proposal, instance, &pass::outcome(outcome, token_ids))
    }

    pub(crate) fn discard(&self, instance: Handle, discard: &ProposalDiscard<'_>) -> Option<MeshStatus> {
        call(self.inner.discard_proposal, instance, &pass::discard(discard))
    }

    /// Why the last call on this thread failed; `None` for a plugin that is not or no longer active. Empty if the
    /// plugin does not say.
    pub(crate) fn last_error(&self, instance: Option<Handle>) -> Vec<u8> {
        let Some(last_error) = self.inner.last_error else {
            return Vec::new();
        };
        let instance = instance.map_or(null_mut(), |handle| handle.0);
        let mut buffer = vec![0; MESH_MAX_ERROR_BYTES];
        // SAFETY: as for `shutdown`; null is what the header gives after a failed `activate`. The buffer has the
        // capacity that is stated.
        let length = unsafe { last_error(instance, buffer.as_mut_ptr(), buffer.len() as u64) };
        buffer.truncate(usize::try_from(length).unwrap_or(usize::MAX));
        buffer
    }
}

/// Calls a function that takes one struct, which points only to what outlives this call.
fn call<T>(function: Option<InstanceCall<T>>, instance: Handle, argument: &T) -> Option<MeshStatus> {
    let function = function?;
    // SAFETY: the function has the header's type, the instance is one that its plugin returned, and the argument with
    // all in it is borrowed from the callers of this module until they return.
    Some(unsafe { function(instance.0, argument) })
}

fn text(bytes: MeshBytes, most: usize) -> Result<Vec<u8>, TextFault> {
    let length = usize::try_from(bytes.length).unwrap_or(usize::MAX);
    if length > most {
        return Err(TextFault::TooLong(bytes.length));
    }
    if length == 0 {
        return Ok(Vec::new());
    }
    if bytes.data.is_null() {
        return Err(TextFault::Null);
    }
    // SAFETY: the table's texts live as long as the library and have the length that goes with them, which is small.
    Ok(unsafe { std::slice::from_raw_parts(bytes.data, length) }.to_vec())
}
