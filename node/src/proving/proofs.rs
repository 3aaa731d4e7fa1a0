//! Which stage files this node has loaded before, by content.

use std::{
    collections::VecDeque,
    fs,
    path::{Path, PathBuf},
    sync::{Mutex, MutexGuard, PoisonError},
    time::UNIX_EPOCH,
};

use mesh_actors::ports::engine::{ExactCalls, StageLoad};
use serde::{Deserialize, Serialize};

use crate::data_dir::write_json;

/// Most files that are remembered, the newest: far more than a disk holds, and 300 KB.
const MOST_PROVEN: usize = 4_096;

/// What is in the file.
#[derive(Debug, Default, Serialize, Deserialize)]
struct Proven {
    /// The binary that proved them: another may end over what this one can load.
    build: String,
    /// Oldest first.
    files: VecDeque<Proof>,
}

/// One stage file.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct Proof {
    /// Its digest and the way it was loaded.
    file: String,
    /// What the self-check of exact mode found.
    exact: Option<Found>,
}

/// [`ExactCalls`] on disk, and on the way from a child.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(super) struct Found {
    rows: u32,
    lone: bool,
}

impl From<ExactCalls> for Found {
    fn from(ExactCalls { rows, lone }: ExactCalls) -> Self {
        Self { rows, lone }
    }
}

impl From<Found> for ExactCalls {
    fn from(Found { rows, lone }: Found) -> Self {
        Self { rows, lone }
    }
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

    /// What was found when this file was loaded this way before, if it was.
    pub(super) fn of(&self, spec: &StageLoad) -> Option<Option<ExactCalls>> {
        if spec.digest.is_empty() {
            return None;
        }
        let (proven, file) = (self.lock(), entry(spec));
        let proof = proven.files.iter().find(|proof| proof.file == file)?;
        Some(proof.exact.map(ExactCalls::from))
    }

    /// It was. If the disk takes no note of it, the file is proven again after the next start.
    pub(super) fn add(&self, spec: &StageLoad, found: Option<ExactCalls>) {
        if spec.digest.is_empty() {
            return;
        }
        let mut proven = self.lock();
        proven.files.push_back(Proof {
            file: entry(spec),
            exact: found.map(Found::from),
        });
        while proven.files.len() > MOST_PROVEN {
            proven.files.pop_front();
        }
        if let Err(error) = write_json(&self.path, &*proven) {
            tracing::warn!(%error, "proven stage files are not remembered over a restart");
        }
    }
}

/// The flags decide which of llama.cpp's kernels run; exact mode was checked with these threads.
fn entry(spec: &StageLoad) -> String {
    let exact = if spec.exact {
        format!("exact with {} threads", spec.threads)
    } else {
        "fast".to_owned()
    };
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
            exact_calls: None,
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
        let found = Some(ExactCalls { rows: 60, lone: false });
        assert_eq!(proofs.of(&spec("d1")), None);
        proofs.add(&spec("d1"), found);
        assert_eq!(proofs.of(&spec("d1")), Some(found));
        assert_eq!(proofs.of(&spec("d2")), None);
        let fast = StageLoad {
            exact: false,
            ..spec("d1")
        };
        assert_eq!(proofs.of(&fast), None);
        assert_eq!(open("one").of(&spec("d1")), Some(found));
        assert_eq!(open("two").of(&spec("d1")), None);
    }

    #[test]
    fn a_file_of_unknown_content_is_never_known_and_a_damaged_list_proves_nothing() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("proven.json");
        let proofs = Proofs::open(&path);
        proofs.add(&spec(""), None);
        assert!(proofs.of(&spec("")).is_none() && !path.exists());
        fs::write(&path, b"{\"build\": 7").unwrap();
        assert!(Proofs::open(&path).of(&spec("d1")).is_none());
    }

    #[test]
    fn only_the_newest_are_remembered() {
        let directory = tempfile::tempdir().unwrap();
        let proofs = Proofs::open(&directory.path().join("proven.json"));
        let proof = |index: usize| Proof {
            file: entry(&spec(&index.to_string())),
            exact: None,
        };
        proofs.lock().files = (0..MOST_PROVEN).map(proof).collect();
        proofs.add(&spec("new"), None);
        let has = |digest| proofs.of(&spec(digest)).is_some();
        assert!(has("new") && !has("0") && has("1"));
    }
}
