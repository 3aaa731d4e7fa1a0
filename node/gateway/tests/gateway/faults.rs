//! Bodies that are too large, slow, broken or not what they claim.

use std::{sync::Arc, time::Duration};

use mesh_gateway::GatewayOptions;
use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
};

use crate::{
    scripted::{Admin, Immediate},
    server::{Server, chat_body, client, options, refusal, start, start_with, within},
};

const LIMIT: usize = 1 << 16;

async fn small() -> Server {
    let options = GatewayOptions {
        body_limit: LIMIT,
        body_timeout: Duration::from_millis(100),
        ..options()
    };
    start_with(options, Arc::new(Immediate::default()), Arc::new(Admin::default())).await
}

fn head(more: &str) -> String {
    format!(
        "POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n\
         connection: close\r\n{more}\r\n"
    )
}

/// The status and the error of a raw answer.
fn parse(answer: &str) -> (u16, Value) {
    let status = answer
        .split(' ')
        .nth(1)
        .and_then(|status| status.parse().ok())
        .unwrap_or_else(|| panic!("{answer:?}"));
    let body = answer.split_once("\r\n\r\n").map_or("", |(_, body)| body);
    (
        status,
        serde_json::from_str::<Value>(body).unwrap_or_else(|_| panic!("{answer:?}"))["error"].clone(),
    )
}

#[tokio::test]
async fn json_that_is_broken_deep_or_not_utf8_is_located() {
    let server = start(Arc::new(Immediate::default())).await;
    let cases: [(Vec<u8>, &str); 7] = [
        (b"".to_vec(), "line 1"),
        (b"{\"model\":".to_vec(), "line 1"),
        (b"{\"model\":\n\n!}".to_vec(), "line 3"),
        (b"{\"model\":\"\xff\"}".to_vec(), "byte 10"),
        (b"[1]".to_vec(), "object"),
        (b"\"text\"".to_vec(), "object"),
        (b"[".repeat(4 << 20), "64 levels"),
    ];
    for (body, place) in cases {
        let (status, error) = refusal(server.chat(body).await).await;
        assert_eq!((status, &error["code"]), (400, &json!("invalid_request")));
        assert!(error["message"].as_str().unwrap().contains(place), "{error}");
    }
}

#[tokio::test]
async fn a_body_has_to_say_that_it_is_json_and_must_not_be_encoded() {
    let server = start(Arc::new(Immediate::default())).await;
    let send = |kind: Option<&str>, path: &str| {
        let request = client().post(server.url(path)).body(chat_body(""));
        kind.into_iter()
            .fold(request, |request, kind| request.header("content-type", kind))
            .send()
    };
    for kind in [
        "application/json",
        "Application/JSON; charset=utf-8",
        "application/json ;x",
    ] {
        let response = send(Some(kind), "/v1/chat/completions").await.unwrap();
        assert_eq!(response.status(), 200, "{kind}");
    }
    for kind in [
        None,
        Some("text/plain"),
        Some("text/plain; application/json"),
        Some("application/x-www-form-urlencoded"),
        Some("multipart/form-data; boundary=x"),
        Some("application/jsonp"),
        Some("nonsense"),
        Some(""),
    ] {
        for path in ["/v1/chat/completions", "/v1/completions"] {
            let (status, error) = refusal(send(kind, path).await.unwrap()).await;
            assert_eq!(
                (status, &error["code"]),
                (415, &json!("unsupported_media_type")),
                "{kind:?}"
            );
            let message = error["message"].as_str().unwrap();
            assert!(message.contains("content-type: application/json"), "{message}");
        }
    }
    let zipped = server
        .post("/v1/chat/completions", chat_body(""))
        .header("content-encoding", "gzip");
    assert_eq!(refusal(zipped.send().await.unwrap()).await.0, 400);
}

#[tokio::test]
async fn an_oversized_body_is_413_announced_or_not() {
    let server = small().await;
    let huge = "x".repeat(20 * LIMIT);
    let (status, error) = refusal(server.chat(huge.clone()).await).await;
    assert_eq!((status, &error["code"]), (413, &json!("body_too_large")));
    let chunks = futures::stream::iter(vec![Ok::<_, std::io::Error>(huge)]);
    assert_eq!(
        refusal(server.chat(reqwest::Body::wrap_stream(chunks)).await).await.0,
        413
    );
    let fits = chat_body(&format!(r#","user":"{}""#, "x".repeat(LIMIT - 100)));
    assert_eq!(server.chat(fits).await.status(), 200);
}

#[tokio::test]
async fn a_body_that_only_announces_its_size_costs_nothing_and_is_refused() {
    let server = small().await;
    let head = head("content-length: 4294967296\r\nexpect: 100-continue\r\n");
    let (status, error) = parse(&server.raw(head.as_bytes()).await);
    assert_eq!((status, &error["code"]), (413, &json!("body_too_large")));
}

#[tokio::test]
async fn a_slow_body_is_408() {
    let server = small().await;
    let (status, error) = parse(
        &server
            .raw(format!("{}{{\"mod", head("content-length: 100\r\n")).as_bytes())
            .await,
    );
    assert_eq!((status, &error["code"]), (408, &json!("request_timeout")));
}

#[tokio::test]
async fn chunked_garbage_is_400() {
    let server = small().await;
    for garbage in ["zz\r\n{}\r\n", "5\r\n{}\r\n0\r\n\r\n", "ffffffffffffffffff\r\n"] {
        let (status, error) = parse(
            &server
                .raw(format!("{}{garbage}", head("transfer-encoding: chunked\r\n")).as_bytes())
                .await,
        );
        assert!(status == 400 || status == 408, "{garbage:?}: {status}");
        assert!(error["code"].is_string());
    }
}

#[tokio::test]
async fn a_body_that_breaks_off_harms_nobody() {
    let server = start(Arc::new(Immediate::default())).await;
    for _ in 0..20 {
        let mut stream = TcpStream::connect(server.http).await.unwrap();
        stream
            .write_all(format!("{}{{\"mod", head("content-length: 100\r\n")).as_bytes())
            .await
            .unwrap();
    }
    assert_eq!(server.chat(chat_body("")).await.status(), 200);
}

#[tokio::test]
async fn bytes_that_are_no_http_harm_nobody() {
    let server = start(Arc::new(Immediate::default())).await;
    for garbage in [
        &b"\x00\x01\x02\r\n\r\n"[..],
        b"GET\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\r\n\r\n",
    ] {
        let answer = server.raw(garbage).await;
        assert!(answer.is_empty() || answer.starts_with("HTTP/1.1 400"), "{answer}");
    }
    let long = format!("GET /v1/models HTTP/1.1\r\nx: {}\r\n\r\n", "a".repeat(1 << 20));
    let answer = server.raw(long.as_bytes()).await;
    assert!(answer.is_empty() || answer.starts_with("HTTP/1.1 431"), "{answer}");
    assert_eq!(server.chat(chat_body("")).await.status(), 200);
}

#[tokio::test]
async fn a_connection_is_used_again_after_a_refusal() {
    let server = start(Arc::new(Immediate::default())).await;
    let mut stream = TcpStream::connect(server.http).await.unwrap();
    let bad = "POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n\
               content-length: 2\r\n\r\n{]";
    let good = "GET /healthz HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n";
    stream.write_all(format!("{bad}{good}").as_bytes()).await.unwrap();
    let mut answer = String::new();
    within(stream.read_to_string(&mut answer)).await.unwrap();
    assert!(
        answer.starts_with("HTTP/1.1 400") && answer.contains("HTTP/1.1 200"),
        "{answer}"
    );
}

#[tokio::test]
async fn silent_connections_and_other_protocols_do_not_keep_a_stopping_node() {
    let mut server = start(Arc::new(Immediate::default())).await;
    let _silent = (
        TcpStream::connect(server.http).await.unwrap(),
        TcpStream::connect(server.grpc).await.unwrap(),
    );
    let mut wrong = TcpStream::connect(server.grpc).await.unwrap();
    wrong
        .write_all(b"GET / HTTP/1.1\r\nhost: localhost\r\n\r\n")
        .await
        .unwrap();
    assert_eq!(server.chat(chat_body("")).await.status(), 200);
    server.shutdown.cancel();
    within(&mut server.http_served).await.unwrap().unwrap();
    within(&mut server.grpc_served).await.unwrap().unwrap();
}
