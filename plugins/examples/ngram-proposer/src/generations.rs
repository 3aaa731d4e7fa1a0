//! The generations that run now.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use mesh_plugin_sdk::{Commit, Error, Query, Start};

use crate::config::Config;
use crate::history::History;

/// Most generations at once. The node ends each that it began, so that only a node with more lanes gets here.
const MAX_GENERATIONS: usize = 4096;

/// By request. Calls of one generation never overlap, but those of others run beside: each has a lock of its own, so
/// that a long prompt holds up nobody else.
#[derive(Debug, Default)]
pub(crate) struct Generations {
    running: Mutex<HashMap<String, Arc<Mutex<Generation>>>>,
}

/// What is known of a generation.
#[derive(Debug)]
struct Generation {
    prompt: u64,
    /// `None` when tokens are missing, or when there are too many.
    history: Option<History>,
}

impl Generations {
    /// A repeated begin, which is another attempt, replaces the one before.
    pub(crate) fn begin(&self, start: &Start<'_>, config: &Config) -> Result<(), Error> {
        let mut history = History::new(config.min_ngram, config.max_ngram);
        let complete = start.prompt.ids.len() as u64 == start.prompt.count && history.extend(start.prompt.ids);
        let generation = Generation {
            prompt: start.prompt.count,
            history: complete.then_some(history),
        };
        let mut running = lock(&self.running);
        if running.len() >= MAX_GENERATIONS {
            return Err(Error::new(format!("more than {MAX_GENERATIONS} generations at once")));
        }
        running.insert(start.ids.request.to_owned(), Arc::new(Mutex::new(generation)));
        Ok(())
    }

    /// Tokens that do not join what is there end the tracking of a generation.
    pub(crate) fn commit(&self, commit: &Commit<'_>) {
        let Some(generation) = self.of(commit.ids.request) else {
            return;
        };
        let mut generation = lock(&generation);
        let Some(mut history) = generation.history.take() else {
            return;
        };
        let added = history.extend(commit.tokens.ids);
        let complete = history.len() as u64 == generation.prompt + commit.total;
        generation.history = (added && complete).then_some(history);
    }

    pub(crate) fn end(&self, request: &str) {
        lock(&self.running).remove(request);
    }

    /// Candidates for the position that is asked about.
    pub(crate) fn candidates(&self, query: &Query<'_>, config: &Config) -> Option<Vec<i32>> {
        let generation = self.of(query.ids.request)?;
        let generation = lock(&generation);
        let history = generation.history.as_ref()?;
        if history.len() as u64 != query.position() {
            return None;
        }
        history.candidates(config.max_tokens.min(query.max_tokens as usize))
    }

    fn of(&self, request: &str) -> Option<Arc<Mutex<Generation>>> {
        lock(&self.running).get(request).cloned()
    }
}

/// A call that panicked leaves nothing half done here.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
