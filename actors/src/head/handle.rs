//! The handle to a head.

use std::{
    sync::{Arc, OnceLock},
    time::Duration,
};

use mesh_proto::{
    ErrorCode, MeshError, RequestId,
    v1::{GenerateRequest, Lanes},
};
use ractor::ActorRef;
use tokio::sync::{Semaphore, oneshot, watch};

use super::{WAITING_LIMIT, actor::HeadMessage};
use crate::{
    events::Operation,
    ports::{
        inference::{Caller, Generation},
        link::{CreditGrant, FrameSink, LinkFrame},
    },
    request::{Arrival, RequestEvents, RequestOptions},
};

/// Requests end as soon as their actors are scheduled, preparing ones when the tokenizer returns.
const ENDING_LIMIT: Duration = Duration::from_secs(5);

/// Cheap to clone.
#[derive(Clone)]
pub struct HeadHandle {
    pub(super) actor: ActorRef<HeadMessage>,
    pub(super) shared: Arc<HeadShared>,
}

/// What needs no trip to the actor.
pub(super) struct HeadShared {
    pub(super) options: RequestOptions,
    /// One permit for each request that runs or waits.
    pub(super) places: Arc<Semaphore>,
    pub(super) lanes: watch::Receiver<Lanes>,
    /// Why no more requests are taken.
    pub(super) ended: OnceLock<MeshError>,
}

impl HeadShared {
    fn refuse(&self, arrival: &Arrival, error: MeshError) -> MeshError {
        RequestEvents::refused(&self.options, arrival, &error);
        error
    }

    fn gone(&self) -> MeshError {
        let unknown = || {
            MeshError::new(
                ErrorCode::NotReady,
                "the deployment has ended; try again when it is ready",
            )
        };
        self.ended.get().cloned().unwrap_or_else(unknown)
    }
}

impl HeadHandle {
    /// Prepares, admits and starts a request; resolves when it is admitted. Dropping the future cancels it.
    ///
    /// # Errors
    ///
    /// Whatever refuses a request before its first token: queue full, too long, template, not ready.
    pub async fn generate(&self, request: GenerateRequest, caller: Caller) -> Result<Generation, MeshError> {
        let arrival = Arrival {
            id: request.request_id.parse().unwrap_or_else(|_| RequestId::random()),
            operation: Operation::of(&request),
            caller,
        };
        if let Some(error) = self.shared.ended.get() {
            return Err(self.shared.refuse(&arrival, error.clone()));
        }
        let Ok(place) = self.shared.places.clone().try_acquire_owned() else {
            let message = format!("all lanes are taken and {WAITING_LIMIT} requests wait; try again later");
            return Err(self
                .shared
                .refuse(&arrival, MeshError::new(ErrorCode::QueueFull, message)));
        };
        let (reply, admitted) = oneshot::channel();
        let message = HeadMessage::Generate {
            arrival: arrival.clone(),
            request: Box::new(request),
            place,
            reply,
        };
        if self.actor.cast(message).is_err() {
            return Err(self.shared.refuse(&arrival, self.shared.gone()));
        }
        admitted.await.unwrap_or_else(|_| Err(self.shared.gone()))
    }

    /// Lanes in use now.
    pub fn lanes(&self) -> Lanes {
        *self.shared.lanes.borrow()
    }

    /// Cancels a request; nothing happens when it has ended.
    pub fn cancel(&self, request: RequestId) {
        let _ = self.actor.cast(HeadMessage::Cancel(request));
    }

    /// The epoch is over: every request ends with this error, and new ones are refused with it.
    pub fn end(&self, error: MeshError) {
        let _ = self.shared.ended.set(error.clone());
        let _ = self.actor.cast(HeadMessage::End(error));
    }

    /// The return link's way of giving credits back.
    pub fn accept(&self, grant: Arc<dyn CreditGrant>) {
        let _ = self.actor.cast(HeadMessage::Accept(grant));
    }

    /// Ends every request with this error, then the head's actor.
    pub async fn finish(&self, error: MeshError) {
        self.drain(error).await;
        self.actor.stop(None);
    }

    /// Ends every request with this error and waits until all have; new ones are refused with it.
    pub async fn drain(&self, error: MeshError) {
        self.end(error);
        // A request gives its place back when its actor has ended.
        let all = (self.lanes().total as usize + WAITING_LIMIT) as u32;
        let idle = tokio::time::timeout(ENDING_LIMIT, self.shared.places.acquire_many(all)).await;
        if idle.is_err() {
            tracing::error!(deployment = %self.shared.options.deployment, "requests did not end in time");
        }
    }
}

impl FrameSink for HeadHandle {
    fn frame(&self, frame: LinkFrame) {
        let _ = self.actor.cast(HeadMessage::Frame(frame));
    }

    fn lost(&self, error: MeshError) {
        let _ = self.actor.cast(HeadMessage::Lost(error));
    }
}
