//! `mesh bench events`: what telling of requests costs them, measured with real processes on loopback.
//!
//! Each node holds the whole model; all live at once, and one request runs at a time. A node goes on building events
//! for a while after its last subscriber has left, so whoever has none has a node of its own.
//!
//! ```text
//! off ──▶ node --no-events      nobody ──▶ node      one, a hundred ──▶ node      stalled ──▶ node
//! ```

use std::{
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};

use clap::Args;
use mesh_proto::v1::{ServeRequest, SubscribeRequest, SubscribeResponse, subscribe_response::Response};
use tokio::task::JoinSet;
use tonic::Streaming;

use super::{
    events_report::{EventsReport, Measured, Situation},
    prompt::{calibrated_prompt, context_for, go_on},
};
use crate::{
    client::Client,
    cluster::{Cluster, ClusterOptions},
    commands::serve::serve,
    failure::Failure,
    local_node::BUILT_IN,
    output::{self, OutputArgs},
    path,
    signals::Interrupts,
};

/// Name of the deployment on all nodes.
const DEPLOYMENT: &str = "bench";

/// Subscribers of the largest crowd.
const CROWD: usize = 100;

/// HTTP/2 window of the subscriber that never reads: full after a few events, so that it really stalls.
const STALLED_WINDOW: u32 = 1024;

/// The engine has a core; the rest of the node and the subscribers share the others.
const OPTIONS: ClusterOptions<'_> = ClusterOptions {
    threads: 1,
    exact: true,
    events: true,
    plugins: &[],
};

const HELP: &str = "\
Five situations, measured in turn in each round: events switched off (--no-events), on with nobody subscribed, one
gRPC subscriber with ids and text, a hundred of them on connections of their own, and one that never reads. Rates are
the head's clock; ratios are medians over rounds of the rate over that of nobody in the same round. Subscribers live in
this process, so a hundred of them need cores of their own to cost what they would cost elsewhere.

Examples:
  mesh bench events
  mesh bench events model.gguf --rounds 9 --output json | jq .one_subscriber.ratio";

#[derive(Debug, Args)]
#[command(after_help = HELP)]
pub(crate) struct EventsArgs {
    /// Path of a GGUF file, or built-in
    #[arg(default_value = BUILT_IN)]
    model: PathBuf,
    /// Measurements of each
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// Length of the prompt, about
    #[arg(long, value_name = "N", default_value_t = 32, value_parser = clap::value_parser!(u32).range(1..=1 << 20))]
    prompt_tokens: u32,
    /// Most tokens to generate; what came is counted
    #[arg(long, value_name = "N", default_value_t = 128, value_parser = clap::value_parser!(u32).range(2..=1 << 20))]
    max_tokens: u32,
    #[command(flatten)]
    output: OutputArgs,
}

pub(crate) async fn run(args: EventsArgs) -> Result<(), Failure> {
    let mut interrupts = Interrupts::listen()?;
    let report = tokio::select! {
        report = measure(&args) => report?,
        () = interrupts.next() => return Err(Failure::interrupted("the nodes are stopped")),
    };
    args.output.print(&report, EventsReport::describe)
}

async fn measure(args: &EventsArgs) -> Result<EventsReport, Failure> {
    output::note("starting the nodes …");
    let mut bench = Bench::start(args).await?;
    for round in 0..args.rounds {
        output::note(&format!("round {} of {}", round + 1, args.rounds));
        bench.round(round as usize).await?;
    }
    let report = bench.report(args);
    bench.stop().await;
    Ok(report)
}

/// A situation, its node, and what was measured there.
struct Side {
    node: usize,
    /// Connections of those who listen.
    listeners: Vec<Client>,
    heard: Arc<Heard>,
    rounds: Vec<Measured>,
}

/// What subscribers read.
#[derive(Debug, Default)]
struct Heard {
    events: AtomicU64,
    lagged: AtomicU64,
}

struct Bench {
    nodes: Vec<Cluster>,
    /// In the order of [`EventsReport`].
    sides: Vec<Side>,
    prompt: String,
    max_tokens: u32,
    tokens: u32,
    /// Never read.
    _stalled: Streaming<SubscribeResponse>,
}

impl Bench {
    async fn start(args: &EventsArgs) -> Result<Self, Failure> {
        let mut nodes = Vec::new();
        for name in ["off", "nobody", "listened", "stalled"] {
            let options = ClusterOptions {
                events: name != "off",
                ..OPTIONS
            };
            nodes.push(start_node(name, options, args).await?);
        }
        let mut crowd = Vec::new();
        for _ in 0..CROWD {
            crowd.push(nodes[2].connect(|endpoint| endpoint).await?);
        }
        let narrow = |endpoint: tonic::transport::Endpoint| endpoint.initial_stream_window_size(STALLED_WINDOW);
        let stalled = subscribe(&nodes[3].connect(narrow).await?).await?;
        let one = crowd[..1].to_vec();
        let prompt = calibrated_prompt(nodes[1].client(), DEPLOYMENT, args.prompt_tokens, args.max_tokens).await?;
        let mut bench = Self {
            nodes,
            sides: vec![
                Side::new(0, Vec::new()),
                Side::new(1, Vec::new()),
                Side::new(2, one),
                Side::new(2, crowd),
                Side::new(3, Vec::new()),
            ],
            prompt,
            max_tokens: args.max_tokens,
            tokens: 0,
            _stalled: stalled,
        };
        // Caches are warm everywhere, and the one that never reads has stopped reading.
        for node in 0..bench.nodes.len() {
            bench.generate(node).await?;
        }
        Ok(bench)
    }

    /// Each situation once, another one first in each round.
    async fn round(&mut self, round: usize) -> Result<(), Failure> {
        let count = self.sides.len();
        for turn in 0..count {
            let side = (round + turn) % count;
            let mut listening = JoinSet::new();
            for listener in &self.sides[side].listeners {
                listening.spawn(listen(subscribe(listener).await?, self.sides[side].heard.clone()));
            }
            let measured = self.generate(self.sides[side].node).await?;
            listening.shutdown().await;
            self.sides[side].rounds.push(measured);
        }
        Ok(())
    }

    async fn generate(&mut self, node: usize) -> Result<Measured, Failure> {
        let client = self.nodes[node].client();
        let generated = go_on(client, DEPLOYMENT, &self.prompt, self.max_tokens).await?;
        self.tokens = generated.decoded();
        let too_short = || Failure::failed("the model ended its answer at once; try another --prompt-tokens");
        Ok(Measured {
            decode_tps: generated.decode_tps().ok_or_else(too_short)?,
            ttft_ms: generated.ttft.as_secs_f64() * 1000.0,
        })
    }

    fn report(&self, args: &EventsArgs) -> EventsReport {
        let nobody = &self.sides[1].rounds;
        let mut situations = self.sides.iter().map(|side| {
            let heard = (side.heard.events.load(Relaxed), side.heard.lagged.load(Relaxed));
            Situation::new(side.rounds.clone(), nobody, heard)
        });
        let mut next = || situations.next().unwrap_or_default();
        EventsReport {
            model: args.model.display().to_string(),
            tokens: self.tokens,
            off: next(),
            nobody: next(),
            one_subscriber: next(),
            hundred_subscribers: next(),
            stalled_subscriber: next(),
        }
    }

    async fn stop(self) {
        for node in self.nodes {
            node.stop().await;
        }
    }
}

impl Side {
    fn new(node: usize, listeners: Vec<Client>) -> Self {
        Self {
            node,
            listeners,
            heard: Arc::default(),
            rounds: Vec::new(),
        }
    }
}

async fn start_node(name: &str, options: ClusterOptions<'_>, args: &EventsArgs) -> Result<Cluster, Failure> {
    let cluster = Cluster::start(&[name], options).await?;
    let request = ServeRequest {
        model: path::model(&args.model)?,
        name: DEPLOYMENT.to_owned(),
        stages: "1".to_owned(),
        context: context_for(args.prompt_tokens, args.max_tokens),
        lanes: 1,
        exact: options.exact,
        ..ServeRequest::default()
    };
    serve(cluster.client(), request).await?;
    Ok(cluster)
}

/// All events, with all that they can carry.
async fn subscribe(client: &Client) -> Result<Streaming<SubscribeResponse>, Failure> {
    let request = SubscribeRequest {
        include_token_ids: true,
        include_text: true,
        ..SubscribeRequest::default()
    };
    Ok(client.lifecycle().subscribe(request).await?.into_inner())
}

async fn listen(mut notices: Streaming<SubscribeResponse>, heard: Arc<Heard>) {
    while let Ok(Some(notice)) = notices.message().await {
        match notice.response {
            Some(Response::Event(_)) => {
                heard.events.fetch_add(1, Relaxed);
            }
            Some(Response::Lagged(lagged)) => {
                heard.lagged.fetch_add(lagged.dropped, Relaxed);
            }
            _ => {}
        }
    }
}
