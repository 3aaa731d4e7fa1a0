//! The table of functions.

use std::ffi::c_void;

use crate::{
    MeshActivation, MeshBytes, MeshGenerationAbort, MeshGenerationCommit, MeshGenerationFinish, MeshGenerationStart,
    MeshProposalDiscard, MeshProposalOutcome, MeshProposalOutput, MeshProposalQuery, MeshStatus,
};

/// A call about an instance that takes one struct.
pub type InstanceCall<T> = unsafe extern "C" fn(instance: *mut c_void, argument: *const T) -> MeshStatus;

/// What [`MeshPluginEntry`] returns. Lives as long as the library.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct MeshPluginTable {
    /// Bytes of this struct that its writer knew.
    pub struct_size: u32,
    /// [`crate::MESH_PLUGIN_ABI_VERSION`] of the writer.
    pub abi_version: u32,
    /// UTF-8, 1 to 64 bytes.
    pub name: MeshBytes,
    /// UTF-8, at most 64 bytes.
    pub version: MeshBytes,
    /// `MESH_CAP_*`.
    pub capabilities: u64,
    /// A model is ready.
    pub activate:
        Option<unsafe extern "C" fn(activation: *const MeshActivation, instance: *mut *mut c_void) -> MeshStatus>,
    /// The model is gone.
    pub shutdown: Option<unsafe extern "C" fn(instance: *mut c_void) -> MeshStatus>,
    /// A lane is held.
    pub begin_generation: Option<InstanceCall<MeshGenerationStart>>,
    /// Tokens became output.
    pub commit_generation: Option<InstanceCall<MeshGenerationCommit>>,
    /// The normal end.
    pub finish_generation: Option<InstanceCall<MeshGenerationFinish>>,
    /// The other end.
    pub abort_generation: Option<InstanceCall<MeshGenerationAbort>>,
    /// Start looking for candidates.
    pub start_proposal: Option<
        unsafe extern "C" fn(instance: *mut c_void, query: *const MeshProposalQuery, operation: *mut u64) -> MeshStatus,
    >,
    /// How far an operation is.
    pub poll_proposal: Option<
        unsafe extern "C" fn(instance: *mut c_void, operation: u64, output: *mut MeshProposalOutput) -> MeshStatus,
    >,
    /// The node has lost interest.
    pub cancel_proposal: Option<unsafe extern "C" fn(instance: *mut c_void, operation: u64) -> MeshStatus>,
    /// A decision was verified.
    pub report_proposal: Option<InstanceCall<MeshProposalOutcome>>,
    /// A decision was not used.
    pub discard_proposal: Option<InstanceCall<MeshProposalDiscard>>,
    /// Why the last call on this thread failed.
    pub last_error: Option<unsafe extern "C" fn(instance: *mut c_void, buffer: *mut u8, capacity: u64) -> u64>,
}

// SAFETY: a table is constant, and what it points to lives as long as the library, which is never unloaded.
unsafe impl Send for MeshPluginTable {}
// SAFETY: as above; nothing in it is ever written.
unsafe impl Sync for MeshPluginTable {}

/// Type of the entry function.
pub type MeshPluginEntry = unsafe extern "C" fn() -> *const MeshPluginTable;
