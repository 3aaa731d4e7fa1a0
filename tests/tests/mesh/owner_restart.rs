//! The node that owns a deployment ends, in whatever way, and starts again: what it served comes back, what was stopped
//! does not.

use std::{path::Path, time::Duration};

use anyhow::Result;
use mesh_proto::v1::{Deployment, DeploymentPhase, NodeState, ServeRequest};
use mesh_tests::{ChatCall, Processes, until};

/// From the owner's start to its deployment: the hosts on the other nodes first have to notice that it was gone.
const RETURN_LIMIT: Duration = Duration::from_secs(90);

/// The owner, which holds a stage; another node admits members, is the head, and tells of its requests.
const OWNER: usize = 1;

async fn serve(mesh: &Processes, model: &str) -> Result<Deployment> {
    let request = ServeRequest {
        model: model.to_owned(),
        name: "psalm".to_owned(),
        stages: "a:0-3,b:3-5,c:5-8".to_owned(),
        ..ServeRequest::default()
    };
    mesh.api(OWNER).serve(request).await
}

async fn recited(mesh: &Processes, node: usize) -> Result<String> {
    let answer = mesh
        .api(node)
        .chat(&ChatCall::greedy("psalm", "Recite Genesis 1:1."))
        .await?;
    Ok(answer.text)
}

async fn listed(mesh: &Processes, is: impl Fn(&Deployment) -> bool) -> Deployment {
    let api = mesh.api(OWNER);
    until("psalm, as it should be", RETURN_LIMIT, || async {
        api.deployment("psalm").await.ok()?.filter(&is)
    })
    .await
}

async fn ready(mesh: &Processes) -> Deployment {
    listed(mesh, |deployment| deployment.ready).await
}

/// Waits until the owner has all nodes.
async fn all_up(mesh: &Processes) {
    let api = mesh.api(OWNER);
    until("all nodes are up", RETURN_LIMIT, || async {
        let nodes = api.status().await.ok()?.nodes;
        let up = nodes.iter().filter(|node| node.state == NodeState::Up as i32).count();
        (up == 3).then_some(())
    })
    .await;
}

/// Waits until a node knows of this epoch: it has to notice first that the owner is back.
async fn seen(mesh: &Processes, node: usize, epoch: u64) {
    let api = mesh.api(node);
    until("the other nodes see it", RETURN_LIMIT, || async {
        let seen = api.deployment("psalm").await.ok()??;
        (seen.ready && seen.epoch == epoch).then_some(())
    })
    .await;
}

/// Ends the owner by a signal and starts it again.
async fn restart_by(mesh: &mut Processes, signal: &str) -> Result<()> {
    mesh.signal(OWNER, signal).await?;
    mesh.wait(OWNER).await?;
    mesh.restart(OWNER).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_owner_brings_its_deployment_back_and_one_that_was_stopped_stays_stopped() -> Result<()> {
    let mut mesh = Processes::start(3).await?;
    all_up(&mesh).await;
    let first = serve(&mesh, "built-in").await?;
    let text = recited(&mesh, 0).await?;
    let mut last = first.epoch;
    for signal in ["-KILL", "-TERM", "-KILL"] {
        restart_by(&mut mesh, signal).await?;
        let listed = mesh
            .api(OWNER)
            .deployment("psalm")
            .await?
            .expect("listed while it comes back");
        assert!(listed.ready || !listed.reason.is_empty(), "{listed:?}");
        let back = ready(&mesh).await;
        assert!(back.epoch > last, "{} after {last}", back.epoch);
        assert_eq!((back.created, back.context), (first.created, first.context));
        let places = |deployment: &Deployment| {
            let stages = deployment.stages.iter();
            stages
                .map(|stage| (stage.node.clone(), stage.layers.clone()))
                .collect::<Vec<_>>()
        };
        assert_eq!(places(&back), places(&first));
        let (status, body) = mesh.api(OWNER).get("/readyz").await?;
        assert_eq!(status, 200, "{body}");
        seen(&mesh, 2, back.epoch).await;
        assert_eq!(
            (recited(&mesh, 2).await?, recited(&mesh, OWNER).await?),
            (text.clone(), text.clone())
        );
        last = back.epoch;
    }
    mesh.api(OWNER).stop("psalm").await?;
    restart_by(&mut mesh, "-KILL").await?;
    all_up(&mesh).await;
    assert!(mesh.api(OWNER).status().await?.deployments.is_empty());
    // The name and the epochs are free.
    let again = serve(&mesh, "built-in").await?;
    assert!(again.epoch > last, "{} after {last}", again.epoch);
    seen(&mesh, 0, again.epoch).await;
    assert_eq!(recited(&mesh, 0).await?, text);
    mesh.finish().await.map(drop)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_model_that_is_gone_is_told_and_comes_back_when_it_is_served_again() -> Result<()> {
    let mut mesh = Processes::start(3).await?;
    all_up(&mesh).await;
    let files = tempfile::tempdir()?;
    let (model, aside) = (files.path().join("psalm.gguf"), files.path().join("aside"));
    std::fs::write(&model, mesh_node::built_in_model())?;
    let path = model.to_string_lossy().into_owned();
    serve(&mesh, &path).await?;
    let text = recited(&mesh, 0).await?;

    mesh.signal(OWNER, "-KILL").await?;
    mesh.wait(OWNER).await?;
    std::fs::rename(&model, &aside)?;
    mesh.restart(OWNER).await?;
    let lost = |word: &'static str| {
        move |deployment: &Deployment| {
            deployment.phase == DeploymentPhase::Lost as i32 && deployment.reason.contains(word)
        }
    };
    listed(&mesh, lost("psalm.gguf")).await;
    let (status, body) = mesh.api(OWNER).get("/readyz").await?;
    assert_eq!(status, 503, "{body}");
    // Another file under its name, of a later time, is not what was asked for.
    std::fs::write(&model, mesh_node::built_in_model())?;
    listed(&mesh, lost("has changed since it was served")).await;
    std::fs::rename(&aside, &model)?;
    let stages = "a:0-3,b:3-5,c:5-8";
    let (code, _, err) = mesh
        .command(OWNER, &["serve", &path, "--name", "psalm", "--stages", stages])
        .await?;
    assert_eq!(code, 0, "{err}");
    let again = ready(&mesh).await;
    seen(&mesh, 0, again.epoch).await;
    assert_eq!(recited(&mesh, 0).await?, text);

    // A node that leaves its mesh serves nothing in its next life.
    let (code, _, err) = mesh.command(OWNER, &["node", "leave"]).await?;
    assert_eq!(code, 0, "{err}");
    mesh.wait(OWNER).await?;
    assert!(!kept(mesh.data_dir(OWNER))?.contains("psalm"));
    mesh.finish().await.map(drop)
}

fn kept(data_dir: &Path) -> Result<String> {
    Ok(std::fs::read_to_string(data_dir.join("deployments.json"))?)
}
