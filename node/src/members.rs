//! The member list on disk.

use std::{
    fs,
    path::PathBuf,
    sync::{Mutex, PoisonError},
};

use mesh_actors::membership::MemberStore;
use mesh_proto::{MeshError, v1::Node};
use serde::{Deserialize, Serialize};

use crate::{
    NodeError,
    data_dir::{read_text, write_json},
};

/// What is kept of a member, and what is not: a field that is new must be put on one side.
#[derive(Serialize, Deserialize)]
#[serde(remote = "Node")]
struct Record {
    id: String,
    name: String,
    addresses: Vec<String>,
    host_id: String,
    issuer: bool,
    cores: u32,
    memory_bytes: u64,
    exact: bool,
    #[serde(skip)]
    state: i32,
    #[serde(skip)]
    self_: bool,
    #[serde(skip)]
    version: String,
}

#[derive(Serialize, Deserialize)]
#[serde(transparent)]
struct Kept(#[serde(with = "Record")] Node);

/// `members.json` of a data directory.
#[derive(Debug)]
pub struct MemberFile {
    path: PathBuf,
    /// The node has left: a list that still arrives is not saved.
    forgotten: Mutex<bool>,
}

impl MemberFile {
    /// The file need not exist.
    pub fn new(path: PathBuf) -> Self {
        Self {
            path,
            forgotten: Mutex::new(false),
        }
    }

    /// The list as last saved; empty for a new node.
    pub fn load(&self) -> Result<Vec<Node>, NodeError> {
        let text = match read_text(&self.path) {
            Ok(text) => text,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(NodeError::file("read", &self.path)(error)),
        };
        let records: Vec<Kept> = serde_json::from_str(&text).map_err(|error| {
            let message = format!("{} is damaged: {error}; remove it and join again", self.path.display());
            NodeError::DataDir(message)
        })?;
        Ok(records.into_iter().map(|kept| kept.0).collect())
    }

    /// Forgets the mesh, for good.
    pub fn remove(&self) -> Result<(), NodeError> {
        *self.forgotten.lock().unwrap_or_else(PoisonError::into_inner) = true;
        match fs::remove_file(&self.path) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                Err(NodeError::file("remove", &self.path)(error))
            }
            _ => Ok(()),
        }
    }
}

impl MemberStore for MemberFile {
    fn save(&self, nodes: &[Node]) -> Result<(), MeshError> {
        let forgotten = self.forgotten.lock().unwrap_or_else(PoisonError::into_inner);
        if *forgotten {
            return Ok(());
        }
        let records: Vec<Kept> = nodes.iter().cloned().map(Kept).collect();
        Ok(write_json(&self.path, &records)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_kept_of_members_survives_and_how_they_are_now_does_not() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("members.json");
        let node = Node {
            id: "1".repeat(64),
            name: "a".to_owned(),
            addresses: vec!["127.0.0.1:1".to_owned()],
            host_id: "host".to_owned(),
            issuer: true,
            cores: 8,
            memory_bytes: 1 << 33,
            exact: true,
            ..Node::default()
        };
        let seen = Node {
            state: 1,
            self_: true,
            version: "9".to_owned(),
            ..node.clone()
        };
        MemberFile::new(path.clone()).save(&[seen]).unwrap();
        assert_eq!(MemberFile::new(path.clone()).load().unwrap(), [node]);
        // The file of an older release.
        let text = r#"[{"id": "1", "name": "b", "addresses": [], "host_id": "h", "issuer": false, "cores": 2,
                        "memory_bytes": 3, "exact": false}]"#;
        fs::write(&path, text).unwrap();
        assert_eq!(MemberFile::new(path).load().unwrap()[0].name, "b");
    }
}
