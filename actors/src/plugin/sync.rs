//! Atomics of the permits: the model checker puts its own in their place (`tests/permits.rs`).

pub use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};
