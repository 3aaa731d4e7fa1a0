//! Waiting for a condition, with a deadline and without sleeping blindly.

use std::{future::Future, time::Duration};

use tokio::time::{Instant, sleep};

/// Pause between two looks at something that sends no wake-up, such as another process.
const LOOK_AGAIN: Duration = Duration::from_millis(20);

/// Waits until `look` gives something.
///
/// # Panics
///
/// It does not within `limit`.
pub async fn until<T, F: Future<Output = Option<T>>>(what: &str, limit: Duration, mut look: impl FnMut() -> F) -> T {
    let deadline = Instant::now() + limit;
    loop {
        if let Some(found) = look().await {
            return found;
        }
        assert!(Instant::now() < deadline, "{what}: not within {limit:?}");
        sleep(LOOK_AGAIN).await;
    }
}
