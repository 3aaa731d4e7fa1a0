//! `deployments.json` of a data directory: the deployments that this node brings back when it starts, and the epochs
//! that it has used.

use std::{
    io,
    path::PathBuf,
    sync::{Mutex, MutexGuard, PoisonError},
};

use mesh_actors::ports::desired::{DesiredDeployment, DesiredState};
use mesh_proto::{MeshError, v1::ServeRequest};
use serde::{Deserialize, Serialize};

use crate::{
    BUILT_IN, NodeError,
    data_dir::{read_text, write_json},
};

/// A field that is new in a request must be put here.
#[derive(Serialize, Deserialize)]
#[serde(remote = "ServeRequest")]
struct Request {
    model: String,
    #[serde(default)]
    name: String,
    #[serde(default)]
    stages: String,
    #[serde(default)]
    context: u32,
    #[serde(default)]
    lanes: u32,
    #[serde(default)]
    exact: bool,
    #[serde(default)]
    prefill_chunk: u32,
}

#[derive(Serialize, Deserialize)]
#[serde(remote = "DesiredDeployment")]
struct Record {
    name: String,
    #[serde(with = "Request")]
    request: ServeRequest,
    placed: String,
    source_id: String,
    created: u64,
}

#[derive(Clone, Serialize, Deserialize)]
#[serde(transparent)]
struct Kept(#[serde(with = "Record")] DesiredDeployment);

#[derive(Clone, Default, Serialize, Deserialize)]
struct State {
    /// The last epoch that was taken.
    #[serde(default)]
    epochs: u64,
    #[serde(default)]
    deployments: Vec<Kept>,
}

/// The file; written whole at each change.
pub struct DesiredFile {
    path: PathBuf,
    held: Mutex<Held>,
}

struct Held {
    state: State,
    /// The node has left its mesh: what is still being served is not brought back.
    left: bool,
}

impl DesiredFile {
    /// The file need not exist.
    pub fn open(path: PathBuf) -> Result<Self, NodeError> {
        let state = match read_text(&path) {
            Ok(text) => serde_json::from_str(&text).map_err(|error| {
                let message = format!(
                    "{} is damaged: {error}; remove it and serve the models again",
                    path.display()
                );
                NodeError::DataDir(message)
            })?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => State::default(),
            Err(error) => return Err(NodeError::file("read", &path)(error)),
        };
        let held = Mutex::new(Held { state, left: false });
        Ok(Self { path, held })
    }

    /// What an earlier run of the node has served, and nobody has stopped. The model in the binary is whatever this binary
    /// holds.
    pub fn deployments(&self) -> Vec<DesiredDeployment> {
        let held = self.lock();
        let mut deployments: Vec<_> = held.state.deployments.iter().map(|kept| kept.0.clone()).collect();
        for built_in in deployments
            .iter_mut()
            .filter(|desired| desired.request.model == BUILT_IN)
        {
            built_in.source_id.clear();
        }
        deployments
    }

    /// Nothing is brought back any more, whatever is still to be written.
    pub fn leave(&self) -> Result<(), NodeError> {
        let mut held = self.lock();
        held.left = true;
        self.write(&mut held, |state| state.deployments.clear())
    }

    fn lock(&self) -> MutexGuard<'_, Held> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self, held: &mut Held, change: impl FnOnce(&mut State)) -> Result<(), NodeError> {
        let mut next = held.state.clone();
        change(&mut next);
        write_json(&self.path, &next)?;
        held.state = next;
        Ok(())
    }
}

impl DesiredState for DesiredFile {
    fn keep(&self, deployment: &DesiredDeployment) -> Result<(), MeshError> {
        let mut held = self.lock();
        if held.left {
            return Ok(());
        }
        let kept = Kept(deployment.clone());
        Ok(self.write(&mut held, |state| {
            state.deployments.retain(|known| known.0.name != kept.0.name);
            state.deployments.push(kept);
        })?)
    }

    fn forget(&self, name: &str) -> Result<(), MeshError> {
        let mut held = self.lock();
        if !held.state.deployments.iter().any(|kept| kept.0.name == name) {
            return Ok(());
        }
        Ok(self.write(&mut held, |state| state.deployments.retain(|kept| kept.0.name != name))?)
    }

    fn take_epochs(&self, count: u64) -> Result<u64, MeshError> {
        let mut held = self.lock();
        let last = held.state.epochs;
        self.write(&mut held, |state| state.epochs = last.saturating_add(count))?;
        Ok(last)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn desired(name: &str) -> DesiredDeployment {
        DesiredDeployment {
            name: name.to_owned(),
            request: ServeRequest {
                model: "/models/m.gguf".to_owned(),
                stages: "2".to_owned(),
                context: 512,
                lanes: 3,
                exact: true,
                prefill_chunk: 8,
                ..ServeRequest::default()
            },
            placed: "a:0-4,b:4-8".to_owned(),
            source_id: "id".to_owned(),
            created: 7,
        }
    }

    #[test]
    fn what_is_kept_is_there_in_the_next_run_and_what_is_forgotten_is_not() {
        let dir = tempfile::tempdir().unwrap();
        let open = || DesiredFile::open(dir.path().join("deployments.json")).unwrap();
        let file = open();
        assert_eq!(file.take_epochs(1000).unwrap(), 0);
        for name in ["x", "y", "x"] {
            file.keep(&desired(name)).unwrap();
        }
        assert_eq!(open().deployments(), [desired("y"), desired("x")]);
        file.forget("y").unwrap();
        file.forget("z").unwrap();
        assert_eq!(open().deployments(), [desired("x")]);
        let next = open();
        assert_eq!(
            (next.take_epochs(10).unwrap(), open().take_epochs(1).unwrap()),
            (1000, 1010)
        );
    }

    #[test]
    fn a_node_that_has_left_keeps_nothing_but_its_epochs() {
        let dir = tempfile::tempdir().unwrap();
        let open = || DesiredFile::open(dir.path().join("deployments.json")).unwrap();
        let file = open();
        file.take_epochs(1000).unwrap();
        file.keep(&desired("x")).unwrap();
        file.leave().unwrap();
        file.keep(&desired("y")).unwrap();
        assert_eq!(open().deployments(), []);
        assert_eq!(open().take_epochs(1).unwrap(), 1000);
    }

    #[test]
    fn what_cannot_be_written_is_not_kept_in_memory_either() {
        let dir = tempfile::tempdir().unwrap();
        let file = DesiredFile::open(dir.path().join("gone/deployments.json")).unwrap();
        assert!(file.keep(&desired("x")).is_err() && file.take_epochs(1).is_err());
        assert_eq!(file.deployments(), []);
    }

    #[test]
    fn a_damaged_file_says_what_to_do() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("deployments.json");
        std::fs::write(&path, "{\"deployments\":[{}]}").unwrap();
        let error = DesiredFile::open(path).err().expect("damaged").to_string();
        assert!(error.contains("remove it and serve the models again"), "{error}");
    }
}
