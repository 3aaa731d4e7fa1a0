//! One name, two owners: the second is told whose it is, and the first goes on serving.

use std::time::Duration;

use anyhow::Result;
use mesh_proto::v1::ServeRequest;
use mesh_tests::{Api, ChatCall, Cluster, until};

/// Stages that were refused are gone by then.
const FREE_LIMIT: Duration = Duration::from_secs(30);

async fn serve(api: &Api) -> Result<()> {
    let request = ServeRequest {
        model: "built-in".to_owned(),
        name: "psalm".to_owned(),
        stages: "a:0-3,b:3-5,c:5-8".to_owned(),
        ..ServeRequest::default()
    };
    api.serve(request).await.map(drop)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_nodes_that_serve_one_name_at_once_never_mix_their_stages() -> Result<()> {
    let cluster = Cluster::start(3).await?;
    for _ in 0..3 {
        let (first, second) = tokio::join!(serve(cluster.api(0)), serve(cluster.api(1)));
        let served = usize::from(first.is_ok()) + usize::from(second.is_ok());
        assert!(served <= 1, "both serve it");
        for refused in [first, second].into_iter().filter_map(Result::err) {
            let error = format!("{refused:#}");
            assert!(
                error.contains("already served by node") || error.contains("a deployment named psalm exists"),
                "{error}"
            );
        }
        if served == 0 {
            // Each came first on one of the nodes; the name is free there as soon as nothing is left of it.
            until("one of them alone", FREE_LIMIT, || async {
                serve(cluster.api(0)).await.ok()
            })
            .await;
        }
        for node in 0..3 {
            let call = ChatCall::greedy("psalm", "Recite John 11:35.");
            assert_eq!(cluster.api(node).chat(&call).await?.text, "Jesus wept.");
            assert_eq!(cluster.api(node).status().await?.deployments.len(), 1);
        }
        cluster.api(2).stop("psalm").await?;
    }
    cluster.stop().await
}
