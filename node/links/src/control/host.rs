//! Holding a stage for an owner, for as long as its stream lives.

use iroh::endpoint::{RecvStream, SendStream};
use mesh_actors::{
    deployment::plan::{FAST_CHUNK, MAX_LANES},
    host::{StageOwner, spawn_host},
    ports::deployment::HOST_EVENTS,
};
use mesh_proto::{
    MeshError,
    wire::{Artifact, HostCommand, HostStage, StageSpec},
};
use tokio::sync::mpsc;

use super::{ControlServices, Peer};
use crate::{error::protocol, message};

/// Length of a BLAKE3 digest in hexadecimal.
const DIGEST_DIGITS: usize = 64;

/// Largest command of an owner.
const COMMAND_MESSAGE: usize = 1024;

pub async fn host_stage(
    peer: &Peer,
    mut send: SendStream,
    mut recv: RecvStream,
    request: HostStage,
    services: &ControlServices,
) -> Result<(), MeshError> {
    let spec = request.spec.ok_or_else(|| protocol("a host request names no stage"))?;
    check(&spec)?;
    tracing::info!(
        owner = %peer.id, deployment = %spec.deployment, epoch = spec.epoch, stage = spec.stage,
        layers = %format!("{}-{}", spec.layer_start, spec.layer_end), "hosting a stage"
    );
    let (sender, mut events) = mpsc::channel(HOST_EVENTS);
    let owner = StageOwner {
        node: peer.id,
        name: peer.name(services),
    };
    let host = spawn_host(owner, spec, services.hosts.clone(), sender).await?;
    // The host outlives this task when the connection's end drops it in the middle: a guard takes it down then.
    let guard = HostGuard::new(host.clone());
    let tell = async {
        while let Some(event) = events.recv().await {
            message::write(&mut send, &event).await?;
        }
        Ok(())
    };
    let hear = async {
        while let Some(command) = message::read::<HostCommand>(&mut recv, COMMAND_MESSAGE).await? {
            host.command(command);
        }
        Ok(())
    };
    let ended: Result<(), MeshError> = tokio::select! {
        ended = tell => ended,
        ended = hear => ended,
    };
    drop(events);
    guard.stop().await;
    let _ = send.finish();
    ended
}

/// Nothing is allocated on an owner's word: the figures must be ones that a plan can have.
fn check(spec: &StageSpec) -> Result<(), MeshError> {
    let digest = |artifact: &Option<Artifact>| {
        artifact.as_ref().is_none_or(|artifact| {
            artifact.digest.len() == DIGEST_DIGITS && artifact.digest.bytes().all(|digit| digit.is_ascii_hexdigit())
        })
    };
    let fits = (1..=MAX_LANES).contains(&spec.lanes)
        && (1..=FAST_CHUNK).contains(&spec.prefill_chunk)
        && spec.stage < spec.stages
        && spec.stage_nodes.len() == spec.stages as usize
        && spec.layer_start < spec.layer_end
        && spec.layer_end <= spec.layers
        && digest(&spec.file)
        && digest(&spec.vocabulary);
    if fits {
        Ok(())
    } else {
        Err(protocol("a host request asks for a stage that no plan has"))
    }
}

/// Takes a host down even when the task that held it is dropped.
struct HostGuard {
    host: Option<mesh_actors::host::HostHandle>,
}

impl HostGuard {
    fn new(host: mesh_actors::host::HostHandle) -> Self {
        Self { host: Some(host) }
    }

    async fn stop(mut self) {
        if let Some(host) = self.host.take() {
            host.stop().await;
        }
    }
}

impl Drop for HostGuard {
    fn drop(&mut self) {
        if let Some(host) = self.host.take() {
            host.stop_soon();
        }
    }
}
