//! The binary as users run it: real processes, their output and how they end.

use std::{
    io::{BufRead as _, BufReader},
    path::Path,
    process::{Child, Command, Output, Stdio},
    time::{Duration, Instant},
};

use serde_json::Value;
use tempfile::TempDir;

/// Generous for a busy machine; nothing here takes a tenth of it.
const DEADLINE: Duration = Duration::from_secs(60);

/// Between two looks at a child.
const POLL: Duration = Duration::from_millis(5);

fn mesh(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_mesh"));
    command.args(arguments).stdin(Stdio::null());
    for (name, _) in std::env::vars_os() {
        if name.as_encoded_bytes().starts_with(b"MESH_") {
            command.env_remove(name);
        }
    }
    command
}

fn run(command: &mut Command) -> Output {
    command.output().expect("the binary runs")
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).expect("UTF-8")
}

/// A node that ends with the test.
struct Node {
    child: Child,
    dir: TempDir,
    /// What it printed, up to `ready`.
    said: String,
}

impl Node {
    fn start() -> Self {
        let dir = tempfile::tempdir().expect("a directory");
        let mut child = node_command("start", dir.path()).spawn().expect("the binary runs");
        let mut said = String::new();
        for line in BufReader::new(child.stdout.take().expect("piped")).lines() {
            let line = line.expect("UTF-8");
            said += &line;
            said.push('\n');
            if line == "ready" {
                break;
            }
        }
        assert!(said.ends_with("ready\n"), "{said}");
        Self { child, dir, said }
    }

    /// A command to this node.
    fn ask(&self, arguments: &[&str]) -> Output {
        run(mesh(arguments).arg("--data-dir").arg(self.dir.path()))
    }

    fn ended(&mut self) -> bool {
        let since = Instant::now();
        while since.elapsed() < DEADLINE {
            if self.child.try_wait().expect("a child").is_some() {
                return true;
            }
            std::thread::sleep(POLL);
        }
        false
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn node_command(verb: &str, dir: &Path) -> Command {
    let mut command = mesh(&[
        "node",
        verb,
        "--name",
        "a",
        "--threads",
        "1",
        "--log",
        "warn",
        "--exit-with-parent",
    ]);
    command.args([
        "--http",
        "127.0.0.1:0",
        "--grpc",
        "127.0.0.1:0",
        "--listen",
        "127.0.0.1:0",
        "--data-dir",
    ]);
    command.arg(dir).stdin(Stdio::piped()).stdout(Stdio::piped());
    command
}

#[test]
fn the_demo_streams_the_verse_from_three_nodes_and_leaves_nothing_behind() {
    let dir = tempfile::tempdir().expect("a directory");
    let output = run(mesh(&["demo"]).env("TMPDIR", dir.path()));
    let said = text(&output.stdout);
    assert!(output.status.success(), "{said}{}", text(&output.stderr));
    assert!(
        said.contains("In the beginning God created the heaven and the earth.\n"),
        "{said}"
    );
    for stage in ["0      a", "1      b", "2      c"] {
        assert!(said.contains(stage), "{said}");
    }
    assert_eq!(std::fs::read_dir(dir.path()).expect("a directory").count(), 0);
}

#[test]
fn a_node_ends_when_the_pipe_from_its_parent_does() {
    let mut node = Node::start();
    drop(node.child.stdin.take());
    assert!(node.ended());
}

#[cfg(unix)]
#[test]
fn a_join_that_is_interrupted_ends_at_once_and_leaves_nothing_behind() {
    let node = Node::start();
    let ticket = text(&node.ask(&["node", "ticket"]).stdout).trim_end().to_owned();
    // Whoever joins now waits for an answer.
    drop(node);
    let dir = tempfile::tempdir().expect("a directory");
    let data_dir = dir.path().join("b");
    for signal in ["-INT", "-TERM"] {
        let mut command = node_command("join", &data_dir);
        let mut child = command
            .arg(&ticket)
            .stderr(Stdio::piped())
            .spawn()
            .expect("the binary runs");
        let since = Instant::now();
        while !data_dir.join("node.json").exists() {
            assert!(since.elapsed() < DEADLINE, "it does not start");
            std::thread::sleep(POLL);
        }
        let asked = Command::new("kill").args([signal, &child.id().to_string()]).status();
        assert!(asked.expect("kill runs").success());
        let _stdin = child.stdin.take();
        let output = child.wait_with_output().expect("a child");
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(130), "{said}");
        assert!(said.contains("interrupted"), "{said}");
        assert_eq!(std::fs::read_dir(dir.path()).expect("a directory").count(), 0);
    }
}

#[test]
fn a_node_serves_answers_and_leaves() {
    let mut node = Node::start();
    let served = node.ask(&[
        "serve",
        "built-in",
        "--name",
        "x",
        "--stages",
        "a:0-3,a:3-8",
        "--context",
        "256",
    ]);
    assert!(served.status.success(), "{}", text(&served.stderr));
    assert!(
        text(&served.stdout).starts_with("x is ready, context 256"),
        "{}",
        text(&served.stdout)
    );

    let answer = node.ask(&["run", "x", "Recite Genesis 1:1.", "--temperature", "0"]);
    assert_eq!(
        text(&answer.stdout),
        "In the beginning God created the heaven and the earth.\n"
    );

    let status: Value = serde_json::from_slice(&node.ask(&["status", "--output", "json"]).stdout).expect("JSON");
    assert_eq!(status["nodes"][0]["name"], "a");
    assert_eq!(status["deployments"][0]["ready"], true);
    assert_eq!(status["deployments"][0]["stages"][1]["layers"], "3-8");

    let ticket = node.ask(&["node", "ticket"]);
    let ticket = text(&ticket.stdout).trim_end();
    assert!(!ticket.is_empty() && !ticket.contains(char::is_whitespace));
    assert!(node.said.contains("mesh node join "));

    assert!(node.ask(&["stop", "x"]).status.success());
    assert!(node.ask(&["node", "leave"]).status.success());
    assert!(node.ended());
}

#[test]
fn failures_have_their_exit_codes_and_say_why_on_stderr() {
    let node = Node::start();
    let empty = tempfile::tempdir().expect("a directory");
    let code = |output: &Output| output.status.code().expect("an exit code");

    let nowhere = run(mesh(&["status", "--data-dir"]).arg(empty.path()));
    assert_eq!((code(&nowhere), nowhere.stdout.len()), (3, 0));
    assert!(text(&nowhere.stderr).contains("mesh node start"));

    for (arguments, expected, words) in [
        (&["run", "y", "hi"][..], 4, "does not exist"),
        (&["stop", "y"], 4, "y"),
        (&["node", "show", "z"], 4, "this mesh has a"),
        (
            &["serve", "built-in", "--stages", "a:0-3,a:4-8"],
            2,
            "layers 3-4 are in no stage",
        ),
        (&["serve", "built-in", "--stages", "7"], 7, "join more nodes"),
        (&["serve", "built-in", "--lanes", "0"], 2, "--lanes"),
        (&["serve", "no-such-file.gguf"], 6, "no-such-file.gguf"),
        (&["frob"], 2, "frob"),
    ] {
        let output = node.ask(arguments);
        let said = text(&output.stderr);
        assert_eq!(
            (code(&output), output.stdout.len()),
            (expected, 0),
            "{arguments:?}: {said}"
        );
        assert!(said.contains(words), "{arguments:?}: {said}");
    }
    let second = run(node_command("start", node.dir.path()).stdin(Stdio::null()));
    assert_eq!(code(&second), 5);
    assert!(text(&second.stderr).contains("--data-dir"), "{}", text(&second.stderr));
    assert!(node.ask(&["status"]).status.success(), "the node goes on");
}

#[test]
fn models_are_inspected_without_a_node() {
    let output = run(&mut mesh(&["models", "inspect", "built-in", "--output", "json"]));
    let model: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!((&model["architecture"], &model["layers"]), (&"llama".into(), &8.into()));
    assert_eq!(model["legal_cuts"].as_array().map(Vec::len), Some(7));
    assert_eq!(run(&mut mesh(&["models", "inspect", file!()])).status.code(), Some(6));
}
