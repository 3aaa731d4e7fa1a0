//! Files that changed behind a node's back, and paths that are no files.

use std::{
    fs,
    path::Path,
    time::{Duration, Instant},
};

use anyhow::Result;
use mesh_proto::v1::ServeRequest;
use mesh_tests::{ChatCall, Processes, until};

/// Looking at a path takes milliseconds; the command has to start and connect.
const AT_ONCE: Duration = Duration::from_secs(10);

/// From the restart of a node to the deployment that it holds a stage of.
const RETURN_LIMIT: Duration = Duration::from_secs(60);

async fn serve(mesh: &Processes) -> Result<String> {
    let request = ServeRequest {
        model: "built-in".to_owned(),
        name: "psalm".to_owned(),
        stages: "a:0-4,b:4-8".to_owned(),
        ..ServeRequest::default()
    };
    mesh.api(0).serve(request).await?;
    Ok(mesh
        .api(1)
        .chat(&ChatCall::greedy("psalm", "Recite Genesis 1:1."))
        .await?
        .text)
}

/// Turns bytes over in every model part of a data directory, leaving size and time as they were.
fn damage(data_dir: &Path) -> Result<usize> {
    let mut damaged = 0;
    for entry in fs::read_dir(data_dir.join("models"))? {
        let path = entry?.path();
        if path.extension().is_none_or(|extension| extension != "gguf") {
            continue;
        }
        let modified = fs::metadata(&path)?.modified()?;
        let mut bytes = fs::read(&path)?;
        let middle = bytes.len() / 2;
        for byte in &mut bytes[middle..middle + 64] {
            *byte ^= 0x55;
        }
        fs::write(&path, bytes)?;
        fs::File::options().write(true).open(&path)?.set_modified(modified)?;
        damaged += 1;
    }
    Ok(damaged)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn parts_that_were_damaged_are_made_again_before_they_are_loaded() -> Result<()> {
    let mut mesh = Processes::start(2).await?;
    let text = serve(&mesh).await?;
    mesh.api(0).stop("psalm").await?;
    // Source, both stages and vocabulary; what was fetched.
    assert_eq!((damage(mesh.data_dir(0))?, damage(mesh.data_dir(1))?), (4, 1));
    assert_eq!(serve(&mesh).await?, text);
    // While it is served: the next to load them is a node that starts again.
    assert_eq!(damage(mesh.data_dir(1))?, 1);
    let before = mesh
        .api(0)
        .deployment("psalm")
        .await?
        .map(|deployment| deployment.epoch);
    mesh.kill(1).await?;
    mesh.restart(1).await?;
    let api = mesh.api(1);
    until("it is served again", RETURN_LIMIT, || async {
        let deployment = api.deployment("psalm").await.ok()??;
        (deployment.ready && Some(deployment.epoch) > before).then_some(())
    })
    .await;
    let again = api.chat(&ChatCall::greedy("psalm", "Recite Genesis 1:1.")).await?.text;
    assert_eq!(again, text);
    for node in [0, 1] {
        let log = fs::read_to_string(mesh.data_dir(node).join("log"))?;
        assert!(
            log.contains("is not what it was") || log.contains("was not what it was"),
            "node {node}"
        );
    }
    mesh.finish().await.map(drop)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_path_that_is_no_file_is_refused_at_once_by_every_command() -> Result<()> {
    let mesh = Processes::start(1).await?;
    let dir = tempfile::tempdir()?;
    let fifo = dir.path().join("fifo.gguf").to_string_lossy().into_owned();
    assert!(std::process::Command::new("mkfifo").arg(&fifo).status()?.success());
    let socket = dir.path().join("socket.gguf").to_string_lossy().into_owned();
    let _listener = std::os::unix::net::UnixListener::bind(&socket)?;
    let directory = dir.path().to_string_lossy().into_owned();
    for path in [fifo.as_str(), &socket, "/dev/zero", "/dev/tty", &directory] {
        for command in [
            &["models", "inspect", path][..],
            &["serve", path],
            &["bench", "split", path],
        ] {
            let begun = Instant::now();
            let (code, _, err) = tokio::time::timeout(AT_ONCE, mesh.command(0, command)).await??;
            assert_eq!(code, 6, "{command:?}: {err}");
            assert!(err.contains("not a regular file"), "{command:?}: {err}");
            assert!(begun.elapsed() < AT_ONCE);
        }
    }
    // Settings are read before anything else.
    let home = tempfile::tempdir()?;
    let config = home.path().join("config.toml");
    assert!(std::process::Command::new("mkfifo").arg(&config).status()?.success());
    let start = mesh_tests::processes::run(home.path(), &["node", "start"]);
    let (code, _, err) = tokio::time::timeout(AT_ONCE, start).await??;
    assert_ne!(code, 0);
    assert!(
        err.contains("config.toml") && err.contains("not a regular file"),
        "{err}"
    );
    mesh.finish().await.map(drop)
}
