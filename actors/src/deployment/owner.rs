//! The deployments that this node owns.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use mesh_proto::{ErrorCode, MeshError, v1::ServeRequest};
use tokio::sync::mpsc;

use super::{
    actor::{DeploymentEnvironment, DeploymentRef, restore_deployment, spawn_deployment},
    caller::Caller,
    epochs::Epochs,
};
use crate::{
    directory::Directory,
    ports::desired::DesiredDeployment,
    ports::inference::{SERVE_PROGRESS_CAPACITY, ServeStream},
};

/// Longest name of a deployment; it is a model id in URLs and a part of file and thread names.
const MAX_NAME: usize = 128;

/// Starts and stops deployments. Cheap to clone.
#[derive(Clone)]
pub struct Owner {
    environment: Arc<DeploymentEnvironment>,
    running: Running,
    epochs: Arc<Epochs>,
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
    epochs: Arc<Epochs>,
}

impl Listing {
    /// An epoch that no deployment of this node has had.
    pub(super) fn next_epoch(&self) -> u64 {
        self.epochs.next()
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
    pub fn new(environment: Arc<DeploymentEnvironment>, epochs: Epochs) -> Self {
        Self {
            environment,
            running: Running::default(),
            epochs: Arc::new(epochs),
        }
    }

    /// Brings deployments of an earlier run back, in the background: each is listed at once, and ready when it can be.
    pub async fn restore(&self, deployments: Vec<DesiredDeployment>) {
        for desired in deployments {
            let name = desired.name.clone();
            let restored = async {
                // Another node may serve the name by now: that is told, and looked at again.
                let listing = self.take(name.clone(), false)?;
                restore_deployment(desired, self.environment.clone(), listing).await
            };
            if let Err(error) = restored.await {
                tracing::error!(deployment = %name, %error, "a deployment was not brought back");
            }
        }
    }

    /// Serves a model. The stream ends with one `ready` or one error; dropping it before that gives up. Asking again for
    /// one that is being brought back as it was asked for before tries at once, and answers with what comes of it.
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
        let (progress, stream) = mpsc::channel(SERVE_PROGRESS_CAPACITY);
        let known = lock(&self.running).get(&name).cloned().flatten();
        if known.is_some_and(|known| known.ask_again(&request, &progress)) {
            return Ok(stream);
        }
        let served = self.environment.directory.find(&name).is_some();
        let listing = self.take(name, served)?;
        spawn_deployment(request, facts, self.environment.clone(), listing, Caller::new(progress)).await?;
        Ok(stream)
    }

    fn take(&self, name: String, served: bool) -> Result<Listing, MeshError> {
        let mut running = lock(&self.running);
        if served || running.contains_key(&name) {
            let message = format!("a deployment named {name} exists; stop it with `mesh stop {name}`, or use --name");
            return Err(MeshError::new(ErrorCode::Conflict, message).with_param("name"));
        }
        running.insert(name.clone(), None);
        Ok(Listing {
            name,
            running: self.running.clone(),
            directory: self.environment.directory.clone(),
            epochs: self.epochs.clone(),
        })
    }

    /// Stops a deployment; resolves when it is no longer listed, and will not be brought back.
    ///
    /// # Errors
    ///
    /// This node owns none of this name, or the disk keeps it.
    pub async fn stop(&self, name: &str) -> Result<(), MeshError> {
        let deployment = lock(&self.running).get(name).cloned().flatten();
        let deployment = deployment.ok_or_else(|| {
            let message = format!("this node serves nothing named {name}; see `mesh status`");
            MeshError::new(ErrorCode::NotFound, message)
        })?;
        // Not the other way round: it may be about to be written down.
        deployment.stop().await;
        let (desired, name) = (self.environment.desired.clone(), name.to_owned());
        let forgotten = tokio::task::spawn_blocking(move || desired.forget(&name)).await;
        forgotten.map_err(|error| MeshError::internal(format!("forgetting a deployment failed: {error}")))?
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
