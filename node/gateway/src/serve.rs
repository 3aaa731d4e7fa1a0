//! The accept loop of both servers: bounded, owning its connections, ending in a written order.
//!
//! 1. `ended` runs meanwhile: it waits for shutdown and for the work to drain. Connections are still accepted, since
//!    a refusal that says "draining" is worth more than a closed port.
//! 2. The listener closes; connections finish the response they are writing, within [`FLUSH_GRACE`].
//! 3. What is left is aborted. Dropping the future goes here at once.

use std::{future::Future, io, sync::Arc, time::Duration};

use axum::Router;
use tokio::{
    net::{TcpListener, TcpStream},
    sync::{OwnedSemaphorePermit, Semaphore},
    task::JoinSet,
    time::{sleep, timeout},
};
use tokio_util::sync::CancellationToken;

use crate::admission::FLUSH_GRACE;

mod connection;
mod patience;

pub(crate) use connection::Wire;

/// Sockets of one listener: below the usual limit of 1024 open files with room for links and model files. More wait
/// in the kernel's queue.
const MAX_CONNECTIONS: usize = 768;

/// Accepting fails when files run out; trying again at once would only burn a core.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Serves until `ended` returns, then closes.
pub(crate) async fn serve(
    listener: TcpListener,
    routes: Router,
    wire: Wire,
    ended: impl Future<Output = ()>,
) -> io::Result<()> {
    let address = listener.local_addr()?;
    tracing::info!(%address, ?wire, "listening");
    let places = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    let closing = CancellationToken::new();
    let mut connections = JoinSet::new();
    tokio::pin!(ended);
    loop {
        tokio::select! {
            () = &mut ended => break,
            Some(_) = connections.join_next() => {}
            (stream, place) = accept(&listener, &places) => {
                let serving = connection::serve(stream, routes.clone(), wire, closing.clone());
                connections.spawn(async move {
                    serving.await;
                    drop(place);
                });
            }
        }
    }
    drop(listener);
    closing.cancel();
    let all_closed = async { while connections.join_next().await.is_some() {} };
    if timeout(FLUSH_GRACE, all_closed).await.is_err() {
        tracing::warn!(%address, connections = connections.len(), "aborting connections that do not close");
    }
    connections.shutdown().await;
    tracing::info!(%address, "closed");
    Ok(())
}

async fn accept(listener: &TcpListener, places: &Arc<Semaphore>) -> (TcpStream, Option<OwnedSemaphorePermit>) {
    // The semaphore is never closed.
    let place = places.clone().acquire_owned().await.ok();
    loop {
        match listener.accept().await {
            Ok((stream, _)) => return (stream, place),
            Err(error) => {
                tracing::warn!(%error, "accepting a connection failed");
                sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}
