//! The clock that plugins see: nanoseconds since its first use in this process.

use std::sync::OnceLock;
use std::time::{Duration, Instant};

static ORIGIN: OnceLock<Instant> = OnceLock::new();

fn origin() -> Instant {
    *ORIGIN.get_or_init(Instant::now)
}

/// Now.
pub fn now_ns() -> u64 {
    let origin = origin();
    nanoseconds(origin.elapsed())
}

/// An instant on this clock. One before the clock's first use is 0; [`crate::Library::load`] is such a use.
pub fn ns_of(instant: Instant) -> u64 {
    nanoseconds(instant.saturating_duration_since(origin()))
}

/// A duration as the plugin gets it. 584 years is the most.
pub(crate) fn nanoseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn instants_and_now_are_on_one_clock() {
        let before = now_ns();
        let instant = ns_of(Instant::now());
        let after = now_ns();
        assert!(before <= instant && instant <= after);
    }

    #[test]
    fn a_deadline_is_as_far_away_as_it_was_set() {
        let start = Instant::now();
        let first = ns_of(start + Duration::from_secs(1));
        let second = ns_of(start + Duration::from_secs(3));
        assert_eq!(second - first, 2_000_000_000);
    }

    #[test]
    fn what_does_not_fit_is_the_most_there_is() {
        assert_eq!(nanoseconds(Duration::MAX), u64::MAX);
    }
}
