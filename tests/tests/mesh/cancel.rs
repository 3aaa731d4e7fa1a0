//! Clients that go away: their lanes are free on every stage, and nobody else notices.

use std::time::Duration;

use anyhow::Result;
use futures::future::try_join_all;
use mesh_proto::v1::ServeRequest;
use mesh_tests::{Api, ChatCall, Cluster, until};
use serde_json::json;

const FREE_LIMIT: Duration = Duration::from_secs(10);

async fn all_lanes_free(api: &Api, name: &str) {
    until("all lanes are free", FREE_LIMIT, || async {
        (api.lanes_used(name).await.ok()? == (0, 0)).then_some(())
    })
    .await;
}

fn long(seed: u64) -> ChatCall {
    ChatCall::sampled("psalm", "What does Psalm 23 say?", seed).with("max_tokens", json!(120))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn three_of_eight_streams_are_cancelled_and_the_others_have_the_text_they_have_alone() -> Result<()> {
    let cluster = Cluster::start(3).await?;
    cluster.serve("built-in", "psalm", "a:0-3,b:3-5,c:5-8").await?;
    let mut alone = Vec::new();
    for seed in 0..8 {
        alone.push(cluster.api(0).stream(&long(seed)).await?.text);
    }
    let streams = (0..8u64).map(|seed| {
        let api = cluster.api(seed as usize % 3);
        async move {
            let cancelled = seed % 3 == 1;
            api.stream_until(&long(seed), |answer| cancelled && answer.chunks > seed as usize)
                .await
        }
    });
    for (seed, answer) in try_join_all(streams).await?.into_iter().enumerate() {
        if seed % 3 == 1 {
            assert!(!answer.done && alone[seed].starts_with(&answer.text), "stream {seed}");
        } else {
            assert_eq!((answer.done, &answer.text), (true, &alone[seed]), "stream {seed}");
        }
    }
    all_lanes_free(cluster.api(1), "psalm").await;
    cluster.stop().await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clients_that_leave_while_queued_in_prefill_or_unstreamed_free_their_lanes() -> Result<()> {
    let cluster = Cluster::start(2).await?;
    let request = ServeRequest {
        model: "built-in".to_owned(),
        name: "psalm".to_owned(),
        stages: "a:0-4,b:4-8".to_owned(),
        lanes: 1,
        ..ServeRequest::default()
    };
    cluster.api(0).serve(request).await?;
    let api = cluster.api(1);
    let running = api.clone();
    // Not streamed, and long: it holds the one lane.
    let holder = tokio::spawn(async move { running.chat(&long(1)).await });
    until("the lane is held", FREE_LIMIT, || async {
        (api.lanes_used("psalm").await.ok()?.0 == 1).then_some(())
    })
    .await;
    let waiting: Vec<_> = (2..6)
        .map(|seed| {
            let api = api.clone();
            tokio::spawn(async move { api.stream(&long(seed)).await })
        })
        .collect();
    until("requests wait", FREE_LIMIT, || async {
        (api.lanes_used("psalm").await.ok()?.1 >= 1).then_some(())
    })
    .await;
    for task in waiting {
        task.abort();
    }
    holder.abort();
    all_lanes_free(api, "psalm").await;
    // Whoever comes next gets the lane and its own text.
    let prompt = "word ".repeat(300);
    let prefill = api.clone();
    let leaves = tokio::spawn(async move { prefill.stream(&ChatCall::greedy("psalm", &prompt)).await });
    until("prefill has a lane", FREE_LIMIT, || async {
        let used = api.lanes_used("psalm").await.ok()?.0;
        (used == 1 || leaves.is_finished()).then_some(())
    })
    .await;
    leaves.abort();
    all_lanes_free(api, "psalm").await;
    let answer = api.chat(&ChatCall::greedy("psalm", "Recite John 11:35.")).await?;
    assert_eq!(answer.text, "Jesus wept.");
    cluster.stop().await
}
