//! Web pages: what a browser sends for a page of another site is refused, wherever it goes.

use std::sync::Arc;

use axum::{Router, routing::get};
use mesh_gateway::{Gateway, GatewayOptions, HostName, Hosts};
use reqwest::Method;
use serde_json::json;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
};
use tokio_util::sync::CancellationToken;

use crate::{
    scripted::{Admin, Immediate, Told},
    server::{Server, chat_body, client, client_builder, options, refusal, start_with, within},
};

const PAGE: &str = "https://chat.example";

fn listing() -> GatewayOptions {
    let name: HostName = "gpu-box.example".parse().unwrap();
    GatewayOptions {
        hosts: Hosts::of("127.0.0.1".parse().unwrap(), vec![name]),
        origins: vec![PAGE.parse().unwrap()],
        ..options()
    }
}

/// Host, origin, content type, sec-fetch-site; status of a chat, status of a probe.
type Case = (
    &'static str,
    Option<&'static str>,
    Option<&'static str>,
    Option<&'static str>,
    u16,
    u16,
);

async fn start(inference: Arc<Immediate>) -> Server {
    start_with(listing(), inference, Arc::new(Admin::default())).await
}

/// Sends a request with these headers and no others; gives its status.
async fn status(server: &Server, line: &str, headers: &[(&str, &str)], body: &str) -> u16 {
    let lines: String = headers
        .iter()
        .map(|(name, value)| format!("{name}: {value}\r\n"))
        .collect();
    let length = if body.is_empty() {
        String::new()
    } else {
        format!("content-length: {}\r\n", body.len())
    };
    let request = format!("{line} HTTP/1.1\r\nconnection: close\r\n{lines}{length}\r\n{body}");
    let answer = server.raw(request.as_bytes()).await;
    let status = answer.split(' ').nth(1).and_then(|status| status.parse().ok());
    let status = status.unwrap_or_else(|| panic!("{answer:?}"));
    let listed = headers.contains(&("origin", PAGE));
    assert_eq!(
        answer.to_ascii_lowercase().contains("access-control-allow-origin"),
        listed && status == 200,
        "{headers:?}: {answer}"
    );
    status
}

#[tokio::test]
async fn what_a_page_can_send_is_refused_and_what_clients_send_is_served() {
    let inference = Arc::new(Immediate::default());
    let server = start(inference.clone()).await;
    let json = ("content-type", "application/json");
    let cases: [Case; 17] = [
        ("localhost:9470", None, Some("application/json"), None, 200, 200),
        ("127.0.0.1", None, Some("application/json"), None, 200, 200),
        ("[::1]:9470", None, Some("application/json"), None, 200, 200),
        ("gpu-box.example", None, Some("application/json"), None, 200, 200),
        (
            "localhost",
            Some(PAGE),
            Some("application/json"),
            Some("cross-site"),
            200,
            200,
        ),
        ("localhost", None, Some("application/json"), Some("none"), 200, 200),
        // DNS rebinding: to the browser it is the page's own site.
        (
            "evil.example:9470",
            None,
            Some("application/json"),
            Some("same-origin"),
            403,
            403,
        ),
        (
            "evil.example",
            Some("http://evil.example"),
            Some("application/json"),
            None,
            403,
            403,
        ),
        ("localhost.evil.example", None, Some("application/json"), None, 403, 403),
        // A page of any site, with and without asking first.
        (
            "localhost",
            Some("https://evil.example"),
            Some("application/json"),
            Some("cross-site"),
            403,
            403,
        ),
        (
            "localhost",
            Some("https://evil.example"),
            Some("text/plain"),
            None,
            403,
            403,
        ),
        (
            "localhost",
            Some("http://localhost:3000"),
            Some("application/json"),
            Some("same-site"),
            403,
            403,
        ),
        // A sandboxed frame, a file, a redirect over sites.
        ("localhost", Some("null"), Some("application/json"), None, 403, 403),
        // Images, scripts, links.
        (
            "localhost",
            None,
            Some("application/json"),
            Some("cross-site"),
            403,
            403,
        ),
        ("localhost", None, Some("application/json"), Some("same-site"), 403, 403),
        // A listed page, or no browser at all, has to say what it sends.
        ("localhost", Some(PAGE), Some("text/plain"), None, 415, 200),
        ("localhost", None, None, None, 415, 200),
    ];
    for (host, origin, kind, site, chat, probe) in cases {
        let mut headers = vec![("host", host)];
        headers.extend(origin.map(|origin| ("origin", origin)));
        headers.extend(site.map(|site| ("sec-fetch-site", site)));
        for path in ["GET /healthz", "GET /readyz", "GET /v1/models"] {
            assert_eq!(status(&server, path, &headers, "").await, probe, "{path} {headers:?}");
        }
        headers.extend(kind.map(|kind| ("content-type", kind)));
        let seen = inference.seen.lock().unwrap().len();
        let path = "POST /v1/chat/completions";
        let answered = raw_chat(&server, path, &headers).await;
        assert_eq!(answered, chat, "{headers:?}");
        assert_eq!(inference.seen.lock().unwrap().len() - seen, usize::from(chat == 200));
    }
    assert_eq!(status(&server, "GET /healthz", &[], "").await, 400, "no host");
    assert_eq!(
        status(&server, "GET http://evil.example/healthz", &[("host", "localhost")], "").await,
        403
    );
    assert_eq!(
        status(&server, "GET /healthz", &[("host", "localhost"), json], "").await,
        200
    );
}

/// As [`status`]; a listed page may read a 415 as well.
async fn raw_chat(server: &Server, line: &str, headers: &[(&str, &str)]) -> u16 {
    let body = chat_body("");
    let lines: String = headers
        .iter()
        .map(|(name, value)| format!("{name}: {value}\r\n"))
        .collect();
    let length = body.len();
    let request = format!("{line} HTTP/1.1\r\nconnection: close\r\n{lines}content-length: {length}\r\n\r\n{body}");
    let answer = server.raw(request.as_bytes()).await;
    answer
        .split(' ')
        .nth(1)
        .and_then(|status| status.parse().ok())
        .unwrap_or_else(|| panic!("{answer:?}"))
}

#[tokio::test]
async fn a_refusal_names_the_setting_that_would_let_it_in() {
    let server = start(Arc::new(Immediate::default())).await;
    let refused = server
        .get("/v1/models")
        .header("origin", "https://evil.example")
        .send()
        .await
        .unwrap();
    assert!(!refused.headers().contains_key("access-control-allow-origin"));
    let (code, error) = refusal(refused).await;
    assert_eq!((code, &error["code"]), (403, &json!("permission_denied")));
    let message = error["message"].as_str().unwrap();
    assert!(
        message.contains("https://evil.example") && message.contains("--allow-origin"),
        "{message}"
    );
    let refused = server
        .get("/v1/models")
        .header("host", "evil.example")
        .send()
        .await
        .unwrap();
    let (code, error) = refusal(refused).await;
    assert_eq!((code, &error["code"]), (403, &json!("permission_denied")));
    assert!(error["message"].as_str().unwrap().contains("--allow-host"));
}

#[tokio::test]
async fn preflights_are_answered_for_listed_origins_alone() {
    let server = start(Arc::new(Immediate::default())).await;
    let preflight = |origin: &'static str| {
        client()
            .request(Method::OPTIONS, server.url("/v1/chat/completions"))
            .header("origin", origin)
            .header("access-control-request-method", "POST")
            .header(
                "access-control-request-headers",
                "authorization,content-type,x-stainless-lang",
            )
            .send()
    };
    let listed = preflight(PAGE).await.unwrap();
    assert_eq!(listed.status(), 200);
    assert_eq!(listed.headers()["access-control-allow-origin"], PAGE);
    assert_eq!(listed.headers()["access-control-allow-methods"], "POST");
    assert_eq!(
        listed.headers()["access-control-allow-headers"],
        "authorization,content-type,x-stainless-lang"
    );
    for other in ["https://evil.example", "null", "http://localhost:3000"] {
        let refused = preflight(other).await.unwrap();
        assert_eq!(refused.status(), 403);
        assert!(!refused.headers().contains_key("access-control-allow-origin"));
    }
    let read = server.get("/v1/models").header("origin", PAGE).send().await.unwrap();
    assert_eq!(read.headers()["access-control-allow-origin"], PAGE);
    let exposed = read.headers()["access-control-expose-headers"].to_str().unwrap();
    assert!(exposed.contains("x-request-id"), "{exposed}");
    let vary = |response: &reqwest::Response| {
        let names = response
            .headers()
            .get_all("vary")
            .iter()
            .map(|name| name.to_str().unwrap().to_owned());
        names.collect::<Vec<_>>().join(",").contains("origin")
    };
    assert!(vary(&read));
    assert!(
        vary(&server.get("/v1/models").send().await.unwrap()),
        "caches keep them apart"
    );
}

#[tokio::test]
async fn other_routes_of_the_port_are_kept_from_pages_as_well() {
    let gateway = Gateway::new(
        listing(),
        Arc::new(Immediate::default()),
        Arc::new(Admin::default()),
        Arc::new(Told::default()),
    );
    let routes = gateway.http_with(Router::new().route("/metrics", get(|| async { "metrics" })));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/metrics", listener.local_addr().unwrap());
    let end = CancellationToken::new();
    let _end = end.clone().drop_guard();
    let _serving = tokio::spawn(async move { gateway.serve_http_routes(listener, routes, end).await });
    let ask = |name: &'static str, value: &'static str| client().get(&url).header(name, value).send();
    assert_eq!(within(ask("accept", "*/*")).await.unwrap().status(), 200);
    for (name, value) in [
        ("origin", "https://evil.example"),
        ("origin", "null"),
        ("sec-fetch-site", "cross-site"),
        ("host", "evil.example"),
    ] {
        assert_eq!(within(ask(name, value)).await.unwrap().status(), 403, "{name}: {value}");
    }
}

#[tokio::test]
async fn the_grpc_port_answers_nothing_that_a_page_can_send() {
    let server = start(Arc::new(Immediate::default())).await;
    let mut stream = TcpStream::connect(server.grpc).await.unwrap();
    let post = "POST /mesh.v1.InferenceService/Generate HTTP/1.1\r\nhost: localhost\r\ncontent-type: text/plain\r\n\
                content-length: 0\r\n\r\n";
    stream.write_all(post.as_bytes()).await.unwrap();
    let mut answer = Vec::new();
    _ = within(stream.read_to_end(&mut answer)).await;
    assert!(!answer.starts_with(b"HTTP/1"), "{}", String::from_utf8_lossy(&answer));
    // Whatever may come to translate for a page tells its origin, or has no gRPC to send.
    let client = client_builder().http2_prior_knowledge().build().unwrap();
    let call = |headers: [(&'static str, &'static str); 2]| {
        let url = format!("http://{}/mesh.v1.NodeService/GetStatus", server.grpc);
        let request = client.post(url).body(vec![0_u8; 5]);
        headers
            .into_iter()
            .fold(request, |request, (name, value)| request.header(name, value))
            .send()
    };
    let grpc = ("content-type", "application/grpc");
    let status = |response: &reqwest::Response| response.headers().get("grpc-status").cloned();
    let served = within(call([grpc, ("te", "trailers")])).await.unwrap();
    assert_eq!(
        (served.status().as_u16(), status(&served)),
        (200, None),
        "its status is a trailer"
    );
    let page = within(call([grpc, ("origin", "https://evil.example")])).await.unwrap();
    assert_eq!(status(&page).unwrap(), "7");
    let simple = within(call([("content-type", "text/plain"), ("te", "trailers")]))
        .await
        .unwrap();
    assert_eq!(simple.status(), 415);
}
