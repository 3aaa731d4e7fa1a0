//! Times of events: the machine's clock at start, carried on by the monotonic one.

use std::time::{Instant, SystemTime};

/// Gives wall-clock times that never go back and never jump, whatever is done to the machine's clock; they drift from
/// a clock that is set while the node runs.
#[derive(Debug, Clone, Copy)]
pub struct EventClock {
    wall: SystemTime,
    start: Instant,
}

impl EventClock {
    /// Starts now.
    pub fn start() -> Self {
        Self {
            wall: SystemTime::now(),
            start: Instant::now(),
        }
    }

    /// The time now.
    pub fn now(&self) -> SystemTime {
        self.at(Instant::now())
    }

    /// The time of an instant after the start.
    pub fn at(&self, instant: Instant) -> SystemTime {
        let since = instant.saturating_duration_since(self.start);
        self.wall.checked_add(since).unwrap_or(self.wall)
    }
}
