//! An API key is the mesh's: no way leads past it through a member that has none, or another one.

use std::path::Path;

use anyhow::{Context, Result};
use mesh_proto::v1::{
    CancelRequestRequest, GenerateRequest, GetReceiptRequest, ListRequestsRequest, Scope, ServeRequest,
    SubscribeRequest, generate_request::Prompt, inference_service_client::InferenceServiceClient,
    lifecycle_service_client::LifecycleServiceClient,
};
use mesh_tests::{ChatCall, Processes};
use serde_json::json;
use tempfile::TempDir;
use tonic::{Code, Request, Status};

/// An id that no request has.
const UNKNOWN: &str = "4bb1b0ca-fc61-41ab-a8a0-d1393ecfff53";

/// Three nodes; of each, the key it is started with.
async fn mesh(keys: [&str; 3]) -> Result<(Processes, TempDir)> {
    let (mut mesh, settings) = (Processes::with_environment(&[]), tempfile::tempdir()?);
    for (name, key) in ["a", "b", "c"].into_iter().zip(keys) {
        if key.is_empty() {
            mesh.add(name, &[]).await?;
            continue;
        }
        let file = settings.path().join(name);
        std::fs::write(&file, format!("api_key = {key:?}\n"))?;
        mesh.add(name, &["--config", file.to_str().context("a path")?]).await?;
    }
    Ok((mesh, settings))
}

async fn serve(mesh: &Processes, node: usize, stages: &str) -> Result<()> {
    let request = ServeRequest {
        model: "built-in".to_owned(),
        name: "psalm".to_owned(),
        stages: stages.to_owned(),
        ..ServeRequest::default()
    };
    mesh.api(node).serve(request).await.map(drop)
}

fn call() -> ChatCall {
    ChatCall::greedy("psalm", "Recite John 11:35.")
}

async fn chat(mesh: &Processes, node: usize, key: &str) -> Result<(u16, String)> {
    let bearer = format!("Bearer {key}");
    let api = mesh.api(node);
    let answer = api
        .post_with("/v1/chat/completions", call().body(), &[("authorization", &bearer)])
        .await?;
    Ok((answer.status().as_u16(), answer.text().await?))
}

fn with_key<T>(message: T, key: &str) -> Result<Request<T>> {
    let mut request = Request::new(message);
    request
        .metadata_mut()
        .insert("authorization", format!("Bearer {key}").parse()?);
    Ok(request)
}

fn refused<T>(what: &str, answer: Result<T, Status>) {
    let status = answer.err().unwrap_or_else(|| panic!("{what} went through"));
    assert_eq!(status.code(), Code::PermissionDenied, "{what}: {status}");
    assert!(status.message().contains("MESH_API_KEY"), "{what}: {status}");
}

/// Every way to the requests of node a, through another node's gateway with what opens that.
async fn every_way_is_refused(mesh: &Processes, node: usize, key: &str) -> Result<()> {
    let (status, body) = chat(mesh, node, key).await?;
    assert!(status == 403 && body.contains("MESH_API_KEY"), "{status} {body}");
    let api = mesh.api(node);
    let streamed = call().with("stream", json!(true));
    let bearer = format!("Bearer {key}");
    let answer = api
        .post_with("/v1/chat/completions", streamed.body(), &[("authorization", &bearer)])
        .await?;
    assert_eq!(answer.status(), 403);

    let mut inference = InferenceServiceClient::new(api.channel().await?);
    let generate = GenerateRequest {
        model: "psalm".to_owned(),
        prompt: Some(Prompt::Text("Hi".to_owned())),
        ..GenerateRequest::default()
    };
    refused("generate", inference.generate(with_key(generate, key)?).await);

    let mut lifecycle = LifecycleServiceClient::new(api.channel().await?);
    let list = ListRequestsRequest {
        scope: Scope::Mesh.into(),
        ..ListRequestsRequest::default()
    };
    refused("list", lifecycle.list_requests(with_key(list, key)?).await);
    let receipt = GetReceiptRequest {
        request_id: UNKNOWN.to_owned(),
        ..GetReceiptRequest::default()
    };
    refused("show", lifecycle.get_receipt(with_key(receipt, key)?).await);
    let cancel = CancelRequestRequest {
        request_id: UNKNOWN.to_owned(),
    };
    refused("cancel", lifecycle.cancel_request(api.authorized(cancel)?).await);
    let subscribe = SubscribeRequest {
        include_text: true,
        scope: Scope::Mesh.into(),
        ..SubscribeRequest::default()
    };
    let mut notices = lifecycle.subscribe(api.authorized(subscribe)?).await?.into_inner();
    // This node's own snapshot may come first.
    let refusal = loop {
        match notices.message().await {
            Ok(Some(_)) => {}
            ended => break ended.map(drop),
        }
    };
    refused("events", refusal);
    Ok(())
}

fn log(directory: &Path) -> Result<String> {
    Ok(std::fs::read_to_string(directory.join("log"))?)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_member_without_the_key_is_no_way_past_it() -> Result<()> {
    let (mesh, _settings) = mesh(["sesame", "", "simsim"]).await?;
    serve(&mesh, 0, "a:0-4,b:4-8").await?;
    assert_eq!(chat(&mesh, 0, "wrong").await?.0, 401);
    let (status, body) = chat(&mesh, 0, "sesame").await?;
    assert!(status == 200 && body.contains("Jesus wept."), "{status} {body}");

    every_way_is_refused(&mesh, 1, "none").await?;
    every_way_is_refused(&mesh, 2, "simsim").await?;
    assert!(log(mesh.data_dir(1))?.contains("this mesh has an API key, and this node has none"));
    assert!(log(mesh.data_dir(2))?.contains("this node has another API key than the mesh"));
    let (status, _) = chat(&mesh, 0, "sesame").await?;
    assert_eq!(status, 200);

    // Nor does a model of the node with the key get its head where anybody may ask it.
    mesh.api(0).stop("psalm").await?;
    for stages in ["b:0-4,a:4-8", "c:0-4,a:4-8"] {
        let error = serve(&mesh, 0, stages).await.expect_err(stages).to_string();
        assert!(error.contains("MESH_API_KEY"), "{error}");
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn with_one_key_every_gateway_serves_every_model() -> Result<()> {
    let (mesh, _settings) = mesh(["sesame"; 3]).await?;
    serve(&mesh, 2, "b:0-4,a:4-8").await?;
    for node in 0..3 {
        assert_eq!(chat(&mesh, node, "wrong").await?.0, 401);
        let (status, body) = chat(&mesh, node, "sesame").await?;
        assert!(status == 200 && body.contains("Jesus wept."), "{status} {body}");
        assert_eq!(mesh.api(node).requests(true).await?.missing, Vec::<String>::new());
        assert!(!log(mesh.data_dir(node))?.contains("API key"));
    }
    Ok(())
}
