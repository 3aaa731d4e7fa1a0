//! Something that can happen thousands of times a second, told now and then.

use std::{
    sync::{Mutex, PoisonError},
    time::Duration,
};

use tokio::time::Instant;

/// Often enough to see it go on, seldom enough to read the rest of the log.
const PAUSE: Duration = Duration::from_secs(10);

/// Counts what is not told.
#[derive(Debug, Default)]
pub(super) struct Seldom(Mutex<(u64, Option<Instant>)>);

impl Seldom {
    /// It happened: how often since it was told last, if it is time to tell it again.
    pub(super) fn now(&self) -> Option<u64> {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (times, told) = &mut *state;
        *times += 1;
        if told.is_some_and(|told| told.elapsed() < PAUSE) {
            return None;
        }
        *told = Some(Instant::now());
        Some(std::mem::take(times))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn the_first_is_told_and_the_next_are_counted() {
        let seldom = Seldom::default();
        assert_eq!((seldom.now(), seldom.now(), seldom.now()), (Some(1), None, None));
        tokio::time::advance(PAUSE).await;
        assert_eq!((seldom.now(), seldom.now()), (Some(3), None));
    }
}
