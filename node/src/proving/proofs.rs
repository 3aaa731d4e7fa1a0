//! Which stage files this node has loaded before, by content.

use std::{
    collections::VecDeque,
    fs,
    path::{Path, PathBuf},
    sync::{Mutex, MutexGuard, PoisonError},
    time::UNIX_EPOCH,
};

use mesh_actors::ports::engine::StageLoad;
use serde::{Deserialize, Serialize};

use crate::data_dir::write_json;

/// Most files that are remembered, the newest: far more than a disk holds, and 300 KB.
const MOST_PROVEN: usize = 4_096;

/// What is in the file.
#[derive(Debug, Default, Serialize, Deserialize)]
struct Proven {
    /// The binary that proved them: another may end over what this one can load.
    build: String,
    /// Digest of the stage file and the way it was loaded, oldest first.
    files: VecDeque<String>,
}

/// The file, as it was read or last written.
#[derive(Debug)]
pub(super) struct Proofs {
    path: PathBuf,
    proven: Mutex<Proven>,
}

impl Proofs {
    /// Reads the file. One that is missing, damaged or of another build proves nothing.
    pub(super) fn open(path: &Path) -> Self {
        Self::of_build(path, build())
    }

    fn of_build(path: &Path, build: String) -> Self {
        let read = fs::read(path).ok();
        let read: Option<Proven> = read.and_then(|text| serde_json::from_slice(&text).ok());
        let mut proven = read.filter(|proven| proven.build == build).unwrap_or_default();
        proven.build = build;
        Self {
            path: path.to_owned(),
            proven: Mutex::new(proven),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Proven> {
        self.proven.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether this file was loaded this way before.
    pub(super) fn has(&self, spec: &StageLoad) -> bool {
        !spec.digest.is_empty() && self.lock().files.contains(&entry(spec))
    }

    /// It was. If the disk takes no note of it, the file is proven again after the next start.
    pub(super) fn add(&self, spec: &StageLoad) {
        if spec.digest.is_empty() {
            return;
        }
        let mut proven = self.lock();
        proven.files.push_back(entry(spec));
        while proven.files.len() > MOST_PROVEN {
            proven.files.pop_front();
        }
        if let Err(error) = write_json(&self.path, &*proven) {
            tracing::warn!(%error, "proven stage files are not remembered over a restart");
        }
    }
}

/// The flags decide which of llama.cpp's kernels run.
fn entry(spec: &StageLoad) -> String {
    let exact = if spec.exact { "exact" } else { "fast" };
    let gpu = spec
        .gpu_layers
        .map_or_else(|| "all".to_owned(), |layers| layers.to_string());
    format!("{} {exact} {gpu}", spec.digest)
}

/// Versions, and size and time of the binary: two builds of one version differ.
fn build() -> String {
    let binary = std::env::current_exe().and_then(fs::metadata);
    let changed = binary.as_ref().ok().and_then(|binary| binary.modified().ok());
    let nanoseconds = changed
        .and_then(|changed| changed.duration_since(UNIX_EPOCH).ok())
        .map_or(0, |since| since.as_nanos());
    format!(
        "mesh {}, llama.cpp {}, {} bytes of {nanoseconds}",
        env!("CARGO_PKG_VERSION"),
        crate::llama_version(),
        binary.map_or(0, |binary| binary.len())
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(digest: &str) -> StageLoad {
        StageLoad {
            path: PathBuf::from("stage.gguf"),
            digest: digest.to_owned(),
            layers: 0..1,
            total_layers: 1,
            lanes: 1,
            context: 256,
            threads: 1,
            exact: true,
            gpu_layers: None,
            n_embd: 1,
            n_vocab: 1,
        }
    }

    #[test]
    fn what_was_proven_is_known_after_a_restart_to_the_same_build_and_for_the_same_flags() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("proven.json");
        let open = |build: &str| Proofs::of_build(&path, build.to_owned());
        let proofs = open("one");
        assert!(!proofs.has(&spec("d1")));
        proofs.add(&spec("d1"));
        assert!(proofs.has(&spec("d1")) && !proofs.has(&spec("d2")));
        let fast = StageLoad {
            exact: false,
            ..spec("d1")
        };
        assert!(!proofs.has(&fast));
        assert!(open("one").has(&spec("d1")));
        assert!(!open("two").has(&spec("d1")));
    }

    #[test]
    fn a_file_of_unknown_content_is_never_known_and_a_damaged_list_proves_nothing() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("proven.json");
        let proofs = Proofs::open(&path);
        proofs.add(&spec(""));
        assert!(!proofs.has(&spec("")) && !path.exists());
        fs::write(&path, b"{\"build\": 7").unwrap();
        assert!(!Proofs::open(&path).has(&spec("d1")));
    }

    #[test]
    fn only_the_newest_are_remembered() {
        let directory = tempfile::tempdir().unwrap();
        let proofs = Proofs::open(&directory.path().join("proven.json"));
        proofs.lock().files = (0..MOST_PROVEN).map(|index| entry(&spec(&index.to_string()))).collect();
        proofs.add(&spec("new"));
        assert!(proofs.has(&spec("new")) && !proofs.has(&spec("0")) && proofs.has(&spec("1")));
    }
}
