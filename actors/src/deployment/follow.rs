//! Holds one stage at its host and passes on what that says.

use std::sync::Arc;

use mesh_proto::{
    ErrorCode, MeshError, NodeId,
    wire::{HostCommand, HostEvent, StageSpec, host_event},
};
use tokio::sync::mpsc;

use crate::ports::deployment::Hosts;

/// What became of asking a host.
pub enum Said {
    /// The host holds the stage for as long as this sender lives.
    Opened(mpsc::Sender<HostCommand>),
    /// It said something; the last is that it failed or is gone.
    Event(HostEvent),
}

/// Asks a node to hold a stage and passes on what its host says, until the host ends.
pub async fn follow_host(hosts: Arc<dyn Hosts>, id: String, name: String, spec: StageSpec, tell: impl Fn(Said) + Send) {
    let failed = |error: MeshError| {
        Said::Event(HostEvent {
            event: Some(host_event::Event::Failed(error.into())),
        })
    };
    let opened = match id.parse::<NodeId>() {
        Ok(node) => hosts.host(node, spec).await,
        Err(error) => Err(MeshError::internal(error.to_string())),
    };
    let mut session = match opened {
        Ok(session) => session,
        Err(error) => return tell(failed(error)),
    };
    tell(Said::Opened(session.commands));
    while let Some(event) = session.events.recv().await {
        tell(Said::Event(event));
    }
    tell(failed(MeshError::new(
        ErrorCode::StageLost,
        format!("node {name} is gone"),
    )));
}
