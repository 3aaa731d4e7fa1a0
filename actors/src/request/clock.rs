//! Where the time of a request goes.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use mesh_proto::v1::RequestTimings;

/// Marks of one request, all of the monotonic clock.
#[derive(Debug)]
pub struct RequestClock {
    arrived: Instant,
    started: Option<Instant>,
    prefilled: Option<Instant>,
    /// Engine time of each stage after the first token, nanoseconds.
    engine_ns: Vec<u64>,
    engine_steps: u32,
    /// Of the newest step.
    step_ns: Arc<[u64]>,
}

impl RequestClock {
    /// It arrived.
    pub fn new(arrived: Instant) -> Self {
        Self {
            arrived,
            started: None,
            prefilled: None,
            engine_ns: Vec::new(),
            engine_steps: 0,
            step_ns: Arc::default(),
        }
    }

    /// It holds a lane; how long it waited, microseconds.
    pub fn started(&mut self) -> u64 {
        let now = Instant::now();
        self.started = Some(now);
        us(now - self.arrived)
    }

    /// The first token is drawn; how long after the lane, microseconds.
    pub fn prefilled(&mut self) -> u64 {
        let now = Instant::now();
        self.prefilled = Some(now);
        us(now.saturating_duration_since(self.started.unwrap_or(now)))
    }

    /// A step came back. Engine time counts after the first token: it is what decoding is compared with.
    pub fn step(&mut self, stages_ns: Arc<[u64]>) {
        if self.prefilled.is_some() {
            self.engine_ns.resize(self.engine_ns.len().max(stages_ns.len()), 0);
            for (sum, ns) in self.engine_ns.iter_mut().zip(stages_ns.iter()) {
                *sum = sum.saturating_add(*ns);
            }
            self.engine_steps += 1;
        }
        self.step_ns = stages_ns;
    }

    /// What each stage computed for the newest step, microseconds.
    pub fn last_step_us(&self) -> Vec<u64> {
        self.step_ns.iter().map(|ns| ns / 1_000).collect()
    }

    /// Microseconds since it arrived.
    pub fn since_arrival_us(&self) -> u64 {
        us(self.arrived.elapsed())
    }

    /// All of it, now.
    pub fn timings(&self) -> RequestTimings {
        let now = Instant::now();
        let started = self.started.unwrap_or(now);
        let prefilled = self.prefilled.unwrap_or(now);
        let stage_us: Vec<u64> = self.engine_ns.iter().map(|ns| ns / 1_000).collect();
        RequestTimings {
            queued_us: us(started - self.arrived),
            prefill_us: us(prefilled.saturating_duration_since(started)),
            decode_us: us(now - prefilled),
            engine_us: stage_us.iter().fold(0, |sum: u64, us| sum.saturating_add(*us)),
            engine_steps: self.engine_steps,
            stage_us,
        }
    }
}

fn us(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}
