//! Stopping: new work is refused, running work finishes or is told.

use std::{sync::Arc, time::Duration};

use mesh_gateway::GatewayOptions;
use mesh_proto::v1::{
    FinishReason, GenerateRequest, generate_request::Prompt, generate_response::Event,
    inference_service_client::InferenceServiceClient,
};

use crate::{
    scripted::{Immediate, finished},
    server::{chat_body, options, refusal, start, start_manual, within},
};

#[tokio::test]
async fn an_idle_server_ends_at_once() {
    let mut server = start(Arc::new(Immediate::default())).await;
    server.shutdown.cancel();
    server.ended().await;
}

#[tokio::test]
async fn new_work_is_refused_while_a_running_stream_finishes() {
    let (mut server, mut requests) = start_manual(options()).await;
    let (writer, events) = server.stream(&mut requests).await;

    server.shutdown.cancel();
    // The servers see the shutdown when they next run: readiness tells when.
    within(async {
        while !server
            .get("/readyz")
            .send()
            .await
            .unwrap()
            .text()
            .await
            .unwrap()
            .contains(r#""draining":true"#)
        {}
    })
    .await;
    let refused = server.chat(chat_body("")).await;
    assert!(refused.headers().contains_key("retry-after"));
    let (status, error) = refusal(refused).await;
    assert_eq!((status, error["code"].as_str().unwrap()), (503, "draining"));
    assert_eq!(server.get("/healthz").send().await.unwrap().status(), 200);

    writer.commit("In", 1);
    writer.finish(finished(FinishReason::Stop, 1));
    assert_eq!(events.rest().await.last().unwrap(), "[DONE]");
    server.ended().await;
}

#[tokio::test]
async fn at_the_deadline_streams_get_one_error_event_and_generations_are_cancelled() {
    let (mut server, mut requests) = start_manual(GatewayOptions {
        drain_deadline: Duration::from_millis(50),
        ..options()
    })
    .await;

    let (streaming, mut events) = server.stream(&mut requests).await;
    let (asked, whole) = server.ask_chat(&mut requests, "").await;
    let waiting = asked.admit();
    let mut client = InferenceServiceClient::connect(format!("http://{}", server.grpc))
        .await
        .unwrap();
    let request = GenerateRequest {
        model: "smol".into(),
        prompt: Some(Prompt::Text("hi".into())),
        ..Default::default()
    };
    let call = tokio::spawn(async move { client.generate(request).await });
    let called = requests.next().await.admit();
    let mut messages = within(call).await.unwrap().unwrap().into_inner();

    server.shutdown.cancel();
    let error = events.json().await;
    assert_eq!(error["error"]["code"], "draining");
    assert_eq!(events.next().await, None);
    let (status, error) = refusal(within(whole).await.unwrap()).await;
    assert_eq!((status, error["code"].as_str().unwrap()), (503, "draining"));
    assert!(matches!(
        within(messages.message()).await.unwrap().unwrap().event,
        Some(Event::Started(_))
    ));
    let last = within(messages.message()).await.unwrap().unwrap().event;
    assert!(matches!(last, Some(Event::Failed(failed)) if failed.code == "draining"));
    for writer in [streaming, waiting, called] {
        within(writer.cancelled().cancelled()).await;
    }
    server.ended().await;
}

#[tokio::test]
async fn more_requests_than_slots_are_refused_with_429() {
    let (server, mut requests) = start_manual(GatewayOptions {
        max_in_flight: 1,
        ..options()
    })
    .await;
    let (asked, first) = server.ask_chat(&mut requests, "").await;
    let refused = server.chat(chat_body("")).await;
    assert!(refused.headers().contains_key("retry-after"));
    assert_eq!(refusal(refused).await.0, 429);
    asked.admit().finish(finished(FinishReason::Stop, 0));
    assert_eq!(within(first).await.unwrap().status(), 200);
}
