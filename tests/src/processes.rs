//! Real `mesh` processes on loopback, each with its own data directory.

use std::{
    path::{Path, PathBuf},
    process::Stdio,
    time::Duration,
};

use anyhow::{Context, Result, bail};
use mesh_node::{RunningNode, running_node};
use tempfile::TempDir;
use tokio::process::{Child, Command};

use crate::{Ledger, Witness, api::Api, checker::Told, until::until};

/// Starting takes a key, three sockets and a directory.
const START_LIMIT: Duration = Duration::from_secs(30);

/// The `mesh` binary that was built with this test.
///
/// # Panics
///
/// It is not there.
pub fn mesh_binary() -> PathBuf {
    let test = std::env::current_exe().unwrap_or_default();
    // target/PROFILE/deps/TEST
    let path = test.ancestors().nth(2).unwrap_or(Path::new("")).join("mesh");
    assert!(
        path.is_file(),
        "{} is not built; run `cargo build --workspace` first",
        path.display()
    );
    path
}

/// Nodes named `a`, `b`, `c`, …; `a` admits the others.
pub struct Processes {
    nodes: Vec<Process>,
    ledger: Ledger,
    witness: Option<Witness>,
    environment: Vec<(String, String)>,
    files: Option<u64>,
}

/// One node. Dropping it kills it.
pub struct Process {
    name: String,
    child: Child,
    running: RunningNode,
    directory: Option<TempDir>,
}

/// A test that fails shows what its nodes said last.
impl Drop for Process {
    fn drop(&mut self) {
        let Some(directory) = self.directory.as_ref().filter(|_| std::thread::panicking()) else {
            return;
        };
        let log = std::fs::read_to_string(directory.path().join("log")).unwrap_or_default();
        let lines: Vec<&str> = log.lines().collect();
        eprintln!(
            "--- log of node {}\n{}",
            self.name,
            lines[lines.len().saturating_sub(40)..].join("\n")
        );
    }
}

impl Processes {
    /// Starts `count` nodes and joins them.
    pub async fn start(count: usize) -> Result<Self> {
        let mut all = Self::with_environment(&[]);
        for index in 0..count {
            all.add(&char::from(b'a' + index as u8).to_string(), &[]).await?;
        }
        Ok(all)
    }

    /// No node yet; those to come get these variables.
    pub fn with_environment(variables: &[(&str, &str)]) -> Self {
        let own = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
        Self {
            nodes: Vec::new(),
            ledger: Ledger::default(),
            witness: None,
            environment: variables.iter().map(own).collect(),
            files: None,
        }
    }

    /// No node yet; those to come may open so many files.
    pub fn with_file_limit(files: u64) -> Self {
        Self {
            files: Some(files),
            ..Self::with_environment(&[])
        }
    }

    /// Starts one more node, with more arguments.
    pub async fn add(&mut self, name: &str, more: &[&str]) -> Result<()> {
        let directory = tempfile::tempdir()?;
        let ticket = if self.nodes.is_empty() {
            None
        } else {
            Some(self.ticket().await?)
        };
        let (variables, command) = (&self.environment, self.binary());
        self.nodes
            .push(Process::start(command, name, directory, ticket, more, variables).await?);
        if self.witness.is_none() {
            self.witness = Some(Witness::start(&self.api(0), self.ledger.clone()).await?);
        }
        Ok(())
    }

    /// The binary, under the limit that nodes have.
    fn binary(&self) -> Command {
        let Some(files) = self.files else {
            return Command::new(mesh_binary());
        };
        let mut shell = Command::new("sh");
        let limited = r#"ulimit -n "$0" && exec "$@""#;
        shell.args(["-c", limited, &files.to_string()]).arg(mesh_binary());
        shell
    }

    async fn ticket(&self) -> Result<String> {
        let (code, out, err) = self.command(0, &["node", "ticket"]).await?;
        if code != 0 {
            bail!("mesh node ticket: {err}");
        }
        Ok(out.trim().to_owned())
    }

    /// Runs a `mesh` command against a node; gives its exit code, output and errors.
    pub async fn command(&self, index: usize, arguments: &[&str]) -> Result<(i32, String, String)> {
        run(self.data_dir(index), arguments).await
    }

    /// A node's API.
    pub fn api(&self, index: usize) -> Api {
        let running = &self.nodes[index].running;
        Api::new(running.http, running.grpc, &running.token, self.ledger.clone())
    }

    /// A node's process id.
    pub fn pid(&self, index: usize) -> u32 {
        self.nodes[index].running.pid
    }

    /// A node's data directory.
    pub fn data_dir(&self, index: usize) -> &Path {
        self.nodes[index]
            .directory
            .as_ref()
            .map_or(Path::new(""), TempDir::path)
    }

    /// Sends a signal to a node, by its process id.
    pub async fn signal(&self, index: usize, signal: &str) -> Result<()> {
        let pid = self.pid(index).to_string();
        let status = Command::new("kill").args([signal, &pid]).status().await?;
        if !status.success() {
            bail!("kill {signal} {pid} failed");
        }
        Ok(())
    }

    /// Kills a node at once and waits for its end.
    pub async fn kill(&mut self, index: usize) -> Result<()> {
        Ok(self.nodes[index].child.kill().await?)
    }

    /// Starts a killed node again on its data directory.
    pub async fn restart(&mut self, index: usize) -> Result<()> {
        let mut old = self.nodes.remove(index);
        let directory = old.directory.take().context("the node has no directory")?;
        let started = Process::start(self.binary(), &old.name, directory, None, &[], &self.environment);
        self.nodes.insert(index, started.await?);
        Ok(())
    }

    /// The end of a test: proves what has to hold of all lifecycle events, and gives what was told of each request.
    pub async fn finish(mut self) -> Result<std::collections::BTreeMap<String, Told>> {
        self.witness.take().context("no node was started")?.finish().await
    }

    /// Waits for a node that was told to end.
    pub async fn wait(&mut self, index: usize) -> Result<std::process::ExitStatus> {
        Ok(self.nodes[index].child.wait().await?)
    }
}

impl Process {
    async fn start(
        mut command: Command,
        name: &str,
        directory: TempDir,
        ticket: Option<String>,
        more: &[&str],
        variables: &[(String, String)],
    ) -> Result<Self> {
        command.arg("node");
        match &ticket {
            Some(ticket) => command.args(["join", ticket]),
            None => command.arg("start"),
        };
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
            .args(["--threads", "1"])
            .env("NO_COLOR", "1")
            .envs(variables.iter().map(|(name, value)| (name, value)))
            .arg("--data-dir")
            .arg(directory.path())
            .args(more);
        let log = std::fs::File::options()
            .create(true)
            .append(true)
            .open(directory.path().join("log"))?;
        command
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .kill_on_drop(true);
        let mut child = command.spawn().context("mesh does not start")?;
        let path = directory.path().to_owned();
        let pid = child.id();
        let running = until(&format!("node {name} starts"), START_LIMIT, || {
            let found = running_node(&path).ok().filter(|node| Some(node.pid) == pid);
            let ended = child.try_wait().ok().flatten();
            let log = ended.map(|_| std::fs::read_to_string(path.join("log")).unwrap_or_default());
            async move {
                if let Some(log) = log {
                    panic!("the node ended at once: {log}");
                }
                found
            }
        })
        .await;
        Ok(Self {
            name: name.to_owned(),
            child,
            running,
            directory: Some(directory),
        })
    }
}

/// Runs a `mesh` command on a data directory.
pub async fn run(data_dir: &Path, arguments: &[&str]) -> Result<(i32, String, String)> {
    let output = Command::new(mesh_binary())
        .args(arguments)
        .env("MESH_HOME", data_dir)
        .stdin(Stdio::null())
        .kill_on_drop(true)
        .output()
        .await?;
    let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
    Ok((
        output.status.code().unwrap_or(-1),
        text(output.stdout),
        text(output.stderr),
    ))
}
