//! Spans with explicit ids: nothing of a context travels in thread-locals.

use std::time::SystemTime;

use mesh_actors::{
    events::{Lifecycle, Operation, Receipt, RequestEnd, RequestTrace},
    ports::telemetry::{LinkSend, StageForward},
};
use mesh_proto::{MeshError, TraceContext, v1::FinishReason};
use opentelemetry::{
    Array, InstrumentationScope, KeyValue, StringValue, Value,
    trace::{SpanContext, SpanId, SpanKind, Status, TraceFlags, TraceId, TraceState},
};
use opentelemetry_sdk::trace::{IdGenerator as _, RandomIdGenerator, SpanData, SpanEvents, SpanLinks};

use crate::names::{SCOPE, SERVICE, attribute, span};

/// From when to when.
pub(crate) type Times = (SystemTime, SystemTime);

/// A context of its own for a new span: in the parent's trace, or in a new one.
pub(crate) fn child_of(parent: Option<TraceContext>) -> TraceContext {
    let ids = RandomIdGenerator::default();
    TraceContext {
        trace_id: parent.map_or_else(|| ids.new_trace_id().to_bytes(), |parent| parent.trace_id),
        span_id: ids.new_span_id().to_bytes(),
        flags: TraceFlags::SAMPLED.to_u8(),
    }
}

/// `mesh.request`.
pub(crate) fn request(end: &RequestEnd<'_>, trace: RequestTrace) -> SpanData {
    let mut attributes = vec![
        KeyValue::new(attribute::OPERATION, operation(end.operation)),
        KeyValue::new(attribute::PROVIDER, SERVICE),
        KeyValue::new(attribute::MODEL, end.deployment.to_owned()),
        KeyValue::new(attribute::RESPONSE_ID, end.request.to_string()),
    ];
    if let Some(receipt) = end.kind.receipt() {
        attributes.extend(of_receipt(receipt));
    }
    let status = match end.kind {
        Lifecycle::Finished(_) => Status::Unset,
        Lifecycle::Aborted { error, .. } | Lifecycle::Rejected(error) => {
            attributes.push(KeyValue::new(attribute::ERROR_TYPE, error.code.name()));
            failed(error)
        }
        _ => Status::Unset,
    };
    let times = (end.arrived, end.ended);
    let mut data = new(span::REQUEST, trace.own, trace.parent, times, attributes);
    data.span_kind = SpanKind::Server;
    data.parent_span_is_remote = trace.parent.is_some();
    data.status = status;
    data
}

fn failed(error: &MeshError) -> Status {
    Status::error(error.to_string())
}

fn of_receipt(receipt: &Receipt) -> Vec<KeyValue> {
    let mut attributes = vec![
        KeyValue::new(attribute::INPUT_TOKENS, i64::from(receipt.prompt_tokens)),
        KeyValue::new(attribute::OUTPUT_TOKENS, receipt.generated.len() as i64),
        KeyValue::new(attribute::RESPONSE_MODEL, receipt.model_id.to_string()),
        KeyValue::new(attribute::SEED, i64::try_from(receipt.seed).unwrap_or(i64::MAX)),
        KeyValue::new(attribute::QUEUE_MS, ms(receipt.timings.queued_us)),
        KeyValue::new(attribute::PREFILL_MS, ms(receipt.timings.prefill_us)),
    ];
    if let Some(first) = receipt.token_us.first() {
        attributes.push(KeyValue::new(attribute::TTFT_MS, ms(*first)));
    }
    if let mesh_actors::events::ReceiptEnd::Finished(reason) = receipt.end {
        let reasons = vec![StringValue::from(finish_reason(reason))];
        attributes.push(KeyValue::new(
            attribute::FINISH_REASONS,
            Value::Array(Array::String(reasons)),
        ));
    }
    attributes
}

fn ms(us: u64) -> f64 {
    us as f64 / 1e3
}

/// As the semantic conventions spell it.
pub(crate) fn operation(operation: Operation) -> &'static str {
    match operation {
        Operation::Chat => attribute::CHAT,
        Operation::Completion => attribute::TEXT_COMPLETION,
    }
}

/// As OpenAI's API spells it.
pub(crate) fn finish_reason(reason: FinishReason) -> &'static str {
    match reason {
        FinishReason::Length => "length",
        _ => "stop",
    }
}

/// `mesh.stage.forward`, for one of the traced requests in the batch.
pub(crate) fn forward(forward: &StageForward<'_>, parent: TraceContext, times: Times) -> SpanData {
    let attributes = vec![
        KeyValue::new(attribute::DEPLOYMENT, forward.deployment.to_owned()),
        KeyValue::new(attribute::STAGE, i64::from(forward.stage)),
        KeyValue::new(attribute::ROWS, i64::from(forward.rows)),
        KeyValue::new(attribute::LANES, i64::from(forward.lanes)),
    ];
    new(
        span::STAGE_FORWARD,
        child_of(Some(parent)),
        Some(parent),
        times,
        attributes,
    )
}

/// `mesh.link.send`, for one of the traced requests in the frame.
pub(crate) fn send(send: &LinkSend<'_>, parent: TraceContext, times: Times) -> SpanData {
    let attributes = vec![
        KeyValue::new(attribute::DEPLOYMENT, send.deployment.to_owned()),
        KeyValue::new(attribute::STAGE, i64::from(send.stage)),
        KeyValue::new(attribute::BYTES, i64::try_from(send.payload_bytes).unwrap_or(i64::MAX)),
    ];
    let mut data = new(span::LINK_SEND, child_of(Some(parent)), Some(parent), times, attributes);
    data.span_kind = SpanKind::Producer;
    data
}

fn new(
    name: &'static str,
    own: TraceContext,
    parent: Option<TraceContext>,
    (start_time, end_time): Times,
    attributes: Vec<KeyValue>,
) -> SpanData {
    SpanData {
        span_context: SpanContext::new(
            TraceId::from_bytes(own.trace_id),
            SpanId::from_bytes(own.span_id),
            TraceFlags::SAMPLED,
            false,
            TraceState::default(),
        ),
        parent_span_id: parent.map_or(SpanId::INVALID, |parent| SpanId::from_bytes(parent.span_id)),
        // Stages are children of a span that another process may have made; they cannot know.
        parent_span_is_remote: false,
        span_kind: SpanKind::Internal,
        name: name.into(),
        start_time,
        end_time,
        attributes,
        dropped_attributes_count: 0,
        events: SpanEvents::default(),
        links: SpanLinks::default(),
        status: Status::Unset,
        instrumentation_scope: InstrumentationScope::builder(SCOPE)
            .with_version(env!("CARGO_PKG_VERSION"))
            .build(),
    }
}
