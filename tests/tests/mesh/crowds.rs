//! Clients that connect and do nothing, or begin a body and do not go on: nobody else waits for them.

use std::{
    net::SocketAddr,
    time::{Duration, Instant},
};

use anyhow::{Context, Result};
use mesh_proto::v1::ServeRequest;
use mesh_tests::{ChatCall, Processes};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

/// What a probe or a short answer takes that nothing holds up, on a busy machine.
const NORMAL: Duration = Duration::from_secs(3);

/// A trickle is given up within this.
const TRICKLE_LIMIT: Duration = Duration::from_secs(20);

/// Sockets of this test.
const FILES: u64 = 8192;

fn raise_file_limit() {
    let limit = getrlimit(Resource::Nofile);
    let current = limit.maximum.map_or(FILES, |most| most.min(FILES));
    let raised = Rlimit {
        current: Some(current),
        maximum: limit.maximum,
    };
    // If it stays too low, connecting says so.
    let _ = setrlimit(Resource::Nofile, raised);
}

async fn connected(address: SocketAddr, count: usize, said: &str) -> Result<Vec<TcpStream>> {
    let mut streams = Vec::new();
    for _ in 0..count {
        let mut stream = TcpStream::connect(address).await?;
        stream.write_all(said.as_bytes()).await?;
        streams.push(stream);
    }
    Ok(streams)
}

async fn all_is_normal(mesh: &Processes, what: &str) -> Result<()> {
    for path in ["/healthz", "/readyz", "/metrics"] {
        let begun = Instant::now();
        let (status, _) = mesh.api(0).get(path).await?;
        assert_eq!(status, 200, "{what}: {path}");
        assert!(begun.elapsed() < NORMAL, "{what}: {path} took {:?}", begun.elapsed());
    }
    let begun = Instant::now();
    let answer = mesh
        .api(0)
        .chat(&ChatCall::greedy("psalm", "Recite John 11:35."))
        .await?;
    assert_eq!(answer.text, "Jesus wept.", "{what}");
    assert!(begun.elapsed() < NORMAL, "{what}: the chat took {:?}", begun.elapsed());
    let begun = Instant::now();
    let (code, _, err) = mesh.command(0, &["status"]).await?;
    assert_eq!(code, 0, "{what}: {err}");
    assert!(
        begun.elapsed() < NORMAL,
        "{what}: mesh status took {:?}",
        begun.elapsed()
    );
    Ok(())
}

const UNFINISHED: &str = "POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n\
                          content-length: 100\r\n\r\n{";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_thousand_idle_clients_and_three_hundred_unfinished_bodies_hold_up_nobody() -> Result<()> {
    raise_file_limit();
    // As many files as most systems allow.
    let mut mesh = Processes::with_file_limit(1024);
    mesh.add("a", &[]).await?;
    let request = ServeRequest {
        model: "built-in".to_owned(),
        name: "psalm".to_owned(),
        ..ServeRequest::default()
    };
    mesh.api(0).serve(request).await?;
    let http: SocketAddr = mesh.api(0).http().trim_start_matches("http://").parse()?;
    let grpc: SocketAddr = mesh.api(0).grpc().parse()?;

    let begun = Instant::now();
    let _idle = (connected(http, 1000, "").await?, connected(grpc, 1000, "").await?);
    assert!(begun.elapsed() < 2 * NORMAL, "connecting took {:?}", begun.elapsed());
    all_is_normal(&mesh, "idle").await?;
    let _half = connected(http, 1000, "GET /healthz HTTP/1.1\r\nhost:").await?;
    let _preface = connected(grpc, 1000, "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").await?;
    all_is_normal(&mesh, "half a head").await?;
    let _bodies = connected(http, 300, UNFINISHED).await?;
    all_is_normal(&mesh, "unfinished bodies").await?;

    // A byte a time, for as long as it is let.
    let mut trickle = connected(http, 1, UNFINISHED).await?.pop().context("a stream")?;
    let (mut reading, mut writing) = trickle.split();
    let begun = Instant::now();
    let mut answer = String::new();
    let drip = async {
        let mut ticks = tokio::time::interval(Duration::from_millis(500));
        loop {
            ticks.tick().await;
            if writing.write_all(b" ").await.is_err() {
                std::future::pending::<()>().await;
            }
        }
    };
    tokio::select! {
        read = tokio::time::timeout(TRICKLE_LIMIT, reading.read_to_string(&mut answer)) => drop(read?),
        () = drip => {}
    }
    assert!(
        answer.starts_with("HTTP/1.1 408"),
        "{answer} after {:?}",
        begun.elapsed()
    );
    mesh.finish().await.map(drop)
}
