//! Counts what runs, bounds it, and ends it when the node stops.
//!
//! Every generation, from the last byte of its body to the last of its answer, holds one [`Work`]: a body that does not
//! come holds up no other request. Draining is two
//! steps: [`Admission::drain`] refuses new work, and what still runs at the deadline sees [`Work::expired`].

use std::{future::Future, sync::Arc, time::Duration};

use axum::http::Extensions;
use mesh_proto::{ErrorCode, MeshError};
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore},
    time::timeout,
};
use tokio_util::sync::CancellationToken;

use crate::serve::{AtWork, Place};

/// Time to write the last event of work that the deadline ended; a reader slower than this is cut off.
pub(crate) const FLUSH_GRACE: Duration = Duration::from_secs(1);

/// Shared by HTTP and gRPC.
#[derive(Debug)]
pub(crate) struct Admission {
    slots: Arc<Semaphore>,
    max_in_flight: u32,
    draining: CancellationToken,
    expired: CancellationToken,
}

impl Admission {
    pub(crate) fn new(max_in_flight: u32) -> Self {
        Self {
            slots: Arc::new(Semaphore::new(max_in_flight as usize)),
            max_in_flight,
            draining: CancellationToken::new(),
            expired: CancellationToken::new(),
        }
    }

    /// Lets a request in, or says why not: draining, or too many. Its connection, if the extensions name one, does not
    /// give way to others meanwhile.
    pub(crate) fn admit(&self, extensions: &Extensions) -> Result<Work, MeshError> {
        let slot = self.slots.clone().try_acquire_owned();
        if self.is_draining() {
            return Err(draining());
        }
        let slot = slot.map_err(|_| {
            let message = format!(
                "{} requests are in flight on this node; try again shortly",
                self.max_in_flight
            );
            MeshError::new(ErrorCode::QueueFull, message)
        })?;
        Ok(Work {
            _slot: slot,
            _connection: at_work(extensions),
            expired: self.expired.clone(),
        })
    }

    /// Refuses new work from now on.
    pub(crate) fn drain(&self) {
        self.draining.cancel();
    }

    /// Whether the node is stopping.
    pub(crate) fn is_draining(&self) -> bool {
        self.draining.is_cancelled()
    }

    /// Cancelled when the node begins to stop.
    pub(crate) fn draining(&self) -> CancellationToken {
        self.draining.clone()
    }

    /// Returns when no work is left; what is left at the deadline is told to end, and gets [`FLUSH_GRACE`] for it.
    pub(crate) async fn drained(&self, deadline: Duration) {
        if timeout(deadline, self.idle()).await.is_err() {
            self.expired.cancel();
            if timeout(FLUSH_GRACE, self.idle()).await.is_err() {
                tracing::warn!(
                    in_flight = self.max_in_flight as usize - self.slots.available_permits(),
                    "cutting off requests whose clients do not read"
                );
            }
        }
    }

    async fn idle(&self) {
        // The semaphore is never closed; all slots together are what no work holds.
        let _all = self.slots.acquire_many(self.max_in_flight).await;
    }
}

/// One request in flight. Dropping it gives its slot back.
#[derive(Debug)]
pub(crate) struct Work {
    _slot: OwnedSemaphorePermit,
    _connection: Option<AtWork>,
    expired: CancellationToken,
}

impl Work {
    /// Returns at the drain deadline.
    pub(crate) async fn expired(&self) {
        self.expired.cancelled().await;
    }

    /// Runs a step of the request, ended by the drain deadline.
    pub(crate) async fn run<T, E: From<MeshError>>(&self, step: impl Future<Output = Result<T, E>>) -> Result<T, E> {
        tokio::select! {
            biased;
            () = self.expired() => Err(draining().into()),
            result = step => result,
        }
    }
}

/// Keeps the connection of a request from giving way.
pub(crate) fn at_work(extensions: &Extensions) -> Option<AtWork> {
    extensions.get::<Arc<Place>>().map(Place::work)
}

/// The node is stopping.
pub(crate) fn draining() -> MeshError {
    MeshError::new(
        ErrorCode::Draining,
        "this node is stopping; send the request to another node, or try again later",
    )
}
