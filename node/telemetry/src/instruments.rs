//! What is measured as it happens. The same instruments feed OTLP and `/metrics`.

use std::time::Duration;

use mesh_actors::{
    events::{Lifecycle, Operation, Receipt, ReceiptEnd, RequestEnd},
    ports::telemetry::{LinkSend, PluginCall, StageForward, TurnedAway},
};
use mesh_proto::ErrorCode;
use opentelemetry::{
    KeyValue,
    metrics::{Counter, Gauge, Histogram, Meter},
};

use crate::{
    names::{SERVICE, attribute, metric},
    spans::{self, finish_reason},
};

/// From a decode step of a small model on one machine to a request of minutes.
const SECONDS: [f64; 18] = [
    0.0001, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0,
];

/// From a call that only counts something to one that is given up.
const CALL_SECONDS: [f64; 14] = [
    0.000_001, 0.000_01, 0.000_05, 0.0001, 0.0005, 0.001, 0.002, 0.004, 0.008, 0.016, 0.05, 0.25, 1.0, 5.0,
];

/// Rows of a batch and lanes in it: powers of two up to the largest chunk.
const COUNTS: [f64; 13] = [
    1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1024.0, 2048.0, 4096.0,
];

/// All of them.
#[derive(Debug)]
pub(crate) struct Instruments {
    ttft: Histogram<f64>,
    tpot: Histogram<f64>,
    duration: Histogram<f64>,
    queue_wait: Histogram<f64>,
    tokens: Counter<u64>,
    ended: Counter<u64>,
    refused: Counter<u64>,
    rows: Histogram<u64>,
    lanes: Histogram<u64>,
    forward: Histogram<f64>,
    link_bytes: Counter<u64>,
    link_send: Histogram<f64>,
    link_rtt: Gauge<f64>,
    plugin_call: Histogram<f64>,
    plugin_errors: Counter<u64>,
    turned_away: Counter<u64>,
}

impl Instruments {
    /// On this meter.
    pub fn new(meter: &Meter) -> Self {
        let seconds = |name, about| {
            let histogram = meter.f64_histogram(name).with_unit("s").with_description(about);
            histogram.with_boundaries(SECONDS.to_vec()).build()
        };
        let microseconds = |name, about| {
            let histogram = meter.f64_histogram(name).with_unit("s").with_description(about);
            histogram.with_boundaries(CALL_SECONDS.to_vec()).build()
        };
        let counts = |name, unit, about| {
            let histogram = meter.u64_histogram(name).with_unit(unit).with_description(about);
            histogram.with_boundaries(COUNTS.to_vec()).build()
        };
        let counter = |name, unit, about| {
            let counter = meter.u64_counter(name).with_unit(unit).with_description(about);
            counter.build()
        };
        Self {
            ttft: seconds(metric::TTFT, "From arrival at the head to the first token."),
            tpot: seconds(metric::TPOT, "Mean time between the tokens of a request."),
            duration: seconds(metric::REQUEST_DURATION, "From arrival at the head to the end."),
            queue_wait: seconds(metric::QUEUE_WAIT, "From arrival at the head to a lane."),
            tokens: counter(metric::TOKENS, "{token}", "Tokens of prompts and generated ones."),
            ended: counter(
                metric::REQUESTS_ENDED,
                "{request}",
                "Requests that ended, per outcome and cause.",
            ),
            refused: counter(
                metric::REFUSED,
                "{request}",
                "Calls that the gateway refused, per cause.",
            ),
            rows: counts(metric::BATCH_ROWS, "{row}", "Rows in a batch of a stage."),
            lanes: counts(metric::BATCH_LANES, "{lane}", "Lanes in a batch of a stage."),
            forward: seconds(metric::STAGE_FORWARD, "Time of a batch in the engine of a stage."),
            link_bytes: counter(
                metric::LINK_BYTES,
                "By",
                "Bytes of activations given to the link of a stage.",
            ),
            link_send: seconds(metric::LINK_SEND, "Until the transport took a frame."),
            link_rtt: meter
                .f64_gauge(metric::LINK_RTT)
                .with_unit("s")
                .with_description("Round trip of the link of a stage.")
                .build(),
            plugin_call: microseconds(metric::PLUGIN_CALL, "Time of a call into a plugin."),
            plugin_errors: counter(metric::PLUGIN_ERRORS, "{call}", "Calls into plugins that failed."),
            turned_away: counter(
                metric::TURNED_AWAY,
                "{connection}",
                "Connections between nodes that came to nothing, per cause.",
            ),
        }
    }

    /// A gateway refused a call.
    pub fn refused(&self, code: ErrorCode) {
        self.refused.add(1, &[KeyValue::new(attribute::CAUSE, code.name())]);
    }

    /// A connection was turned away.
    pub fn turned_away(&self, why: TurnedAway) {
        self.turned_away.add(1, &[KeyValue::new(attribute::CAUSE, why.name())]);
    }

    /// A batch was computed.
    pub fn forward(&self, forward: &StageForward<'_>, took: Duration) {
        let labels = of_stage(forward.deployment, forward.stage);
        self.rows.record(u64::from(forward.rows), &labels);
        self.lanes.record(u64::from(forward.lanes), &labels);
        self.forward.record(took.as_secs_f64(), &labels);
    }

    /// A frame was sent.
    pub fn sent(&self, send: &LinkSend<'_>, took: Duration) {
        let labels = of_stage(send.deployment, send.stage);
        self.link_bytes.add(send.payload_bytes, &labels);
        self.link_send.record(took.as_secs_f64(), &labels);
        if let Some(rtt) = send.rtt {
            self.link_rtt.record(rtt.as_secs_f64(), &labels);
        }
    }

    /// A plugin was called.
    pub fn plugin_call(&self, call: &PluginCall<'_>) {
        let labels = [
            KeyValue::new(attribute::PLUGIN, call.plugin.to_owned()),
            KeyValue::new(attribute::CALLBACK, call.callback),
        ];
        self.plugin_call.record(call.took.as_secs_f64(), &labels);
        if call.failed {
            self.plugin_errors.add(1, &labels);
        }
    }

    /// A request ended.
    pub fn ended(&self, end: &RequestEnd<'_>) {
        let (outcome, cause) = outcome(end.kind);
        let model = KeyValue::new(attribute::MODEL, end.deployment.to_owned());
        let labels = [
            KeyValue::new(attribute::DEPLOYMENT, end.deployment.to_owned()),
            KeyValue::new(attribute::OUTCOME, outcome),
            KeyValue::new(attribute::CAUSE, cause),
        ];
        self.ended.add(1, &labels);
        let mut labels = gen_ai(end.operation, model.clone()).to_vec();
        if outcome != "finished" {
            labels.push(KeyValue::new(attribute::ERROR_TYPE, cause));
        }
        let took = end.ended.duration_since(end.arrived).unwrap_or_default();
        self.duration.record(took.as_secs_f64(), &labels);
        if let Some(receipt) = end.kind.receipt() {
            self.received(receipt, end.operation, model);
        }
    }

    fn received(&self, receipt: &Receipt, operation: Operation, model: KeyValue) {
        let deployment = KeyValue::new(attribute::DEPLOYMENT, receipt.deployment.to_string());
        let token = |kind: &'static str| [deployment.clone(), KeyValue::new(attribute::TOKEN_TYPE, kind)];
        self.tokens.add(u64::from(receipt.prompt_tokens), &token("input"));
        self.tokens.add(receipt.generated.len() as u64, &token("output"));
        let queued = seconds(receipt.timings.queued_us);
        self.queue_wait.record(queued, std::slice::from_ref(&deployment));
        let labels = gen_ai(operation, model);
        let (Some(first), Some(last)) = (receipt.token_us.first(), receipt.token_us.last()) else {
            return;
        };
        self.ttft.record(seconds(*first), &labels);
        let steps = receipt.token_us.len() - 1;
        if steps > 0 {
            let mean = seconds(last.saturating_sub(*first)) / steps as f64;
            self.tpot.record(mean, &labels);
        }
    }
}

fn seconds(us: u64) -> f64 {
    us as f64 / 1e6
}

fn gen_ai(operation: Operation, model: KeyValue) -> [KeyValue; 3] {
    [
        KeyValue::new(attribute::OPERATION, spans::operation(operation)),
        KeyValue::new(attribute::PROVIDER, SERVICE),
        model,
    ]
}

fn of_stage(deployment: &str, stage: u32) -> [KeyValue; 2] {
    [
        KeyValue::new(attribute::DEPLOYMENT, deployment.to_owned()),
        KeyValue::new(attribute::STAGE, i64::from(stage)),
    ]
}

fn outcome(kind: &Lifecycle) -> (&'static str, &'static str) {
    match kind {
        Lifecycle::Aborted { error, .. } => ("aborted", error.code.name()),
        Lifecycle::Rejected(error) => ("rejected", error.code.name()),
        _ => match kind.receipt().map(|receipt| receipt.end) {
            Some(ReceiptEnd::Finished(reason)) => ("finished", finish_reason(reason)),
            Some(ReceiptEnd::Aborted(code)) => ("finished", code.name()),
            None => ("finished", "unknown"),
        },
    }
}
