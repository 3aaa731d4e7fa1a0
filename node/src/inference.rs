//! Generation on any deployment of the mesh: on this node's head, or through the control connection to another's.

use std::sync::Arc;

use async_trait::async_trait;
use mesh_actors::{
    directory::Directory,
    host::StageRegistry,
    ports::inference::{Caller, Generation, Inference, ServedModel},
};
use mesh_links::Peers;
use mesh_proto::{
    ErrorCode, MeshError, NodeId,
    v1::{Deployment, GenerateRequest},
};

/// The [`Inference`] of a node.
pub struct MeshInference {
    /// This node.
    pub node: NodeId,
    /// Deployments of the mesh.
    pub directory: Directory,
    /// Stages on this node.
    pub registry: Arc<StageRegistry>,
    /// Other nodes.
    pub peers: Peers,
}

#[async_trait]
impl Inference for MeshInference {
    fn models(&self) -> Vec<ServedModel> {
        let deployments = self.directory.all().into_iter().filter_map(|route| route.deployment);
        deployments.map(served).collect()
    }

    async fn generate(&self, request: GenerateRequest, caller: Caller) -> Result<Generation, MeshError> {
        let Some(route) = self.directory.find(&request.model) else {
            return Err(self.not_found(&request.model));
        };
        let deployment = route.deployment.unwrap_or_default();
        if !deployment.ready {
            let reason = if deployment.reason.is_empty() {
                "it is being prepared"
            } else {
                &deployment.reason
            };
            let message = format!("{} is not ready: {reason}; try again", deployment.name);
            return Err(MeshError::new(ErrorCode::NotReady, message));
        }
        let head: NodeId = route
            .head
            .parse()
            .map_err(|_| MeshError::internal("a deployment has no head"))?;
        if head != self.node {
            return self.peers.generate(head, request, caller).await;
        }
        match self.registry.head(&request.model) {
            Some(head) => head.generate(request, caller).await,
            None => Err(MeshError::new(
                ErrorCode::NotReady,
                format!("{} is not ready; try again", request.model),
            )),
        }
    }
}

impl MeshInference {
    fn not_found(&self, model: &str) -> MeshError {
        let served: Vec<String> = self.models().into_iter().map(|model| model.name).collect();
        let served = if served.is_empty() {
            "nothing is served yet".to_owned()
        } else {
            format!("served: {}", served.join(", "))
        };
        MeshError::new(
            ErrorCode::ModelNotFound,
            format!("there is no model {model:?}; {served}"),
        )
        .with_param("model")
    }
}

fn served(deployment: Deployment) -> ServedModel {
    ServedModel {
        name: deployment.name,
        created: deployment.created,
        ready: deployment.ready,
        context: deployment.context,
    }
}
