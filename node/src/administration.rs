//! What `mesh` commands ask of this node.

use std::time::Duration;

use async_trait::async_trait;
use futures::future::join_all;
use mesh_actors::{
    deployment::Owner,
    directory::Directory,
    membership::MembershipHandle,
    ports::inference::{Administration, ServeStream},
};
use mesh_links::{NodeEndpoint, Peers, TicketIssuer};
use mesh_proto::{
    ErrorCode, MeshError, NodeId,
    v1::{CreateTicketResponse, Deployment, GetStatusResponse, Node, Plugin, ServeRequest},
    wire::DeploymentRoute,
};
use tokio_util::sync::CancellationToken;

use crate::{desired::DesiredFile, inference::MeshInference, members::MemberFile, plugins::Plugins};

/// How long status waits for the lanes of a head elsewhere; without them it is shown all the same.
const LANES_LIMIT: Duration = Duration::from_secs(1);

/// The [`Administration`] of a node.
pub struct MeshAdministration {
    pub name: String,
    pub inference: std::sync::Arc<MeshInference>,
    pub endpoint: NodeEndpoint,
    pub tickets: TicketIssuer,
    pub membership: MembershipHandle,
    pub member_file: std::sync::Arc<MemberFile>,
    pub directory: Directory,
    pub owner: Owner,
    pub desired: std::sync::Arc<DesiredFile>,
    pub peers: Peers,
    pub plugins: Plugins,
    /// `None` on the issuer.
    pub issuer: Option<NodeId>,
    /// Ends the node.
    pub end_node: CancellationToken,
}

#[async_trait]
impl Administration for MeshAdministration {
    async fn status(&self) -> Result<GetStatusResponse, MeshError> {
        Ok(GetStatusResponse {
            node: self.name.clone(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            nodes: self.nodes().await?,
            deployments: self.deployments().await?,
        })
    }

    async fn create_ticket(&self) -> Result<CreateTicketResponse, MeshError> {
        if self.issuer.is_some() {
            let members = self.membership.nodes().borrow().clone();
            let issuer = members
                .into_iter()
                .find(|node| node.issuer)
                .map(|node| node.name)
                .unwrap_or_default();
            let message = format!("tickets of this mesh come from node {issuer}; run `mesh node ticket` there");
            return Err(MeshError::new(ErrorCode::Conflict, message));
        }
        let revoked = self.membership.revoked().borrow().tickets_until;
        let addresses = self.endpoint.addresses();
        let ticket = self.tickets.issue(self.endpoint.id(), addresses, revoked)?;
        Ok(CreateTicketResponse {
            expires: ticket.expires(),
            ticket: ticket.to_string(),
        })
    }

    async fn nodes(&self) -> Result<Vec<Node>, MeshError> {
        Ok(self.membership.nodes().borrow().clone())
    }

    async fn plugins(&self) -> Result<Vec<Plugin>, MeshError> {
        Ok(self.plugins.status())
    }

    async fn leave(&self, force: bool) -> Result<(), MeshError> {
        match (self.tell_of_leaving().await, force) {
            (Ok(()), _) => {}
            (Err(error), false) => return Err(error),
            (Err(error), true) => tracing::warn!(%error, "leaves all the same"),
        }
        self.member_file.remove()?;
        self.desired.leave()?;
        tracing::info!("left the mesh");
        self.end_node.cancel();
        Ok(())
    }

    async fn remove_node(&self, name: &str) -> Result<(), MeshError> {
        match self.issuer {
            Some(issuer) => self.peers.remove_node(issuer, name).await,
            None => self.membership.remove(name).await.map(drop),
        }
    }

    async fn serve(&self, request: ServeRequest) -> Result<ServeStream, MeshError> {
        self.owner.serve(request).await
    }

    async fn stop(&self, name: &str) -> Result<(), MeshError> {
        match (self.owner.stop(name).await, self.directory.peer_owner(name)) {
            (Err(error), Some(owner)) if error.code == ErrorCode::NotFound => {
                let stopped = self.peers.stop_deployment(owner, name).await;
                if stopped.as_ref().is_err_and(|error| error.code.retryable()) {
                    // Its owner has gone: the name is free again here, until the owner comes back.
                    self.directory.forget(owner, name);
                }
                stopped
            }
            (stopped, _) => stopped,
        }
    }

    async fn deployments(&self) -> Result<Vec<Deployment>, MeshError> {
        Ok(join_all(self.directory.all().into_iter().map(|route| self.with_lanes(route))).await)
    }
}

impl MeshAdministration {
    /// The issuer hears that this node leaves. The issuer itself has nobody to tell, and others must not depend on it.
    async fn tell_of_leaving(&self) -> Result<(), MeshError> {
        let Some(issuer) = self.issuer else {
            let others = self.membership.nodes().borrow().len() - 1;
            if others == 0 {
                return Ok(());
            }
            let message = format!(
                "this node admits others, and {others} more would stay behind: they serve on among themselves, but \
                 nobody can join them any more or be removed; let them leave first, stop this node for a while with \
                 SIGTERM, or leave with --force"
            );
            return Err(MeshError::new(ErrorCode::Conflict, message));
        };
        self.peers.leave(issuer).await.map_err(|error| {
            let message = format!(
                "the node that admits others does not hear that this one leaves: {}; try again, or leave with --force, \
                 and take this node out there with `mesh node remove {}`",
                error.message, self.name
            );
            MeshError { message, ..error }
        })
    }

    async fn with_lanes(&self, route: DeploymentRoute) -> Deployment {
        let mut deployment = route.deployment.unwrap_or_default();
        let Ok(head) = route.head.parse::<NodeId>() else {
            return deployment;
        };
        if !deployment.ready {
            return deployment;
        }
        let lanes = if head == self.inference.node {
            self.inference.registry.head(&deployment.name).map(|head| head.lanes())
        } else {
            let asked = self.peers.lanes(head, &deployment.name, deployment.epoch);
            tokio::time::timeout(LANES_LIMIT, asked)
                .await
                .ok()
                .and_then(Result::ok)
                .flatten()
        };
        deployment.lanes = lanes.or(deployment.lanes);
        deployment
    }
}
