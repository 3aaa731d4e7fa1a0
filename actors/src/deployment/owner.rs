//! The deployments that this node owns.

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
};

use mesh_proto::{ErrorCode, MeshError, v1::ServeRequest};
use tokio::sync::mpsc;

use super::{
    actor::{DeploymentEnvironment, DeploymentRef, spawn_deployment},
    caller::Caller,
};
use crate::{
    directory::Directory,
    ports::inference::{SERVE_PROGRESS_CAPACITY, ServeStream},
};

/// Longest name of a deployment; it is a model id in URLs and a part of file and thread names.
const MAX_NAME: usize = 128;

/// Starts and stops deployments. Cheap to clone.
#[derive(Clone)]
pub struct Owner {
    environment: Arc<DeploymentEnvironment>,
    running: Running,
    last_epoch: Arc<AtomicU64>,
}

/// Names that are taken on this node; `None` while the deployment's actor is being started.
type Running = Arc<Mutex<HashMap<String, Option<DeploymentRef>>>>;

fn lock(running: &Running) -> MutexGuard<'_, HashMap<String, Option<DeploymentRef>>> {
    running.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A deployment's name and place in the lists. Dropping it gives the name back, however the deployment ends.
pub(super) struct Listing {
    name: String,
    running: Running,
    directory: Directory,
    last_epoch: Arc<AtomicU64>,
}

impl Listing {
    /// An epoch that no deployment of this node has had since it started: whatever is left of an earlier one, even of a
    /// deployment of this name that was stopped, is not taken for the present one.
    pub(super) fn next_epoch(&self) -> u64 {
        self.last_epoch.fetch_add(1, Ordering::Relaxed) + 1
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// The deployment's actor has started.
    pub(super) fn runs(&self, deployment: DeploymentRef) {
        lock(&self.running).insert(self.name.clone(), Some(deployment));
    }
}

impl Drop for Listing {
    fn drop(&mut self) {
        self.directory.set_own(&self.name, None);
        lock(&self.running).remove(&self.name);
    }
}

impl Owner {
    /// Nothing runs yet.
    pub fn new(environment: Arc<DeploymentEnvironment>) -> Self {
        Self {
            environment,
            running: Running::default(),
            last_epoch: Arc::default(),
        }
    }

    /// Serves a model. The stream ends with one `ready` or one error; dropping it before that gives up.
    ///
    /// # Errors
    ///
    /// The name is taken or not allowed, or the model cannot be described.
    pub async fn serve(&self, request: ServeRequest) -> Result<ServeStream, MeshError> {
        let facts = self.environment.store.describe(&request.model).await?;
        let name = if request.name.is_empty() {
            facts.stem.clone()
        } else {
            request.name.clone()
        };
        check_name(&name)?;
        let listing = self.take(name)?;
        let (progress, stream) = mpsc::channel(SERVE_PROGRESS_CAPACITY);
        spawn_deployment(request, facts, self.environment.clone(), listing, Caller::new(progress)).await?;
        Ok(stream)
    }

    fn take(&self, name: String) -> Result<Listing, MeshError> {
        let mut running = lock(&self.running);
        if running.contains_key(&name) || self.environment.directory.find(&name).is_some() {
            let message = format!("a deployment named {name} exists; stop it with `mesh stop {name}`, or use --name");
            return Err(MeshError::new(ErrorCode::Conflict, message).with_param("name"));
        }
        running.insert(name.clone(), None);
        Ok(Listing {
            name,
            running: self.running.clone(),
            directory: self.environment.directory.clone(),
            last_epoch: self.last_epoch.clone(),
        })
    }

    /// Stops a deployment; resolves when it is no longer listed.
    ///
    /// # Errors
    ///
    /// This node owns none of this name.
    pub async fn stop(&self, name: &str) -> Result<(), MeshError> {
        let deployment = lock(&self.running).get(name).cloned().flatten();
        let deployment = deployment.ok_or_else(|| {
            let message = format!("this node serves nothing named {name}; see `mesh status`");
            MeshError::new(ErrorCode::NotFound, message)
        })?;
        deployment.stop().await;
        Ok(())
    }

    /// Stops everything, when the node ends.
    pub async fn stop_all(&self) {
        let all: Vec<DeploymentRef> = lock(&self.running).values().flatten().cloned().collect();
        for deployment in all {
            deployment.stop().await;
        }
    }
}

fn check_name(name: &str) -> Result<(), MeshError> {
    let allowed = |c: char| c.is_alphanumeric() || "-_.:/+ ".contains(c);
    if !name.is_empty() && name.len() <= MAX_NAME && name.chars().all(allowed) {
        return Ok(());
    }
    let message = format!(
        "{name:?} is no name for a deployment; use 1 to {MAX_NAME} letters, digits, spaces and the signs - _ . : / +"
    );
    Err(MeshError::invalid("name", message))
}
