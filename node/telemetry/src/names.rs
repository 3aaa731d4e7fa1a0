//! Every name that leaves a node by telemetry. `docs/telemetry.md` says what they mean.
//!
//! Names are dotted; the unit is a field of its own in OTLP, and the last word of the name for Prometheus. No label
//! holds an id: deployments and stages are few, requests and sessions are not.

/// Instrumentation scope of spans and metrics.
pub const SCOPE: &str = "mesh";

/// `service.name`, unless the environment names one.
pub const SERVICE: &str = "mesh";

/// Spans.
pub mod span {
    /// A request, from its arrival at the head to its end.
    pub const REQUEST: &str = "mesh.request";
    /// One batch of a stage, for each traced request in it.
    pub const STAGE_FORWARD: &str = "mesh.stage.forward";
    /// One frame to the next stage or back to the head, for each traced request in it.
    pub const LINK_SEND: &str = "mesh.link.send";
}

/// Attributes of spans, metrics and resources. Those that begin with `gen_ai` are of the semantic conventions
/// (<https://opentelemetry.io/docs/specs/semconv/gen-ai/>).
pub mod attribute {
    /// Deployment that was asked for.
    pub const MODEL: &str = "gen_ai.request.model";
    /// [`CHAT`] or [`TEXT_COMPLETION`].
    pub const OPERATION: &str = "gen_ai.operation.name";
    /// A turn in a conversation.
    pub const CHAT: &str = "chat";
    /// More of a text.
    pub const TEXT_COMPLETION: &str = "text_completion";
    /// [`super::SERVICE`].
    pub const PROVIDER: &str = "gen_ai.provider.name";
    /// Why generation ended.
    pub const FINISH_REASONS: &str = "gen_ai.response.finish_reasons";
    /// Identity of the model.
    pub const RESPONSE_MODEL: &str = "gen_ai.response.model";
    /// Request id, as `x-request-id`. Spans only.
    pub const RESPONSE_ID: &str = "gen_ai.response.id";
    /// Seed in use.
    pub const SEED: &str = "gen_ai.request.seed";
    /// Tokens of the prompt.
    pub const INPUT_TOKENS: &str = "gen_ai.usage.input_tokens";
    /// Tokens generated.
    pub const OUTPUT_TOKENS: &str = "gen_ai.usage.output_tokens";
    /// `input` or `output`.
    pub const TOKEN_TYPE: &str = "gen_ai.token.type";
    /// Error code of what failed.
    pub const ERROR_TYPE: &str = "error.type";
    /// Wait for a lane, milliseconds.
    pub const QUEUE_MS: &str = "mesh.request.queue_ms";
    /// From the lane to the first token, milliseconds.
    pub const PREFILL_MS: &str = "mesh.request.prefill_ms";
    /// Time to the first token, milliseconds.
    pub const TTFT_MS: &str = "mesh.request.time_to_first_token_ms";
    /// Deployment.
    pub const DEPLOYMENT: &str = "mesh.deployment";
    /// Stage, from 0.
    pub const STAGE: &str = "mesh.stage";
    /// Rows of a batch.
    pub const ROWS: &str = "mesh.batch.rows";
    /// Lanes of a batch.
    pub const LANES: &str = "mesh.batch.lanes";
    /// Activations of a frame, bytes.
    pub const BYTES: &str = "mesh.link.bytes";
    /// `finished`, `aborted` or `rejected`; of durable receipts, `written` or `lost`.
    pub const OUTCOME: &str = "mesh.outcome";
    /// Name of a plugin.
    pub const PLUGIN: &str = "mesh.plugin";
    /// Function of a plugin.
    pub const CALLBACK: &str = "mesh.plugin.callback";
    /// Finish reason or error code; for what telemetry dropped, why.
    pub const CAUSE: &str = "mesh.cause";
    /// Name of the node (resource).
    pub const NODE: &str = "mesh.node.name";
    /// Id of the node (resource).
    pub const INSTANCE: &str = "service.instance.id";
    /// Release (resource).
    pub const VERSION: &str = "service.version";
    /// Who serves (resource).
    pub const SERVICE_NAME: &str = "service.name";
}

/// Metrics.
pub mod metric {
    /// From arrival to the first token, s.
    pub const TTFT: &str = "gen_ai.server.time_to_first_token";
    /// Between tokens after the first, mean of a request, s.
    pub const TPOT: &str = "gen_ai.server.time_per_output_token";
    /// From arrival to the end, s.
    pub const REQUEST_DURATION: &str = "gen_ai.server.request.duration";
    /// Tokens of prompts and generated ones.
    pub const TOKENS: &str = "mesh.tokens";
    /// Requests that ended.
    pub const REQUESTS_ENDED: &str = "mesh.requests.ended";
    /// Requests that have not ended.
    pub const REQUESTS_OPEN: &str = "mesh.requests.open";
    /// Calls that a gateway refused, per error code: before a deployment was chosen there is no event for them.
    pub const REFUSED: &str = "mesh.gateway.refused";
    /// Connections over QUIC that came to nothing before the peer had proven that it belongs here, per cause.
    pub const TURNED_AWAY: &str = "mesh.connections.turned_away";
    /// From arrival to a lane, s.
    pub const QUEUE_WAIT: &str = "mesh.queue.wait";
    /// Requests that wait for a lane.
    pub const QUEUE_DEPTH: &str = "mesh.queue.depth";
    /// Lanes held.
    pub const LANES_USED: &str = "mesh.lanes.used";
    /// Lanes there are.
    pub const LANES_TOTAL: &str = "mesh.lanes.total";
    /// Rows of batches.
    pub const BATCH_ROWS: &str = "mesh.batch.rows";
    /// Lanes of batches.
    pub const BATCH_LANES: &str = "mesh.batch.lanes";
    /// Forward passes of a stage, s.
    pub const STAGE_FORWARD: &str = "mesh.stage.forward.duration";
    /// Activations given to links, By.
    pub const LINK_BYTES: &str = "mesh.link.sent";
    /// Until a link's transport took a frame, s.
    pub const LINK_SEND: &str = "mesh.link.send.duration";
    /// Round trip of a link, s.
    pub const LINK_RTT: &str = "mesh.link.rtt";
    /// Lifecycle events.
    pub const EVENTS: &str = "mesh.events.published";
    /// Lifecycle events that subscribers missed.
    pub const EVENTS_DROPPED: &str = "mesh.events.dropped";
    /// Subscribers to lifecycle events.
    pub const SUBSCRIBERS: &str = "mesh.events.subscribers";
    /// Durable receipts: in the files, or lost to a full queue or a broken disk.
    pub const RECEIPTS: &str = "mesh.receipts";
    /// Calls into plugins, s.
    pub const PLUGIN_CALL: &str = "mesh.plugin.call.duration";
    /// Calls into plugins that failed.
    pub const PLUGIN_ERRORS: &str = "mesh.plugin.errors";
    /// Proposals of plugins, by what came of them.
    pub const PLUGIN_PROPOSALS: &str = "mesh.plugin.proposals";
    /// Tokens that plugins proposed and that were verified, right or wrong.
    pub const PLUGIN_TOKENS: &str = "mesh.plugin.proposed_tokens";
    /// Decisions of plugins that were not used.
    pub const PLUGIN_DISCARDED: &str = "mesh.plugin.discarded";
    /// Wakes of plugins for operations that were not open.
    pub const PLUGIN_WAKES: &str = "mesh.plugin.spurious_wakes";
    /// What plugins were not told, by what it was.
    pub const PLUGIN_LOST: &str = "mesh.plugin.lost";
    /// Wait of calls for a thread of their plugin: median and 99th percentile so far, s.
    pub const PLUGIN_QUEUE_WAIT: &str = "mesh.plugin.queue.wait";
    /// Messages in the mailbox of a plugin.
    pub const PLUGIN_QUEUE_DEPTH: &str = "mesh.plugin.queue.depth";
    /// Places in the mailbox of a plugin.
    pub const PLUGIN_QUEUE_CAPACITY: &str = "mesh.plugin.queue.capacity";
    /// Generations that a plugin follows.
    pub const PLUGIN_GENERATIONS: &str = "mesh.plugin.generations";
    /// Health of a plugin: 0 healthy, 1 degraded, 2 quarantined, 3 stopped.
    pub const PLUGIN_HEALTH: &str = "mesh.plugin.health";
    /// Spans that a collector took.
    pub const SPANS_EXPORTED: &str = "mesh.telemetry.exported";
    /// Spans and metric exports that came to nothing, per cause.
    pub const DROPPED: &str = "mesh.telemetry.dropped";
}

/// Environment variables, by the specification (<https://opentelemetry.io/docs/specs/otel/protocol/exporter/>).
/// Endpoints, headers, time limits and protocols are read by the exporters themselves.
pub mod variable {
    /// `true`: nothing is exported.
    pub const DISABLED: &str = "OTEL_SDK_DISABLED";
    /// Collector of everything.
    pub const ENDPOINT: &str = "OTEL_EXPORTER_OTLP_ENDPOINT";
    /// Collector of traces.
    pub const TRACES_ENDPOINT: &str = "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT";
    /// Collector of metrics.
    pub const METRICS_ENDPOINT: &str = "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT";
    /// `none`: no traces.
    pub const TRACES_EXPORTER: &str = "OTEL_TRACES_EXPORTER";
    /// `none`: no metrics.
    pub const METRICS_EXPORTER: &str = "OTEL_METRICS_EXPORTER";
    /// Milliseconds between exports of metrics.
    pub const METRIC_INTERVAL: &str = "OTEL_METRIC_EXPORT_INTERVAL";
    /// Which traces are recorded.
    pub const SAMPLER: &str = "OTEL_TRACES_SAMPLER";
    /// Ratio of those.
    pub const SAMPLER_ARG: &str = "OTEL_TRACES_SAMPLER_ARG";
}
