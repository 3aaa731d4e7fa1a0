//! The member list on disk.

use std::{
    fs,
    path::PathBuf,
    sync::{Mutex, PoisonError},
};

use mesh_actors::membership::MemberStore;
use mesh_proto::{MeshError, v1::Node};
use serde::{Deserialize, Serialize};

use crate::{NodeError, data_dir::write_json};

#[derive(Debug, Serialize, Deserialize)]
struct Record {
    id: String,
    name: String,
    addresses: Vec<String>,
    host_id: String,
    issuer: bool,
    cores: u32,
    memory_bytes: u64,
    exact: bool,
}

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
        let text = match fs::read_to_string(&self.path) {
            Ok(text) => text,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(NodeError::file("read", &self.path)(error)),
        };
        let records: Vec<Record> = serde_json::from_str(&text).map_err(|error| {
            let message = format!("{} is damaged: {error}; remove it and join again", self.path.display());
            NodeError::DataDir(message)
        })?;
        Ok(records.into_iter().map(Node::from).collect())
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
        let records: Vec<Record> = nodes.iter().cloned().map(Record::from).collect();
        Ok(write_json(&self.path, &records)?)
    }
}

impl From<Node> for Record {
    fn from(node: Node) -> Self {
        let Node {
            id,
            name,
            addresses,
            host_id,
            issuer,
            cores,
            memory_bytes,
            exact,
            ..
        } = node;
        Self {
            id,
            name,
            addresses,
            host_id,
            issuer,
            cores,
            memory_bytes,
            exact,
        }
    }
}

impl From<Record> for Node {
    fn from(record: Record) -> Self {
        let Record {
            id,
            name,
            addresses,
            host_id,
            issuer,
            cores,
            memory_bytes,
            exact,
        } = record;
        Self {
            id,
            name,
            addresses,
            host_id,
            issuer,
            cores,
            memory_bytes,
            exact,
            ..Self::default()
        }
    }
}
