//! The accept loop of both servers: bounded, owning its connections, ending in a written order.
//!
//! 1. `ended` runs meanwhile: it waits for shutdown and for the work to drain. Connections are still accepted, since
//!    a refusal that says "draining" is worth more than a closed port.
//! 2. The listener closes; connections finish the response they are writing, within [`FLUSH_GRACE`].
//! 3. What is left is aborted. Dropping the future goes here at once.
//!
//! A new connection always finds a place, unless all are at work: the one that was silent the longest gives way.

use std::{future::Future, io, net::IpAddr, sync::Arc, time::Duration};

use axum::Router;
use tokio::{
    net::{TcpListener, TcpStream},
    task::JoinSet,
    time::{sleep, timeout},
};
use tokio_util::sync::CancellationToken;

use crate::admission::FLUSH_GRACE;

mod connection;
mod paced;
mod patience;
mod places;
mod seldom;

pub(crate) use connection::Wire;
pub(crate) use paced::{BodyError, Pace};
pub(crate) use places::{AtWork, Bounds, Place, Places};

/// Accepting fails when files run out; trying again at once would only burn a core.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// What a listener's connections have in common.
#[derive(Clone)]
pub(crate) struct Serving {
    pub(crate) routes: Router,
    pub(crate) wire: Wire,
    pub(crate) connections: Places,
    pub(crate) pace: Pace,
}

/// Serves until `ended` returns, then closes.
pub(crate) async fn serve(listener: TcpListener, serving: Serving, ended: impl Future<Output = ()>) -> io::Result<()> {
    let address = listener.local_addr()?;
    let wire = serving.wire;
    tracing::info!(%address, ?wire, "listening");
    let closing = CancellationToken::new();
    let mut connections = JoinSet::new();
    tokio::pin!(ended);
    loop {
        tokio::select! {
            () = &mut ended => break,
            Some(_) = connections.join_next() => {}
            (stream, peer) = accept(&listener) => {
                // Without a place it is closed at once: everyone is at work.
                if let Some(place) = serving.connections.take(peer) {
                    connections.spawn(connection::serve(stream, peer, Arc::new(place), serving.clone(), closing.clone()));
                }
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

async fn accept(listener: &TcpListener) -> (TcpStream, IpAddr) {
    loop {
        match listener.accept().await {
            Ok((stream, peer)) => return (stream, peer.ip()),
            Err(error) => {
                tracing::warn!(%error, "accepting a connection failed");
                sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}
