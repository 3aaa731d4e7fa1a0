//! `DeploymentService`: what the mesh serves.

use std::sync::Arc;

use futures::stream::{self, BoxStream, StreamExt as _};
use mesh_actors::ports::inference::ServeStream;
use mesh_proto::v1::{
    ListDeploymentsRequest, ListDeploymentsResponse, ServeRequest, ServeResponse, StopRequest, StopResponse,
    deployment_service_server::DeploymentService,
};
use tokio_util::sync::CancellationToken;
use tonic::{Request, Response, Status};

use super::Call;
use crate::{admission::draining, gateway::Shared};

pub(super) struct Deployments(pub(super) Arc<Shared>);

#[tonic::async_trait]
impl DeploymentService for Deployments {
    type ServeStream = BoxStream<'static, Result<ServeResponse, Status>>;

    async fn serve(&self, request: Request<ServeRequest>) -> Result<Response<Self::ServeStream>, Status> {
        let mut call = Call::of_admin(&self.0, &request)?;
        let connection = call.connection.take();
        if self.0.admission.is_draining() {
            return Err(call.refuse(draining()));
        }
        let progress = self.0.administration.serve(request.into_inner()).await;
        let progress = progress.map_err(|error| call.refuse(error))?;
        let progress = until_stopping(progress, self.0.admission.draining()).inspect(move |_| _ = &connection);
        Ok(call.answer(progress.boxed()))
    }

    async fn stop(&self, request: Request<StopRequest>) -> Result<Response<StopResponse>, Status> {
        let call = Call::of_admin(&self.0, &request)?;
        let stopped = self.0.administration.stop(&request.get_ref().name).await;
        stopped
            .map(|()| call.answer(StopResponse {}))
            .map_err(|error| call.refuse(error))
    }

    async fn list_deployments(
        &self,
        request: Request<ListDeploymentsRequest>,
    ) -> Result<Response<ListDeploymentsResponse>, Status> {
        let call = Call::of_user(&self.0, &request)?;
        let deployments = self.0.administration.deployments().await;
        let answer = deployments.map(|deployments| call.answer(ListDeploymentsResponse { deployments }));
        answer.map_err(|error| call.refuse(error))
    }
}

/// Progress to its end. A node that is stopping does not finish loading a model first.
fn until_stopping(
    progress: ServeStream,
    stopping: CancellationToken,
) -> BoxStream<'static, Result<ServeResponse, Status>> {
    let next = |state: Option<(ServeStream, CancellationToken)>| async {
        let (mut progress, stopping) = state?;
        tokio::select! {
            biased;
            next = progress.recv() => match next? {
                Ok(event) => Some((Ok(event), Some((progress, stopping)))),
                Err(error) => Some((Err(error.into()), None)),
            },
            () = stopping.cancelled() => Some((Err(draining().into()), None)),
        }
    };
    stream::unfold(Some((progress, stopping)), next).boxed()
}
