//! Traces and measurements of the data plane. The adapter to OpenTelemetry is `mesh-telemetry`.

use std::{
    fmt,
    time::{Duration, Instant},
};

use mesh_proto::{ErrorCode, TraceContext};

use crate::events::RequestTrace;

/// One forward pass of a stage for one lane.
#[derive(Debug, Clone, Copy)]
pub struct StageForward<'a> {
    /// Deployment.
    pub deployment: &'a str,
    /// Stage.
    pub stage: u32,
    /// Traces of the lanes in the batch that are traced: spans of their requests.
    pub traces: &'a [TraceContext],
    /// Lanes in the batch.
    pub lanes: u32,
    /// Rows in the batch.
    pub rows: u32,
    /// When the engine began.
    pub began: Instant,
    /// When it was done.
    pub ended: Instant,
}

/// One frame written to a link.
#[derive(Debug, Clone, Copy)]
pub struct LinkSend<'a> {
    /// Deployment.
    pub deployment: &'a str,
    /// Stage that sends.
    pub stage: u32,
    /// Traces of the lanes in the frame that are traced.
    pub traces: &'a [TraceContext],
    /// Bytes of activations in the frame.
    pub payload_bytes: u64,
    /// When the writer got it.
    pub began: Instant,
    /// When the transport had taken it.
    pub ended: Instant,
    /// Round trip of the link, if it is known and was looked at this time.
    pub rtt: Option<Duration>,
}

/// One call into a native plugin.
#[derive(Debug, Clone, Copy)]
pub struct PluginCall<'a> {
    /// Name of the plugin.
    pub plugin: &'a str,
    /// Name of the function.
    pub callback: &'static str,
    /// How long it took.
    pub took: Duration,
    /// It did not return success.
    pub failed: bool,
}

/// Why a connection to this node did not come to anything.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TurnedAway {
    /// It was asked to show that its address is its own: many handshakes are under way.
    Retry,
    /// Its handshake gave way to another.
    Handshake,
    /// Its handshake took too long.
    SlowHandshake,
    /// It did not belong here, and gave way to another.
    Stranger,
    /// It did not show that it belongs here.
    SlowStranger,
}

impl TurnedAway {
    /// Name in logs and metrics.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Retry => "address_not_validated",
            Self::Handshake => "handshake_displaced",
            Self::SlowHandshake => "handshake_too_slow",
            Self::Stranger => "stranger_displaced",
            Self::SlowStranger => "stranger_not_admitted",
        }
    }
}

/// Takes measurements. Called on the data plane: must not block, and must bound what it queues.
pub trait Telemetry: Send + Sync + fmt::Debug + 'static {
    /// A request arrives: its place in a trace, if it is to be traced.
    fn begin(&self, parent: Option<TraceContext>) -> Option<RequestTrace>;
    /// A gateway refused a call.
    fn refused(&self, code: ErrorCode);
    /// A stage has computed a batch.
    fn forward(&self, forward: &StageForward<'_>);
    /// A frame was sent.
    fn sent(&self, send: &LinkSend<'_>);
    /// A plugin was called.
    fn plugin_call(&self, call: &PluginCall<'_>);
    /// A connection of another node, or of whoever it was, was turned away.
    fn turned_away(&self, why: TurnedAway);
}

/// Nothing is traced or measured.
#[derive(Debug, Clone, Copy, Default)]
pub struct NoTelemetry;

impl Telemetry for NoTelemetry {
    fn begin(&self, _: Option<TraceContext>) -> Option<RequestTrace> {
        None
    }

    fn refused(&self, _: ErrorCode) {}

    fn forward(&self, _: &StageForward<'_>) {}

    fn sent(&self, _: &LinkSend<'_>) {}

    fn plugin_call(&self, _: &PluginCall<'_>) {}

    fn turned_away(&self, _: TurnedAway) {}
}
