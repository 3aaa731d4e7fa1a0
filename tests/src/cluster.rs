//! Nodes inside the test's process, through the production entry.

use std::net::SocketAddr;

use anyhow::{Context, Result};
use mesh_node::{Node, NodeConfig, running_node};
use mesh_proto::v1::{Deployment, ServeRequest};
use tempfile::TempDir;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::{Ledger, Witness, api::Api, processes::mesh_binary};

/// Nodes named `a`, `b`, `c`, …; `a` is the first and admits the others.
pub struct Cluster {
    nodes: Vec<TestNode>,
    witness: Witness,
}

struct TestNode {
    api: Api,
    stop: CancellationToken,
    task: JoinHandle<()>,
    directory: TempDir,
}

/// Settings for tests: loopback, free ports, one thread, so that three nodes fit on two cores.
pub fn config(name: &str, data_dir: &std::path::Path) -> NodeConfig {
    let any = SocketAddr::from(([127, 0, 0, 1], 0));
    NodeConfig {
        name: Some(name.to_owned()),
        data_dir: data_dir.to_owned(),
        http: any,
        grpc: any,
        listen: any,
        threads: Some(1),
        program: Some(mesh_binary()),
        ..NodeConfig::default()
    }
}

impl Cluster {
    /// Starts `count` nodes and joins them.
    pub async fn start(count: usize) -> Result<Self> {
        Self::start_with(count, |config| config).await
    }

    /// The same, with settings that `adjust` makes of those for tests.
    pub async fn start_with(count: usize, adjust: impl Fn(NodeConfig) -> NodeConfig) -> Result<Self> {
        let (mut nodes, ledger): (Vec<TestNode>, Ledger) = Default::default();
        let mut ticket = None;
        for index in 0..count {
            let name = char::from(b'a' + index as u8).to_string();
            let directory = tempfile::tempdir()?;
            let node = Node::start(adjust(config(&name, directory.path())), ticket.clone()).await?;
            if ticket.is_none() {
                ticket = Some(node.ticket()?);
            }
            let token = running_node(directory.path())?.token;
            let api = Api::new(node.facts().http, node.facts().grpc, &token, ledger.clone());
            let stop = CancellationToken::new();
            let stopped = stop.clone();
            let task = tokio::spawn(async move {
                if let Err(error) = node.run_until(stopped.cancelled_owned()).await {
                    eprintln!("node {name}: {error}");
                }
            });
            nodes.push(TestNode {
                api,
                stop,
                task,
                directory,
            });
        }
        let witness = Witness::start(&nodes[0].api, ledger).await?;
        Ok(Self { nodes, witness })
    }

    /// A node's API.
    pub fn api(&self, index: usize) -> &Api {
        &self.nodes[index].api
    }

    /// A node's data directory.
    pub fn data_dir(&self, index: usize) -> &std::path::Path {
        self.nodes[index].directory.path()
    }

    /// Serves a model from the first node.
    pub async fn serve(&self, model: &str, name: &str, stages: &str) -> Result<Deployment> {
        let request = ServeRequest {
            model: model.to_owned(),
            name: name.to_owned(),
            stages: stages.to_owned(),
            ..ServeRequest::default()
        };
        self.api(0)
            .serve(request)
            .await
            .with_context(|| format!("serving {model} as {stages:?}"))
    }

    /// Stops all nodes in order, last first, when the witness has agreed.
    pub async fn stop(self) -> Result<()> {
        self.witness.finish().await?;
        for node in self.nodes.into_iter().rev() {
            node.stop.cancel();
            node.task.await?;
        }
        Ok(())
    }
}
