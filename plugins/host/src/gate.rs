//! Keeps calls of an instance and its end apart.

use std::sync::atomic::{AtomicUsize, Ordering};

const CLOSED: usize = 1 << (usize::BITS - 1);

/// How many calls run, and whether it is closed. Never waits.
#[derive(Debug, Default)]
pub(crate) struct Gate {
    state: AtomicUsize,
}

/// A call that runs.
#[derive(Debug)]
pub(crate) struct Pass<'a> {
    gate: &'a Gate,
}

/// What an attempt to close came to.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Closing {
    /// It is closed now, and was not before.
    Done,
    /// It was closed before.
    Before,
    /// Calls run.
    Busy,
}

impl Gate {
    /// None once it is closed.
    pub(crate) fn enter(&self) -> Option<Pass<'_>> {
        let pass = Pass { gate: self };
        let before = self.state.fetch_add(1, Ordering::Acquire);
        (before & CLOSED == 0).then_some(pass)
    }

    /// Closes it for good, unless calls run.
    pub(crate) fn close(&self) -> Closing {
        let closing = self
            .state
            .compare_exchange(0, CLOSED, Ordering::AcqRel, Ordering::Acquire);
        match closing {
            Ok(_) => Closing::Done,
            Err(state) if state & CLOSED != 0 => Closing::Before,
            Err(_) => Closing::Busy,
        }
    }
}

impl Drop for Pass<'_> {
    fn drop(&mut self) {
        self.gate.state.fetch_sub(1, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_does_not_close_while_a_call_runs() {
        let gate = Gate::default();
        let pass = gate.enter();
        assert!(pass.is_some());
        assert_eq!(gate.close(), Closing::Busy);
        drop(pass);
        assert_eq!(gate.close(), Closing::Done);
    }

    #[test]
    fn nothing_enters_once_it_is_closed() {
        let gate = Gate::default();
        assert_eq!(gate.close(), Closing::Done);
        assert!(gate.enter().is_none());
        assert_eq!(gate.close(), Closing::Before);
    }
}
