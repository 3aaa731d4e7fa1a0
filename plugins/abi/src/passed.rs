//! What passes through calls.

use std::ffi::c_void;

use crate::MeshStatus;

/// Bytes; text is UTF-8.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct MeshBytes {
    /// May be null if the length is 0.
    pub data: *const u8,
    /// Bytes.
    pub length: u64,
}

/// Token ids. `data` is null where the plugin did not ask for ids; `count` is right even then.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct MeshTokens {
    /// Null without token ids.
    pub data: *const i32,
    /// Tokens.
    pub count: u64,
}

/// Names of a generation.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct MeshIds {
    /// A UUID as text, unique on the node; the key of a generation.
    pub request_id: MeshBytes,
    /// The occupation of a lane.
    pub session_id: MeshBytes,
    /// From the client's side; may be empty.
    pub agent_session_id: MeshBytes,
}

/// The model's tokenizer. Valid until `activate` returns; copy what you need. Later calls return `MESH_ERROR`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct MeshTokenizer {
    /// Bytes of this struct that its writer knew.
    pub struct_size: u32,
    /// Ids are 0 to token_count - 1.
    pub token_count: u32,
    /// First argument of the functions.
    pub context: *mut c_void,
    /// Bytes of a token.
    pub piece: Option<
        unsafe extern "C" fn(
            context: *mut c_void,
            token: i32,
            buffer: *mut u8,
            capacity: u64,
            length: *mut u64,
        ) -> MeshStatus,
    >,
    /// Token ids of a text.
    pub encode: Option<
        unsafe extern "C" fn(
            context: *mut c_void,
            text: MeshBytes,
            tokens: *mut i32,
            capacity: u64,
            count: *mut u64,
        ) -> MeshStatus,
    >,
}

/// A model is ready. Pointers are valid during `activate`, but `host`, `now_ns` and `wake` as long as the process.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct MeshActivation {
    /// Bytes of this struct that its writer knew.
    pub struct_size: u32,
    /// Zero.
    pub reserved: u32,
    /// What clients call it.
    pub model_id: MeshBytes,
    /// BLAKE3 of the model's metadata and weights.
    pub model_digest: [u8; 32],
    /// Equal for equal vocabularies.
    pub tokenizer_id: MeshBytes,
    /// Null if there is none.
    pub tokenizer: *const MeshTokenizer,
    /// Absolute; empty if none was given.
    pub config_path: MeshBytes,
    /// Absolute, exists, the plugin's own; empty if none was given.
    pub state_dir: MeshBytes,
    /// From a query to its deadline.
    pub proposal_budget_ns: u64,
    /// Most positions of a generation.
    pub context_length: u32,
    /// Most tokens that a query will ask for.
    pub max_candidates: u32,
    /// First argument of the functions below.
    pub host: *mut c_void,
    /// The monotonic clock of deadlines, nanoseconds.
    pub now_ns: Option<unsafe extern "C" fn(host: *mut c_void) -> u64>,
    /// A pending operation changed state.
    pub wake: Option<unsafe extern "C" fn(host: *mut c_void, operation: u64)>,
}

/// A lane is held and work starts.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct MeshGenerationStart {
    /// Bytes of this struct that its writer knew.
    pub struct_size: u32,
    /// From 1; grows when a request is carried over to other nodes.
    pub attempt: u32,
    /// Names of the generation.
    pub ids: MeshIds,
    /// Token ids of the prompt.
    pub prompt: MeshTokens,
}

/// Tokens became part of the output.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct MeshGenerationCommit {
    /// Bytes of this struct that its writer knew.
    pub struct_size: u32,
    /// Zero.
    pub reserved: u32,
    /// Names of the generation.
    pub ids: MeshIds,
    /// The new ones, one or more.
    pub tokens: MeshTokens,
    /// Generated so far, these included.
    pub total: u64,
}

/// The receipt of a generation that ended normally.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct MeshGenerationFinish {
    /// Bytes of this struct that its writer knew.
    pub struct_size: u32,
    /// `MESH_END_*`.
    pub flags: u32,
    /// Names of the generation.
    pub ids: MeshIds,
    /// `MESH_FINISH_*`.
    pub reason: i32,
    /// From 1; grows when a request is carried over.
    pub attempt: u32,
    /// Tokens of the prompt.
    pub prompt_count: u64,
    /// BLAKE3 of the prompt's ids as little-endian 32-bit integers.
    pub prompt_digest: [u8; 32],
    /// All of them.
    pub generated: MeshTokens,
    /// Prompt and generated tokens.
    pub final_position: u64,
    /// From arrival to the lane.
    pub queued_ns: u64,
    /// From the lane to the first token.
    pub first_token_ns: u64,
    /// From the lane to the end.
    pub generation_ns: u64,
    /// For each token, from arrival until it was committed; null without WANTS_TOKEN_IDS.
    pub token_ns: *const u64,
    /// Entries of `token_ns`.
    pub token_ns_count: u64,
}

/// It ended in any other way.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct MeshGenerationAbort {
    /// Bytes of this struct that its writer knew.
    pub struct_size: u32,
    /// `MESH_END_*`.
    pub flags: u32,
    /// Names of the generation.
    pub ids: MeshIds,
    /// `MESH_ABORT_*`.
    pub reason: i32,
    /// From 1; grows when a request is carried over.
    pub attempt: u32,
    /// Tokens generated by then.
    pub committed_count: u64,
}

/// The node wants candidates for what comes next.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct MeshProposalQuery {
    /// Bytes of this struct that its writer knew.
    pub struct_size: u32,
    /// Most that it takes, at least 1.
    pub max_tokens: u32,
    /// Names of the generation.
    pub ids: MeshIds,
    /// Tokens of the prompt.
    pub prompt_count: u64,
    /// Tokens generated; the candidates come after them.
    pub committed_count: u64,
    /// Grows with every query of the generation.
    pub step: u64,
    /// On the clock of `now_ns`; an answer at or after it is late.
    pub deadline_ns: u64,
    /// The end of prompt and output together, at most [`crate::MESH_MAX_TAIL`] tokens.
    pub tail: MeshTokens,
}

/// Where `poll_proposal` puts candidates. Set by the node, but for the last four fields.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct MeshProposalOutput {
    /// Bytes of this struct that its writer knew.
    pub struct_size: u32,
    /// Tokens that `tokens` holds.
    pub token_capacity: u32,
    /// Place for candidates.
    pub tokens: *mut i32,
    /// Place for [`crate::MESH_DECISION_ID_BYTES`] bytes.
    pub decision_id: *mut u8,
    /// Set by the plugin: candidates, 1 to the query's max_tokens.
    pub token_count: u32,
    /// Set by the plugin: 1 to MESH_DECISION_ID_BYTES.
    pub decision_id_length: u32,
    /// Set by the plugin: the query's prompt_count + committed_count.
    pub base_position: u64,
    /// Zero.
    pub reserved: u64,
}

/// A decision was verified. Positions count from the beginning of the prompt.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct MeshProposalOutcome {
    /// Bytes of this struct that its writer knew.
    pub struct_size: u32,
    /// `MESH_DISPOSITION_*`.
    pub disposition: i32,
    /// Names of the generation.
    pub ids: MeshIds,
    /// The decision, as the plugin named it.
    pub decision_id: MeshBytes,
    /// Step of the query.
    pub step: u64,
    /// Candidates there were.
    pub proposed_count: u64,
    /// Candidates that the model produced too.
    pub accepted_count: u64,
    /// What became output: the accepted ones and, unless it stopped, one more.
    pub committed: MeshTokens,
    /// What the model produced from `base_position` to the decision, it included.
    pub predictions: MeshTokens,
    /// Of the first candidate.
    pub base_position: u64,
    /// Behind the last candidate that was computed.
    pub verified_position: u64,
    /// Behind the last token that became output.
    pub canonical_position: u64,
}

/// A decision was not used.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct MeshProposalDiscard {
    /// Bytes of this struct that its writer knew.
    pub struct_size: u32,
    /// `MESH_DISCARD_*`.
    pub reason: i32,
    /// Names of the generation.
    pub ids: MeshIds,
    /// The decision, as the plugin named it.
    pub decision_id: MeshBytes,
    /// Step of the query.
    pub step: u64,
    /// Candidates there were.
    pub proposed_count: u64,
    /// Position of the first candidate.
    pub base_position: u64,
}
