//! The data directory of a node.
//!
//! ```text
//! lock           held while the node runs, mode 0600 in a directory of mode 0700
//! node.key       secret key of the QUIC endpoint, mode 0600
//! admin.token    administration token, mode 0600
//! node.json      name and id: whose directory this is
//! running.json   where the running node listens
//! members.json   the mesh, as last known
//! proven.json    which stage files were loaded before, by digest
//! revoked.json   nodes that were removed, and the tickets that ended with them
//! deployments.json  what the node serves again when it starts, and the epochs it has used
//! quic.port      UDP port of the QUIC endpoint, kept over restarts
//! config.toml    settings, if the user wrote any
//! models/        model parts, cut here or fetched
//! receipts/      what requests came to, if that is kept
//! ```

use std::{
    env,
    fs::{self, File, TryLockError},
    io::{self, Read, Write},
    net::SocketAddr,
    path::{Path, PathBuf},
    time::Duration,
};

use mesh_gguf::open_regular;
use serde::{Deserialize, Serialize};

use crate::{
    NodeError, environment,
    private::{check_secret, private_directory, private_lock},
};

/// How long a start waits for a command that holds the lock for a moment.
const LOCK_TRIES: usize = 10;
const LOCK_PAUSE: Duration = Duration::from_millis(20);

/// Longest file of the directory that is read as a whole: a member list of thousands of nodes.
const MAX_TEXT: u64 = 16 << 20;

/// The node's secret key.
const KEY_FILE: &str = "node.key";

/// `$MESH_HOME`, else the platform's place for data of applications.
pub fn default_data_dir() -> PathBuf {
    let set = |name: &str| env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    if let Some(home) = set(environment::HOME) {
        return home;
    }
    let home = set("HOME").unwrap_or_else(|| PathBuf::from("."));
    let base = if cfg!(target_os = "macos") {
        home.join("Library/Application Support")
    } else {
        set("XDG_DATA_HOME").unwrap_or_else(|| home.join(".local/share"))
    };
    base.join("mesh")
}

/// A node that runs, as its data directory tells.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RunningNode {
    /// gRPC address.
    pub grpc: SocketAddr,
    /// HTTP address.
    pub http: SocketAddr,
    /// Administration token.
    pub token: String,
    /// Name.
    pub name: String,
    /// Process.
    pub pid: u32,
}

#[derive(Debug, Serialize, Deserialize)]
struct RunningFile {
    grpc: SocketAddr,
    http: SocketAddr,
    name: String,
    pid: u32,
}

#[derive(Debug, Serialize, Deserialize)]
struct NodeFile {
    name: String,
    id: String,
}

/// Finds the node that runs on a data directory.
///
/// # Errors
///
/// None runs there.
pub fn running_node(data_dir: &Path) -> Result<RunningNode, NodeError> {
    let not_running = || {
        let message = format!(
            "no node runs on {}; start one with `mesh node start`, or name its directory with --data-dir",
            data_dir.display()
        );
        NodeError::NotRunning(message)
    };
    let Ok((lock, _)) = open_regular(&data_dir.join("lock")) else {
        return Err(not_running());
    };
    // A lock that can be had belongs to nobody: the node has gone, whatever it left behind.
    if lock.try_lock_shared().is_ok() {
        return Err(not_running());
    }
    let text = read_text(&data_dir.join("running.json")).map_err(|_| not_running())?;
    let running: RunningFile = serde_json::from_str(&text).map_err(|_| not_running())?;
    let token_file = data_dir.join("admin.token");
    let token = read_secret(&token_file)?.ok_or_else(not_running)?;
    Ok(RunningNode {
        grpc: running.grpc,
        http: running.http,
        token: token.trim().to_owned(),
        name: running.name,
        pid: running.pid,
    })
}

/// The secret key of the node of a data directory, whether it runs or not.
pub(crate) fn read_key(data_dir: &Path) -> Result<[u8; 32], NodeError> {
    let file = data_dir.join(KEY_FILE);
    match read_secret(&file)? {
        Some(text) => parse_key(data_dir, text.trim()),
        None => {
            let message = format!(
                "{} is not the data directory of a node; name it with --data-dir",
                data_dir.display()
            );
            Err(NodeError::DataDir(message))
        }
    }
}

fn parse_key(data_dir: &Path, text: &str) -> Result<[u8; 32], NodeError> {
    let bytes = data_encoding::HEXLOWER.decode(text.as_bytes()).ok();
    bytes.and_then(|bytes| bytes.try_into().ok()).ok_or_else(|| {
        let file = data_dir.join(KEY_FILE);
        NodeError::DataDir(format!(
            "{} is not a node's key; use another --data-dir",
            file.display()
        ))
    })
}

/// An opened data directory; no other node can open it meanwhile.
#[derive(Debug)]
pub(crate) struct DataDir {
    path: PathBuf,
    _lock: File,
    /// No node has ever started here.
    new: bool,
    /// The directory itself was made here, too.
    made: bool,
    pub key: [u8; 32],
    pub token: String,
}

impl DataDir {
    /// Opens or makes a directory.
    pub fn open(path: &Path) -> Result<Self, NodeError> {
        let made = private_directory(path)?;
        let lock_file = path.join("lock");
        let lock = private_lock(&lock_file)?;
        match lock_soon(&lock) {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                let owner = read_text(&path.join("running.json")).ok();
                let owner = owner.and_then(|text| serde_json::from_str::<RunningFile>(&text).ok());
                let owner = owner.map_or_else(String::new, |node| {
                    format!(" by node {} (process {})", node.name, node.pid)
                });
                let message = format!(
                    "the data directory {} is in use{owner}; stop that node, or use another --data-dir",
                    path.display()
                );
                return Err(NodeError::DataDir(message));
            }
            Err(TryLockError::Error(error)) => return Err(NodeError::file("lock", lock_file)(error)),
        }
        // Whatever a killed node said of itself is not true any more.
        let _ = fs::remove_file(path.join("running.json"));
        let new = !path.join("node.json").exists();
        let key = read_or_make_secret(&path.join(KEY_FILE))?;
        let token = read_or_make_secret(&path.join("admin.token"))?;
        let key = parse_key(path, &key)?;
        Ok(Self {
            path: path.to_owned(),
            _lock: lock,
            new,
            made,
            key,
            token,
        })
    }

    /// No node has started here before: nobody else has its key.
    pub fn is_new(&self) -> bool {
        self.new
    }

    /// The directory's node has this name and id from now on; a directory of another node is refused.
    pub fn claim(&self, name: Option<&str>, id: &str, fallback: &str) -> Result<String, NodeError> {
        let file = self.path.join("node.json");
        if let Ok(text) = read_text(&file) {
            let owner: NodeFile = serde_json::from_str(&text).map_err(|error| {
                NodeError::DataDir(format!(
                    "{} is damaged: {error}; use another --data-dir",
                    file.display()
                ))
            })?;
            if owner.id != id || name.is_some_and(|name| name != owner.name) {
                let message = format!(
                    "the data directory {} belongs to node {}; use another --data-dir, or --name {}",
                    self.path.display(),
                    owner.name,
                    owner.name
                );
                return Err(NodeError::DataDir(message));
            }
            return Ok(owner.name);
        }
        let owner = NodeFile {
            name: name.unwrap_or(fallback).to_owned(),
            id: id.to_owned(),
        };
        self.write_json("node.json", &owner)?;
        Ok(owner.name)
    }

    /// Tells commands where the node listens.
    pub fn announce(&self, name: &str, http: SocketAddr, grpc: SocketAddr) -> Result<(), NodeError> {
        let running = RunningFile {
            grpc,
            http,
            name: name.to_owned(),
            pid: std::process::id(),
        };
        self.write_json("running.json", &running)
    }

    /// A first start that failed leaves nothing behind, not even a name.
    pub fn discard_if_new(&self) {
        if self.new {
            for name in [
                "node.json",
                "node.key",
                "admin.token",
                "running.json",
                "members.json",
                "revoked.json",
                "deployments.json",
                "quic.port",
                "receipts/head.json",
                "lock",
            ] {
                let _ = fs::remove_file(self.path.join(name));
            }
            // Only if they are empty now.
            let _ = fs::remove_dir(self.path.join("models"));
            let _ = fs::remove_dir(self.path.join("receipts"));
            if self.made {
                let _ = fs::remove_dir(&self.path);
            }
        }
    }

    /// The node no longer listens.
    pub fn withdraw(&self) {
        let _ = fs::remove_file(self.path.join("running.json"));
    }

    /// UDP port of the QUIC endpoint when the node ran last.
    pub fn last_port(&self) -> Option<u16> {
        read_text(&self.path.join("quic.port")).ok()?.trim().parse().ok()
    }

    /// Keeps the port for the next start.
    pub fn keep_port(&self, port: u16) -> Result<(), NodeError> {
        self.write_json("quic.port", &port)
    }

    /// A file in the directory.
    pub fn file(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    fn write_json(&self, name: &str, value: &impl Serialize) -> Result<(), NodeError> {
        write_json(&self.path.join(name), value)
    }
}

/// Takes the lock. Commands that look for a running node hold it for a moment; a node holds it for good.
fn lock_soon(lock: &File) -> Result<(), TryLockError> {
    for _ in 0..LOCK_TRIES {
        match lock.try_lock() {
            Err(TryLockError::WouldBlock) => std::thread::sleep(LOCK_PAUSE),
            decided => return decided,
        }
    }
    lock.try_lock()
}

/// Reads a file of text; nothing else than a regular one of sensible length.
pub(crate) fn read_text(path: &Path) -> io::Result<String> {
    read_all(open_regular(path)?.0)
}

fn read_all(file: File) -> io::Result<String> {
    let mut text = String::new();
    file.take(MAX_TEXT + 1).read_to_string(&mut text)?;
    if text.len() as u64 > MAX_TEXT {
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, "it is far too long"));
    }
    Ok(text)
}

/// Reads a secret that nobody else can read; `None` if there is none.
fn read_secret(path: &Path) -> Result<Option<String>, NodeError> {
    let (file, facts) = match open_regular(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        opened => opened.map_err(NodeError::file("read", path))?,
    };
    check_secret(path, &facts)?;
    read_all(file).map(Some).map_err(NodeError::file("read", path))
}

/// Writes a file whole or not at all, and has it on the disk when it returns.
pub(crate) fn write_json(path: &Path, value: &impl Serialize) -> Result<(), NodeError> {
    let text =
        serde_json::to_vec_pretty(value).map_err(|error| NodeError::file("write", path)(io::Error::other(error)))?;
    let write = || -> io::Result<()> {
        let directory = path.parent().unwrap_or(Path::new("."));
        let mut file = tempfile::NamedTempFile::new_in(directory)?;
        file.write_all(&text)?;
        file.as_file().sync_all()?;
        file.persist(path).map_err(|error| error.error)?;
        // The name as well.
        File::open(directory)?.sync_all()
    };
    write().map_err(NodeError::file("write", path))
}

/// 32 random bytes in hexadecimal, readable by the owner alone.
fn read_or_make_secret(path: &Path) -> Result<String, NodeError> {
    // An empty file is a start that was cut short: an empty secret never means "open".
    if let Some(text) = read_secret(path)?.filter(|text| !text.trim().is_empty()) {
        return Ok(text.trim().to_owned());
    }
    let mut bytes = [0; 32];
    getrandom::fill(&mut bytes).map_err(|error| NodeError::Config(format!("no random bytes: {error}")))?;
    let text = data_encoding::HEXLOWER.encode(&bytes);
    // Temporary files are made with mode 0600.
    let write = || -> io::Result<()> {
        let mut file = tempfile::NamedTempFile::new_in(path.parent().unwrap_or(Path::new(".")))?;
        writeln!(file, "{text}")?;
        file.as_file().sync_all()?;
        file.persist(path).map_err(|error| error.error)?;
        Ok(())
    };
    write().map_err(NodeError::file("write", path))?;
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_serves_one_node_at_a_time_and_keeps_its_secrets() {
        let dir = tempfile::tempdir().unwrap();
        let first = DataDir::open(dir.path()).unwrap();
        let error = DataDir::open(dir.path()).expect_err("in use").to_string();
        assert!(error.contains("in use"), "{error}");
        let (key, token) = (first.key, first.token.clone());
        drop(first);
        let again = DataDir::open(dir.path()).unwrap();
        assert_eq!((again.key, again.token), (key, token));
    }

    #[cfg(unix)]
    #[test]
    fn secrets_are_readable_by_their_owner_alone() {
        use std::os::unix::fs::PermissionsExt;
        let dir = tempfile::tempdir().unwrap();
        DataDir::open(dir.path()).unwrap();
        for name in ["node.key", "admin.token"] {
            let mode = fs::metadata(dir.path().join(name)).unwrap().permissions().mode();
            assert_eq!(mode & 0o777, 0o600, "{name}");
        }
    }

    #[cfg(unix)]
    #[test]
    fn nobody_else_can_open_the_directory_and_secrets_that_others_can_read_are_refused() {
        use std::os::unix::fs::PermissionsExt;
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("node");
        drop(DataDir::open(&path).unwrap());
        let mode = |name: &str| fs::metadata(path.join(name)).unwrap().permissions().mode() & 0o777;
        let open_to = |name: &str, mode| fs::set_permissions(path.join(name), PermissionsExt::from_mode(mode)).unwrap();
        assert_eq!((mode(""), mode("lock")), (0o700, 0o600));
        open_to("", 0o755);
        open_to("lock", 0o644);
        drop(DataDir::open(&path).unwrap());
        assert_eq!((mode(""), mode("lock")), (0o700, 0o600));
        for name in ["node.key", "admin.token"] {
            open_to(name, 0o644);
            let error = DataDir::open(&path).expect_err("wide").to_string();
            assert!(error.contains("chmod 600") && error.contains(name), "{error}");
            open_to(name, 0o600);
        }
        let data = DataDir::open(&path).unwrap();
        let address = "127.0.0.1:1".parse().unwrap();
        data.announce("a", address, address).unwrap();
        open_to("admin.token", 0o640);
        let error = running_node(&path).expect_err("wide").to_string();
        assert!(error.contains("chmod 600"), "{error}");
    }

    #[test]
    fn the_directory_of_another_node_is_refused_by_name() {
        let dir = tempfile::tempdir().unwrap();
        let data = DataDir::open(dir.path()).unwrap();
        assert_eq!(data.claim(Some("a"), "id", "host").unwrap(), "a");
        assert_eq!(data.claim(None, "id", "host").unwrap(), "a");
        let error = data.claim(Some("b"), "id", "host").expect_err("another").to_string();
        assert!(error.contains("belongs to node a"), "{error}");
    }

    #[test]
    fn a_first_start_that_fails_leaves_only_what_was_there_before() {
        let dir = tempfile::tempdir().unwrap();
        let entries = || fs::read_dir(dir.path()).unwrap().count();
        let inside = dir.path().join("node");
        let data = DataDir::open(&inside).unwrap();
        data.claim(Some("a"), "id", "host").unwrap();
        data.discard_if_new();
        assert_eq!(entries(), 0);
        DataDir::open(dir.path()).unwrap().discard_if_new();
        assert_eq!(entries(), 0);
        // A node has started here before.
        DataDir::open(&inside).unwrap().claim(Some("a"), "id", "host").unwrap();
        DataDir::open(&inside).unwrap().discard_if_new();
        assert!(inside.join("node.json").exists() && inside.join("node.key").exists());
    }

    #[test]
    fn a_node_that_has_gone_is_not_running_whatever_it_left() {
        let dir = tempfile::tempdir().unwrap();
        let data = DataDir::open(dir.path()).unwrap();
        let address = "127.0.0.1:1".parse().unwrap();
        data.announce("a", address, address).unwrap();
        assert_eq!(running_node(dir.path()).unwrap().name, "a");
        drop(data);
        assert!(matches!(running_node(dir.path()), Err(NodeError::NotRunning(_))));
    }
}
