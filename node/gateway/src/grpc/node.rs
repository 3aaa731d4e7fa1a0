//! `NodeService`: the node one talks to, and its mesh.

use std::sync::Arc;

use mesh_proto::v1::{
    CreateTicketRequest, CreateTicketResponse, GetStatusRequest, GetStatusResponse, LeaveMeshRequest,
    LeaveMeshResponse, ListNodesRequest, ListNodesResponse, ListPluginsRequest, ListPluginsResponse, RemoveNodeRequest,
    RemoveNodeResponse, node_service_server::NodeService,
};
use tonic::{Request, Response, Status};

use super::Call;
use crate::gateway::Shared;

pub(super) struct Node(pub(super) Arc<Shared>);

#[tonic::async_trait]
impl NodeService for Node {
    async fn get_status(&self, request: Request<GetStatusRequest>) -> Result<Response<GetStatusResponse>, Status> {
        let call = Call::of_user(&self.0, &request)?;
        let status = self.0.administration.status().await;
        status
            .map(|status| call.answer(status))
            .map_err(|error| call.refuse(error))
    }

    async fn create_ticket(
        &self,
        request: Request<CreateTicketRequest>,
    ) -> Result<Response<CreateTicketResponse>, Status> {
        let call = Call::of_admin(&self.0, &request)?;
        let ticket = self.0.administration.create_ticket().await;
        ticket
            .map(|ticket| call.answer(ticket))
            .map_err(|error| call.refuse(error))
    }

    async fn list_nodes(&self, request: Request<ListNodesRequest>) -> Result<Response<ListNodesResponse>, Status> {
        let call = Call::of_admin(&self.0, &request)?;
        let nodes = self.0.administration.nodes().await;
        nodes
            .map(|nodes| call.answer(ListNodesResponse { nodes }))
            .map_err(|error| call.refuse(error))
    }

    async fn list_plugins(
        &self,
        request: Request<ListPluginsRequest>,
    ) -> Result<Response<ListPluginsResponse>, Status> {
        let call = Call::of_admin(&self.0, &request)?;
        let plugins = self.0.administration.plugins().await;
        plugins
            .map(|plugins| call.answer(ListPluginsResponse { plugins }))
            .map_err(|error| call.refuse(error))
    }

    async fn leave_mesh(&self, request: Request<LeaveMeshRequest>) -> Result<Response<LeaveMeshResponse>, Status> {
        let call = Call::of_admin(&self.0, &request)?;
        let left = self.0.administration.leave(request.get_ref().force).await;
        left.map(|()| call.answer(LeaveMeshResponse {}))
            .map_err(|error| call.refuse(error))
    }

    async fn remove_node(&self, request: Request<RemoveNodeRequest>) -> Result<Response<RemoveNodeResponse>, Status> {
        let call = Call::of_admin(&self.0, &request)?;
        let removed = self.0.administration.remove_node(&request.get_ref().name).await;
        removed
            .map(|()| call.answer(RemoveNodeResponse {}))
            .map_err(|error| call.refuse(error))
    }
}
