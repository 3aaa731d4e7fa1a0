//! Real models served by three processes: the greedy text equals that of one node.

use anyhow::Result;
use mesh_proto::v1::ServeRequest;
use mesh_tests::{Answer, ChatCall, Processes, models};
use serde_json::json;

async fn served(mesh: &Processes, model: &str, stages: &str) -> Result<Vec<Answer>> {
    let name = stages.replace([':', ','], "_");
    let request = ServeRequest {
        model: model.to_owned(),
        name: name.clone(),
        stages: stages.to_owned(),
        context: 1024,
        exact: true,
        ..ServeRequest::default()
    };
    mesh.api(0).serve(request).await?;
    let questions = [
        "What is the capital of France?",
        "Write three short sentences about the sea.",
    ];
    let mut answers = Vec::new();
    for (index, question) in questions.into_iter().enumerate() {
        let call = ChatCall::greedy(&name, question).with("max_tokens", json!(32));
        answers.push(mesh.api(index + 1).stream(&call).await?);
    }
    mesh.api(0).stop(&name).await?;
    Ok(answers)
}

async fn split_text_equals_whole_text(file: &str, splits: &[&str], layers: u32) -> Result<()> {
    let Some(model) = models::real_model(file) else {
        return Ok(());
    };
    let model = model.to_string_lossy();
    let mesh = Processes::start(3).await?;
    let whole = served(&mesh, &model, &format!("a:0-{layers}")).await?;
    assert!(
        whole.iter().all(|answer| answer.done && !answer.text.is_empty()),
        "{whole:?}"
    );
    for stages in splits {
        let split = served(&mesh, &model, stages).await?;
        let texts = |answers: &[Answer]| answers.iter().map(|answer| answer.text.clone()).collect::<Vec<_>>();
        assert_eq!(texts(&split), texts(&whole), "{stages}");
    }
    mesh.finish().await.map(drop)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn smollm2_says_the_same_on_three_nodes_as_on_one() -> Result<()> {
    split_text_equals_whole_text(models::SMOLLM2, &["a:0-10,b:10-20,c:20-30", "b:0-3,c:3-29,a:29-30"], 30).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn gemma3_says_the_same_on_three_nodes_as_on_one() -> Result<()> {
    split_text_equals_whole_text(models::GEMMA3, &["a:0-6,b:6-12,c:12-18", "c:0-5,a:5-13,b:13-18"], 18).await
}
