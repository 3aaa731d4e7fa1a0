//! A gateway on loopback, and clients of it.

use std::{future::Future, io, net::SocketAddr, sync::Arc, time::Duration};

use mesh_actors::{ports::inference::SharedInference, request::journal::JournalWriter};
use mesh_gateway::{Gateway, GatewayOptions, Secret};
use reqwest::{RequestBuilder, Response};
use serde_json::Value;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
    task::JoinHandle,
};
use tokio_util::sync::{CancellationToken, DropGuard};
use tonic::{Request, transport::Channel};

use crate::scripted::{Admin, Asked, Requests, Told, manual};

/// Makes a chat a streamed one.
pub const STREAM: &str = r#","stream":true"#;

pub const ADMIN_TOKEN: &str = "admin-token";

/// Everything here takes milliseconds; this only ends a test that hangs.
const DEADLINE: Duration = Duration::from_secs(20);

pub async fn within<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(DEADLINE, future).await.expect("ends in time")
}

pub fn options() -> GatewayOptions {
    GatewayOptions::new(Secret::new(ADMIN_TOKEN).unwrap())
}

/// Both servers of one gateway. They end with the value.
pub struct Server {
    pub http: SocketAddr,
    pub grpc: SocketAddr,
    pub shutdown: CancellationToken,
    pub http_served: JoinHandle<io::Result<()>>,
    pub grpc_served: JoinHandle<io::Result<()>>,
    _end: DropGuard,
}

pub async fn start(inference: SharedInference) -> Server {
    start_with(options(), inference, Arc::new(Admin::default())).await
}

/// A server whose requests the test answers.
pub async fn start_manual(options: GatewayOptions) -> (Server, Requests) {
    let (inference, requests) = manual();
    (
        start_with(options, inference, Arc::new(Admin::default())).await,
        requests,
    )
}

pub async fn start_with(options: GatewayOptions, inference: SharedInference, admin: Arc<Admin>) -> Server {
    start_telling(options, inference, admin, Arc::new(Told::default())).await
}

/// A server whose subscribers are told what `told` holds.
pub async fn start_telling(
    options: GatewayOptions,
    inference: SharedInference,
    admin: Arc<Admin>,
    told: Arc<Told>,
) -> Server {
    let gateway = Gateway::new(options, inference, admin, told);
    let http_listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let grpc_listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (http, grpc) = (http_listener.local_addr().unwrap(), grpc_listener.local_addr().unwrap());
    let shutdown = CancellationToken::new();
    let http_served = {
        let (gateway, shutdown) = (gateway.clone(), shutdown.clone());
        tokio::spawn(async move { gateway.serve_http(http_listener, shutdown).await })
    };
    let grpc_served = {
        let shutdown = shutdown.clone();
        tokio::spawn(async move { gateway.serve_grpc(grpc_listener, shutdown).await })
    };
    let _end = shutdown.clone().drop_guard();
    Server {
        http,
        grpc,
        shutdown,
        http_served,
        grpc_served,
        _end,
    }
}

impl Server {
    pub fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.http)
    }

    pub fn get(&self, path: &str) -> RequestBuilder {
        client().get(self.url(path))
    }

    pub fn post(&self, path: &str, body: impl Into<reqwest::Body>) -> RequestBuilder {
        client()
            .post(self.url(path))
            .header("content-type", "application/json")
            .body(body)
    }

    pub async fn chat(&self, body: impl Into<reqwest::Body>) -> Response {
        within(self.post("/v1/chat/completions", body).send()).await.unwrap()
    }

    pub async fn text(&self, body: impl Into<reqwest::Body>) -> Response {
        within(self.post("/v1/completions", body).send()).await.unwrap()
    }

    /// Asks for a streamed chat; the test admits it.
    pub async fn stream(&self, requests: &mut Requests) -> (JournalWriter, Events) {
        let (asked, response) = self.ask_chat(requests, STREAM).await;
        let writer = asked.admit();
        let mut events = Events::of(within(response).await.unwrap());
        let opening = events.json().await;
        assert_eq!(opening["choices"][0]["delta"]["content"], "");
        (writer, events)
    }

    /// Asks for a chat with more fields: the request as the test gets it, and its answer.
    pub async fn ask_chat(
        &self,
        requests: &mut Requests,
        more: &str,
    ) -> (Asked, impl Future<Output = reqwest::Result<Response>> + use<>) {
        let sent = tokio::spawn(self.post("/v1/chat/completions", chat_body(more)).send());
        (requests.next().await, async move { sent.await.unwrap() })
    }

    /// Both servers have drained and ended.
    pub async fn ended(&mut self) {
        within(&mut self.http_served).await.unwrap().unwrap();
        within(&mut self.grpc_served).await.unwrap().unwrap();
    }

    /// Writes bytes, and reads all that comes until the server closes.
    pub async fn raw(&self, bytes: &[u8]) -> String {
        let mut stream = TcpStream::connect(self.http).await.unwrap();
        stream.write_all(bytes).await.unwrap();
        let mut answer = Vec::new();
        // A reset after the answer is an end, too.
        _ = within(stream.read_to_end(&mut answer)).await;
        String::from_utf8_lossy(&answer).into_owned()
    }
}

/// A client without a pool: its connections end with its responses.
pub fn client() -> reqwest::Client {
    client_builder().build().unwrap()
}

/// What [`client`] is built from.
pub fn client_builder() -> reqwest::ClientBuilder {
    // Built with the whole workspace, reqwest has TLS without a provider: iroh turns that on. A second call changes nothing.
    let _ = rustls::crypto::ring::default_provider().install_default();
    reqwest::Client::builder().pool_max_idle_per_host(0)
}

/// A gRPC channel to the server.
pub async fn channel(server: &Server) -> Channel {
    Channel::from_shared(format!("http://{}", server.grpc))
        .unwrap()
        .connect()
        .await
        .unwrap()
}

/// A call with a token.
pub fn with_token<T>(message: T, token: &str) -> Request<T> {
    let mut request = Request::new(message);
    request
        .metadata_mut()
        .insert("authorization", format!("Bearer {token}").parse().unwrap());
    request
}

/// A chat that asks `smol`, with more fields.
pub fn chat_body(more: &str) -> String {
    format!(r#"{{"model":"smol","messages":[{{"role":"user","content":"hi"}}]{more}}}"#)
}

/// Status and error object of a refusal, whose shape is checked.
pub async fn refusal(response: Response) -> (u16, Value) {
    let status = response.status().as_u16();
    assert!(uuid::Uuid::parse_str(response.headers()["x-request-id"].to_str().unwrap()).is_ok());
    assert_eq!(response.headers()["content-type"], "application/json");
    let body: Value = within(response.json()).await.unwrap();
    let error = body["error"].clone();
    assert!(
        error["message"].as_str().is_some_and(|message| !message.is_empty()),
        "{body}"
    );
    assert!(error["type"].is_string() && error["code"].is_string(), "{body}");
    assert!(error.as_object().unwrap().contains_key("param"), "{body}");
    (status, error)
}

/// Reads a stream's events as they come: `data` values, and `: ping` comments as `Null`.
pub struct Events {
    response: Response,
    buffer: String,
}

impl Events {
    pub fn of(response: Response) -> Self {
        assert_eq!(response.status(), 200);
        assert!(
            response.headers()["content-type"]
                .to_str()
                .unwrap()
                .starts_with("text/event-stream")
        );
        Self {
            response,
            buffer: String::new(),
        }
    }

    /// The next event's data; `None` at the clean end of the body.
    pub async fn next(&mut self) -> Option<String> {
        loop {
            if let Some((event, rest)) = self.buffer.split_once("\n\n") {
                let event = event.to_owned();
                self.buffer = rest.to_owned();
                return Some(event.strip_prefix("data: ").unwrap_or(&event).to_owned());
            }
            match within(self.response.chunk()).await.expect("a whole stream") {
                Some(chunk) => self.buffer.push_str(std::str::from_utf8(&chunk).expect("UTF-8")),
                None => {
                    assert_eq!(self.buffer, "", "half an event");
                    return None;
                }
            }
        }
    }

    pub async fn json(&mut self) -> Value {
        let data = self.next().await.expect("an event");
        serde_json::from_str(&data).unwrap_or_else(|error| panic!("{error} in {data}"))
    }

    pub async fn rest(mut self) -> Vec<String> {
        let mut events = Vec::new();
        while let Some(event) = self.next().await {
            events.push(event);
        }
        events
    }
}
