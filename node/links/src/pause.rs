//! The pause before something is tried again.

use std::time::Duration;

/// First and longest pause before a stream is opened again.
const FIRST: Duration = Duration::from_millis(200);
const LONGEST: Duration = Duration::from_secs(10);

/// A pause that doubles up to a limit. The jitter keeps nodes that lost the same peer apart.
#[derive(Debug)]
pub struct Pause(Duration);

impl Pause {
    pub fn new() -> Self {
        Self(FIRST)
    }

    /// Waits, and makes the next pause longer.
    pub async fn wait(&mut self) {
        let mut byte = [0];
        let _ = getrandom::fill(&mut byte);
        tokio::time::sleep(self.0.mul_f64(0.75 + f64::from(byte[0]) / 512.0)).await;
        self.0 = (self.0 * 2).min(LONGEST);
    }

    /// It worked: the next pause is short again.
    pub fn reset(&mut self) {
        self.0 = FIRST;
    }
}
