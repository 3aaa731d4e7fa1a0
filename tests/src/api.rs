//! A node as its clients see it.

use std::{net::SocketAddr, time::Duration};

use anyhow::{Context, Result, bail};
use futures::StreamExt;
use mesh_proto::v1::{
    CancelRequestRequest, CreateTicketRequest, Deployment, GetReceiptRequest, GetStatusRequest, GetStatusResponse,
    ListPluginsRequest, ListRequestsRequest, ListRequestsResponse, Plugin, Receipt, Scope, ServeRequest, StopRequest,
    SubscribeRequest, SubscribeResponse, deployment_service_client::DeploymentServiceClient,
    lifecycle_service_client::LifecycleServiceClient, node_service_client::NodeServiceClient, serve_response::Event,
};
use serde_json::{Value, json};
use tonic::{Request, Streaming, metadata::MetadataValue, transport::Channel};

use crate::Ledger;

/// Longest that any single answer of a test may take on a busy machine.
const ANSWER_LIMIT: Duration = Duration::from_secs(120);

/// One node.
#[derive(Debug, Clone)]
pub struct Api {
    http: String,
    grpc: String,
    token: String,
    client: reqwest::Client,
    ledger: Ledger,
}

/// A chat to send.
#[derive(Debug, Clone)]
pub struct ChatCall {
    body: Value,
}

/// What came back.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Answer {
    /// Joined text.
    pub text: String,
    /// `finish_reason`, or empty.
    pub finish_reason: String,
    /// Message of the error event that ended a stream, if one did.
    pub error: Option<String>,
    /// The stream ended with `[DONE]`.
    pub done: bool,
    /// Chunks with text.
    pub chunks: usize,
}

impl ChatCall {
    /// A greedy chat of one user message.
    pub fn greedy(model: &str, question: &str) -> Self {
        let messages = json!([{"role": "user", "content": question}]);
        Self {
            body: json!({"model": model, "messages": messages, "temperature": 0}),
        }
    }

    /// A sampled chat with a seed.
    pub fn sampled(model: &str, question: &str, seed: u64) -> Self {
        Self::greedy(model, question)
            .with("temperature", json!(0.9))
            .with("top_p", json!(0.95))
            .with("seed", json!(seed))
    }

    /// Sets a field.
    #[must_use]
    pub fn with(mut self, field: &str, value: Value) -> Self {
        self.body[field] = value;
        self
    }

    /// The JSON body.
    pub fn body(&self) -> &Value {
        &self.body
    }
}

impl Api {
    /// A node at these addresses.
    pub fn new(http: SocketAddr, grpc: SocketAddr, token: &str, ledger: Ledger) -> Self {
        // iroh turns on reqwest's TLS without a provider for the whole workspace. A second call changes nothing.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let client = reqwest::Client::builder()
            .timeout(ANSWER_LIMIT)
            .build()
            .unwrap_or_default();
        Self {
            http: format!("http://{http}"),
            grpc: format!("http://{grpc}"),
            token: token.to_owned(),
            client,
            ledger,
        }
    }

    /// Base of the HTTP API.
    pub fn http(&self) -> &str {
        &self.http
    }

    /// GETs a path.
    pub async fn get(&self, path: &str) -> Result<(u16, Value)> {
        let response = self.client.get(format!("{}{path}", self.http)).send().await?;
        Ok((response.status().as_u16(), response.json().await.unwrap_or(Value::Null)))
    }

    /// GETs a path that gives text.
    pub async fn text(&self, path: &str) -> Result<String> {
        Ok(self
            .client
            .get(format!("{}{path}", self.http))
            .send()
            .await?
            .text()
            .await?)
    }

    /// Address of gRPC, as `host:port`.
    pub fn grpc(&self) -> &str {
        self.grpc.trim_start_matches("http://")
    }

    /// POSTs a JSON body.
    pub async fn post(&self, path: &str, body: &Value) -> Result<reqwest::Response> {
        self.post_with(path, body, &[]).await
    }

    /// POSTs a JSON body with more headers.
    pub async fn post_with(&self, path: &str, body: &Value, headers: &[(&str, &str)]) -> Result<reqwest::Response> {
        let request = self.client.post(format!("{}{path}", self.http)).json(body);
        let request = headers
            .iter()
            .fold(request, |request, (name, value)| request.header(*name, *value));
        Ok(request.send().await?)
    }

    /// A chat, not streamed.
    pub async fn chat(&self, call: &ChatCall) -> Result<Answer> {
        let response = self.post("/v1/chat/completions", call.body()).await?;
        let (status, id) = (response.status(), request_id(&response));
        let body: Value = response.json().await?;
        if !status.is_success() {
            bail!("{status}: {body}");
        }
        let choice = &body["choices"][0];
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        self.ledger.note(&id, &text(&choice["message"]["content"]), true);
        Ok(Answer {
            text: text(&choice["message"]["content"]),
            finish_reason: text(&choice["finish_reason"]),
            done: true,
            ..Answer::default()
        })
    }

    /// A chat, streamed to its end.
    pub async fn stream(&self, call: &ChatCall) -> Result<Answer> {
        self.stream_until(call, |_| false).await
    }

    /// A chat, streamed until `enough` says so after a chunk; then the connection is dropped.
    pub async fn stream_until(&self, call: &ChatCall, mut enough: impl FnMut(&Answer) -> bool) -> Result<Answer> {
        let response = self
            .post("/v1/chat/completions", call.clone().with("stream", json!(true)).body())
            .await?;
        if !response.status().is_success() {
            bail!("{}: {}", response.status(), response.text().await?);
        }
        let id = request_id(&response);
        let mut bytes = response.bytes_stream();
        let (mut answer, mut pending) = (Answer::default(), Vec::new());
        while let Some(part) = bytes.next().await {
            pending.extend_from_slice(&part.context("the stream broke")?);
            while let Some(end) = pending.windows(2).position(|pair| pair == b"\n\n") {
                let event: Vec<u8> = pending.drain(..end + 2).collect();
                let event = String::from_utf8(event).context("an event is not UTF-8")?;
                take_event(event.trim_end(), &mut answer)?;
                self.ledger.note(&id, &answer.text, answer.done);
                if enough(&answer) {
                    return Ok(answer);
                }
            }
        }
        if !pending.is_empty() {
            bail!("the stream ended in the middle of an event");
        }
        Ok(answer)
    }

    /// A gRPC connection to it.
    ///
    /// # Errors
    ///
    /// It does not answer.
    pub async fn channel(&self) -> Result<Channel> {
        Ok(Channel::from_shared(self.grpc.clone())?.connect().await?)
    }

    /// With the node's administration token.
    ///
    /// # Errors
    ///
    /// The token has characters that cannot be sent.
    pub fn authorized<T>(&self, message: T) -> Result<Request<T>> {
        let mut request = Request::new(message);
        let value: MetadataValue<_> = format!("Bearer {}", self.token).parse()?;
        request.metadata_mut().insert("authorization", value);
        Ok(request)
    }

    /// Subscribes to lifecycle events.
    pub async fn subscribe(&self, request: SubscribeRequest) -> Result<Streaming<SubscribeResponse>> {
        let mut client = LifecycleServiceClient::new(self.channel().await?);
        Ok(client.subscribe(self.authorized(request)?).await?.into_inner())
    }

    /// The same through an HTTP/2 window of its smallest usual size, so that not reading soon holds up the node's side.
    pub async fn subscribe_narrowly(&self, request: SubscribeRequest) -> Result<Streaming<SubscribeResponse>> {
        let window = 1 << 16;
        let channel = Channel::from_shared(self.grpc.clone())?
            .initial_stream_window_size(window)
            .initial_connection_window_size(window);
        let mut client = LifecycleServiceClient::new(channel.connect().await?);
        Ok(client.subscribe(self.authorized(request)?).await?.into_inner())
    }

    /// Open requests of the whole mesh and, if asked for, the last ended ones.
    pub async fn requests(&self, include_ended: bool) -> Result<ListRequestsResponse> {
        let mut client = LifecycleServiceClient::new(self.channel().await?);
        let request = ListRequestsRequest {
            scope: Scope::Mesh.into(),
            include_ended,
            ..ListRequestsRequest::default()
        };
        Ok(client.list_requests(self.authorized(request)?).await?.into_inner())
    }

    /// The receipt of a request that has ended.
    pub async fn receipt(&self, request_id: &str) -> Result<Receipt> {
        let mut client = LifecycleServiceClient::new(self.channel().await?);
        let request = GetReceiptRequest {
            request_id: request_id.to_owned(),
            include_token_ids: true,
        };
        let response = client.get_receipt(self.authorized(request)?).await?.into_inner();
        response.receipt.context("no receipt")
    }

    /// Cancels a request.
    pub async fn cancel_request(&self, request_id: &str) -> Result<()> {
        let mut client = LifecycleServiceClient::new(self.channel().await?);
        let request = CancelRequestRequest {
            request_id: request_id.to_owned(),
        };
        client.cancel_request(self.authorized(request)?).await?;
        Ok(())
    }

    /// Serves a model and waits until it is ready.
    pub async fn serve(&self, request: ServeRequest) -> Result<Deployment> {
        let mut client = DeploymentServiceClient::new(self.channel().await?);
        let mut stream = client.serve(self.authorized(request)?).await?.into_inner();
        while let Some(response) = stream.message().await? {
            if let Some(Event::Ready(deployment)) = response.event {
                return Ok(deployment);
            }
        }
        bail!("serve ended without an answer")
    }

    /// Stops a deployment.
    pub async fn stop(&self, name: &str) -> Result<()> {
        let mut client = DeploymentServiceClient::new(self.channel().await?);
        client
            .stop(self.authorized(StopRequest { name: name.to_owned() })?)
            .await?;
        Ok(())
    }

    /// A new ticket.
    pub async fn ticket(&self) -> Result<String> {
        let mut client = NodeServiceClient::new(self.channel().await?);
        Ok(client
            .create_ticket(self.authorized(CreateTicketRequest {})?)
            .await?
            .into_inner()
            .ticket)
    }

    /// Native plugins of the node.
    pub async fn plugins(&self) -> Result<Vec<Plugin>> {
        let mut client = NodeServiceClient::new(self.channel().await?);
        let request = self.authorized(ListPluginsRequest {})?;
        Ok(client.list_plugins(request).await?.into_inner().plugins)
    }

    /// Status.
    pub async fn status(&self) -> Result<GetStatusResponse> {
        let mut client = NodeServiceClient::new(self.channel().await?);
        let request = self.authorized(GetStatusRequest {})?;
        Ok(client.get_status(request).await?.into_inner())
    }

    /// A deployment as this node sees it.
    pub async fn deployment(&self, name: &str) -> Result<Option<Deployment>> {
        Ok(self
            .status()
            .await?
            .deployments
            .into_iter()
            .find(|deployment| deployment.name == name))
    }

    /// Lanes in use and requests that wait.
    pub async fn lanes_used(&self, name: &str) -> Result<(u32, u32)> {
        let lanes = self
            .deployment(name)
            .await?
            .and_then(|deployment| deployment.lanes)
            .context("no lanes")?;
        Ok((lanes.used, lanes.waiting))
    }
}

fn request_id(response: &reqwest::Response) -> String {
    let id = response.headers().get("x-request-id").and_then(|id| id.to_str().ok());
    id.unwrap_or_default().to_owned()
}

fn take_event(event: &str, answer: &mut Answer) -> Result<()> {
    // Comments keep the connection alive.
    let Some(data) = event.strip_prefix("data: ") else {
        return Ok(());
    };
    if answer.done || answer.error.is_some() {
        bail!("an event after the end: {data}");
    }
    if data == "[DONE]" {
        answer.done = true;
        return Ok(());
    }
    let value: Value = serde_json::from_str(data).with_context(|| format!("not whole JSON: {data}"))?;
    if let Some(message) = value["error"]["message"].as_str() {
        answer.error = Some(message.to_owned());
        return Ok(());
    }
    let choice = &value["choices"][0];
    if let Some(text) = choice["delta"]["content"].as_str().filter(|text| !text.is_empty()) {
        answer.text.push_str(text);
        answer.chunks += 1;
    }
    if let Some(reason) = choice["finish_reason"].as_str() {
        if !answer.finish_reason.is_empty() {
            bail!("a second finish_reason");
        }
        answer.finish_reason = reason.to_owned();
    }
    Ok(())
}
