//! A stage's process dies under load: one error each, not ready at once, nothing hangs, the rest lives.

use std::time::{Duration, Instant};

use anyhow::Result;
use mesh_proto::v1::ServeRequest;
use mesh_tests::{ChatCall, Processes, until};
use serde_json::json;

/// From the kill to the last client's error, and to "not ready" on every node.
const LOSS_LIMIT: Duration = Duration::from_secs(10);

/// From the restart of the lost node to a deployment that answers again.
const RETURN_LIMIT: Duration = Duration::from_secs(60);

async fn serve(mesh: &Processes, node: usize, name: &str, stages: &str) -> Result<()> {
    let request = ServeRequest {
        model: "built-in".to_owned(),
        name: name.to_owned(),
        stages: stages.to_owned(),
        ..ServeRequest::default()
    };
    mesh.api(node).serve(request).await.map(drop)
}

fn endless(seed: u64) -> ChatCall {
    ChatCall::sampled("psalm", "Tell me all the words of the book.", seed)
        .with("max_tokens", json!(480))
        .with("logit_bias", json!({"2": -100, "0": -100}))
}

async fn lose_the_middle_stage(signal: &str) -> Result<()> {
    let mut mesh = Processes::start(3).await?;
    serve(&mesh, 0, "psalm", "a:0-3,b:3-5,c:5-8").await?;
    serve(&mesh, 2, "other", "c:0-4,a:4-8").await?;
    let streams: Vec<_> = (0..4u64)
        .map(|seed| {
            let api = mesh.api(if seed < 2 { 0 } else { 2 });
            let (started, on_started) = tokio::sync::oneshot::channel();
            let mut started = Some(started);
            let task = tokio::spawn(async move {
                let answer = api
                    .stream_until(&endless(seed), |answer| {
                        if answer.chunks == 3 {
                            started.take().map(|started| started.send(()));
                        }
                        false
                    })
                    .await;
                (answer, Instant::now())
            });
            (task, on_started)
        })
        .collect();
    let mut tasks = Vec::new();
    for (task, started) in streams {
        started.await?;
        tasks.push(task);
    }
    let killed = Instant::now();
    mesh.signal(1, signal).await?;
    for task in tasks {
        let (answer, ended) = task.await?;
        let answer = answer?;
        assert!(
            answer.error.is_some() && !answer.done && answer.finish_reason.is_empty(),
            "{answer:?}"
        );
        assert!(ended - killed < LOSS_LIMIT, "took {:?}", ended - killed);
    }
    for node in [0, 2] {
        let api = mesh.api(node);
        until("not ready on every node", LOSS_LIMIT, || async {
            let deployment = api.deployment("psalm").await.ok()??;
            (!deployment.ready && !deployment.reason.is_empty()).then_some(())
        })
        .await;
        let (status, body) = api.get("/readyz").await?;
        assert_eq!(status, 200, "the other deployment is ready: {body}");
        let refused = api.post("/v1/chat/completions", endless(9).body()).await?;
        assert_eq!(refused.status().as_u16(), 503);
        assert!(refused.headers().contains_key("retry-after"));
        let answer = api.chat(&ChatCall::greedy("other", "Recite John 11:35.")).await?;
        assert_eq!(answer.text, "Jesus wept.");
    }
    eprintln!(
        "{signal}: last error and not ready on both nodes {:?} after the signal",
        killed.elapsed()
    );
    if signal == "-STOP" {
        mesh.signal(1, "-CONT").await?;
    } else {
        mesh.kill(1).await?;
        mesh.restart(1).await?;
    }
    let api = mesh.api(2);
    until("the deployment comes back with its node", RETURN_LIMIT, || async {
        let deployment = api.deployment("psalm").await.ok()??;
        (deployment.ready && deployment.epoch > 1).then_some(())
    })
    .await;
    let answer = api.chat(&ChatCall::greedy("psalm", "Recite Genesis 1:1.")).await?;
    assert_eq!(answer.text, "In the beginning God created the heaven and the earth.");
    mesh.finish().await.map(drop)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_middle_stage_ends_four_streams_with_one_error_each() -> Result<()> {
    lose_the_middle_stage("-KILL").await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_frozen_middle_stage_is_detected_and_nothing_stale_comes_after_it_thaws() -> Result<()> {
    lose_the_middle_stage("-STOP").await
}
