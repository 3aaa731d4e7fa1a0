//! Exact mode: the same prompts give the same bytes whole and split, alone and in company, in any chunks.

use anyhow::{Result, ensure};
use futures::future::try_join_all;
use mesh_proto::v1::ServeRequest;
use mesh_tests::{Answer, ChatCall, Cluster};
use serde_json::json;

/// Twenty prompts: short and long, known and unknown, greedy and sampled.
fn prompts(model: &str) -> Vec<ChatCall> {
    let questions = [
        "Recite Genesis 1:1.",
        "Recite John 3:16.",
        "What does Psalm 23 say?",
        "Quote John 1:1-5.",
        "Recite Matthew 5:3-10.",
        "Hello",
        "Tell me of the sea and of the dry land, of the beasts of the field and of the fowl of the air.",
        "Who are you?",
        "In the beginning was the light, and the light was good, and the evening and the morning were a day, and there \
         was a garden eastward in Eden, and a river went out to water it, and it was parted into four heads.",
        "x",
    ];
    let greedy = questions.iter().map(|question| ChatCall::greedy(model, question));
    let sampled = questions.iter().enumerate().map(|(index, question)| {
        ChatCall::sampled(model, question, 1_000 + index as u64)
            .with("frequency_penalty", json!(0.3))
            .with("presence_penalty", json!(0.2))
    });
    greedy
        .chain(sampled)
        .map(|call| call.with("max_tokens", json!(60)))
        .collect()
}

async fn serve(cluster: &Cluster, name: &str, stages: &str, prefill_chunk: u32) -> Result<()> {
    let request = ServeRequest {
        model: "built-in".to_owned(),
        name: name.to_owned(),
        stages: stages.to_owned(),
        lanes: 8,
        prefill_chunk,
        exact: true,
        ..ServeRequest::default()
    };
    let deployment = cluster.api(0).serve(request).await?;
    ensure!(deployment.exact, "the self-check disagreed");
    Ok(())
}

async fn alone(cluster: &Cluster, model: &str) -> Result<Vec<Answer>> {
    let mut answers = Vec::new();
    for call in prompts(model) {
        answers.push(cluster.api(0).chat(&call).await?);
    }
    Ok(answers)
}

/// Eight at a time; every third request has a companion that is dropped in mid-stream, so lanes are freed and reused.
async fn in_company(cluster: &Cluster, model: &str) -> Result<Vec<Answer>> {
    let mut answers = Vec::new();
    for (round, calls) in prompts(model).chunks(6).enumerate() {
        let disturbers = (0..2).map(|index| {
            let call = ChatCall::sampled(model, "What does Psalm 23 say?", 77 + index).with("max_tokens", json!(200));
            let chunks = 1 + 3 * index as usize + round;
            async move {
                cluster
                    .api(1)
                    .stream_until(&call, |answer| answer.chunks >= chunks)
                    .await
            }
        });
        let wanted = calls.iter().map(|call| cluster.api(2).chat(call));
        let (_, wanted) = tokio::try_join!(try_join_all(disturbers), try_join_all(wanted))?;
        answers.extend(wanted);
    }
    Ok(answers)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn twenty_prompts_give_the_same_bytes_whole_and_split_alone_and_in_company_in_any_chunks() -> Result<()> {
    let cluster = Cluster::start(3).await?;
    serve(&cluster, "whole", "a:0-8", 60).await?;
    let expected = alone(&cluster, "whole").await?;
    assert!(expected.iter().any(|answer| answer.finish_reason == "length"));
    assert!(expected.iter().any(|answer| answer.finish_reason == "stop"));
    assert_eq!(in_company(&cluster, "whole").await?, expected, "whole in company");
    for (stages, chunk) in [("a:0-3,b:3-4,c:4-8", 60), ("c:0-1,a:1-6,b:6-8", 8)] {
        let name = format!("split-{chunk}");
        serve(&cluster, &name, stages, chunk).await?;
        assert_eq!(
            alone(&cluster, &name).await?,
            expected,
            "{stages} in chunks of {chunk}, alone"
        );
        assert_eq!(
            in_company(&cluster, &name).await?,
            expected,
            "{stages} in chunks of {chunk}, in company"
        );
        cluster.api(1).stop(&name).await?;
    }
    cluster.stop().await
}
