//! Files that are whole or not there: temporary name, sync, rename, sync of the directory.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::error::GgufError;
use crate::open::open_regular;

const TEMPORARY_PREFIX: &str = ".mesh-cut-";
const TEMPORARY_SUFFIX: &str = ".tmp";

/// A manifest is a few hundred bytes per layer; more is not one of ours.
const MAX_MANIFEST_BYTES: u64 = 4 << 20;

/// A file being written. Dropped without [`PendingFile::publish`], it disappears.
pub(crate) struct PendingFile {
    file: File,
    temporary: PathBuf,
    target: PathBuf,
    need: u64,
    published: bool,
}

impl PendingFile {
    /// Starts `directory/name`, making the directory if needed. `need` is its size in the end, bytes, for messages.
    pub(crate) fn create(directory: &Path, name: &str, need: u64) -> Result<Self, GgufError> {
        let target = directory.join(name);
        let failed = |source| GgufError::writing(&target, need, source);
        fs::create_dir_all(directory).map_err(failed)?;
        loop {
            let temporary = directory.join(temporary_name());
            let file = OpenOptions::new()
                .read(true)
                .write(true)
                .create_new(true)
                .open(&temporary)
                .map_err(failed)?;
            // The lock tells `remove_leftovers` that the writer lives. Where locks do not exist it removes nothing.
            let _ = file.try_lock();
            // It may have looked in the moment before the lock.
            if temporary.exists() {
                return Ok(Self {
                    file,
                    temporary,
                    target,
                    need,
                    published: false,
                });
            }
        }
    }

    pub(crate) fn file(&mut self) -> &mut File {
        &mut self.file
    }

    pub(crate) fn failed(&self, source: io::Error) -> GgufError {
        GgufError::writing(&self.target, self.need, source)
    }

    /// Makes the file durable under its name.
    pub(crate) fn publish(mut self) -> Result<PathBuf, GgufError> {
        self.file.sync_all().map_err(|source| self.failed(source))?;
        fs::rename(&self.temporary, &self.target).map_err(|source| self.failed(source))?;
        self.published = true;
        sync_directory(&self.target).map_err(|source| self.failed(source))?;
        Ok(self.target.clone())
    }
}

impl Drop for PendingFile {
    fn drop(&mut self) {
        if !self.published {
            // Nothing more can be done about a failure here; `remove_leftovers` tries again.
            let _ = fs::remove_file(&self.temporary);
        }
    }
}

fn temporary_name() -> String {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let now = std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .map_or(0, |since| since.as_nanos());
    format!(
        "{TEMPORARY_PREFIX}{}-{now:x}-{number}{TEMPORARY_SUFFIX}",
        std::process::id()
    )
}

#[cfg(unix)]
fn sync_directory(file: &Path) -> io::Result<()> {
    match file.parent() {
        Some(directory) => File::open(directory)?.sync_all(),
        None => Ok(()),
    }
}

#[cfg(not(unix))]
fn sync_directory(_: &Path) -> io::Result<()> {
    Ok(())
}

/// Deletes temporary files that crashed writers left in `directory`; files of living writers stay. Returns how many
/// were deleted. A directory that does not exist has none.
///
/// # Errors
/// [`GgufError::NotWritable`] or [`GgufError::Io`].
pub fn remove_leftovers(directory: &Path) -> Result<usize, GgufError> {
    let failed = |source| GgufError::writing(&directory.join("*.tmp"), 0, source);
    let entries = match fs::read_dir(directory) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(0),
        entries => entries.map_err(failed)?,
    };
    let mut removed = 0;
    for entry in entries {
        let entry = entry.map_err(failed)?;
        let name = entry.file_name();
        let ours = name
            .to_str()
            .is_some_and(|name| name.starts_with(TEMPORARY_PREFIX) && name.ends_with(TEMPORARY_SUFFIX));
        if ours && is_abandoned(&entry.path()) {
            fs::remove_file(entry.path()).map_err(failed)?;
            removed += 1;
        }
    }
    Ok(removed)
}

fn is_abandoned(path: &Path) -> bool {
    match File::open(path).map(|file| file.try_lock()) {
        Ok(Ok(())) => true,
        Ok(Err(TryLockError::WouldBlock | TryLockError::Error(_))) | Err(_) => false,
    }
}

/// Publishes an artifact and then its manifest; if the latter fails, the artifact goes too.
pub(crate) fn publish_with_manifest<M: Serialize>(
    pending: PendingFile,
    directory: &Path,
    manifest_name: &str,
    manifest: &M,
) -> Result<PathBuf, GgufError> {
    let path = pending.publish()?;
    if let Err(error) = write_manifest(directory, manifest_name, manifest) {
        // The first error says why; a file without manifest is never used anyway.
        let _ = fs::remove_file(&path);
        return Err(error);
    }
    Ok(path)
}

fn write_manifest<M: Serialize>(directory: &Path, name: &str, manifest: &M) -> Result<(), GgufError> {
    let io_error = |error: serde_json::Error| GgufError::writing(&directory.join(name), 0, error.into());
    let mut json = serde_json::to_vec_pretty(manifest).map_err(io_error)?;
    json.push(b'\n');
    let mut pending = PendingFile::create(directory, name, json.len() as u64)?;
    pending
        .file()
        .write_all(&json)
        .map_err(|source| pending.failed(source))?;
    pending.publish()?;
    Ok(())
}

/// Reads a manifest; anything that is not one counts as absent, since the artifact is then simply made again.
pub(crate) fn read_manifest<M: DeserializeOwned>(path: &Path) -> Option<M> {
    let (file, _) = open_regular(path).ok()?;
    let mut text = Vec::new();
    file.take(MAX_MANIFEST_BYTES + 1).read_to_end(&mut text).ok()?;
    (text.len() as u64 <= MAX_MANIFEST_BYTES).then(|| serde_json::from_slice(&text).ok())?
}
