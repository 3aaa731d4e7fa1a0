//! Administration over gRPC.

use std::sync::Arc;

use mesh_proto::{
    ErrorCode, MeshError,
    v1::{
        self, deployment_service_client::DeploymentServiceClient, node_service_client::NodeServiceClient,
        serve_response,
    },
};
use tokio::sync::mpsc;
use tonic::Code;

use crate::{
    scripted::{Admin, Immediate},
    server::{ADMIN_TOKEN, channel, options, start, start_with, with_token, within},
};

#[tokio::test]
async fn administration_needs_the_token_and_reading_does_not() {
    let server = start(Arc::new(Immediate::default())).await;
    let mut nodes = NodeServiceClient::new(channel(&server).await);
    let mut deployments = DeploymentServiceClient::new(channel(&server).await);
    assert_eq!(
        nodes.get_status(v1::GetStatusRequest {}).await.unwrap().get_ref().node,
        "a"
    );
    assert_eq!(
        deployments
            .list_deployments(v1::ListDeploymentsRequest {})
            .await
            .unwrap()
            .get_ref()
            .deployments
            .len(),
        1
    );
    for token in ["", "wrong", " "] {
        let refused = [
            nodes
                .create_ticket(with_token(v1::CreateTicketRequest {}, token))
                .await
                .err(),
            nodes.list_nodes(with_token(v1::ListNodesRequest {}, token)).await.err(),
            nodes
                .leave_mesh(with_token(v1::LeaveMeshRequest { force: true }, token))
                .await
                .err(),
            nodes
                .remove_node(with_token(v1::RemoveNodeRequest { name: "b".into() }, token))
                .await
                .err(),
            deployments
                .serve(with_token(v1::ServeRequest::default(), token))
                .await
                .err(),
            deployments
                .stop(with_token(v1::StopRequest::default(), token))
                .await
                .err(),
        ];
        for status in refused {
            assert_eq!(status.expect("refused").code(), Code::Unauthenticated);
        }
    }
    assert_eq!(
        nodes
            .create_ticket(v1::CreateTicketRequest {})
            .await
            .unwrap_err()
            .code(),
        Code::Unauthenticated
    );
    let ticket = nodes
        .create_ticket(with_token(v1::CreateTicketRequest {}, ADMIN_TOKEN))
        .await
        .unwrap();
    assert_eq!(ticket.get_ref().ticket, "ticket");
    assert_eq!(
        nodes
            .list_nodes(with_token(v1::ListNodesRequest {}, ADMIN_TOKEN))
            .await
            .unwrap()
            .get_ref()
            .nodes
            .len(),
        1
    );
    let leave = |force| with_token(v1::LeaveMeshRequest { force }, ADMIN_TOKEN);
    let status = nodes.leave_mesh(leave(false)).await.unwrap_err();
    assert_eq!(MeshError::from(&status).code, ErrorCode::Conflict);
    nodes.leave_mesh(leave(true)).await.unwrap();
    let remove = |name: &str| with_token(v1::RemoveNodeRequest { name: name.into() }, ADMIN_TOKEN);
    nodes.remove_node(remove("b")).await.unwrap();
    let status = nodes.remove_node(remove("x")).await.unwrap_err();
    assert_eq!(MeshError::from(&status).code, ErrorCode::NotFound);
    let stop = |name: &str| with_token(v1::StopRequest { name: name.into() }, ADMIN_TOKEN);
    deployments.stop(stop("smol")).await.unwrap();
    let status = deployments.stop(stop("nope")).await.unwrap_err();
    assert_eq!(MeshError::from(&status).code, ErrorCode::ModelNotFound);
}

#[tokio::test]
async fn serve_streams_progress_until_ready_or_one_error() {
    let admin = Arc::new(Admin::default());
    let server = start_with(options(), Arc::new(Immediate::default()), admin.clone()).await;
    let mut client = DeploymentServiceClient::new(channel(&server).await);
    let serve = || {
        with_token(
            v1::ServeRequest {
                model: "m.gguf".into(),
                ..Default::default()
            },
            ADMIN_TOKEN,
        )
    };
    let refused = client.serve(serve()).await.unwrap_err();
    assert!(refused.message().contains("m.gguf"));

    for fails in [false, true] {
        let (progress, receiver) = mpsc::channel(4);
        *admin.progress.lock().unwrap() = Some(receiver);
        let mut stream = within(client.serve(serve())).await.unwrap().into_inner();
        let event = serve_response::Event::Progress(v1::ServeProgress {
            step: "cut".into(),
            ..Default::default()
        });
        progress
            .send(Ok(v1::ServeResponse {
                event: Some(event.clone()),
            }))
            .await
            .unwrap();
        assert_eq!(within(stream.message()).await.unwrap().unwrap().event, Some(event));
        if fails {
            progress
                .send(Err(MeshError::new(ErrorCode::InsufficientResources, "needs 9, has 8")))
                .await
                .unwrap();
            let status = within(stream.message()).await.unwrap_err();
            assert_eq!(MeshError::from(&status).code, ErrorCode::InsufficientResources);
        } else {
            let ready = serve_response::Event::Ready(v1::Deployment::default());
            progress
                .send(Ok(v1::ServeResponse { event: Some(ready) }))
                .await
                .unwrap();
            assert!(within(stream.message()).await.unwrap().is_some());
        }
        drop(progress);
        assert!(within(stream.message()).await.unwrap().is_none());
    }

    let (progress, receiver) = mpsc::channel(4);
    *admin.progress.lock().unwrap() = Some(receiver);
    drop(within(client.serve(serve())).await.unwrap());
    within(progress.closed()).await;
}

#[tokio::test]
async fn a_node_that_stops_does_not_wait_for_a_model_to_load() {
    let admin = Arc::new(Admin::default());
    let mut server = start_with(options(), Arc::new(Immediate::default()), admin.clone()).await;
    let mut client = DeploymentServiceClient::new(channel(&server).await);
    let (progress, receiver) = mpsc::channel(4);
    *admin.progress.lock().unwrap() = Some(receiver);
    let serve = with_token(v1::ServeRequest::default(), ADMIN_TOKEN);
    let mut stream = within(client.serve(serve)).await.unwrap().into_inner();
    server.shutdown.cancel();
    let status = within(stream.message()).await.unwrap_err();
    assert_eq!(MeshError::from(&status).code, ErrorCode::Draining);
    within(progress.closed()).await;
    within(&mut server.grpc_served).await.unwrap().unwrap();
}
