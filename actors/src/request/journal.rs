//! The journal between a request and the one who reads its answer.
//!
//! The writer never waits: text that was not read yet grows in place (bounded by the context, since only committed
//! tokens arrive), so a slow reader cannot slow decoding and a terminal always fits. Dropping the reader cancels.
//!
//! ```text
//! RequestActor ── commit(text), finish | fail ──▶ journal ── next() ──▶ gateway or control stream
//!              ◀──────────── cancelled() ────────         ◀── drop ────
//! ```

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use mesh_proto::{MeshError, v1::GenerateFinished};
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

/// What a reader sees, in order: deltas, then one terminal.
#[derive(Debug, Clone, PartialEq)]
pub enum GenerateEvent {
    /// Text that was committed since the last event: whole characters.
    Delta {
        /// Never empty.
        text: String,
        /// Tokens generated so far.
        completion_tokens: u32,
    },
    /// The normal end.
    Finished(GenerateFinished),
    /// Any other end.
    Failed(MeshError),
}

#[derive(Debug, Default)]
struct Pages {
    unread: String,
    completion_tokens: u32,
    terminal: Option<GenerateEvent>,
    closed: bool,
}

#[derive(Debug, Default)]
struct Shared {
    pages: Mutex<Pages>,
    wake: Notify,
    cancelled: CancellationToken,
}

impl Shared {
    fn pages(&self) -> MutexGuard<'_, Pages> {
        // Nothing panics while the lock is held; if it did, the pages would still be whole.
        self.pages.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Opens a journal.
pub fn journal() -> (JournalWriter, JournalReader) {
    let shared = Arc::new(Shared::default());
    (
        JournalWriter { shared: shared.clone() },
        JournalReader { shared, done: false },
    )
}

/// The side of the request. Dropping it without a terminal ends the journal with an internal error.
#[derive(Debug)]
pub struct JournalWriter {
    shared: Arc<Shared>,
}

impl JournalWriter {
    /// Appends committed text.
    pub fn commit(&self, text: &str, completion_tokens: u32) {
        let mut pages = self.shared.pages();
        if pages.closed {
            return;
        }
        pages.completion_tokens = completion_tokens;
        if text.is_empty() {
            return;
        }
        pages.unread.push_str(text);
        drop(pages);
        self.shared.wake.notify_one();
    }

    /// Ends the journal normally. Whatever comes after the first terminal is ignored.
    pub fn finish(&self, finished: GenerateFinished) {
        self.end(GenerateEvent::Finished(finished));
    }

    /// Ends the journal with an error. Whatever comes after the first terminal is ignored.
    pub fn fail(&self, error: MeshError) {
        self.end(GenerateEvent::Failed(error));
    }

    fn end(&self, terminal: GenerateEvent) {
        let mut pages = self.shared.pages();
        if !pages.closed {
            pages.terminal = Some(terminal);
            pages.closed = true;
        }
        drop(pages);
        self.shared.wake.notify_one();
    }

    /// A token that is cancelled when the reader has gone.
    pub fn cancelled(&self) -> CancellationToken {
        self.shared.cancelled.clone()
    }
}

impl Drop for JournalWriter {
    fn drop(&mut self) {
        self.fail(MeshError::internal(
            "the request ended without a result; see the node's log",
        ));
    }
}

/// The side of the client. Dropping it cancels the request.
#[derive(Debug)]
pub struct JournalReader {
    shared: Arc<Shared>,
    done: bool,
}

impl JournalReader {
    /// The next event; `None` after the terminal. Cancel safe.
    pub async fn next(&mut self) -> Option<GenerateEvent> {
        loop {
            if self.done {
                return None;
            }
            if let Some(event) = self.take() {
                return Some(event);
            }
            self.shared.wake.notified().await;
        }
    }

    fn take(&mut self) -> Option<GenerateEvent> {
        let mut pages = self.shared.pages();
        if !pages.unread.is_empty() {
            let text = std::mem::take(&mut pages.unread);
            return Some(GenerateEvent::Delta {
                text,
                completion_tokens: pages.completion_tokens,
            });
        }
        let terminal = pages.terminal.take()?;
        self.done = true;
        Some(terminal)
    }
}

impl Drop for JournalReader {
    fn drop(&mut self) {
        self.shared.cancelled.cancel();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn unread_text_is_joined_and_the_terminal_comes_last_and_once() {
        let (writer, mut reader) = journal();
        writer.commit("In the ", 2);
        writer.commit("", 3);
        writer.commit("beginning", 4);
        writer.finish(GenerateFinished {
            completion_tokens: 4,
            ..Default::default()
        });
        writer.fail(MeshError::internal("too late"));
        writer.commit("too late", 5);
        let first = reader.next().await;
        assert_eq!(
            first,
            Some(GenerateEvent::Delta {
                text: "In the beginning".into(),
                completion_tokens: 4
            })
        );
        assert!(matches!(reader.next().await, Some(GenerateEvent::Finished(_))));
        assert_eq!(reader.next().await, None);
    }

    #[tokio::test]
    async fn a_writer_that_vanishes_ends_the_journal_with_an_error() {
        let (writer, mut reader) = journal();
        let waiting = tokio::spawn(async move { reader.next().await });
        drop(writer);
        assert!(matches!(waiting.await, Ok(Some(GenerateEvent::Failed(_)))));
    }

    #[tokio::test]
    async fn dropping_the_reader_cancels() {
        let (writer, reader) = journal();
        let cancelled = writer.cancelled();
        drop(reader);
        cancelled.cancelled().await;
    }
}
