//! A deployment as others see it.

use mesh_proto::{
    MeshError,
    v1::{self, DeploymentPhase},
};

use super::State;
use crate::deployment::{machine::Phase, prepare::Prepared};

impl State {
    pub(super) fn exact(&self) -> bool {
        let asked = self.prepared.as_ref().is_some_and(|prepared| prepared.plan.exact);
        asked
            && self
                .machine
                .loaded()
                .iter()
                .all(|loaded| loaded.as_ref().is_some_and(|loaded| loaded.exact))
    }

    pub(super) fn describe(&self) -> v1::Deployment {
        let (phase, reason) = match self.machine.phase() {
            Phase::Ready => (DeploymentPhase::Ready, String::new()),
            Phase::Over(error) => (DeploymentPhase::Lost, self.why_lost(error)),
            _ if self.desired.is_some() && !self.was_ready => {
                let reason = "it is being brought back after its node started again".to_owned();
                (DeploymentPhase::Preparing, reason)
            }
            Phase::Loading | Phase::Connecting | Phase::Activating => (DeploymentPhase::Preparing, String::new()),
        };
        let loaded = self.machine.loaded();
        let head = loaded.first().cloned().flatten().unwrap_or_default();
        let mut deployment = v1::Deployment {
            name: self.name.clone(),
            ready: phase == DeploymentPhase::Ready,
            epoch: self.epoch,
            phase: phase.into(),
            reason,
            owner: self.environment.node_name.clone(),
            model: self.facts.label.clone(),
            architecture: self.facts.architecture.clone(),
            layers: self.facts.layers,
            trained_context: self.facts.context,
            exact: self.exact(),
            chat_template: head.chat_template,
            created: self.created,
            ..v1::Deployment::default()
        };
        if let Some(Prepared { plan, files, .. }) = &self.prepared {
            deployment.context = plan.context;
            deployment.context_limit = plan.context_limit.clone().unwrap_or_default();
            deployment.lanes = Some(v1::Lanes {
                used: 0,
                total: plan.lanes,
                waiting: 0,
            });
            let stages = plan.stages.iter().zip(files).enumerate();
            deployment.stages = stages
                .map(|(index, (planned, file))| {
                    let loaded = loaded.get(index).cloned().flatten();
                    let threads = loaded.as_ref().map_or(planned.threads, |loaded| loaded.threads);
                    v1::Stage {
                        node: planned.node.name.clone(),
                        layers: format!("{}-{}", planned.layers.start, planned.layers.end),
                        bytes: file.bytes,
                        memory_bytes: loaded.unwrap_or_default().memory_bytes,
                        threads,
                    }
                })
                .collect();
        }
        deployment
    }

    pub(super) fn why_lost(&self, error: &MeshError) -> String {
        let Some(missing) = &self.missing else {
            return error.message.clone();
        };
        format!(
            "{missing}, which it needs, left the mesh or was removed; stop it with `mesh stop {}` and serve it again",
            self.name
        )
    }
}
