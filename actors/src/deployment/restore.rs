//! Bringing a deployment of an earlier run back: what `serve` does before the first epoch, from what was written down.

use std::sync::Arc;

use mesh_proto::{
    ErrorCode, MeshError,
    v1::{self, NodeState, ServeRequest},
};
use tokio::sync::watch;

use super::{
    actor::DeploymentEnvironment,
    caller::ProgressSender,
    prepare::{Prepared, prepare},
};
use crate::ports::{deployment::ModelFacts, desired::DesiredDeployment};

/// Describes the model, which has to be the same, and prepares its stages where they were.
pub(super) async fn bring_back(
    desired: DesiredDeployment,
    environment: Arc<DeploymentEnvironment>,
    sender: Option<ProgressSender>,
) -> Result<(ModelFacts, Prepared), MeshError> {
    let facts = environment.store.describe(&desired.request.model).await?;
    if !desired.source_id.is_empty() && facts.source_id != desired.source_id {
        let (model, name) = (&desired.request.model, &desired.name);
        let message = format!(
            "{model} has changed since it was served; put the file back, or stop {name} with `mesh stop` and serve it again"
        );
        return Err(MeshError::new(ErrorCode::ModelInvalid, message));
    }
    let request = ServeRequest {
        stages: desired.placed,
        ..desired.request
    };
    let prepared = prepare(request, facts.clone(), environment, sender).await?;
    Ok((facts, prepared))
}

/// Resolves when a member comes up that is not up now; never, if the list ends.
pub(super) async fn member_came_up(members: &mut watch::Receiver<Vec<v1::Node>>) {
    let up = |nodes: &[v1::Node]| -> Vec<String> {
        let up = nodes.iter().filter(|node| node.state == NodeState::Up as i32);
        up.map(|node| node.id.clone()).collect()
    };
    let mut known = up(&members.borrow_and_update());
    loop {
        if members.changed().await.is_err() {
            std::future::pending::<()>().await;
        }
        let now = up(&members.borrow_and_update());
        if now.iter().any(|id| !known.contains(id)) {
            return;
        }
        known = now;
    }
}
