//! Numbers the lifecycle events of one request and hands them on; builds nothing when nobody listens.

use std::sync::Arc;

use mesh_proto::{LaneId, MeshError, RequestId, v1::FinishReason};

use super::RequestOptions;
use crate::ports::events::{EventSink, Lifecycle, LifecycleEvent};

/// Attempt number of a request that was never recovered.
const FIRST_ATTEMPT: u32 = 1;

/// Events of one request.
#[derive(Debug)]
pub struct RequestEvents {
    sink: Arc<dyn EventSink>,
    deployment: Arc<str>,
    request: RequestId,
    sequence: u64,
    /// A terminal is due: something was told and no terminal yet.
    open: bool,
}

/// A request whose actor panicked or was killed has its terminal too.
impl Drop for RequestEvents {
    fn drop(&mut self) {
        if self.open {
            self.aborted(&MeshError::internal(
                "the request ended without a result; see the node's log",
            ));
        }
    }
}

impl RequestEvents {
    /// No event was emitted yet.
    pub fn new(options: &RequestOptions, request: RequestId) -> Self {
        Self {
            sink: options.events.clone(),
            deployment: options.deployment.clone(),
            request,
            sequence: 0,
            open: false,
        }
    }

    /// A request that is refused at once.
    pub fn refused(options: &RequestOptions, request: RequestId, error: &MeshError) {
        let mut events = Self::new(options, request);
        events.queued();
        events.rejected(error);
    }

    /// It arrived.
    pub fn queued(&mut self) {
        self.open = true;
        self.emit(|| Lifecycle::Queued);
    }

    /// It holds a lane.
    pub fn started(&mut self, prompt_tokens: u32, lane: LaneId) {
        self.emit(|| Lifecycle::Started { prompt_tokens, lane });
    }

    /// The first token is drawn.
    pub fn prefilled(&mut self) {
        self.emit(|| Lifecycle::Prefilled);
    }

    /// Tokens became output.
    pub fn committed(&mut self, tokens: &[u32], text: &str, total: u32) {
        self.emit(|| Lifecycle::Committed {
            tokens: tokens.to_vec(),
            text: text.to_owned(),
            total,
        });
    }

    /// The normal end.
    pub fn finished(&mut self, reason: FinishReason, prompt_tokens: u32, completion_tokens: u32) {
        self.open = false;
        self.emit(|| Lifecycle::Finished {
            reason,
            prompt_tokens,
            completion_tokens,
        });
    }

    /// The other end.
    pub fn aborted(&mut self, error: &MeshError) {
        self.open = false;
        self.emit(|| Lifecycle::Aborted(error.clone()));
    }

    /// Refused before a lane.
    pub fn rejected(&mut self, error: &MeshError) {
        self.open = false;
        self.emit(|| Lifecycle::Rejected(error.clone()));
    }

    fn emit(&mut self, kind: impl FnOnce() -> Lifecycle) {
        self.sequence += 1;
        if self.sink.is_listening() {
            self.sink.emit(LifecycleEvent {
                request: self.request,
                sequence: self.sequence,
                attempt: FIRST_ATTEMPT,
                deployment: self.deployment.clone(),
                kind: kind(),
            });
        }
    }
}
