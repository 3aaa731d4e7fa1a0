//! Streamed answers.

use std::{sync::Arc, time::Duration};

use mesh_gateway::GatewayOptions;
use mesh_proto::{ErrorCode, MeshError, v1::FinishReason};

use crate::{
    scripted::{Immediate, finished},
    server::{Events, STREAM, chat_body, options, refusal, start, start_manual, within},
};

#[tokio::test]
async fn chunks_arrive_as_text_commits_and_the_reason_comes_once() {
    let (server, mut requests) = start_manual(options()).await;
    let (asked, response) = server.ask_chat(&mut requests, STREAM).await;
    let writer = asked.admit();
    let response = within(response).await.unwrap();
    assert_eq!(response.headers()["cache-control"], "no-cache");
    assert_eq!(response.headers()["x-mesh-seed"], "42");
    let id = response.headers()["x-request-id"].to_str().unwrap().to_owned();

    let mut events = Events::of(response);
    let opening = events.json().await;
    assert_eq!(opening["object"], "chat.completion.chunk");
    assert_eq!(opening["id"], format!("chatcmpl-{id}"));
    assert_eq!(opening["model"], "smol");
    assert_eq!(opening["created"], 1_700_000_000);
    assert_eq!(
        opening["choices"][0]["delta"],
        serde_json::json!({"role": "assistant", "content": ""})
    );
    assert!(opening["choices"][0]["finish_reason"].is_null());
    assert!(opening.get("usage").is_none());

    writer.commit("In the ", 2);
    assert_eq!(
        events.json().await["choices"][0]["delta"],
        serde_json::json!({"content": "In the "})
    );
    writer.commit("beginning\n\n", 4);
    assert_eq!(events.json().await["choices"][0]["delta"]["content"], "beginning\n\n");
    writer.finish(finished(FinishReason::Length, 4));
    let closing = events.json().await;
    assert_eq!(closing["choices"][0]["finish_reason"], "length");
    assert_eq!(closing["choices"][0]["delta"], serde_json::json!({}));
    assert_eq!(events.rest().await, ["[DONE]"]);
}

#[tokio::test]
async fn usage_comes_only_when_asked_for_as_one_last_chunk_without_choices() {
    let server = start(Arc::new(Immediate::default())).await;
    for path in ["/v1/chat/completions", "/v1/completions"] {
        let body = |usage: bool| {
            let body = r#"{"model":"smol","stream":true,"stream_options":{"include_usage":USAGE},PROMPT}"#;
            let prompt = if path.contains("chat") {
                r#""messages":[{"role":"user","content":"hi"}]"#
            } else {
                r#""prompt":"hi""#
            };
            body.replace("USAGE", &usage.to_string()).replace("PROMPT", prompt)
        };
        let with = Events::of(within(server.post(path, body(true)).send()).await.unwrap())
            .rest()
            .await;
        let chunks: Vec<serde_json::Value> = with[..with.len() - 1]
            .iter()
            .map(|chunk| serde_json::from_str(chunk).unwrap())
            .collect();
        assert_eq!(with.last().unwrap(), "[DONE]");
        let (last, others) = chunks.split_last().unwrap();
        assert_eq!(last["choices"], serde_json::json!([]));
        let usage = serde_json::json!({"prompt_tokens": 7, "completion_tokens": 1, "total_tokens": 8});
        assert_eq!(last["usage"], usage);
        assert!(
            others
                .iter()
                .all(|chunk| chunk.get("usage").is_some_and(serde_json::Value::is_null))
        );
        let reasons = others
            .iter()
            .filter(|chunk| !chunk["choices"][0]["finish_reason"].is_null());
        assert_eq!(reasons.count(), 1);

        let without = Events::of(within(server.post(path, body(false)).send()).await.unwrap())
            .rest()
            .await;
        assert!(without.iter().all(|chunk| !chunk.contains("usage")));
    }
}

#[tokio::test]
async fn a_text_completion_streams_text() {
    let server = start(Arc::new(Immediate::default())).await;
    let response = server.text(r#"{"model":"smol","prompt":"hi","stream":true}"#).await;
    let mut events = Events::of(response);
    let first = events.json().await;
    assert_eq!(first["object"], "text_completion");
    assert!(first["id"].as_str().unwrap().starts_with("cmpl-"));
    assert_eq!(first["choices"][0]["text"], "ok");
    assert_eq!(events.json().await["choices"][0]["finish_reason"], "stop");
    assert_eq!(events.rest().await, ["[DONE]"]);
}

#[tokio::test]
async fn a_failure_in_mid_stream_is_one_error_event_and_a_clean_close_without_done() {
    let (server, mut requests) = start_manual(options()).await;
    let (writer, mut events) = server.stream(&mut requests).await;
    writer.commit("In", 1);
    writer.fail(MeshError::new(
        ErrorCode::StageLost,
        "stage 1 on node b went away; try again",
    ));
    assert_eq!(events.json().await["choices"][0]["delta"]["content"], "In");
    let error = events.json().await;
    assert_eq!(error["error"]["code"], "stage_lost");
    assert_eq!(error["error"]["type"], "server_error");
    assert_eq!(events.next().await, None);
}

#[tokio::test]
async fn what_is_refused_before_admission_is_a_status_and_not_a_stream() {
    let (server, mut requests) = start_manual(options()).await;
    let cases = [
        (
            MeshError::new(ErrorCode::ContextLengthExceeded, "9 + 9 tokens do not fit in 8"),
            400,
            None,
        ),
        (MeshError::new(ErrorCode::QueueFull, "64 requests wait"), 429, Some("1")),
        (MeshError::new(ErrorCode::NotReady, "cold is not ready"), 503, Some("5")),
    ];
    for (error, status, retry) in cases {
        let code = error.code.name();
        let (asked, response) = server.ask_chat(&mut requests, STREAM).await;
        asked.refuse(error);
        let response = within(response).await.unwrap();
        assert_eq!(
            response
                .headers()
                .get("retry-after")
                .map(|value| value.to_str().unwrap()),
            retry
        );
        let (got, error) = refusal(response).await;
        assert_eq!((got, error["code"].as_str().unwrap()), (status, code));
    }
}

#[tokio::test]
async fn a_silent_stream_pings() {
    let (server, mut requests) = start_manual(GatewayOptions {
        ping_interval: Duration::from_millis(20),
        ..options()
    })
    .await;
    let (writer, mut events) = server.stream(&mut requests).await;
    assert_eq!(events.next().await.unwrap(), ": ping");
    assert_eq!(events.next().await.unwrap(), ": ping");
    writer.finish(finished(FinishReason::Stop, 0));
    let rest = events.rest().await;
    assert_eq!(rest.last().unwrap(), "[DONE]");
}

#[tokio::test]
async fn a_client_that_leaves_a_silent_stream_cancels_the_generation() {
    let (server, mut requests) = start_manual(options()).await;
    let (writer, events) = server.stream(&mut requests).await;
    drop(events);
    within(writer.cancelled().cancelled()).await;
}

#[tokio::test]
async fn a_client_that_leaves_while_queued_cancels_the_request() {
    let (server, mut requests) = start_manual(options()).await;
    for stream in ["", STREAM] {
        let sent = tokio::spawn(server.post("/v1/chat/completions", chat_body(stream)).send());
        let mut asked = requests.next().await;
        sent.abort();
        within(asked.abandoned()).await;
    }
}
