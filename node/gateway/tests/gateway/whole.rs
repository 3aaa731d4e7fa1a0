//! Answers in one piece.

use std::sync::Arc;

use mesh_proto::{ErrorCode, MeshError, v1::FinishReason};
use serde_json::{Value, json};

use crate::{
    scripted::{Immediate, finished, manual},
    server::{chat_body, refusal, start, within},
};

#[tokio::test]
async fn a_chat_is_one_object_with_usage() {
    let (inference, mut requests) = manual();
    let server = start(inference).await;
    let sent = tokio::spawn(server.post("/v1/chat/completions", chat_body("")).send());
    let writer = requests.next().await.admit();
    writer.commit("In the ", 2);
    writer.commit("beginning", 4);
    writer.finish(finished(FinishReason::Stop, 5));
    let response = within(sent).await.unwrap().unwrap();
    assert_eq!(response.status(), 200);
    let id = response.headers()["x-request-id"].to_str().unwrap().to_owned();
    let answer: Value = within(response.json()).await.unwrap();
    let expected = json!({
        "id": format!("chatcmpl-{id}"), "object": "chat.completion", "created": 1_700_000_000, "model": "smol",
        "choices": [{
            "index": 0, "finish_reason": "stop", "logprobs": null,
            "message": {"role": "assistant", "content": "In the beginning", "refusal": null},
        }],
        "usage": {"prompt_tokens": 7, "completion_tokens": 5, "total_tokens": 12},
    });
    assert_eq!(answer, expected);
}

#[tokio::test]
async fn a_text_completion_is_one_object_with_usage() {
    let server = start(Arc::new(Immediate::default())).await;
    let answer: Value = server
        .text(r#"{"model":"org/name:tag","prompt":"hi"}"#)
        .await
        .json()
        .await
        .unwrap();
    assert_eq!(answer["object"], "text_completion");
    assert_eq!(answer["model"], "org/name:tag");
    assert_eq!(
        answer["choices"],
        json!([{"index": 0, "text": "ok", "logprobs": null, "finish_reason": "stop"}])
    );
    assert_eq!(answer["usage"]["total_tokens"], 8);
}

#[tokio::test]
async fn a_failure_is_the_status_even_after_text() {
    let (inference, mut requests) = manual();
    let server = start(inference).await;
    let sent = tokio::spawn(server.post("/v1/chat/completions", chat_body("")).send());
    let writer = requests.next().await.admit();
    writer.commit("In", 1);
    writer.fail(MeshError::new(ErrorCode::StageLost, "stage 1 went away; try again"));
    let response = within(sent).await.unwrap().unwrap();
    assert!(response.headers().contains_key("retry-after"));
    let (status, error) = refusal(response).await;
    assert_eq!((status, &error["code"]), (503, &json!("stage_lost")));
}

#[tokio::test]
async fn a_client_that_leaves_cancels_the_generation() {
    let (inference, mut requests) = manual();
    let server = start(inference).await;
    let sent = tokio::spawn(server.post("/v1/chat/completions", chat_body("")).send());
    let writer = requests.next().await.admit();
    writer.commit("In", 1);
    sent.abort();
    within(writer.cancelled().cancelled()).await;
}

#[tokio::test]
async fn a_panic_is_a_500_and_the_server_lives() {
    let server = start(Arc::new(Immediate::default())).await;
    let (status, error) = refusal(server.text(r#"{"model":"smol","prompt":"panic"}"#).await).await;
    assert_eq!((status, &error["code"]), (500, &json!("internal_error")));
    assert_eq!(server.text(r#"{"model":"smol","prompt":"hi"}"#).await.status(), 200);
}
