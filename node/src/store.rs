//! Model files on this node: described and cut from a source here, or fetched from the node that has it.
//!
//! A file is read and compared with its digest before each use, unless nothing has touched it since this process did that
//! last. One that is not whole is made or fetched again.

use std::{
    collections::HashMap,
    fs,
    ops::ControlFlow,
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
};

use async_trait::async_trait;
use mesh_actors::ports::deployment::{ModelFacts, ModelStore, Piece, Progress};
use mesh_gguf::{
    Architecture, Gguf, GgufError, ModelDescription, StageCut, Verified, VocabularyCut, describe, support,
};
use mesh_links::{FileSource, Peers};
use mesh_proto::{ErrorCode, MeshError, NodeId, wire::Artifact};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::{BUILT_IN, NodeError, built_in::built_in_file, terminal};

/// Names of files that are being fetched.
const FETCH_PREFIX: &str = "fetch-";
const FETCH_SUFFIX: &str = ".tmp";

/// Bytes read at once while a file is fetched.
const FETCH_BUFFER: usize = 1 << 20;

/// Describes a model without a node. `model` is a path, or `built-in`.
///
/// # Errors
///
/// Missing or damaged, saying where.
pub fn describe_model(model: &str) -> Result<ModelDescription, NodeError> {
    let gguf = if model == BUILT_IN {
        Gguf::from_bytes(crate::built_in_model())
    } else {
        Gguf::open(Path::new(model))
    };
    let described = gguf.and_then(|gguf| describe(&gguf));
    described.map_err(|error| NodeError::Mesh(invalid(error)))
}

/// Most characters of an error about a file, which may quote a key of 64 KiB: gRPC carries errors in headers, and escapes
/// them there, up to twelve bytes for a character.
const LONGEST_ERROR: usize = 1_000;

fn invalid(error: GgufError) -> MeshError {
    let message = terminal::one_line(&error.to_string(), LONGEST_ERROR);
    MeshError::new(ErrorCode::ModelInvalid, message).with_param("model")
}

/// The store of one node.
pub struct DiskStore {
    directory: PathBuf,
    peers: Peers,
    /// Files that this node has, by digest.
    known: Mutex<HashMap<String, Known>>,
    verified: Arc<Verified>,
}

#[derive(Clone)]
struct Known {
    path: PathBuf,
    artifact: Artifact,
    /// Model and piece of a file that was cut here.
    cut: Option<(String, Piece)>,
}

impl DiskStore {
    /// Opens the directory of model parts and removes what earlier crashes left half-made.
    pub fn open(directory: PathBuf, peers: Peers) -> Result<Self, NodeError> {
        fs::create_dir_all(&directory).map_err(NodeError::file("make", &directory))?;
        let left = mesh_gguf::remove_leftovers(&directory).map_err(|error| NodeError::Mesh(invalid(error)))?;
        let left = left + remove_half_fetched(&directory);
        if left > 0 {
            tracing::info!(files = left, "removed model parts that an earlier run left half-made");
        }
        Ok(Self {
            directory,
            peers,
            known: Mutex::default(),
            verified: Arc::default(),
        })
    }

    fn source(&self, model: &str) -> Result<PathBuf, MeshError> {
        if model == BUILT_IN {
            return Ok(built_in_file(&self.directory)?);
        }
        Ok(PathBuf::from(model))
    }

    fn remember(&self, known: Known) {
        let mut files = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        files.insert(known.artifact.digest.clone(), known);
    }

    fn known(&self, digest: &str) -> Option<Known> {
        let files = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        files.get(digest).cloned()
    }

    /// Whether the file is there as it should be.
    async fn is_whole(&self, path: &Path, artifact: &Artifact) -> Result<bool, MeshError> {
        let stop = Arc::new(AtomicBool::new(false));
        let _guard = StopOnDrop(stop.clone());
        let (verified, path, artifact) = (self.verified.clone(), path.to_owned(), artifact.clone());
        blocking(move || {
            let go_on = || !stop.load(Ordering::Relaxed);
            let whole = verified.holds(&path, artifact.bytes, &artifact.digest, &go_on);
            let whole = whole.map_err(NodeError::file("read", &path))?;
            if !whole && path.exists() {
                tracing::warn!(file = %path.display(), "a model part is not what it was; it is made or fetched again");
            }
            Ok(whole)
        })
        .await
    }

    /// The file of a part that was cut here: as it is, or cut again.
    async fn cut_before(&self, known: Known, progress: Progress) -> Result<PathBuf, MeshError> {
        if self.is_whole(&known.path, &known.artifact).await? {
            return Ok(known.path);
        }
        let Some((model, piece)) = known.cut else {
            let message = format!("{} is gone or damaged; serve again", known.artifact.file_name);
            return Err(MeshError::new(ErrorCode::NotFound, message));
        };
        let again = self.cut(&model, piece, progress).await?;
        if again.digest == known.artifact.digest {
            return Ok(known.path);
        }
        let message = format!("{model} has changed since it was served; stop it with `mesh stop` and serve it again");
        Err(MeshError::new(ErrorCode::ModelInvalid, message))
    }

    /// Name of a fetched file: its content decides.
    fn fetched(&self, artifact: &Artifact) -> PathBuf {
        self.directory.join(format!(
            "fetched-{}.gguf",
            &artifact.digest[..32.min(artifact.digest.len())]
        ))
    }
}

fn open(path: &Path) -> Result<(Gguf, Architecture), MeshError> {
    let gguf = Gguf::open(path).map_err(invalid)?;
    let architecture = support(&gguf).map_err(invalid)?;
    Ok((gguf, architecture))
}

async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, MeshError> + Send + 'static,
) -> Result<T, MeshError> {
    let failed = |error: tokio::task::JoinError| MeshError::internal(format!("reading a model failed: {error}"));
    tokio::task::spawn_blocking(work).await.map_err(failed)?
}

/// Tells blocking work to stop when the future that waits for it is dropped.
struct StopOnDrop(Arc<AtomicBool>);

impl Drop for StopOnDrop {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[async_trait]
impl ModelStore for DiskStore {
    async fn describe(&self, model: &str) -> Result<ModelFacts, MeshError> {
        let (path, name) = (self.source(model)?, model.to_owned());
        blocking(move || {
            let (gguf, architecture) = open(&path)?;
            let model = describe(&gguf).map_err(invalid)?;
            Ok(facts(&name, model, &architecture))
        })
        .await
    }

    async fn cut(&self, model: &str, piece: Piece, progress: Progress) -> Result<Artifact, MeshError> {
        let (path, directory) = (self.source(model)?, self.directory.clone());
        let (verified, cut) = (self.verified.clone(), Some((model.to_owned(), piece.clone())));
        let stop = Arc::new(AtomicBool::new(false));
        let _guard = StopOnDrop(stop.clone());
        let (path, digest, bytes) = blocking(move || {
            let (gguf, architecture) = open(&path)?;
            match piece {
                Piece::Vocabulary => {
                    let cut = VocabularyCut::write_unless_verified(&gguf, &directory, &verified).map_err(invalid)?;
                    Ok((cut.path, cut.manifest.blake3, cut.manifest.bytes))
                }
                Piece::Stage { start, end } => {
                    let cut = StageCut::plan(&gguf, &architecture, start..end).map_err(invalid)?;
                    let there = directory.join(cut.file_name()).exists();
                    let go_on = || !stop.load(Ordering::Relaxed);
                    let mut watch = |done: mesh_gguf::Progress| {
                        progress(done.done, done.total);
                        if go_on() {
                            ControlFlow::Continue(())
                        } else {
                            ControlFlow::Break(())
                        }
                    };
                    let cut = cut.write_unless_verified(&directory, &verified, &go_on, &mut watch);
                    let cut = cut.map_err(invalid)?;
                    if there && !cut.reused {
                        tracing::warn!(file = %cut.path.display(), "a model part was not what it was; it is cut again");
                    }
                    Ok((cut.path, cut.manifest.blake3, cut.manifest.bytes))
                }
            }
        })
        .await?;
        let file_name = path
            .file_name()
            .map(|name| name.to_string_lossy().into_owned())
            .unwrap_or_default();
        let artifact = Artifact {
            digest,
            bytes,
            file_name,
        };
        self.remember(Known {
            path,
            artifact: artifact.clone(),
            cut,
        });
        Ok(artifact)
    }

    async fn obtain(&self, artifact: &Artifact, source: NodeId, progress: Progress) -> Result<PathBuf, MeshError> {
        if let Some(known) = self.known(&artifact.digest).filter(|known| known.cut.is_some()) {
            return self.cut_before(known, progress).await;
        }
        let path = self.fetched(artifact);
        if !self.is_whole(&path, artifact).await? {
            self.fetch(artifact, source, &path, progress).await?;
        }
        self.remember(Known {
            path: path.clone(),
            artifact: artifact.clone(),
            cut: None,
        });
        Ok(path)
    }
}

impl DiskStore {
    /// Fetches a file under a temporary name, verifies it, and gives it its name.
    async fn fetch(
        &self,
        artifact: &Artifact,
        source: NodeId,
        path: &Path,
        progress: Progress,
    ) -> Result<(), MeshError> {
        let io = |error: std::io::Error| MeshError::from(NodeError::file("write", path)(error));
        let temporary = tempfile::Builder::new()
            .prefix(FETCH_PREFIX)
            .suffix(FETCH_SUFFIX)
            .tempfile_in(&self.directory)
            .map_err(io)?;
        let mut file = tokio::fs::File::from_std(temporary.reopen().map_err(io)?);
        let mut reader = self.peers.fetch(source, artifact, 0).await?;
        let mut hasher = blake3::Hasher::new();
        let mut buffer = vec![0; FETCH_BUFFER];
        let mut done = 0;
        loop {
            let read = reader.read(&mut buffer).await.map_err(|error| {
                let cause = mesh_links::with_causes(&error);
                let message = format!(
                    "the transfer of {} was cut off: {cause}; serve again",
                    artifact.file_name
                );
                MeshError::new(ErrorCode::StageLost, message)
            })?;
            if read == 0 {
                break;
            }
            done += read as u64;
            if done > artifact.bytes {
                return Err(damaged(artifact));
            }
            hasher.update(&buffer[..read]);
            file.write_all(&buffer[..read]).await.map_err(io)?;
            progress(done, artifact.bytes);
        }
        file.flush().await.map_err(io)?;
        file.sync_all().await.map_err(io)?;
        if done != artifact.bytes || hasher.finalize().to_hex().as_str() != artifact.digest {
            return Err(damaged(artifact));
        }
        temporary.persist(path).map_err(|error| io(error.error))?;
        Ok(())
    }
}

/// Files that an earlier run was fetching when it was killed. The data directory's lock keeps other nodes away.
fn remove_half_fetched(directory: &Path) -> usize {
    let files = fs::read_dir(directory).into_iter().flatten().flatten();
    let half = files.filter(|file| {
        let name = file.file_name();
        let name = name.to_string_lossy();
        name.starts_with(FETCH_PREFIX) && name.ends_with(FETCH_SUFFIX)
    });
    half.filter(|file| fs::remove_file(file.path()).is_ok()).count()
}

fn damaged(artifact: &Artifact) -> MeshError {
    let message = format!(
        "{} arrived damaged: its digest differs from the source's; serve again",
        artifact.file_name
    );
    MeshError::new(ErrorCode::Protocol, message)
}

#[async_trait]
impl FileSource for DiskStore {
    async fn find(&self, digest: &str) -> Option<(PathBuf, Artifact)> {
        let known = self.known(digest)?;
        let artifact = known.artifact.clone();
        match self.cut_before(known, Arc::new(|_, _| {})).await {
            Ok(path) => Some((path, artifact)),
            Err(error) => {
                tracing::warn!(file = artifact.file_name, %error, "another node cannot have a model part");
                None
            }
        }
    }
}

fn facts(model: &str, description: ModelDescription, architecture: &Architecture) -> ModelFacts {
    // It goes to every node, in each change of the deployment.
    let name = description.name.clone().unwrap_or_else(|| stem(model));
    let name = terminal::one_line(&name, terminal::LONGEST_NAME);
    // The last stage of a tied model holds the embedding again.
    let output = if description.tied {
        description.token_embd_bytes
    } else {
        description.output_bytes
    };
    ModelFacts {
        source_id: description.source_id,
        architecture: description.architecture,
        label: format!("{name} {}", description.quantization),
        stem: stem(model),
        layers: description.layers,
        context: architecture
            .longest_context()
            .map_or(description.context_length, |longest| {
                longest.min(description.context_length)
            }),
        n_embd: description.embedding_length,
        n_vocab: description.vocab_size,
        layer_bytes: description.layer_bytes,
        token_embd_bytes: description.token_embd_bytes,
        output_bytes: output + description.global_bytes,
        kv_bytes_per_position: description.kv_bytes_per_position,
        legal_cuts: architecture.legal_cuts(),
        illegal_ranges: architecture.illegal_ranges(),
    }
}

/// Default name of a deployment: the file's stem, without the part number of a split file.
fn stem(model: &str) -> String {
    let stem = Path::new(model)
        .file_stem()
        .map(|stem| stem.to_string_lossy().into_owned())
        .unwrap_or_default();
    match stem.rsplit_once("-of-") {
        Some((before, count)) if count.len() == 5 && before.len() > 6 => before[..before.len() - 6].to_owned(),
        _ => stem,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn deployments_are_named_after_their_file() {
        assert_eq!(stem("/models/smol.gguf"), "smol");
        assert_eq!(stem("big-00001-of-00003.gguf"), "big");
        assert_eq!(stem(BUILT_IN), BUILT_IN);
    }

    #[test]
    fn the_built_in_model_describes_itself() {
        let described = describe_model(BUILT_IN).unwrap();
        assert_eq!((described.architecture.as_str(), described.layers), ("llama", 8));
    }
}
