//! Places in a plugin's mailbox: a bound that no sender waits for, with a reserve for messages that end something.
//!
//! ```text
//! 0 ──────── ordinary ────────▶ 1,024 ── endings ──▶ 1,087 ── a fence ──▶ 1,088
//! ```
//!
//! Begin, commits and queries fit while fewer than `ordinary` places are taken; reports, discards and aborts up to one
//! place short of all; a finish, which comes in as the fence before it, takes even the last. A place is given back when
//! the message has been dealt with, by dropping its [`Permit`].

use super::sync::{Arc, AtomicUsize, Ordering};

/// Who asks for a place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Class {
    /// Begin, commit, query.
    Ordinary,
    /// Report, discard, abort.
    Ending,
    /// The fence of a finish, which takes over its place.
    Fence,
}

/// The places of one mailbox. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Permits {
    taken: Arc<AtomicUsize>,
    ordinary: usize,
    reserve: usize,
}

impl Permits {
    /// `reserve` is at least 2: one for endings and one for a fence.
    pub fn new(ordinary: usize, reserve: usize) -> Self {
        Self {
            taken: Arc::new(AtomicUsize::new(0)),
            ordinary,
            reserve: reserve.max(2),
        }
    }

    /// Places that may be taken when one of this class is asked for.
    fn limit(&self, class: Class) -> usize {
        match class {
            Class::Ordinary => self.ordinary,
            Class::Ending => self.ordinary + self.reserve - 1,
            Class::Fence => self.ordinary + self.reserve,
        }
    }

    /// Takes a place, or says that there is none.
    pub fn try_acquire(&self, class: Class) -> Option<Permit> {
        let limit = self.limit(class);
        let mut taken = self.taken.load(Ordering::Relaxed);
        while taken < limit {
            match self
                .taken
                .compare_exchange_weak(taken, taken + 1, Ordering::AcqRel, Ordering::Relaxed)
            {
                Ok(_) => {
                    return Some(Permit {
                        taken: self.taken.clone(),
                    });
                }
                Err(now) => taken = now,
            }
        }
        None
    }

    /// Places taken.
    pub fn taken(&self) -> usize {
        self.taken.load(Ordering::Relaxed)
    }

    /// All places.
    pub fn capacity(&self) -> usize {
        self.limit(Class::Fence)
    }
}

/// A place; dropping it gives it back.
#[derive(Debug)]
pub struct Permit {
    taken: Arc<AtomicUsize>,
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.taken.fetch_sub(1, Ordering::AcqRel);
    }
}
