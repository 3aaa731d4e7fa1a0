//! OpenTelemetry for a node, behind the ports [`Telemetry`](mesh_actors::ports::telemetry::Telemetry) and
//! [`EndObserver`](mesh_actors::events::EndObserver). Nothing else in Mesh knows OpenTelemetry.
//!
//! ```text
//! engine threads, links ─ forward, sent ─▶ Recorder ─┬─ spans ──▶ SpanQueue (bounded) ──▶ exporter thread ──▶ OTLP
//! requests ──── begin, ended ─────────────▶          └─ instruments ─┬─ every minute ──────────▶ │
//!                              figures, when asked ──────────────────┴─ when scraped ──▶ `/metrics`
//! ```
//!
//! The exporter thread exists only if the standard `OTEL_*` variables name a collector. Producers never wait: what does
//! not fit into the queue is counted and dropped. When the node stops, what is left gets [`FLUSH_LIMIT`], whatever the
//! collector does. Names of metrics and spans are in [`names`].

mod exporter;
mod figures;
mod instruments;
pub mod names;
mod node_telemetry;
mod queue;
mod recorder;
mod sampler;
mod settings;
mod spans;

pub use exporter::FLUSH_LIMIT;
pub use figures::{ReceiptFigures, Sources};
pub use node_telemetry::NodeTelemetry;
pub use recorder::Recorder;
