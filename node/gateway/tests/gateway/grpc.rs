//! Generation over gRPC, health and reflection.

use std::sync::Arc;

use mesh_gateway::{GatewayOptions, Secret};
use mesh_proto::{
    ErrorCode, MeshError,
    sampling::default_sampling,
    v1::{
        self, FinishReason, GenerateRequest, Sampling, generate_request::Prompt, generate_response::Event,
        inference_service_client::InferenceServiceClient, node_service_client::NodeServiceClient,
    },
};
use tonic::{Code, Request};
use tonic_health::pb::{HealthCheckRequest, health_check_response::ServingStatus, health_client::HealthClient};

use crate::{
    scripted::{Admin, Immediate, finished, manual},
    server::{ADMIN_TOKEN, channel, options, start, start_with, with_token, within},
};

fn request() -> GenerateRequest {
    GenerateRequest {
        model: "smol".into(),
        prompt: Some(Prompt::Text("hi".into())),
        ..Default::default()
    }
}

#[tokio::test]
async fn generate_streams_started_deltas_and_one_end() {
    let (inference, mut requests) = manual();
    let server = start(inference).await;
    let mut client = InferenceServiceClient::new(channel(&server).await);
    let call = tokio::spawn(async move { client.generate(request()).await });
    let asked = requests.next().await;
    assert_eq!(asked.request.sampling, Some(default_sampling()));
    let id = asked.request.request_id.clone();
    let writer = asked.admit();
    let response = within(call).await.unwrap().unwrap();
    assert_eq!(response.metadata().get("x-request-id").unwrap(), &id);
    let mut messages = response.into_inner();
    let mut next = async || {
        within(messages.message())
            .await
            .unwrap()
            .map(|message| message.event.unwrap())
    };
    assert!(
        matches!(next().await, Some(Event::Started(started)) if started.request_id == id && started.prompt_tokens == 7)
    );
    writer.commit("In", 1);
    assert!(matches!(next().await, Some(Event::Delta(delta)) if delta.text == "In"));
    writer.finish(finished(FinishReason::Stop, 1));
    assert!(matches!(next().await, Some(Event::Finished(finished)) if finished.completion_tokens == 1));
    assert_eq!(next().await, None);
}

#[tokio::test]
async fn a_failure_in_mid_stream_is_one_failed_message() {
    let (inference, mut requests) = manual();
    let server = start(inference).await;
    let mut client = InferenceServiceClient::new(channel(&server).await);
    let call = tokio::spawn(async move { client.generate(request()).await });
    let writer = requests.next().await.admit();
    let mut messages = within(call).await.unwrap().unwrap().into_inner();
    within(messages.message()).await.unwrap();
    writer.fail(MeshError::new(ErrorCode::StageLost, "stage 1 went away"));
    let last = within(messages.message()).await.unwrap().unwrap().event;
    assert!(matches!(last, Some(Event::Failed(failed)) if failed.code == "stage_lost"));
    assert!(within(messages.message()).await.unwrap().is_none());
}

#[tokio::test]
async fn dropping_the_call_or_the_stream_cancels() {
    let (inference, mut requests) = manual();
    let server = start(inference).await;
    let mut client = InferenceServiceClient::new(channel(&server).await);
    let mut other = client.clone();
    let call = tokio::spawn(async move { other.generate(request()).await });
    let mut asked = requests.next().await;
    call.abort();
    within(asked.abandoned()).await;

    let call = tokio::spawn(async move { client.generate(request()).await });
    let writer = requests.next().await.admit();
    let messages = within(call).await.unwrap().unwrap().into_inner();
    drop(messages);
    within(writer.cancelled().cancelled()).await;
}

#[tokio::test]
async fn the_same_checks_hold_as_over_http() {
    let server = start(Arc::new(Immediate::default())).await;
    let mut client = InferenceServiceClient::new(channel(&server).await);
    let hot = Sampling {
        temperature: 3.0,
        ..default_sampling()
    };
    let cases = [
        (
            GenerateRequest {
                model: "nope".into(),
                ..request()
            },
            Code::NotFound,
            "smol",
        ),
        (
            GenerateRequest {
                prompt: None,
                ..request()
            },
            Code::InvalidArgument,
            "prompt",
        ),
        (
            GenerateRequest {
                sampling: Some(hot),
                ..request()
            },
            Code::InvalidArgument,
            "temperature",
        ),
        (
            GenerateRequest {
                sampling: Some(Sampling::default()),
                ..request()
            },
            Code::InvalidArgument,
            "top_p",
        ),
        (
            GenerateRequest {
                stop: vec!["a".into(); 5],
                ..request()
            },
            Code::InvalidArgument,
            "stop",
        ),
        (
            GenerateRequest {
                max_tokens: Some(0),
                ..request()
            },
            Code::InvalidArgument,
            "max_tokens",
        ),
        (
            GenerateRequest {
                request_id: "x".into(),
                ..request()
            },
            Code::InvalidArgument,
            "request_id",
        ),
    ];
    for (request, code, word) in cases {
        let status = within(client.generate(request)).await.unwrap_err();
        assert_eq!(status.code(), code);
        assert!(status.message().contains(word), "{status}");
        assert!(status.metadata().contains_key("mesh-code") && status.metadata().contains_key("x-request-id"));
    }
}

#[tokio::test]
async fn a_panic_is_a_status_and_the_connection_lives() {
    let server = start(Arc::new(Immediate::default())).await;
    let mut client = InferenceServiceClient::new(channel(&server).await);
    let panics = GenerateRequest {
        prompt: Some(Prompt::Text("panic".into())),
        ..request()
    };
    let status = within(client.generate(panics)).await.unwrap_err();
    assert_eq!(
        (status.code(), MeshError::from(&status).code),
        (Code::Internal, ErrorCode::Internal)
    );
    assert!(within(client.generate(request())).await.is_ok());
}

#[tokio::test]
async fn a_request_id_in_the_message_or_the_metadata_is_kept() {
    let inference = Arc::new(Immediate::default());
    let server = start(inference.clone()).await;
    let mut client = InferenceServiceClient::new(channel(&server).await);
    let uuid = "0189d0c1-7a4b-7c3d-9e8f-001122334455";
    let in_message = Request::new(GenerateRequest {
        request_id: uuid.into(),
        ..request()
    });
    let mut in_metadata = Request::new(request());
    in_metadata.metadata_mut().insert("x-request-id", uuid.parse().unwrap());
    for request in [in_message, in_metadata] {
        let response = within(client.generate(request)).await.unwrap();
        assert_eq!(response.metadata().get("x-request-id").unwrap(), uuid);
        assert_eq!(inference.last().request_id, uuid);
    }
}

#[tokio::test]
async fn with_an_api_key_inference_and_status_need_it_or_the_token() {
    let options = GatewayOptions {
        api_key: Some(Secret::new("key").unwrap()),
        ..options()
    };
    let server = start_with(options, Arc::new(Immediate::default()), Arc::new(Admin::default())).await;
    let mut inference = InferenceServiceClient::new(channel(&server).await);
    let mut nodes = NodeServiceClient::new(channel(&server).await);
    assert_eq!(
        inference.generate(request()).await.unwrap_err().code(),
        Code::Unauthenticated
    );
    assert_eq!(
        nodes.get_status(v1::GetStatusRequest {}).await.unwrap_err().code(),
        Code::Unauthenticated
    );
    for token in ["key", ADMIN_TOKEN] {
        assert!(inference.generate(with_token(request(), token)).await.is_ok());
        assert!(
            nodes
                .get_status(with_token(v1::GetStatusRequest {}, token))
                .await
                .is_ok()
        );
    }
    let status = nodes
        .create_ticket(with_token(v1::CreateTicketRequest {}, "key"))
        .await
        .unwrap_err();
    assert_eq!(status.code(), Code::Unauthenticated);
}

#[tokio::test]
async fn health_serves_and_reflection_lists_the_services_in_both_versions() {
    let server = start(Arc::new(Immediate::default())).await;
    let channel = channel(&server).await;
    for service in ["", "mesh.v1.InferenceService"] {
        let request = HealthCheckRequest {
            service: service.into(),
        };
        let health = HealthClient::new(channel.clone()).check(request).await.unwrap();
        assert_eq!(health.get_ref().status(), ServingStatus::Serving);
    }
    macro_rules! services {
        ($version:ident) => {{
            use tonic_reflection::pb::$version::{
                ServerReflectionRequest, server_reflection_client::ServerReflectionClient,
                server_reflection_request::MessageRequest, server_reflection_response::MessageResponse,
            };
            let request = ServerReflectionRequest {
                message_request: Some(MessageRequest::ListServices(String::new())),
                ..Default::default()
            };
            let requests = tokio_stream::iter([request]);
            let mut client = ServerReflectionClient::new(channel.clone());
            let mut answers = client.server_reflection_info(requests).await.unwrap().into_inner();
            match within(answers.message()).await.unwrap().unwrap().message_response {
                Some(MessageResponse::ListServicesResponse(list)) => {
                    list.service.into_iter().map(|service| service.name).collect::<Vec<_>>()
                }
                other => panic!("{other:?}"),
            }
        }};
    }
    for names in [services!(v1), services!(v1alpha)] {
        for name in [
            "mesh.v1.NodeService",
            "mesh.v1.DeploymentService",
            "mesh.v1.InferenceService",
            "grpc.health.v1.Health",
        ] {
            assert!(names.iter().any(|found| found == name), "{name} in {names:?}");
        }
    }
}
