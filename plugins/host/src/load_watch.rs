//! How far loading is, for a caller who has another thread wait for it.

use std::sync::atomic::{AtomicU8, Ordering};

/// Shared with the thread that loads.
#[derive(Debug, Default)]
pub struct LoadWatch(AtomicU8);

/// How far it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LoadPhase {
    /// The file is read; nothing of it has run.
    Reading,
    /// The system's loader has it, and may be in an initialiser of the library. It holds the lock that all loading in this
    /// process needs: if it stays there, nothing else can be loaded, and the process may not be able to end but by a
    /// signal.
    Opening,
    /// The system's loader has returned, also if it failed. What does not return now is the library's entry, which hurts
    /// nobody else.
    Opened,
}

impl LoadWatch {
    /// How far it is now.
    pub fn phase(&self) -> LoadPhase {
        match self.0.load(Ordering::Acquire) {
            0 => LoadPhase::Reading,
            1 => LoadPhase::Opening,
            _ => LoadPhase::Opened,
        }
    }

    pub(crate) fn opening(&self) {
        self.0.store(1, Ordering::Release);
    }

    pub(crate) fn opened(&self) {
        self.0.store(2, Ordering::Release);
    }
}
