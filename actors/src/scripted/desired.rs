//! What outlives a run of an owner, in memory.

use std::sync::{Mutex, PoisonError};

use mesh_proto::{ErrorCode, MeshError};

use crate::ports::desired::{DesiredDeployment, DesiredState};

/// Give it to another owner, and that is the next run of the node.
#[derive(Debug, Default)]
pub struct ScriptedDesired {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    deployments: Vec<DesiredDeployment>,
    epochs: u64,
    full: bool,
}

impl ScriptedDesired {
    /// What is wanted.
    pub fn deployments(&self) -> Vec<DesiredDeployment> {
        self.lock().deployments.clone()
    }

    /// The last epoch that was taken.
    pub fn epochs(&self) -> u64 {
        self.lock().epochs
    }

    /// From now on nothing can be written, or everything again.
    pub fn fill(&self, full: bool) {
        self.lock().full = full;
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn write<T>(&self, change: impl FnOnce(&mut State) -> T) -> Result<T, MeshError> {
        let mut state = self.lock();
        if state.full {
            return Err(MeshError::new(ErrorCode::InsufficientResources, "the disk is full"));
        }
        Ok(change(&mut state))
    }
}

impl DesiredState for ScriptedDesired {
    fn keep(&self, deployment: &DesiredDeployment) -> Result<(), MeshError> {
        self.write(|state| {
            state.deployments.retain(|known| known.name != deployment.name);
            state.deployments.push(deployment.clone());
        })
    }

    fn forget(&self, name: &str) -> Result<(), MeshError> {
        self.write(|state| state.deployments.retain(|known| known.name != name))
    }

    fn take_epochs(&self, count: u64) -> Result<u64, MeshError> {
        self.write(|state| {
            state.epochs += count;
            state.epochs - count
        })
    }
}
