//! What a request that held a lane came to.

use std::{sync::Arc, time::SystemTime};

use mesh_proto::{
    AgentSession, ErrorCode, RequestId, SessionId,
    v1::{FinishReason, RequestTimings},
};

/// How a request ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReceiptEnd {
    /// Normally.
    Finished(FinishReason),
    /// Otherwise.
    Aborted(ErrorCode),
}

/// The account of one request.
#[derive(Debug, Clone, PartialEq)]
pub struct Receipt {
    /// Request.
    pub request: RequestId,
    /// Attempt it ended in.
    pub attempt: u32,
    /// Deployment.
    pub deployment: Arc<str>,
    /// BLAKE3 identity of the source model.
    pub model_id: Arc<str>,
    /// Its last occupation of a lane.
    pub session: SessionId,
    /// As the client's side names it.
    pub agent_session: Option<AgentSession>,
    /// Tokens of the prompt.
    pub prompt_tokens: u32,
    /// BLAKE3 of the prompt's ids as little-endian u32.
    pub prompt_digest: [u8; 32],
    /// Generated ids.
    pub generated: Vec<u32>,
    /// When each was committed, microseconds after arrival.
    pub token_us: Vec<u64>,
    /// How it ended.
    pub end: ReceiptEnd,
    /// Seed in use.
    pub seed: u64,
    /// Arrival at the head.
    pub arrived: SystemTime,
    /// End.
    pub ended: SystemTime,
    /// Where the time went.
    pub timings: RequestTimings,
}

impl Receipt {
    /// Prompt and generated tokens: the position that would come next.
    pub fn final_position(&self) -> u32 {
        self.prompt_tokens.saturating_add(self.generated.len() as u32)
    }

    /// About what it takes in memory, bytes.
    pub fn weight(&self) -> usize {
        size_of::<Self>() + self.generated.capacity() * 4 + self.token_us.capacity() * 8
    }
}

/// BLAKE3 of token ids as little-endian u32.
pub(crate) fn digest_of(tokens: &[u32]) -> [u8; 32] {
    let mut hasher = blake3::Hasher::new();
    for chunk in tokens.chunks(256) {
        let mut bytes = [0; 1024];
        for (place, token) in bytes.chunks_exact_mut(4).zip(chunk) {
            place.copy_from_slice(&token.to_le_bytes());
        }
        hasher.update(&bytes[..chunk.len() * 4]);
    }
    hasher.finalize().into()
}
