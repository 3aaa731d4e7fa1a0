//! A gateway in front of a model that only counts, for trying clients by hand: `cargo run --example scripted`.
//!
//! It prints its two addresses. The model `fail` breaks off in mid-stream; every other name is refused but `smol`.

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use mesh_actors::{
    ports::{
        inference::{Administration, Caller, Generation, Inference, ServeStream, ServedModel},
        lifecycle::{Lifecycles, NoticeStream},
    },
    request::journal::journal,
};
use mesh_gateway::{Gateway, GatewayOptions, Secret};
use mesh_proto::{
    ErrorCode, MeshError,
    v1::{self, FinishReason, GenerateFinished, GenerateRequest, GenerateStarted},
};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

/// Between words: slow enough to watch.
const STEP: Duration = Duration::from_millis(50);

struct Counting;

#[async_trait]
impl Inference for Counting {
    fn models(&self) -> Vec<ServedModel> {
        let model = |name: &str| ServedModel {
            name: name.into(),
            created: 1_700_000_000,
            ready: true,
            context: 2048,
        };
        vec![model("smol"), model("fail")]
    }

    async fn generate(&self, request: GenerateRequest, _: Caller) -> Result<Generation, MeshError> {
        let (writer, events) = journal();
        let started = GenerateStarted {
            request_id: request.request_id,
            prompt_tokens: 3,
            seed: 1,
            created: 1_700_000_000,
        };
        let (fails, most) = (request.model == "fail", request.max_tokens.unwrap_or(10));
        let reason = if request.max_tokens.is_some() {
            FinishReason::Length
        } else {
            FinishReason::Stop
        }
        .into();
        tokio::spawn(async move {
            let cancelled = writer.cancelled();
            for count in 1..=most {
                tokio::select! {
                    () = cancelled.cancelled() => return,
                    () = tokio::time::sleep(STEP) => writer.commit(&format!("{count} "), count),
                }
                if fails && count == 3 {
                    return writer.fail(MeshError::new(ErrorCode::StageLost, "stage 1 went away; try again"));
                }
            }
            writer.finish(GenerateFinished {
                reason,
                prompt_tokens: 3,
                completion_tokens: most,
                timings: None,
            });
        });
        Ok(Generation { started, events })
    }
}

struct Nothing;

fn not_here<T>() -> Result<T, MeshError> {
    Err(MeshError::new(
        ErrorCode::NotFound,
        "this is an example; run `mesh node start` for a node",
    ))
}

#[async_trait]
impl Administration for Nothing {
    async fn status(&self) -> Result<v1::GetStatusResponse, MeshError> {
        not_here()
    }
    async fn create_ticket(&self) -> Result<v1::CreateTicketResponse, MeshError> {
        not_here()
    }
    async fn nodes(&self) -> Result<Vec<v1::Node>, MeshError> {
        not_here()
    }
    async fn plugins(&self) -> Result<Vec<v1::Plugin>, MeshError> {
        not_here()
    }
    async fn leave(&self, _: bool) -> Result<(), MeshError> {
        not_here()
    }
    async fn remove_node(&self, _: &str) -> Result<(), MeshError> {
        not_here()
    }
    async fn serve(&self, _: v1::ServeRequest) -> Result<ServeStream, MeshError> {
        not_here()
    }
    async fn stop(&self, _: &str) -> Result<(), MeshError> {
        not_here()
    }
    async fn deployments(&self) -> Result<Vec<v1::Deployment>, MeshError> {
        not_here()
    }
}

#[async_trait]
impl Lifecycles for Nothing {
    async fn subscribe(&self, _: v1::SubscribeRequest) -> Result<NoticeStream, MeshError> {
        not_here()
    }
    async fn requests(&self, _: v1::ListRequestsRequest) -> Result<v1::ListRequestsResponse, MeshError> {
        not_here()
    }
    async fn receipt(&self, _: v1::GetReceiptRequest) -> Result<v1::Receipt, MeshError> {
        not_here()
    }
    async fn cancel(&self, _: v1::CancelRequestRequest) -> Result<(), MeshError> {
        not_here()
    }
    async fn close(&self) {}
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    tracing_subscriber::fmt().with_writer(std::io::stderr).init();
    let options = GatewayOptions::new(Secret::new("admin")?);
    let gateway = Gateway::new(options, Arc::new(Counting), Arc::new(Nothing), Arc::new(Nothing));
    let http = TcpListener::bind("127.0.0.1:0").await?;
    let grpc = TcpListener::bind("127.0.0.1:0").await?;
    println!("{} {}", http.local_addr()?, grpc.local_addr()?);
    let shutdown = CancellationToken::new();
    let stop = shutdown.clone();
    let served = async {
        tokio::try_join!(
            gateway.serve_http(http, shutdown.clone()),
            gateway.serve_grpc(grpc, shutdown)
        )
    };
    tokio::pin!(served);
    tokio::select! {
        result = &mut served => { result?; }
        _ = tokio::signal::ctrl_c() => {
            stop.cancel();
            served.await?;
        }
    }
    Ok(())
}
