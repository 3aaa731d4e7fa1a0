//! The member list on disk.

use std::{
    fs,
    path::{Path, PathBuf},
    sync::{Mutex, PoisonError},
};

use mesh_actors::membership::{Known, MemberStore, Revoked};
use mesh_proto::{MeshError, v1::Node};
use serde::{Deserialize, Serialize, de::DeserializeOwned};

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
    #[serde(skip)]
    run: u64,
    #[serde(skip)]
    key_in_use_by: String,
}

#[derive(Serialize, Deserialize)]
#[serde(transparent)]
struct Kept(#[serde(with = "Record")] Node);

/// What removals left behind, in a file of its own: older releases read the list of members.
#[derive(Default, Serialize, Deserialize)]
#[serde(default)]
struct RevokedFile {
    /// Ids of removed nodes, the oldest first.
    removed: Vec<String>,
    /// Unix time in seconds up to which tickets are no longer good.
    tickets_until: u64,
}

/// `members.json` and `revoked.json` of a data directory.
#[derive(Debug)]
pub struct MemberFile {
    path: PathBuf,
    revoked: PathBuf,
    /// The node has left: a list that still arrives is not saved.
    forgotten: Mutex<bool>,
}

impl MemberFile {
    /// The files need not exist.
    pub fn new(path: PathBuf) -> Self {
        Self {
            revoked: path.with_file_name("revoked.json"),
            path,
            forgotten: Mutex::new(false),
        }
    }

    /// The list as last saved; empty for a new node.
    pub fn load(&self) -> Result<Known, NodeError> {
        let records: Vec<Kept> = read_json(&self.path, "remove it and join again")?;
        let what = "remove it: nodes that were removed stay out, but tickets that ended with them are good again";
        let revoked: RevokedFile = read_json(&self.revoked, what)?;
        Ok(Known {
            nodes: records.into_iter().map(|kept| kept.0).collect(),
            revoked: Revoked {
                nodes: revoked.removed.iter().filter_map(|id| id.parse().ok()).collect(),
                tickets_until: revoked.tickets_until,
            },
        })
    }

    /// Forgets the mesh, for good.
    pub fn remove(&self) -> Result<(), NodeError> {
        *self.forgotten.lock().unwrap_or_else(PoisonError::into_inner) = true;
        remove_file(&self.path)
    }
}

/// A file that is not there is as good as an empty one.
fn read_json<T: Default + DeserializeOwned>(path: &Path, what_to_do: &str) -> Result<T, NodeError> {
    let text = match read_text(path) {
        Ok(text) => text,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(T::default()),
        Err(error) => return Err(NodeError::file("read", path)(error)),
    };
    serde_json::from_str(&text)
        .map_err(|error| NodeError::DataDir(format!("{} is damaged: {error}; {what_to_do}", path.display())))
}

fn remove_file(path: &Path) -> Result<(), NodeError> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(NodeError::file("remove", path)(error)),
        _ => Ok(()),
    }
}

impl MemberStore for MemberFile {
    /// The tickets end before the node is gone from the list: what is in between is a removal to do again.
    fn save(&self, nodes: &[Node], revoked: &Revoked) -> Result<(), MeshError> {
        let forgotten = self.forgotten.lock().unwrap_or_else(PoisonError::into_inner);
        if *forgotten {
            return Ok(());
        }
        if *revoked != Revoked::default() || self.revoked.exists() {
            let file = RevokedFile {
                removed: revoked.nodes.iter().map(ToString::to_string).collect(),
                tickets_until: revoked.tickets_until,
            };
            write_json(&self.revoked, &file)?;
        }
        let records: Vec<Kept> = nodes.iter().cloned().map(Kept).collect();
        Ok(write_json(&self.path, &records)?)
    }
}

#[cfg(test)]
mod tests {
    use mesh_proto::NodeId;

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
            run: 7,
            key_in_use_by: "10.0.0.1:1".to_owned(),
            ..node.clone()
        };
        MemberFile::new(path.clone())
            .save(&[seen], &Revoked::default())
            .unwrap();
        assert_eq!(MemberFile::new(path.clone()).load().unwrap().nodes, [node]);
        assert!(!dir.path().join("revoked.json").exists());
        // The file of an older release.
        let text = r#"[{"id": "1", "name": "b", "addresses": [], "host_id": "h", "issuer": false, "cores": 2,
                        "memory_bytes": 3, "exact": false}]"#;
        fs::write(&path, text).unwrap();
        assert_eq!(MemberFile::new(path).load().unwrap().nodes[0].name, "b");
    }

    #[test]
    fn what_removals_left_behind_survives_leaving_too() {
        let dir = tempfile::tempdir().unwrap();
        let file = MemberFile::new(dir.path().join("members.json"));
        let revoked = Revoked {
            nodes: [NodeId([3; 32]), NodeId([1; 32])].into(),
            tickets_until: 1_800_000_000,
        };
        file.save(&[], &revoked).unwrap();
        assert_eq!(file.load().unwrap().revoked, revoked);
        file.remove().unwrap();
        assert_eq!(
            file.load().unwrap().revoked,
            revoked,
            "old tickets of this node stay ended"
        );
        fs::write(dir.path().join("revoked.json"), "[").unwrap();
        let error = file.load().expect_err("damaged").to_string();
        assert!(error.contains("revoked.json is damaged"), "{error}");
    }
}
