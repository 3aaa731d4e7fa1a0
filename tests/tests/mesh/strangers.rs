//! Peers that do not belong here, and members that talk nonsense: an error on that stream or connection, nothing else.

use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use iroh::{
    Endpoint, EndpointAddr, EndpointId, RelayMode, TransportAddr,
    endpoint::{Connection, presets},
};
use mesh_links::{
    Ticket,
    protocol::{ADMISSION_LIMIT, CONTROL_ALPN, STAGE_ALPN},
};
use mesh_proto::{
    NodeId,
    wire::{ControlRequest, JoinRequest, JoinResponse, WatchDeployments, control_request::Request, join_response},
};
use mesh_tests::{Api, ChatCall, Cluster};
use prost::Message;
use tokio::time::timeout;

/// The node must have cut a peer off by then: the limit, and room for a busy machine.
const CUT_OFF: Duration = ADMISSION_LIMIT.saturating_add(Duration::from_secs(4));

struct Attacker {
    endpoint: Endpoint,
    target: EndpointAddr,
}

impl Attacker {
    async fn new(api: &Api) -> Result<Self> {
        let node = api
            .status()
            .await?
            .nodes
            .into_iter()
            .find(|node| node.self_)
            .context("no such node")?;
        let id = EndpointId::from_bytes(&node.id.parse::<NodeId>()?.0)?;
        let addresses = node
            .addresses
            .iter()
            .map(|address| anyhow::Ok(TransportAddr::Ip(address.parse()?)));
        let target = EndpointAddr::from_parts(id, addresses.collect::<Result<Vec<_>>>()?);
        let endpoint = Endpoint::builder(presets::Minimal)
            .relay_mode(RelayMode::Disabled)
            .bind()
            .await?;
        Ok(Self { endpoint, target })
    }

    async fn connect(&self, alpn: &[u8]) -> Result<Connection> {
        Ok(self.endpoint.connect(self.target.clone(), alpn).await?)
    }
}

async fn cut_off(connection: &Connection) -> Result<()> {
    let start = Instant::now();
    timeout(CUT_OFF, connection.closed())
        .await
        .with_context(|| format!("still open after {:?}", start.elapsed()))?;
    Ok(())
}

fn framed(message: &impl Message) -> Vec<u8> {
    let mut bytes = (message.encoded_len() as u32).to_le_bytes().to_vec();
    bytes.extend(message.encode_to_vec());
    bytes
}

async fn still_answers(cluster: &Cluster) -> Result<()> {
    let answer = cluster
        .api(1)
        .chat(&ChatCall::greedy("psalm", "Recite John 11:35."))
        .await?;
    assert_eq!(answer.text, "Jesus wept.");
    assert_eq!(cluster.api(0).status().await?.nodes.len(), 2);
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn strangers_are_cut_off_whatever_they_say() -> Result<()> {
    let cluster = Cluster::start(2).await?;
    cluster.serve("built-in", "psalm", "a:0-4,b:4-8").await?;
    let attacker = Attacker::new(cluster.api(0)).await?;

    // Silence, on both protocols.
    let silent = attacker.connect(CONTROL_ALPN).await?;
    let stage = attacker.connect(STAGE_ALPN).await?;
    let (quiet, linked) = tokio::join!(cut_off(&silent), cut_off(&stage));
    quiet.context("silence on the control protocol")?;
    linked.context("silence on the stage protocol")?;

    // A member's request, random bytes, a giant length, a length without bytes.
    let watch = framed(&ControlRequest {
        request: Some(Request::WatchDeployments(WatchDeployments {})),
        ..ControlRequest::default()
    });
    let noise: Vec<u8> = (0..4096u32)
        .map(|index| (index.wrapping_mul(2_654_435_761) >> 24) as u8)
        .collect();
    let mut giant = u32::MAX.to_le_bytes().to_vec();
    giant.extend_from_slice(&[0; 1024]);
    for bytes in [watch, noise, giant, 100u32.to_le_bytes().to_vec()] {
        let connection = attacker.connect(CONTROL_ALPN).await?;
        let (mut send, _recv) = connection.open_bi().await?;
        send.write_all(&bytes).await?;
        // One stream is all that a stranger gets.
        let second = timeout(Duration::from_millis(300), connection.open_bi()).await;
        assert!(!matches!(second, Ok(Ok(_))), "a second stream opened");
        cut_off(&connection)
            .await
            .with_context(|| format!("{:?}…", &bytes[..4]))?;
    }
    still_answers(&cluster).await?;
    cluster.stop().await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_proof_from_another_session_or_without_a_ticket_is_refused_in_words() -> Result<()> {
    let cluster = Cluster::start(2).await?;
    cluster.serve("built-in", "psalm", "a:0-4,b:4-8").await?;
    let attacker = Attacker::new(cluster.api(0)).await?;
    let ticket: Ticket = cluster.api(0).ticket().await?.parse()?;
    let node = mesh_proto::v1::Node {
        id: NodeId(*attacker.endpoint.id().as_bytes()).to_string(),
        name: "evil".to_owned(),
        ..Default::default()
    };
    let expires = ticket.expires().to_be_bytes();
    let guessed_id = [[7; 8], expires].concat();
    for (ticket_id, proof) in [
        (guessed_id.clone(), vec![0; 32]),
        (guessed_id, Vec::new()),
        (Vec::new(), Vec::new()),
        (vec![0; 10_000], vec![1; 1000]),
    ] {
        let connection = attacker.connect(CONTROL_ALPN).await?;
        let (mut send, mut recv) = connection.open_bi().await?;
        let join = JoinRequest {
            ticket_id,
            proof,
            node: Some(node.clone()),
        };
        send.write_all(&framed(&ControlRequest {
            request: Some(Request::Join(join)),
            ..ControlRequest::default()
        }))
        .await?;
        let mut length = [0; 4];
        recv.read_exact(&mut length).await?;
        let mut bytes = vec![0; u32::from_le_bytes(length) as usize];
        recv.read_exact(&mut bytes).await?;
        let response = JoinResponse::decode(bytes.as_slice())?;
        let Some(join_response::Result::Refused(refusal)) = response.result else {
            panic!("admitted: {response:?}")
        };
        assert!(refusal.message.contains("mesh node ticket"), "{refusal:?}");
        connection.close(0u32.into(), b"");
    }
    still_answers(&cluster).await?;
    cluster.stop().await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hundred_strangers_at_once_do_not_keep_members_out() -> Result<()> {
    let cluster = Cluster::start(2).await?;
    cluster.serve("built-in", "psalm", "a:0-4,b:4-8").await?;
    let attacker = Attacker::new(cluster.api(0)).await?;
    let mut held = Vec::new();
    for _ in 0..100 {
        if let Ok(Ok(connection)) = timeout(Duration::from_secs(1), attacker.connect(CONTROL_ALPN)).await {
            held.push(connection);
        }
    }
    // Members are connected already and are not touched.
    still_answers(&cluster).await?;
    for connection in &held {
        cut_off(connection).await?;
    }
    cluster.stop().await
}
