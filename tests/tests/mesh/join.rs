//! Joins that come to nothing: the name is free again at the issuer, and the joiner's machine is as it was.

use std::path::Path;

use anyhow::Result;
use mesh_node::Node;
use mesh_tests::{Cluster, cluster::config};

async fn names(cluster: &Cluster) -> Result<Vec<String>> {
    let nodes = cluster.api(0).status().await?.nodes;
    Ok(nodes.into_iter().map(|node| node.name).collect())
}

fn entries(directory: &Path) -> Result<Vec<String>> {
    let name =
        |entry: std::io::Result<std::fs::DirEntry>| anyhow::Ok(entry?.file_name().to_string_lossy().into_owned());
    std::fs::read_dir(directory)?.map(name).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_fails_to_start_after_it_was_admitted_leaves_again() -> Result<()> {
    let cluster = Cluster::start(1).await?;
    let ticket = cluster.api(0).ticket().await?;
    let directory = tempfile::tempdir()?;
    // Model parts cannot be kept, which shows after the join.
    std::fs::write(directory.path().join("models"), "in the way")?;
    for _ in 0..2 {
        let failed = Node::start(config("b", directory.path()), Some(ticket.clone())).await;
        let error = failed.err().map(|error| error.to_string()).unwrap_or_default();
        assert!(error.contains("models"), "{error}");
        assert_eq!(names(&cluster).await?, ["a"]);
        assert_eq!(entries(directory.path())?, ["models"]);
    }
    // Another node of this name.
    let other = tempfile::tempdir()?;
    let node = Node::start(config("b", other.path()), Some(ticket.clone())).await?;
    assert_eq!(names(&cluster).await?, ["a", "b"]);
    node.run_until(async {}).await?;

    // A member that fails to start again stays one.
    let models = other.path().join("models");
    std::fs::remove_dir_all(&models)?;
    std::fs::write(&models, "in the way")?;
    for ticket in [Some(ticket.clone()), None] {
        assert!(Node::start(config("b", other.path()), ticket).await.is_err());
    }
    std::fs::remove_file(&models)?;
    assert_eq!(names(&cluster).await?, ["a", "b"]);
    let node = Node::start(config("b", other.path()), None).await?;
    node.run_until(async {}).await?;
    cluster.stop().await
}
