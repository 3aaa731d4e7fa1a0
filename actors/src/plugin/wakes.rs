//! Wakes of a plugin: from any of its threads to its actor, at most one message for each poll.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use super::{call::GenerationKey, ledger::PluginLedger};

/// Tells the actor that an operation changed state. It may be told late, or of an operation that is over.
pub type Woken = Box<dyn Fn(GenerationKey, u64) + Send + Sync>;

/// Operations of one instance that are open. A wake for anything else is counted and ignored, so that neither garbage
/// nor a storm of wakes fills the actor's mailbox.
pub struct WakeBoard {
    open: Mutex<HashMap<u64, Open>>,
    woken: Woken,
    ledger: Arc<PluginLedger>,
}

struct Open {
    key: GenerationKey,
    /// The actor was told and has not polled since.
    told: bool,
}

impl WakeBoard {
    /// No operation is open.
    pub fn new(woken: Woken, ledger: Arc<PluginLedger>) -> Self {
        Self {
            open: Mutex::default(),
            woken,
            ledger,
        }
    }

    /// An operation was started.
    pub fn opened(&self, operation: u64, key: GenerationKey) {
        self.lock().insert(operation, Open { key, told: false });
    }

    /// An operation is about to be polled: wakes from now on count.
    pub fn polling(&self, operation: u64) {
        if let Some(open) = self.lock().get_mut(&operation) {
            open.told = false;
        }
    }

    /// An operation of this generation is over.
    pub fn over(&self, operation: u64, key: GenerationKey) {
        let mut open = self.lock();
        // A plugin may have given the same number to another generation meanwhile.
        if open.get(&operation).is_some_and(|open| open.key == key) {
            open.remove(&operation);
        }
    }

    /// The plugin says that an operation changed state.
    pub fn wake(&self, operation: u64) {
        let key = match self.lock().get_mut(&operation) {
            Some(open) if !open.told => {
                open.told = true;
                open.key
            }
            Some(_) => return,
            None => return self.ledger.spurious_wake(),
        };
        // Not under the lock: a wake may come from within a call that the board is asked about.
        (self.woken)(key, operation);
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<u64, Open>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_storm_of_wakes_is_one_message_a_poll() {
        let told = Arc::new(Mutex::new(Vec::new()));
        let ledger = Arc::new(PluginLedger::default());
        let log = told.clone();
        let board = WakeBoard::new(
            Box::new(move |key, operation| log.lock().unwrap().push((key.0, operation))),
            ledger.clone(),
        );
        board.wake(7);
        board.opened(7, GenerationKey(1));
        for _ in 0..1000 {
            board.wake(7);
            board.wake(8);
        }
        assert_eq!(*told.lock().unwrap(), [(1, 7)]);
        board.polling(7);
        board.wake(7);
        assert_eq!(*told.lock().unwrap(), [(1, 7), (1, 7)]);
        board.opened(7, GenerationKey(2));
        board.over(7, GenerationKey(1));
        board.wake(7);
        assert_eq!(told.lock().unwrap().last(), Some(&(2, 7)));
        board.over(7, GenerationKey(2));
        board.wake(7);
        assert_eq!((told.lock().unwrap().len(), ledger.figures().spurious_wakes), (3, 1002));
    }
}
