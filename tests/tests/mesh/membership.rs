//! Nodes that are taken out of a mesh, leave it, or are there twice.

use std::{
    path::Path,
    process::{Output, Stdio},
    time::{Duration, Instant},
};

use anyhow::{Context, Result};
use mesh_proto::v1::{NodeState, ServeRequest};
use mesh_tests::{Api, ChatCall, Processes, processes::mesh_binary, until};
use serde_json::Value;
use tokio::{process::Command, time::timeout};

/// Nothing here takes a tenth of it on a machine that has nothing else to do.
const LIMIT: Duration = Duration::from_secs(30);

/// Connections of a removed node end well before they would time out.
const AT_ONCE: Duration = Duration::from_secs(3);

async fn serve(mesh: &Processes, node: usize, stages: &str) -> Result<()> {
    let request = ServeRequest {
        model: "built-in".to_owned(),
        name: "psalm".to_owned(),
        stages: stages.to_owned(),
        ..ServeRequest::default()
    };
    mesh.api(node).serve(request).await.map(drop)
}

async fn names(api: &Api) -> Result<Vec<String>> {
    let nodes = api.status().await?.nodes;
    Ok(nodes.into_iter().map(|node| node.name).collect())
}

async fn not_ready(api: &Api, words: &str) {
    until(&format!("not ready: {words}"), LIMIT, || async {
        let deployment = api.deployment("psalm").await.ok()??;
        (!deployment.ready && deployment.reason.contains(words)).then_some(())
    })
    .await;
}

/// Runs a node that must not come to run, to its end.
async fn start(arguments: &[&str], data_dir: &Path) -> Result<Output> {
    let child = Command::new(mesh_binary())
        .arg("node")
        .args(arguments)
        .args([
            "--http",
            "127.0.0.1:0",
            "--grpc",
            "127.0.0.1:0",
            "--listen",
            "127.0.0.1:0",
        ])
        .arg("--data-dir")
        .arg(data_dir)
        .env("NO_COLOR", "1")
        .stdin(Stdio::null())
        .kill_on_drop(true)
        .output();
    timeout(LIMIT, child)
        .await
        .context("the node runs")?
        .map_err(Into::into)
}

fn said(output: &Output) -> String {
    format!(
        "{}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    )
}

fn log(mesh: &Processes, node: usize) -> String {
    std::fs::read_to_string(mesh.data_dir(node).join("log")).unwrap_or_default()
}

fn copy(from: &Path, to: &Path) -> Result<()> {
    for entry in std::fs::read_dir(from)? {
        let entry = entry?;
        if entry.file_type()?.is_file() {
            std::fs::copy(entry.path(), to.join(entry.file_name()))?;
        }
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_removed_node_is_out_on_every_node_at_once_and_its_name_is_free() -> Result<()> {
    let mut mesh = Processes::start(3).await?;
    let (_, old_ticket, _) = mesh.command(0, &["node", "ticket"]).await?;
    serve(&mesh, 1, "b:0-4,c:4-8").await?;
    let answer = mesh
        .api(0)
        .chat(&ChatCall::greedy("psalm", "Recite John 11:35."))
        .await?;
    assert_eq!(answer.text, "Jesus wept.");
    let copied = tempfile::tempdir()?;
    copy(mesh.data_dir(2), copied.path())?;

    // Asked on a member: the node that admits others does it.
    let removed = Instant::now();
    let (code, _, err) = mesh.command(1, &["node", "remove", "c"]).await?;
    assert_eq!(code, 0, "{err}");
    assert!(err.contains("node c is out of the mesh"), "{err}");
    not_ready(&mesh.api(1), "node c, which it needs, left the mesh or was removed").await;
    assert!(removed.elapsed() < AT_ONCE, "{:?}", removed.elapsed());
    not_ready(&mesh.api(0), "mesh stop psalm").await;
    for node in 0..2 {
        assert_eq!(names(&mesh.api(node)).await?, ["a", "b"]);
    }
    // It hears why.
    let status = timeout(LIMIT, mesh.wait(2)).await.context("c runs on")??;
    assert!(!status.success());
    assert!(log(&mesh, 2).contains("was removed from the mesh"), "{}", log(&mesh, 2));

    // Whoever has its files is no member, and its old ticket admits nobody: neither that key nor another.
    let output = start(&["start", "--name", "c"], copied.path()).await?;
    assert!(
        !output.status.success() && said(&output).contains("was removed from the mesh"),
        "{}",
        said(&output)
    );
    let fresh = tempfile::tempdir()?;
    for directory in [copied.path(), fresh.path()] {
        let output = start(&["join", old_ticket.trim(), "--name", "c"], directory).await?;
        assert!(!output.status.success(), "{}", said(&output));
        assert!(said(&output).contains("before a node was removed"), "{}", said(&output));
    }
    // A new ticket admits both, one after the other; the name is free for the first that comes.
    let (code, _, err) = mesh.command(0, &["node", "remove", "nobody"]).await?;
    assert_eq!(code, 4, "{err}");
    mesh.add("c", &[]).await?;
    let api = mesh.api(1);
    until("c is there", LIMIT, || async {
        let nodes = api.status().await.ok()?.nodes;
        let up = nodes.iter().filter(|node| node.state == NodeState::Up as i32);
        (up.count() == 3).then_some(())
    })
    .await;
    mesh.api(1).stop("psalm").await?;
    serve(&mesh, 1, "b:0-4,c:4-8").await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_removal_outlives_the_restart_of_the_node_that_admits_others() -> Result<()> {
    let mut mesh = Processes::start(2).await?;
    let (_, old_ticket, _) = mesh.command(0, &["node", "ticket"]).await?;
    mesh.kill(1).await?;
    let (code, _, err) = mesh.command(0, &["node", "remove", "b"]).await?;
    assert_eq!(code, 0, "{err}");
    mesh.kill(0).await?;
    mesh.restart(0).await?;
    assert_eq!(names(&mesh.api(0)).await?, ["a"]);
    let fresh = tempfile::tempdir()?;
    let output = start(&["join", old_ticket.trim(), "--name", "b"], fresh.path()).await?;
    assert!(said(&output).contains("before a node was removed"), "{}", said(&output));
    let output = start(&["start", "--name", "b"], mesh.data_dir(1)).await?;
    assert!(said(&output).contains("was removed from the mesh"), "{}", said(&output));
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_leaves_that_others_depend_on() -> Result<()> {
    let mut mesh = Processes::start(3).await?;
    serve(&mesh, 0, "a:0-4,c:4-8").await?;
    let (code, _, err) = mesh.command(2, &["node", "leave"]).await?;
    assert_eq!(code, 0, "{err}");
    assert!(timeout(LIMIT, mesh.wait(2)).await.context("c runs on")??.success());
    for node in 0..2 {
        not_ready(&mesh.api(node), "node c, which it needs, left the mesh or was removed").await;
        assert_eq!(names(&mesh.api(node)).await?, ["a", "b"]);
    }
    mesh.api(0).stop("psalm").await?;
    serve(&mesh, 0, "a:0-4,b:4-8").await?;

    // The node that admits others says what its leaving means, and leaves when told to.
    let (code, _, err) = mesh.command(0, &["node", "leave"]).await?;
    assert_eq!(code, 5, "{err}");
    assert!(err.contains("nobody can join") && err.contains("--force"), "{err}");
    let (code, _, err) = mesh.command(0, &["node", "leave", "--force"]).await?;
    assert_eq!(code, 0, "{err}");
    assert!(timeout(LIMIT, mesh.wait(0)).await.context("a runs on")??.success());
    // A member that has nobody to tell leaves in the same way.
    let (code, _, err) = mesh.command(1, &["node", "leave"]).await?;
    assert_ne!(code, 0);
    assert!(err.contains("--force") && err.contains("mesh node remove b"), "{err}");
    let (code, _, err) = mesh.command(1, &["node", "leave", "--force"]).await?;
    assert_eq!(code, 0, "{err}");
    assert!(timeout(LIMIT, mesh.wait(1)).await.context("b runs on")??.success());
    Ok(())
}

/// The second process with a key is refused while the first is alive; both logs and the list of nodes say it.
async fn copied_node_is_refused(mesh: &Processes, node: usize, others: &[usize]) -> Result<()> {
    let name = ["a", "b"][node];
    let copied = tempfile::tempdir()?;
    copy(mesh.data_dir(node), copied.path())?;
    let output = start(&["start", "--name", name], copied.path()).await?;
    assert_eq!(output.status.code(), Some(5), "{}", said(&output));
    assert!(
        said(&output).contains("the key of this node is in use by a process at 127.0.0.1:"),
        "{}",
        said(&output)
    );
    assert!(said(&output).contains("new --data-dir"), "{}", said(&output));
    assert!(!said(&output).contains("\nready\n"), "{}", said(&output));
    until("the first is told", LIMIT, || async {
        log(mesh, node)
            .contains("another process tried to use the key of this node")
            .then_some(())
    })
    .await;
    for node in others {
        until("the list says it", LIMIT, || async {
            let (_, list, _) = mesh.command(*node, &["node", "list"]).await.ok()?;
            let (_, json, _) = mesh.command(*node, &["node", "list", "--output", "json"]).await.ok()?;
            let nodes: Value = serde_json::from_str(&json).ok()?;
            let told = nodes.as_array()?.iter().find(|told| told["name"] == name)?;
            let place = told["key_in_use_by"].as_str()?;
            let line = format!("the key of node {name} was used by another process, at 127.0.0.1:");
            (place.contains("run ") && list.contains(&line)).then_some(())
        })
        .await;
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_key_is_one_process_at_a_time() -> Result<()> {
    let mut mesh = Processes::start(2).await?;
    copied_node_is_refused(&mesh, 1, &[0, 1]).await?;
    copied_node_is_refused(&mesh, 0, &[0, 1]).await?;
    // The first ones go on.
    serve(&mesh, 0, "a:0-4,b:4-8").await?;
    let answer = mesh
        .api(1)
        .chat(&ChatCall::greedy("psalm", "Recite John 11:35."))
        .await?;
    assert_eq!(answer.text, "Jesus wept.");
    mesh.api(0).stop("psalm").await?;

    // A node that was killed comes back, and nothing is said of it any more.
    mesh.kill(1).await?;
    mesh.restart(1).await?;
    let api = mesh.api(0);
    until("b is back", LIMIT, || async {
        let nodes = api.status().await.ok()?.nodes;
        let back = nodes.iter().find(|node| node.name == "b")?;
        (back.state == NodeState::Up as i32 && back.key_in_use_by.is_empty()).then_some(())
    })
    .await;
    mesh.kill(0).await?;
    mesh.restart(0).await?;
    Ok(())
}
