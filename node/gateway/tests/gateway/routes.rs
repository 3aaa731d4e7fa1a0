//! Routes, models, health, keys, ids and CORS.

use std::sync::Arc;

use mesh_gateway::{GatewayOptions, Secret};
use reqwest::Method;
use serde_json::{Value, json};

use crate::{
    scripted::{Admin, Immediate},
    server::{ADMIN_TOKEN, chat_body, client, options, refusal, start, start_with, within},
};

#[tokio::test]
async fn models_lists_what_is_ready() {
    let server = start(Arc::new(Immediate::default())).await;
    for path in ["/v1/models", "/v1/models/"] {
        let list: Value = server.get(path).send().await.unwrap().json().await.unwrap();
        assert_eq!(list["object"], "list");
        let names: Vec<&str> = list["data"]
            .as_array()
            .unwrap()
            .iter()
            .map(|model| model["id"].as_str().unwrap())
            .collect();
        assert_eq!(names, ["smol", "org/name:tag"]);
        assert_eq!(list["data"][0]["object"], "model");
        assert_eq!(list["data"][0]["created"], 1_700_000_000);
        assert_eq!(list["data"][0]["owned_by"], "mesh");
    }
}

#[tokio::test]
async fn a_model_is_found_by_a_name_with_slashes_and_colons() {
    let server = start(Arc::new(Immediate::default())).await;
    for path in [
        "/v1/models/org/name:tag",
        "/v1/models/org%2Fname%3Atag",
        "/v1/models/org/name:tag/",
    ] {
        let model: Value = server.get(path).send().await.unwrap().json().await.unwrap();
        assert_eq!(model["id"], "org/name:tag", "{path}");
    }
    let (status, error) = refusal(server.get("/v1/models/nope").send().await.unwrap()).await;
    assert_eq!((status, &error["code"]), (404, &json!("model_not_found")));
    assert!(error["message"].as_str().unwrap().contains("`org/name:tag`, `smol`"));
    assert_eq!(
        refusal(server.get("/v1/models/cold").send().await.unwrap()).await.0,
        503
    );
    assert_eq!(refusal(server.get("/v1/models/%ff").send().await.unwrap()).await.0, 400);
}

#[tokio::test]
async fn an_unknown_or_empty_model_is_404_and_a_missing_one_400() {
    let server = start(Arc::new(Immediate::default())).await;
    for model in ["nope", "", "org/name:other"] {
        let body = chat_body("").replace("smol", model);
        let (status, error) = refusal(server.chat(body).await).await;
        assert_eq!(
            (status, &error["code"], &error["param"]),
            (404, &json!("model_not_found"), &json!("model"))
        );
        assert!(error["message"].as_str().unwrap().contains("`smol`"));
    }
    for body in [r#"{"prompt":"hi"}"#, r#"{"prompt":"hi","model":null}"#] {
        let (status, error) = refusal(server.text(body).await).await;
        assert_eq!((status, &error["param"]), (400, &json!("model")));
    }
}

#[tokio::test]
async fn health_is_about_the_process_and_readiness_about_deployments() {
    let server = start(Arc::new(Immediate::default())).await;
    let ready = server.get("/readyz").send().await.unwrap();
    assert_eq!(ready.status(), 200);
    let ready: Value = ready.json().await.unwrap();
    assert_eq!(ready["deployments"][2], json!({"name": "cold", "ready": false}));

    let nothing = start(Arc::new(Immediate {
        models: Some(vec![]),
        ..Default::default()
    }))
    .await;
    assert_eq!(nothing.get("/healthz").send().await.unwrap().status(), 200);
    let response = nothing.get("/readyz").send().await.unwrap();
    assert_eq!(response.status(), 503);
    assert_eq!(
        response.json::<Value>().await.unwrap(),
        json!({"ready": false, "draining": false, "deployments": []})
    );
}

#[tokio::test]
async fn unknown_routes_and_wrong_methods_are_openai_errors() {
    let server = start(Arc::new(Immediate::default())).await;
    for path in [
        "/",
        "/chat/completions",
        "/v1",
        "/v1/embeddings",
        "/v1/chat/completions/x",
    ] {
        let (status, error) = refusal(server.post(path, "{}").send().await.unwrap()).await;
        assert_eq!((status, &error["code"]), (404, &json!("not_found")), "{path}");
    }
    let cases = [
        (Method::GET, "/v1/chat/completions", "POST"),
        (Method::DELETE, "/v1/completions/", "POST"),
        (Method::POST, "/v1/models", "GET,HEAD"),
        (Method::PUT, "/healthz", "GET,HEAD"),
    ];
    for (method, path, allow) in cases {
        let response = client().request(method, server.url(path)).send().await.unwrap();
        assert_eq!(response.headers()["allow"], allow);
        assert_eq!(refusal(response).await.0, 405);
    }
}

#[tokio::test]
async fn head_is_get_without_a_body() {
    let server = start(Arc::new(Immediate::default())).await;
    for path in ["/v1/models", "/healthz", "/v1/models/smol"] {
        let response = client().head(server.url(path)).send().await.unwrap();
        assert_eq!(response.status(), 200);
        assert_eq!(response.text().await.unwrap(), "");
    }
}

#[tokio::test]
async fn a_node_with_a_key_asks_for_it_everywhere_under_v1() {
    let options = GatewayOptions {
        api_key: Some(Secret::new("key").unwrap()),
        ..options()
    };
    let server = start_with(options, Arc::new(Immediate::default()), Arc::new(Admin::default())).await;
    for credentials in [
        None,
        Some(""),
        Some("Bearer "),
        Some("Bearer wrong"),
        Some("Basic key"),
        Some("key"),
    ] {
        for request in [
            server.get("/v1/models"),
            server.get("/v1/models/x"),
            server.post("/v1/chat/completions", chat_body("")),
        ] {
            let request = match credentials {
                Some(credentials) => request.header("authorization", credentials),
                None => request,
            };
            let response = request.send().await.unwrap();
            assert_eq!(response.headers()["www-authenticate"], "Bearer");
            let (status, error) = refusal(response).await;
            assert_eq!((status, &error["code"]), (401, &json!("invalid_api_key")));
        }
    }
    for key in ["key", ADMIN_TOKEN] {
        let response = server
            .post("/v1/chat/completions", chat_body(""))
            .bearer_auth(key)
            .send()
            .await
            .unwrap();
        assert_eq!(response.status(), 200);
    }
    let ready: Value = server.get("/readyz").send().await.unwrap().json().await.unwrap();
    assert_eq!(ready, json!({"ready": true, "draining": false}));
}

#[tokio::test]
async fn a_uuid_as_request_id_is_kept_and_anything_else_replaced() {
    let inference = Arc::new(Immediate::default());
    let server = start(inference.clone()).await;
    let uuid = "0189d0c1-7a4b-7c3d-9e8f-001122334455";
    let send = |id: &str| {
        server
            .post("/v1/chat/completions", chat_body(""))
            .header("x-request-id", id)
            .send()
    };
    let response = within(send(uuid)).await.unwrap();
    assert_eq!(response.headers()["x-request-id"], uuid);
    assert_eq!(inference.last().request_id, uuid);
    let response = within(send("not-a-uuid")).await.unwrap();
    let made = response.headers()["x-request-id"].to_str().unwrap().to_owned();
    assert_ne!(made, "not-a-uuid");
    assert_eq!(inference.last().request_id, made);
    let missing = server
        .get("/nowhere")
        .header("x-request-id", uuid)
        .send()
        .await
        .unwrap();
    assert_eq!(missing.headers()["x-request-id"], uuid);
}
