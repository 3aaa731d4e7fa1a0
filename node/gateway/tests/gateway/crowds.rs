//! Connections that do nothing and bodies that do not come hold up nobody.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use mesh_gateway::{ConnectionLimits, GatewayOptions};
use mesh_proto::v1::{
    FinishReason, GenerateRequest, SubscribeRequest, generate_request::Prompt,
    inference_service_client::InferenceServiceClient, lifecycle_service_client::LifecycleServiceClient,
};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
    time::Instant,
};

use crate::{
    scripted::{Admin, Immediate, finished},
    server::{STREAM, Server, channel, chat_body, options, refusal, start_manual, start_with, within},
};

/// What a request takes that nothing holds up, on a busy machine.
const NORMAL: Duration = Duration::from_secs(2);

fn few() -> GatewayOptions {
    GatewayOptions {
        connections: ConnectionLimits {
            all: 32,
            per_address: 32,
            bodies: 8,
        },
        ..options()
    }
}

async fn start(options: GatewayOptions) -> Server {
    start_with(options, Arc::new(Immediate::default()), Arc::new(Admin::default())).await
}

async fn connected(address: SocketAddr, count: usize, said: &str) -> Vec<TcpStream> {
    let mut streams = Vec::new();
    for _ in 0..count {
        let mut stream = TcpStream::connect(address).await.unwrap();
        stream.write_all(said.as_bytes()).await.unwrap();
        streams.push(stream);
    }
    streams
}

fn unfinished(more: &str) -> String {
    format!(
        "POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n\
         content-length: 100\r\n\r\n{more}"
    )
}

/// A chat in two pieces, as most clients send it.
async fn chat_in_two_pieces(server: &Server) -> String {
    let body = chat_body("");
    let head = format!(
        "POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n\
         connection: close\r\ncontent-length: {}\r\n\r\n",
        body.len()
    );
    let mut stream = TcpStream::connect(server.http).await.unwrap();
    stream.set_nodelay(true).unwrap();
    stream.write_all(head.as_bytes()).await.unwrap();
    tokio::task::yield_now().await;
    stream.write_all(body.as_bytes()).await.unwrap();
    let mut answer = String::new();
    within(stream.read_to_string(&mut answer)).await.unwrap();
    answer
}

#[tokio::test]
async fn idle_connections_give_way_to_new_ones() {
    let server = start(few()).await;
    for said in [
        "",
        "GET /healthz HTTP/1.1\r\n",
        "GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n",
    ] {
        let _idle = connected(server.http, 200, said).await;
        let begun = Instant::now();
        assert_eq!(within(server.get("/healthz").send()).await.unwrap().status(), 200);
        assert!(chat_in_two_pieces(&server).await.starts_with("HTTP/1.1 200"));
        assert!(begun.elapsed() < NORMAL, "{said:?}: {:?}", begun.elapsed());
    }
}

#[tokio::test]
async fn unfinished_bodies_give_way_to_those_that_come() {
    let server = start(few()).await;
    for said in ["", "{"] {
        let mut stalled = connected(server.http, 24, &unfinished(said)).await;
        let begun = Instant::now();
        assert!(chat_in_two_pieces(&server).await.starts_with("HTTP/1.1 200"));
        assert_eq!(within(server.get("/readyz").send()).await.unwrap().status(), 200);
        assert!(begun.elapsed() < NORMAL, "{:?}", begun.elapsed());
        // The first were told.
        let mut answer = String::new();
        within(stalled[0].read_to_string(&mut answer)).await.unwrap();
        assert!(answer.starts_with("HTTP/1.1 408"), "{answer}");
    }
}

#[tokio::test]
async fn unfinished_bodies_take_no_place_of_requests_that_run() {
    let one = GatewayOptions {
        max_in_flight: 1,
        ..few()
    };
    let (server, mut requests) = start_manual(one).await;
    let _stalled = connected(server.http, 7, &unfinished("{")).await;
    let (asked, first) = server.ask_chat(&mut requests, "").await;
    assert_eq!(refusal(server.chat(chat_body("")).await).await.0, 429);
    asked.admit().finish(finished(FinishReason::Stop, 0));
    assert_eq!(within(first).await.unwrap().status(), 200);
}

#[tokio::test]
async fn a_running_stream_keeps_its_connection_whoever_comes() {
    let (server, mut requests) = start_manual(few()).await;
    let (writer, events) = server.stream(&mut requests).await;
    let (whole, answer) = server.ask_chat(&mut requests, "").await;
    let waiting = whole.admit();
    let _idle = connected(server.http, 200, "").await;
    assert_eq!(within(server.get("/healthz").send()).await.unwrap().status(), 200);
    for writer in [writer, waiting] {
        writer.commit("still here", 1);
        writer.finish(finished(FinishReason::Stop, 1));
    }
    let events = events.rest().await;
    assert!(events[0].contains("still here") && events.last().unwrap() == "[DONE]");
    assert!(
        within(within(answer).await.unwrap().text())
            .await
            .unwrap()
            .contains("still here")
    );
}

#[tokio::test]
async fn the_grpc_port_makes_room_in_the_same_way() {
    let (server, mut requests) = start_manual(few()).await;
    let (generating, subscribing) = (channel(&server).await, channel(&server).await);
    let request = GenerateRequest {
        model: "smol".into(),
        prompt: Some(Prompt::Text("hi".into())),
        ..Default::default()
    };
    let call = tokio::spawn(async move { InferenceServiceClient::new(generating).generate(request).await });
    let writer = requests.next().await.admit();
    let mut messages = within(call).await.unwrap().unwrap().into_inner();
    let mut subscriber = LifecycleServiceClient::new(subscribing);
    let mut told = within(subscriber.subscribe(SubscribeRequest::default()))
        .await
        .unwrap()
        .into_inner();
    let _idle = connected(server.grpc, 100, "").await;
    let _spoken = connected(server.grpc, 100, "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0").await;
    let begun = Instant::now();
    let mut health = tonic_health::pb::health_client::HealthClient::new(channel(&server).await);
    within(health.check(tonic_health::pb::HealthCheckRequest::default()))
        .await
        .unwrap();
    assert!(begun.elapsed() < NORMAL, "{:?}", begun.elapsed());
    writer.finish(finished(FinishReason::Stop, 0));
    while within(messages.message()).await.unwrap().is_some() {}
    server.shutdown.cancel();
    assert!(
        within(told.message()).await.is_ok(),
        "it ends with the node, not before"
    );
}

#[tokio::test]
async fn more_at_work_than_places_are_refused_and_the_rest_goes_on() {
    // Two thirds of the places may run.
    let (server, mut requests) = start_manual(GatewayOptions {
        max_in_flight: 1000,
        ..few()
    })
    .await;
    let mut running = Vec::new();
    for _ in 0..21 {
        running.push(server.stream(&mut requests).await);
    }
    assert_eq!(refusal(server.chat(chat_body(STREAM)).await).await.0, 429);
    assert_eq!(within(server.get("/healthz").send()).await.unwrap().status(), 200);
    for (writer, events) in running {
        writer.finish(finished(FinishReason::Stop, 0));
        assert_eq!(events.rest().await.last().unwrap(), "[DONE]");
    }
}
