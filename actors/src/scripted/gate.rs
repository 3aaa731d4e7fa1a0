//! Holding threads, and waiting for what must become true.

use std::{
    sync::{Condvar, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

/// How long a test waits for what must become true, and a thread at a gate that nobody opens.
const DEADLINE: Duration = Duration::from_secs(20);

/// A gate that threads pass one by one; starts open.
#[derive(Debug, Default)]
pub struct Gate {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    closed: bool,
    /// How many may pass although it is closed.
    passes: usize,
    waiting: usize,
}

impl Gate {
    /// A closed gate.
    pub fn closed() -> Self {
        let gate = Self::default();
        gate.close();
        gate
    }

    /// From now on, threads wait.
    pub fn close(&self) {
        self.change(|state| state.closed = true);
    }

    /// Everybody passes.
    pub fn open(&self) {
        self.change(|state| (state.closed, state.passes) = (false, 0));
    }

    /// Lets so many pass through the closed gate.
    pub fn let_pass(&self, threads: usize) {
        self.change(|state| state.passes += threads);
    }

    /// Threads that wait now.
    pub fn waiting(&self) -> usize {
        self.state().waiting
    }

    /// Waits until so many threads wait.
    pub async fn reached(&self, threads: usize) {
        eventually("threads at the gate", || self.waiting() >= threads).await;
    }

    /// Blocks the calling thread while the gate is closed. Gives up after a deadline, so that a failed test ends.
    pub fn pass(&self) {
        self.pass_or(|| false);
    }

    /// The same, but gives up when `give_up` says so; true if the gate was passed.
    pub fn pass_or(&self, mut give_up: impl FnMut() -> bool) -> bool {
        let start = std::time::Instant::now();
        let mut state = self.state();
        state.waiting += 1;
        let passed = loop {
            if !state.closed {
                break true;
            }
            if state.passes > 0 {
                state.passes -= 1;
                break true;
            }
            if give_up() || start.elapsed() > DEADLINE {
                break false;
            }
            let step = Duration::from_millis(2);
            (state, _) = self
                .changed
                .wait_timeout(state, step)
                .unwrap_or_else(PoisonError::into_inner);
        };
        state.waiting -= 1;
        passed
    }

    fn change(&self, change: impl FnOnce(&mut State)) {
        change(&mut self.state());
        self.changed.notify_all();
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Waits until something is true.
///
/// # Panics
///
/// It does not become true within the deadline.
pub async fn eventually(what: &str, mut is_true: impl FnMut() -> bool) {
    let start = std::time::Instant::now();
    while !is_true() {
        assert!(start.elapsed() < DEADLINE, "never became true: {what}");
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}
