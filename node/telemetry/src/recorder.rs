//! The adapter: what requests, stages and links tell becomes spans and measurements.

use std::time::Instant;

use mesh_actors::{
    events::{EndObserver, EventClock, RequestEnd, RequestTrace},
    ports::telemetry::{LinkSend, PluginCall, StageForward, Telemetry, TurnedAway},
};
use mesh_proto::{ErrorCode, TraceContext};

use crate::{
    instruments::Instruments,
    queue::SpanQueue,
    sampler::Sampler,
    spans::{self, Times, child_of},
};

/// Takes what happens on the data plane. Shared by all parts of a node.
#[derive(Debug)]
pub struct Recorder {
    clock: EventClock,
    instruments: Instruments,
    /// Traces are exported.
    tracing: Option<(Sampler, SpanQueue)>,
}

impl Recorder {
    pub(crate) fn new(instruments: Instruments, tracing: Option<(Sampler, SpanQueue)>) -> Self {
        Self {
            clock: EventClock::start(),
            instruments,
            tracing,
        }
    }

    fn times(&self, began: Instant, ended: Instant) -> Times {
        (self.clock.at(began), self.clock.at(ended))
    }
}

impl Telemetry for Recorder {
    fn begin(&self, parent: Option<TraceContext>) -> Option<RequestTrace> {
        let (sampler, _) = self.tracing.as_ref()?;
        let own = child_of(parent);
        sampler
            .takes(&own.trace_id, parent)
            .then_some(RequestTrace { own, parent })
    }

    fn refused(&self, code: ErrorCode) {
        self.instruments.refused(code);
    }

    fn forward(&self, forward: &StageForward<'_>) {
        self.instruments.forward(forward, forward.ended - forward.began);
        if let Some((_, queue)) = &self.tracing {
            let times = self.times(forward.began, forward.ended);
            for parent in forward.traces {
                queue.push(spans::forward(forward, *parent, times));
            }
        }
    }

    fn sent(&self, send: &LinkSend<'_>) {
        self.instruments.sent(send, send.ended - send.began);
        if let Some((_, queue)) = &self.tracing {
            let times = self.times(send.began, send.ended);
            for parent in send.traces {
                queue.push(spans::send(send, *parent, times));
            }
        }
    }

    fn plugin_call(&self, call: &PluginCall<'_>) {
        self.instruments.plugin_call(call);
    }

    fn turned_away(&self, why: TurnedAway) {
        self.instruments.turned_away(why);
    }
}

impl EndObserver for Recorder {
    fn ended(&self, end: &RequestEnd<'_>) {
        self.instruments.ended(end);
        if let (Some((_, queue)), Some(trace)) = (&self.tracing, end.trace) {
            queue.push(spans::request(end, trace));
        }
    }
}
