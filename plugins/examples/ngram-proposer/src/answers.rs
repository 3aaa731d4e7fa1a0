//! Answers between `start_proposal` and `poll_proposal`.

use std::collections::HashMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use mesh_plugin_sdk::Operation;

use crate::generations::lock;

/// What an operation found.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Answer {
    /// Whose it is.
    pub request: String,
    /// Position that was asked about.
    pub position: u64,
    /// `None` if there is nothing to propose.
    pub candidates: Option<Vec<i32>>,
}

/// Answers that were not polled yet; at most one for each generation.
#[derive(Debug, Default)]
pub(crate) struct Answers {
    started: AtomicU64,
    waiting: Mutex<HashMap<Operation, Answer>>,
}

impl Answers {
    pub(crate) fn put(&self, answer: Answer) -> Operation {
        let operation = Operation(self.started.fetch_add(1, Ordering::Relaxed) + 1);
        lock(&self.waiting).insert(operation, answer);
        operation
    }

    pub(crate) fn take(&self, operation: Operation) -> Option<Answer> {
        lock(&self.waiting).remove(&operation)
    }

    /// A generation ended. Its operations are over by then; nothing stays behind even if one is not.
    pub(crate) fn end(&self, request: &str) {
        lock(&self.waiting).retain(|_, answer| answer.request != request);
    }
}
