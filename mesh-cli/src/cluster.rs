//! A mesh of real node processes on loopback, for `mesh demo` and `mesh bench`.
//!
//! Each node is this binary again, with a data directory and ports of its own. The children end when this process
//! does, however it does: each holds the other end of a pipe as its stdin (`--exit-with-parent`).
//!
//! ```text
//! Cluster ──spawns──▶ mesh node start … ◀──ticket── mesh node join …
//!    │ ◀── "ready" on stdout, last words on stderr ──┘
//!    └── Client (gRPC) ──▶ first node
//! ```

use std::{
    ffi::OsStr,
    path::{Path, PathBuf},
    process::{ExitStatus, Stdio},
    time::Duration,
};

use mesh_proto::v1::CreateTicketRequest;
use tempfile::TempDir;
use tokio::{
    io::{AsyncBufReadExt as _, AsyncRead, BufReader},
    process::{Child, ChildStdin, Command},
    task::JoinHandle,
};
use tonic::transport::Endpoint;

use crate::{
    client::Client,
    failure::Failure,
    local_node::{self, PluginSetting},
    plugin_flags,
};

/// A node starts in well under a second; a busy machine gets more.
const START_DEADLINE: Duration = Duration::from_secs(60);

/// An idle node stops at once; what takes longer is killed.
const STOP_DEADLINE: Duration = Duration::from_secs(5);

/// Lines of a node's log that are kept to explain its end.
const LAST_WORDS: usize = 5;

/// How nodes are started.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ClusterOptions<'a> {
    /// `--threads` of every node.
    pub(crate) threads: u32,
    /// Exact mode.
    pub(crate) exact: bool,
    /// Lifecycle events.
    pub(crate) events: bool,
    /// Native plugins of the first node: they follow requests whose head is there.
    pub(crate) plugins: &'a [PluginSetting],
}

/// Running nodes of one mesh. Dropped, they are killed; [`Cluster::stop`] is the polite way.
#[derive(Debug)]
pub(crate) struct Cluster {
    nodes: Vec<NodeProcess>,
    client: Client,
    // After the nodes: their directories go last.
    _dir: TempDir,
}

impl Cluster {
    /// Starts a node for each name and has them join the first.
    pub(crate) async fn start(names: &[&str], options: ClusterOptions<'_>) -> Result<Self, Failure> {
        let dir = tempfile::Builder::new().prefix("mesh-").tempdir();
        let dir =
            dir.map_err(|error| Failure::failed(format!("cannot make a temporary directory: {error}; set TMPDIR")))?;
        let (first, others) = names
            .split_first()
            .ok_or_else(|| Failure::usage("a mesh has at least one node"))?;
        let first = NodeProcess::start(first, dir.path(), None, options).await?;
        let client = first.client().await?;
        let mut nodes = vec![first];
        for name in others {
            let ticket = client
                .nodes()
                .create_ticket(CreateTicketRequest {})
                .await?
                .into_inner()
                .ticket;
            let options = ClusterOptions {
                plugins: &[],
                ..options
            };
            nodes.push(NodeProcess::start(name, dir.path(), Some(&ticket), options).await?);
        }
        Ok(Self {
            nodes,
            client,
            _dir: dir,
        })
    }

    /// Of the first node.
    pub(crate) fn client(&self) -> &Client {
        &self.client
    }

    /// One more connection to the first node, set up as `adjust` says.
    pub(crate) async fn connect(&self, adjust: impl FnOnce(Endpoint) -> Endpoint) -> Result<Client, Failure> {
        let first = self
            .nodes
            .first()
            .ok_or_else(|| Failure::failed("the mesh has no nodes"))?;
        let running = local_node::running_node(&first.data_dir)?;
        Client::open_with(&running.grpc.to_string(), Some(&running.token), adjust).await
    }

    /// Stops the nodes one after another, the first of the mesh last, and removes their directories. Nodes that end
    /// together would wait seconds for each other's farewell.
    pub(crate) async fn stop(mut self) {
        while let Some(mut node) = self.nodes.pop() {
            node.stop().await;
        }
    }
}

/// One child.
#[derive(Debug)]
struct NodeProcess {
    name: String,
    data_dir: PathBuf,
    child: Child,
    /// Closing it ends the child.
    stdin: Option<ChildStdin>,
    /// Reads the child's log, so that it never blocks on a full pipe; gives the last lines.
    log: Option<JoinHandle<Vec<String>>>,
}

impl NodeProcess {
    /// Starts a node and waits until it says that it is ready.
    async fn start(name: &str, dir: &Path, ticket: Option<&str>, options: ClusterOptions<'_>) -> Result<Self, Failure> {
        let data_dir = dir.join(name);
        let mut command = node_command(ticket)?;
        command.args([
            "--name",
            name,
            "--http",
            "127.0.0.1:0",
            "--grpc",
            "127.0.0.1:0",
            "--listen",
            "127.0.0.1:0",
        ]);
        command
            .args(["--log", "warn", "--exit-with-parent", "--threads"])
            .arg(options.threads.to_string());
        command.arg("--data-dir").arg(&data_dir);
        if !options.exact {
            command.arg("--no-exact");
        }
        if !options.events {
            command.arg("--no-events");
        }
        command.args(plugin_flags::arguments(options.plugins));
        let cannot = |error| Failure::failed(format!("cannot start node {name}: {error}"));
        let mut child = command.spawn().map_err(cannot)?;
        let stdin = child.stdin.take();
        let stdout = child.stdout.take();
        let log = child.stderr.take().map(|stderr| tokio::spawn(last_lines(stderr)));
        let mut node = Self {
            name: name.to_owned(),
            data_dir,
            child,
            stdin,
            log,
        };
        let ready = async {
            match stdout {
                Some(stdout) => wait_for_ready(stdout).await,
                None => false,
            }
        };
        match tokio::time::timeout(START_DEADLINE, ready).await {
            Ok(true) => Ok(node),
            Ok(false) => Err(node.explain_end().await),
            Err(_) => Err(Failure::failed(format!(
                "node {name} was not ready within {} s; is this machine very busy?",
                START_DEADLINE.as_secs()
            ))),
        }
    }

    async fn client(&self) -> Result<Client, Failure> {
        let running = local_node::running_node(&self.data_dir)?;
        Client::open(&running.grpc.to_string(), Some(&running.token)).await
    }

    /// Asks the child to end and waits for it, or ends it.
    async fn stop(&mut self) -> Option<ExitStatus> {
        drop(self.stdin.take());
        match tokio::time::timeout(STOP_DEADLINE, self.child.wait()).await {
            Ok(status) => status.ok(),
            Err(_) => {
                // It is gone already if it cannot be killed.
                let _ = self.child.kill().await;
                None
            }
        }
    }

    /// The child ended before it was ready.
    async fn explain_end(&mut self) -> Failure {
        let status = self
            .stop()
            .await
            .map_or_else(|| "no exit code".to_owned(), |status| status.to_string());
        let words = match self.log.take() {
            Some(log) => log.await.unwrap_or_default().join("\n  "),
            None => String::new(),
        };
        Failure::failed(format!(
            "node {} ended before it was ready ({status}):\n  {words}",
            self.name
        ))
    }
}

/// `mesh node start|join`, untouched by what this user has set for nodes of their own.
fn node_command(ticket: Option<&str>) -> Result<Command, Failure> {
    let binary = std::env::current_exe();
    let binary = binary.map_err(|error| Failure::failed(format!("cannot find this program's file: {error}")))?;
    let mut command = Command::new(binary);
    command.arg("node");
    match ticket {
        Some(ticket) => command.args(["join", ticket]),
        None => command.arg("start"),
    };
    for (name, _) in std::env::vars_os() {
        if is_setting(&name) {
            command.env_remove(name);
        }
    }
    command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true);
    // Ctrl-C in the terminal is for the parent, which then stops its children in order.
    command.process_group(0);
    Ok(command)
}

fn is_setting(name: &OsStr) -> bool {
    name.as_encoded_bytes().starts_with(b"MESH_")
}

/// Whether the line came; the rest of the output is read and dropped by a task that ends with the child.
async fn wait_for_ready(stdout: impl AsyncRead + Unpin + Send + 'static) -> bool {
    let mut lines = BufReader::new(stdout).lines();
    while let Ok(Some(line)) = lines.next_line().await {
        if line == "ready" {
            tokio::spawn(async move { while let Ok(Some(_)) = lines.next_line().await {} });
            return true;
        }
    }
    false
}

async fn last_lines(stderr: impl AsyncRead + Unpin) -> Vec<String> {
    let mut lines = BufReader::new(stderr).lines();
    let mut last = std::collections::VecDeque::with_capacity(LAST_WORDS);
    while let Ok(Some(line)) = lines.next_line().await {
        if last.len() == LAST_WORDS {
            last.pop_front();
        }
        last.push_back(line);
    }
    last.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn only_a_line_of_its_own_says_ready() {
        assert!(wait_for_ready(&b"node a\nready\n"[..]).await);
        assert!(!wait_for_ready(&b"not ready yet\nreadying\n"[..]).await);
    }

    #[tokio::test]
    async fn a_log_is_kept_to_its_last_lines() {
        let log = (0..100).map(|line| format!("{line}\n")).collect::<String>();
        assert_eq!(last_lines(log.as_bytes()).await, ["95", "96", "97", "98", "99"]);
    }

    #[test]
    fn settings_of_the_user_do_not_reach_the_children() {
        assert!(is_setting(OsStr::new("MESH_HTTP")) && !is_setting(OsStr::new("TOKIO_WORKER_THREADS")));
    }
}
