//! One connection, on hyper.

use std::{convert::Infallible, future::Future, net::IpAddr, sync::Arc, time::Duration};

use axum::{extract::Request, response::Response};
use hyper::{
    body::Incoming,
    rt::Executor,
    server::conn::{http1, http2},
    service::service_fn,
};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::{net::TcpStream, time::timeout};
use tokio_util::sync::CancellationToken;
use tower::ServiceExt as _;

use super::{Serving, paced::Paced, patience::Patient, places::Place};

/// Which protocol a listener speaks.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Wire {
    /// HTTP/1.1, for the OpenAI API.
    Http1,
    /// HTTP/2 with prior knowledge, for gRPC.
    Http2,
}

/// Time for a request's head to arrive, and for an idle connection to be used again.
const HEAD_TIMEOUT: Duration = Duration::from_secs(30);

/// A client that takes not a byte for this long has stalled; buffers along the way hide shorter pauses.
const WRITE_PATIENCE: Duration = Duration::from_secs(60);

/// Longest request head, and what is buffered of a body or an answer at once.
const HTTP1_BUFFER: usize = 64 << 10;

/// A client that vanished without a word is found after this and [`PING_TIMEOUT`].
const PING_INTERVAL: Duration = Duration::from_secs(20);

/// Time for the answer to an HTTP/2 ping.
const PING_TIMEOUT: Duration = Duration::from_secs(20);

/// Calls at once on one connection; `admission` bounds generations over all of them.
const MAX_STREAMS: u32 = 256;

/// Metadata of one call; gRPC clients refuse more than 8 KiB themselves.
const MAX_HEADER_LIST: u32 = 16 << 10;

/// Answers waiting in one stream for a client that reads slowly. The journal keeps the rest, once.
const MAX_SEND_BUFFER: usize = 64 << 10;

/// Serves one connection to its end; from `closing` on it only finishes what it is at, and it ends at once when its
/// place goes to another.
pub(super) async fn serve(
    stream: TcpStream,
    peer: IpAddr,
    place: Arc<Place>,
    serving: Serving,
    closing: CancellationToken,
) {
    let gives_way = place.gives_way().clone();
    let served = run(stream, peer, place, serving, closing);
    if gives_way.run_until_cancelled(served).await.is_none() {
        tracing::debug!(%peer, "a connection gave its place to another");
    }
}

async fn run(stream: TcpStream, peer: IpAddr, place: Arc<Place>, serving: Serving, closing: CancellationToken) {
    // Tokens are small writes that must not wait for the next one.
    _ = stream.set_nodelay(true);
    // HTTP/2 has no limit of its own for a peer that connects and is silent.
    tokio::select! {
        Ok(Ok(())) = timeout(HEAD_TIMEOUT, stream.readable()) => {}
        () = closing.cancelled() => return,
        else => return,
    }
    let io = TokioIo::new(Patient::new(stream, WRITE_PATIENCE));
    let wire = serving.wire;
    let service = service_fn(move |request| answer(serving.clone(), peer, place.clone(), request));
    let result = match wire {
        Wire::Http1 => {
            let mut builder = http1::Builder::new();
            builder
                .timer(TokioTimer::new())
                .header_read_timeout(HEAD_TIMEOUT)
                .max_buf_size(HTTP1_BUFFER);
            let mut connection = std::pin::pin!(builder.serve_connection(io, service));
            tokio::select! {
                result = connection.as_mut() => result,
                () = closing.cancelled() => {
                    connection.as_mut().graceful_shutdown();
                    connection.await
                }
            }
        }
        Wire::Http2 => {
            let calls = Calls(CancellationToken::new());
            let _end_calls = calls.0.clone().drop_guard();
            let mut connection = std::pin::pin!(http2_builder(calls).serve_connection(io, service));
            tokio::select! {
                result = connection.as_mut() => result,
                () = closing.cancelled() => {
                    connection.as_mut().graceful_shutdown();
                    connection.await
                }
            }
        }
    };
    if let Err(error) = result {
        tracing::debug!(%error, "a connection ended early");
    }
}

/// One request. Handlers find the connection's place among its extensions, and say when they are at work.
async fn answer(
    serving: Serving,
    peer: IpAddr,
    place: Arc<Place>,
    mut request: Request<Incoming>,
) -> Result<Response, Infallible> {
    place.heard();
    request.extensions_mut().insert(place.clone());
    let request = request.map(|body| Paced::new(body, serving.pace, peer, place.clone()));
    let response = serving.routes.oneshot(request).await;
    place.heard();
    response
}

fn http2_builder(calls: Calls) -> http2::Builder<Calls> {
    let mut builder = http2::Builder::new(calls);
    builder
        .timer(TokioTimer::new())
        .keep_alive_interval(PING_INTERVAL)
        .keep_alive_timeout(PING_TIMEOUT)
        .max_concurrent_streams(MAX_STREAMS)
        .max_header_list_size(MAX_HEADER_LIST)
        .max_send_buf_size(MAX_SEND_BUFFER);
    builder
}

/// Runs the calls of one HTTP/2 connection, which end with it.
#[derive(Debug, Clone)]
struct Calls(CancellationToken);

impl<F> Executor<F> for Calls
where
    F: Future + Send + 'static,
    F::Output: Send + 'static,
{
    fn execute(&self, call: F) {
        let ended = self.0.clone();
        tokio::spawn(async move {
            _ = ended.run_until_cancelled(call).await;
        });
    }
}
