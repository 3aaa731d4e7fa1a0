//! A receipt as JSON: in the files, and in what commands print. Scripts rely on the names.

use mesh_proto::v1;
use serde::{Deserialize, Serialize};

/// The account of one request.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct ReceiptView {
    /// A UUID.
    pub request_id: String,
    /// From 1.
    pub attempt: u32,
    /// Head of the request.
    pub node: String,
    /// Deployment.
    pub deployment: String,
    /// Its last occupation of a lane.
    pub session_id: String,
    /// As the client's side names it.
    pub agent_session: Option<String>,
    /// BLAKE3 of the source model.
    pub model_id: String,
    /// Tokens of the prompt.
    pub prompt_tokens: u32,
    /// BLAKE3 of the prompt's token ids as little-endian u32, hex.
    pub prompt_digest: String,
    /// Tokens generated.
    pub completion_tokens: u32,
    /// Generated ids, where they are kept or asked for.
    pub token_ids: Option<Vec<u32>>,
    /// Prompt and generated tokens.
    pub final_position: u32,
    /// `stop` or `length`; absent if it was aborted.
    pub finish_reason: Option<String>,
    /// Name in the error table; absent if it finished.
    pub abort_reason: Option<String>,
    /// Seed in use.
    pub seed: u64,
    /// RFC 3339.
    pub arrived: String,
    /// RFC 3339.
    pub ended: String,
    /// Where the time went.
    pub timings: TimingsView,
    /// When each token was committed, microseconds after arrival.
    pub token_us: Vec<u64>,
}

/// Where the time of a request went, microseconds.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct TimingsView {
    /// From arrival to a lane.
    pub queued_us: u64,
    /// From the lane to the first token.
    pub prefill_us: u64,
    /// From the first token to the last.
    pub decode_us: u64,
    /// What the engines computed after the first token.
    pub engine_us: u64,
    /// Steps of that.
    pub engine_steps: u32,
    /// `engine_us` of each stage, stage 0 first.
    pub stage_us: Vec<u64>,
}

impl ReceiptView {
    /// From a message; `token_ids` says whether ids were asked for.
    pub fn new(receipt: v1::Receipt, token_ids: bool) -> Self {
        let finish_reason = match receipt.finish_reason() {
            v1::FinishReason::Stop => Some("stop".to_owned()),
            v1::FinishReason::Length => Some("length".to_owned()),
            v1::FinishReason::Unspecified => None,
        };
        Self {
            finish_reason,
            request_id: receipt.request_id,
            attempt: receipt.attempt,
            node: receipt.node,
            deployment: receipt.deployment,
            session_id: receipt.session_id,
            agent_session: some(receipt.agent_session),
            model_id: receipt.model_id,
            prompt_tokens: receipt.prompt_tokens,
            prompt_digest: receipt.prompt_digest,
            completion_tokens: receipt.completion_tokens,
            token_ids: token_ids.then_some(receipt.token_ids),
            final_position: receipt.final_position,
            abort_reason: some(receipt.abort_reason),
            seed: receipt.seed,
            arrived: receipt.arrived.map(|time| time.to_string()).unwrap_or_default(),
            ended: receipt.ended.map(|time| time.to_string()).unwrap_or_default(),
            timings: receipt.timings.map(TimingsView::from).unwrap_or_default(),
            token_us: receipt.token_us,
        }
    }

    /// Why it ended.
    pub fn end(&self) -> &str {
        let reason = self.finish_reason.as_deref().or(self.abort_reason.as_deref());
        reason.unwrap_or_default()
    }
}

impl From<v1::RequestTimings> for TimingsView {
    fn from(timings: v1::RequestTimings) -> Self {
        Self {
            queued_us: timings.queued_us,
            prefill_us: timings.prefill_us,
            decode_us: timings.decode_us,
            engine_us: timings.engine_us,
            engine_steps: timings.engine_steps,
            stage_us: timings.stage_us,
        }
    }
}

fn some(text: String) -> Option<String> {
    Some(text).filter(|text| !text.is_empty())
}
