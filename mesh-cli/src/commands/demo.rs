//! `mesh demo`: three node processes, one model, one answer.

use clap::Args;
use mesh_proto::{
    sampling::greedy_sampling,
    v1::{GenerateRequest, ServeRequest},
};

use super::{run::Screen, serve::serve};
use crate::{
    cluster::{Cluster, ClusterOptions},
    failure::Failure,
    generate::{chat, generate},
    local_node::BUILT_IN,
    output,
    signals::Interrupts,
    status_view::DeploymentView,
};

const NODES: [&str; 3] = ["a", "b", "c"];
const QUESTION: &str = "Recite Genesis 1:1.";

/// The model is so small that more threads would only wait for each other.
const OPTIONS: ClusterOptions<'_> = ClusterOptions {
    threads: 1,
    exact: true,
    events: true,
    plugins: &[],
};

#[derive(Debug, Args)]
#[command(
    after_help = "Needs no network and no download. Takes free ports on loopback and a temporary directory, \
    and leaves nothing behind."
)]
pub(crate) struct DemoArgs {}

pub(crate) async fn run(_: DemoArgs) -> Result<(), Failure> {
    let mut interrupts = Interrupts::listen()?;
    output::note("starting three nodes on loopback …");
    let cluster = tokio::select! {
        cluster = Cluster::start(&NODES, OPTIONS) => cluster?,
        () = interrupts.next() => return Err(Failure::interrupted("the nodes are stopped")),
    };
    let shown = tokio::select! {
        shown = show(&cluster) => shown,
        () = interrupts.next() => Err(Failure::interrupted("the nodes are stopped")),
    };
    cluster.stop().await;
    shown
}

async fn show(cluster: &Cluster) -> Result<(), Failure> {
    output::note("serving the built-in model in three stages …");
    let request = ServeRequest {
        model: BUILT_IN.to_owned(),
        name: BUILT_IN.to_owned(),
        stages: NODES.len().to_string(),
        ..ServeRequest::default()
    };
    let deployment = DeploymentView::from(serve(cluster.client(), request).await?);
    output::print(&format!("{}\n> {QUESTION}\n", deployment.stages_table(0)))?;

    let request = GenerateRequest {
        model: BUILT_IN.to_owned(),
        prompt: Some(chat(QUESTION)),
        sampling: Some(greedy_sampling()),
        ..GenerateRequest::default()
    };
    let mut screen = Screen::new();
    let generated = generate(cluster.client(), request, |text| screen.show(text)).await;
    screen.end_line()?;
    output::print(&format!("\n{}\n", generated?.speed()))
}
