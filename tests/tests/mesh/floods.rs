//! Floods of connections that come to nothing, at the node that admits others: members come back and others join all
//! the same.

use std::{
    collections::HashSet,
    net::{Ipv4Addr, SocketAddr},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use anyhow::{Context, Result};
use futures::{StreamExt as _, stream::FuturesUnordered};
use iroh::{
    Endpoint, EndpointAddr, EndpointId, RelayMode, TransportAddr,
    endpoint::{Connection, presets},
};
use mesh_links::protocol::{CONTROL_ALPN, MAX_UNPROVEN};
use mesh_proto::{NodeId, v1::NodeState};
use mesh_tests::{Processes, until};
use tokio::{
    net::UdpSocket,
    task::JoinSet,
    time::{MissedTickBehavior, interval, timeout},
};

/// A join and a return, each with a process that starts, on a busy machine. Without the flood they take under two
/// seconds.
const NORMAL: Duration = Duration::from_secs(8);

/// Between two half-open connections: 400 a second.
const PACE: Duration = Duration::from_micros(2500);

/// Different first packets: each is used again after more than three seconds, when the node has long forgotten it.
const INITIALS: usize = 1500;

/// Longest first packet of a connection.
const DATAGRAM: usize = 2048;

struct Target {
    id: EndpointId,
    address: SocketAddr,
}

impl Target {
    async fn of(mesh: &Processes) -> Result<Self> {
        let nodes = mesh.api(0).status().await?.nodes;
        let node = nodes.into_iter().find(|node| node.self_).context("no such node")?;
        Ok(Self {
            id: EndpointId::from_bytes(&node.id.parse::<NodeId>()?.0)?,
            address: node.addresses.first().context("no address")?.parse()?,
        })
    }

    fn at(&self, address: SocketAddr) -> EndpointAddr {
        EndpointAddr::from_parts(self.id, [TransportAddr::Ip(address)])
    }
}

async fn client(host: u8) -> Result<Endpoint> {
    let builder = Endpoint::builder(presets::Minimal).relay_mode(RelayMode::Disabled);
    let address = SocketAddr::from((loopback(host), 0));
    Ok(builder.clear_ip_transports().bind_addr(address)?.bind().await?)
}

fn loopback(host: u8) -> Ipv4Addr {
    Ipv4Addr::new(127, 0, 0, host)
}

/// First packets of real connections to the node, caught before they got there.
async fn initials(target: &Target) -> Result<Vec<Vec<u8>>> {
    let trap = UdpSocket::bind((loopback(1), 0)).await?;
    let client = client(1).await?;
    let (mut seen, mut caught) = (HashSet::new(), Vec::new());
    while caught.len() < INITIALS {
        let mut connecting: FuturesUnordered<_> = (0..50)
            .map(|_| client.connect(target.at(trap.local_addr().expect("bound")), CONTROL_ALPN))
            .collect();
        let (mut datagram, mut fresh) = ([0; DATAGRAM], 0);
        while fresh < 50 {
            let length = tokio::select! {
                received = trap.recv(&mut datagram) => received?,
                Some(_) = connecting.next() => anyhow::bail!("nobody answers there"),
            };
            // A long header of type Initial: flags, version, length of the connection id, connection id.
            let id = datagram[6..6 + usize::from(datagram[5])].to_vec();
            if datagram[0] & 0xf0 == 0xc0 && seen.insert(id) {
                caught.push(datagram[..length].to_vec());
                fresh += 1;
            }
        }
    }
    Ok(caught)
}

/// Sends them from several addresses in turn, one of them that of the members.
async fn half_open(target: SocketAddr, initials: Vec<Vec<u8>>, sent: Arc<AtomicU64>) -> Result<()> {
    let mut sockets = Vec::new();
    for host in 1..=4 {
        sockets.push(UdpSocket::bind((loopback(host), 0)).await?);
    }
    let mut pace = interval(PACE);
    pace.set_missed_tick_behavior(MissedTickBehavior::Delay);
    for (initial, socket) in initials.iter().cycle().zip(sockets.iter().cycle()) {
        pace.tick().await;
        socket.send_to(initial, target).await?;
        sent.fetch_add(1, Ordering::Relaxed);
    }
    Ok(())
}

/// Opens connections from one other address, and again when they end, without a word on any.
async fn silent(target: EndpointAddr, held: Arc<AtomicU64>) -> Result<()> {
    let client = client(9).await?;
    let mut connections = JoinSet::new();
    for _ in 0..2 * MAX_UNPROVEN {
        let (client, target, held) = (client.clone(), target.clone(), held.clone());
        connections.spawn(async move {
            loop {
                if let Ok(connection) = client.connect(target.clone(), CONTROL_ALPN).await {
                    held.fetch_add(1, Ordering::Relaxed);
                    let _: iroh::endpoint::ConnectionError = Connection::closed(&connection).await;
                }
            }
        });
    }
    connections.join_next().await.context("never")??
}

/// Another node joins, and a member that was killed comes back.
async fn nodes_come_as_usual(mesh: &mut Processes) -> Result<()> {
    let start = Instant::now();
    timeout(NORMAL, mesh.add("c", &[]))
        .await
        .context("the join took too long")??;
    eprintln!("joined within {:?}", start.elapsed());
    mesh.kill(1).await?;
    let start = Instant::now();
    timeout(NORMAL, mesh.restart(1))
        .await
        .context("the start took too long")??;
    let api = mesh.api(0);
    until("the member is back", NORMAL, || async {
        let nodes = api.status().await.ok()?.nodes;
        let back = nodes.iter().filter(|node| node.state == NodeState::Up as i32);
        (back.count() == 3).then_some(())
    })
    .await;
    eprintln!("back within {:?}", start.elapsed());
    Ok(())
}

async fn turned_away(mesh: &Processes, cause: &str) -> Result<bool> {
    let metrics = mesh.api(0).text("/metrics").await?;
    let line = metrics
        .lines()
        .find(|line| line.starts_with("mesh_connections_turned_away_total") && line.contains(cause));
    Ok(line.is_some())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hundreds_of_half_open_connections_a_second_keep_nobody_out() -> Result<()> {
    let mut mesh = Processes::start(2).await?;
    let target = Target::of(&mesh).await?;
    let (initials, sent) = (initials(&target).await?, Arc::new(AtomicU64::new(0)));
    let flood = tokio::spawn(half_open(target.address, initials, sent.clone()));
    until("the flood is there", NORMAL, || async {
        (sent.load(Ordering::Relaxed) > 400).then_some(())
    })
    .await;
    nodes_come_as_usual(&mut mesh).await?;
    assert!(!flood.is_finished(), "the flood went on");
    assert!(turned_away(&mesh, "address_not_validated").await?);
    flood.abort();
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn strangers_that_say_nothing_keep_nobody_out() -> Result<()> {
    let mut mesh = Processes::start(2).await?;
    let target = Target::of(&mesh).await?;
    let opened = Arc::new(AtomicU64::new(0));
    let flood = tokio::spawn(silent(target.at(target.address), opened.clone()));
    until("more are open than there are places", NORMAL, || async {
        (opened.load(Ordering::Relaxed) >= MAX_UNPROVEN as u64).then_some(())
    })
    .await;
    nodes_come_as_usual(&mut mesh).await?;
    assert!(!flood.is_finished(), "the flood went on");
    assert!(turned_away(&mesh, "stranger_displaced").await?);
    flood.abort();
    Ok(())
}
