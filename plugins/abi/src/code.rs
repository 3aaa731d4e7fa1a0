//! Codes, flags and sizes.

/// Major version in the upper 16 bits, minor in the lower.
pub const MESH_PLUGIN_ABI_VERSION: u32 = 0x0001_0000;

/// Entry symbol of this major version, as a C string.
pub const MESH_PLUGIN_ENTRY: &[u8] = b"mesh_plugin_v1\0";

/// What a call came to.
pub type MeshStatus = i32;
/// Success.
pub const MESH_OK: MeshStatus = 0;
/// It failed; `last_error` says why.
pub const MESH_ERROR: MeshStatus = 1;
/// It unwound.
pub const MESH_PANICKED: MeshStatus = 2;
/// Of `poll_proposal`: nothing yet.
pub const MESH_PENDING: MeshStatus = 16;
/// Of `poll_proposal`: candidates are in the output.
pub const MESH_READY: MeshStatus = 17;
/// Of `poll_proposal`: no candidates this time.
pub const MESH_ABSTAIN: MeshStatus = 18;
/// Of `poll_proposal`: the operation failed.
pub const MESH_FAILED: MeshStatus = 19;

/// Call `commit_generation`.
pub const MESH_CAP_WANTS_COMMITS: u64 = 1 << 0;
/// Give token ids.
pub const MESH_CAP_WANTS_TOKEN_IDS: u64 = 1 << 1;
/// Call `report_proposal`.
pub const MESH_CAP_WANTS_REPORTS: u64 = 1 << 2;
/// Call `start_proposal`.
pub const MESH_CAP_PROPOSES: u64 = 1 << 3;
/// Never two calls at once.
pub const MESH_CAP_SERIAL: u64 = 1 << 4;

/// Some reason that the reader does not know.
pub const MESH_FINISH_UNKNOWN: i32 = 0;
/// End of generation, or a stop string.
pub const MESH_FINISH_STOP: i32 = 1;
/// The client's limit, or the end of the context.
pub const MESH_FINISH_LENGTH: i32 = 2;

/// Something failed.
pub const MESH_ABORT_FAILED: i32 = 0;
/// Cancelled by the client or an operator.
pub const MESH_ABORT_CANCELLED: i32 = 1;
/// A node of the model went away, or the model was stopped.
pub const MESH_ABORT_STAGE_LOST: i32 = 2;
/// This node stops.
pub const MESH_ABORT_SHUTDOWN: i32 = 3;
/// It finished, but earlier calls did not return in time.
pub const MESH_ABORT_FENCE_TIMEOUT: i32 = 4;
/// `finish_generation` returned an error.
pub const MESH_ABORT_FINISH_FAILED: i32 = 5;
/// It ended, but the end found no place in the plugin's queue.
pub const MESH_ABORT_OVERLOADED: i32 = 6;

/// Begin or a commit was dropped.
pub const MESH_END_INCOMPLETE: u32 = 1 << 0;
/// `finish_generation` was called before and returned an error.
pub const MESH_END_AFTER_FAILED_FINISH: u32 = 1 << 1;

/// A candidate was not what the model produced.
pub const MESH_DISPOSITION_FIRST_MISMATCH: i32 = 0;
/// All candidates were right.
pub const MESH_DISPOSITION_FULL_ACCEPT: i32 = 1;
/// Generation ended within the accepted candidates.
pub const MESH_DISPOSITION_STOPPED: i32 = 2;

/// The request has gone, or another plugin was first.
pub const MESH_DISCARD_CANCELLED: i32 = 0;
/// It came after the deadline.
pub const MESH_DISCARD_DEADLINE_EXCEEDED: i32 = 1;
/// No tokens, more than wanted, or more than the buffer holds.
pub const MESH_DISCARD_INVALID_TOKEN_COUNT: i32 = 2;
/// A token is not in the vocabulary.
pub const MESH_DISCARD_INVALID_TOKEN_ID: i32 = 3;
/// It is not for the position that was asked about.
pub const MESH_DISCARD_POSITION_MISMATCH: i32 = 4;
/// The model could not verify it.
pub const MESH_DISCARD_EXECUTION_FAILED: i32 = 5;

/// Most bytes of a decision id.
pub const MESH_DECISION_ID_BYTES: usize = 64;
/// Tokens that the output of `poll_proposal` holds.
pub const MESH_MAX_CANDIDATES: usize = 4096;
/// Most tokens of [`crate::MeshProposalQuery::tail`].
pub const MESH_MAX_TAIL: usize = 1024;
/// Bytes that the buffer of `last_error` holds.
pub const MESH_MAX_ERROR_BYTES: usize = 1024;
/// Longest text that [`crate::MeshTokenizer::encode`] takes, bytes.
pub const MESH_MAX_ENCODE_BYTES: usize = 1_048_576;
