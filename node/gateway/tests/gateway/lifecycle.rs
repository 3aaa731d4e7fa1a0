//! `LifecycleService`, and who a caller is.

use std::sync::Arc;

use mesh_gateway::{Secret, SessionHeader};
use mesh_proto::v1::{
    CancelRequestRequest, GetReceiptRequest, Heartbeat, ListRequestsRequest, SubscribeRequest, SubscribeResponse,
    lifecycle_service_client::LifecycleServiceClient, subscribe_response::Response,
};
use serde_json::json;
use tonic::{Code, Request};

use crate::{
    scripted::{Admin, Immediate, Told, manual},
    server::{ADMIN_TOKEN, client, options, start_telling, start_with, within},
};

const KEY: &str = "key";

fn with_token<T>(message: T, token: Option<&str>) -> Request<T> {
    let mut request = Request::new(message);
    if let Some(token) = token {
        let value = format!("Bearer {token}").parse().unwrap();
        request.metadata_mut().insert("authorization", value);
    }
    request
}

#[tokio::test]
async fn the_key_opens_events_and_the_token_their_content() {
    let mut options = options();
    options.api_key = Some(Secret::new(KEY).unwrap());
    let told = Arc::new(Told::default());
    let server = start_telling(
        options,
        Arc::new(Immediate::default()),
        Arc::new(Admin::default()),
        told.clone(),
    )
    .await;
    let mut client = LifecycleServiceClient::connect(format!("http://{}", server.grpc))
        .await
        .unwrap();
    let plain = SubscribeRequest::default();
    let full = SubscribeRequest {
        include_text: true,
        ..plain.clone()
    };
    for (request, token, code) in [
        (&plain, None, Code::Unauthenticated),
        (&plain, Some(KEY), Code::Ok),
        (&full, Some(KEY), Code::PermissionDenied),
        (&full, Some(ADMIN_TOKEN), Code::Ok),
    ] {
        let answered = within(client.subscribe(with_token(request.clone(), token))).await;
        assert_eq!(
            answered.map_or_else(|status| status.code(), |_| Code::Ok),
            code,
            "{token:?}"
        );
    }
    let receipt = |include_token_ids| GetReceiptRequest {
        request_id: "x".into(),
        include_token_ids,
    };
    assert!(client.get_receipt(with_token(receipt(false), Some(KEY))).await.is_ok());
    let refused = client
        .get_receipt(with_token(receipt(true), Some(KEY)))
        .await
        .unwrap_err();
    assert_eq!(refused.code(), Code::PermissionDenied);
    let list = client
        .list_requests(with_token(ListRequestsRequest::default(), Some(KEY)))
        .await;
    assert_eq!(list.unwrap().into_inner().missing, ["b"]);
    let cancel = || CancelRequestRequest { request_id: "x".into() };
    assert!(client.cancel_request(with_token(cancel(), Some(KEY))).await.is_err());
    assert!(
        client
            .cancel_request(with_token(cancel(), Some(ADMIN_TOKEN)))
            .await
            .is_ok()
    );
    assert_eq!(*told.cancelled.lock().unwrap(), ["x"]);
    assert_eq!(told.subscribed.lock().unwrap().len(), 2);
}

#[tokio::test]
async fn a_subscription_is_told_everything_and_ends_with_the_node() {
    let told = Arc::new(Told {
        notices: vec![SubscribeResponse {
            response: Some(Response::Heartbeat(Heartbeat::default())),
        }],
        ..Told::default()
    });
    let (inference, _requests) = manual();
    let server = start_telling(options(), inference, Arc::new(Admin::default()), told).await;
    let mut client = LifecycleServiceClient::connect(format!("http://{}", server.grpc))
        .await
        .unwrap();
    let bad = SubscribeRequest {
        kinds: vec![99],
        ..SubscribeRequest::default()
    };
    let refused = within(client.subscribe(bad)).await.unwrap_err();
    assert_eq!(refused.code(), Code::InvalidArgument);
    let mut notices = client
        .subscribe(SubscribeRequest::default())
        .await
        .unwrap()
        .into_inner();
    assert!(within(notices.message()).await.unwrap().is_some());
    server.shutdown.cancel();
    assert_eq!(within(notices.message()).await.unwrap(), None, "a graceful end");
    within(server.grpc_served).await.unwrap().unwrap();
}

#[tokio::test]
async fn the_named_header_is_the_session_and_no_body_can_forge_it() {
    let mut options = options();
    options.session_header = Some(SessionHeader::new("x-agent").unwrap());
    let inference = Arc::new(Immediate::default());
    let server = start_with(options, inference.clone(), Arc::new(Admin::default())).await;
    let body = json!({"model": "smol", "messages": [{"role": "user", "content": "hi"}],
                      "agent_session": "forged", "mesh_trace": {"forged": [1]}});
    let url = format!("http://{}/v1/chat/completions", server.http);
    let trace = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
    let post = |headers: &[(&str, &str)]| {
        let request = client().post(&url).json(&body);
        let request = headers
            .iter()
            .fold(request, |request, (name, value)| request.header(*name, *value));
        request.send()
    };
    assert_eq!(within(post(&[])).await.unwrap().status(), 200);
    assert_eq!(inference.last_caller(), Default::default());
    let response = within(post(&[("x-agent", "s 1"), ("traceparent", trace)]))
        .await
        .unwrap();
    assert_eq!(response.status(), 200);
    let caller = inference.last_caller();
    assert_eq!(
        caller.agent_session.map(|session| session.to_string()).as_deref(),
        Some("s 1")
    );
    assert_eq!(caller.trace.map(|trace| trace.to_string()).as_deref(), Some(trace));
    let refused = within(post(&[("x-agent", &"x".repeat(513))])).await.unwrap();
    assert_eq!(refused.status(), 400);
    assert!(refused.text().await.unwrap().contains("x-agent"));
}
