//! The one who called `serve`: progress for as long as that is welcome, and one answer in any case.

use mesh_proto::{
    ErrorCode, MeshError,
    v1::{Deployment, ServeProgress, ServeResponse, serve_response},
};
use tokio::{
    sync::mpsc::{OwnedPermit, Sender},
    task::AbortHandle,
};

type Item = Result<ServeResponse, MeshError>;

/// Sends progress. Cheap to clone.
#[derive(Debug, Clone)]
pub struct ProgressSender(Sender<Item>);

impl ProgressSender {
    /// Shows progress; what does not fit is dropped.
    pub fn show(&self, progress: ServeProgress) {
        let _ = self.0.try_send(Ok(ServeResponse {
            event: Some(serve_response::Event::Progress(progress)),
        }));
    }

    /// Resolves when the caller has gone.
    pub async fn closed(&self) {
        self.0.closed().await;
    }
}

/// The place of the answer is kept free from the start, so that an actor never waits for a caller that does not read.
#[derive(Debug)]
pub struct Caller {
    progress: ProgressSender,
    answer: Option<OwnedPermit<Item>>,
    watcher: Option<AbortHandle>,
}

impl Caller {
    /// `sender` belongs to a channel that is still empty.
    pub fn new(sender: Sender<Item>) -> Self {
        let answer = sender.clone().try_reserve_owned().ok();
        Self {
            progress: ProgressSender(sender),
            answer,
            watcher: None,
        }
    }

    /// For progress.
    pub fn progress(&self) -> &ProgressSender {
        &self.progress
    }

    /// A task that holds the sender and is of no use after the answer: the stream ends with the last sender.
    pub fn watched_by(&mut self, watcher: AbortHandle) {
        self.watcher = Some(watcher);
    }

    /// The answer; the stream ends with it.
    pub fn answer(mut self, answer: Result<Deployment, MeshError>) {
        self.send(answer);
    }

    fn send(&mut self, answer: Result<Deployment, MeshError>) {
        if let Some(place) = self.answer.take() {
            place.send(answer.map(|ready| ServeResponse {
                event: Some(serve_response::Event::Ready(ready)),
            }));
        }
    }
}

impl Drop for Caller {
    fn drop(&mut self) {
        let message = "the deployment ended before it was ready; see the node's log";
        self.send(Err(MeshError::new(ErrorCode::NotReady, message)));
        if let Some(watcher) = &self.watcher {
            watcher.abort();
        }
    }
}
