//! What telemetry hears of one stage and of its link. Shared by the engine's thread and the link's actor.

use std::{
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use mesh_proto::{LaneId, SessionId, TraceContext};

use crate::ports::{
    engine::{Batch, RowSpan},
    link::{LaneOpen, LinkFrame},
    telemetry::{LinkSend, StageForward, Telemetry},
};

/// Reports for one stage.
#[derive(Debug)]
pub struct StageMeter {
    telemetry: Arc<dyn Telemetry>,
    deployment: Arc<str>,
    stage: u32,
    traces: LaneTraces,
}

/// A frame on its way out, in the figures that are told of it.
#[derive(Debug)]
pub struct OutgoingFrame {
    traces: Vec<TraceContext>,
    payload_bytes: u64,
    began: Instant,
}

impl StageMeter {
    /// For a stage of this many lanes.
    pub fn new(telemetry: Arc<dyn Telemetry>, deployment: &str, stage: u32, lanes: u32) -> Self {
        Self {
            telemetry,
            deployment: deployment.into(),
            stage,
            traces: LaneTraces::new(lanes),
        }
    }

    /// A session starts on a lane.
    pub fn opened(&self, open: &LaneOpen) {
        self.traces.open(open);
    }

    /// The engine computed a batch.
    pub fn computed(&self, batch: &Batch, began: Instant, ended: Instant) {
        let traces = self.traces.of(batch.spans.iter());
        self.telemetry.forward(&StageForward {
            deployment: &self.deployment,
            stage: self.stage,
            traces: &traces,
            lanes: batch.spans.len() as u32,
            rows: batch.rows() as u32,
            began,
            ended,
        });
    }

    /// A frame goes to the link; `None` if it carries no rows.
    pub fn sends(&self, frame: &LinkFrame) -> Option<OutgoingFrame> {
        let (traces, values) = match frame {
            LinkFrame::Forward { batch, .. } => (self.traces.of(batch.spans.iter()), batch.activations.len()),
            LinkFrame::Returned { spans, .. } => (self.traces.of(spans.iter().map(|(span, _)| span)), 0),
            LinkFrame::Open(_) | LinkFrame::Free { .. } | LinkFrame::Failed { .. } => return None,
        };
        Some(OutgoingFrame {
            traces,
            payload_bytes: (values * size_of::<f32>()) as u64,
            began: Instant::now(),
        })
    }

    /// The transport has taken it.
    pub fn sent(&self, frame: &OutgoingFrame, rtt: Option<Duration>) {
        self.telemetry.sent(&LinkSend {
            deployment: &self.deployment,
            stage: self.stage,
            traces: &frame.traces,
            payload_bytes: frame.payload_bytes,
            began: frame.began,
            ended: Instant::now(),
            rtt,
        });
    }
}

/// The traced occupation of a lane.
type Traced = Option<(SessionId, TraceContext)>;

/// Which lanes belong to traced requests. An entry stays when its session is over, until the lane's next one: the
/// link may still have to send its last rows. Its session tells it from the next.
#[derive(Debug)]
struct LaneTraces {
    lanes: Mutex<Box<[Traced]>>,
    /// Some request was traced since the start: without one, no lock is taken.
    used: AtomicBool,
}

impl LaneTraces {
    fn new(lanes: u32) -> Self {
        Self {
            lanes: Mutex::new((0..lanes).map(|_| None).collect()),
            used: AtomicBool::new(false),
        }
    }

    fn open(&self, open: &LaneOpen) {
        let trace = open.trace.filter(TraceContext::is_sampled);
        if trace.is_none() && !self.used.load(Ordering::Relaxed) {
            return;
        }
        self.used.store(true, Ordering::Relaxed);
        let mut lanes = self.lanes.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(entry) = lanes.get_mut(open.lane.0 as usize) {
            *entry = trace.map(|trace| (open.session, trace));
        }
    }

    fn of<'a>(&self, spans: impl Iterator<Item = &'a RowSpan>) -> Vec<TraceContext> {
        if !self.used.load(Ordering::Relaxed) {
            return Vec::new();
        }
        let lanes = self.lanes.lock().unwrap_or_else(PoisonError::into_inner);
        let trace = |lane: LaneId, session| match lanes.get(lane.0 as usize) {
            Some(Some((held, trace))) if *held == session => Some(*trace),
            _ => None,
        };
        spans.filter_map(|span| trace(span.lane, span.session)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn open(session: u64, trace: Option<&str>) -> LaneOpen {
        LaneOpen {
            lane: LaneId(1),
            session: SessionId(session),
            sampling: Box::default(),
            trace: trace.map(|text| text.parse().unwrap()),
        }
    }

    fn traced(traces: &LaneTraces, session: u64) -> usize {
        let span = RowSpan {
            lane: LaneId(1),
            session: SessionId(session),
            pos_start: 0,
            tokens: vec![1],
            sampled_rows: 1,
        };
        traces.of(std::iter::once(&span)).len()
    }

    #[test]
    fn a_trace_is_its_sessions_alone() {
        let traces = LaneTraces::new(2);
        assert_eq!(traced(&traces, 1), 0);
        traces.open(&open(
            1,
            Some("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"),
        ));
        assert_eq!((traced(&traces, 1), traced(&traces, 2)), (1, 0));
        traces.open(&open(
            2,
            Some("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-00"),
        ));
        assert_eq!((traced(&traces, 1), traced(&traces, 2)), (0, 0));
    }

    #[test]
    fn a_lane_that_does_not_exist_is_never_traced() {
        let traces = LaneTraces::new(1);
        traces.open(&open(
            1,
            Some("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"),
        ));
        assert_eq!(traced(&traces, 1), 0);
    }
}
