//! The file of a library, before and after it is loaded.

use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom};
use std::path::Path;

use crate::LoadError;
use crate::machine::{self, Refusal};

/// BLAKE3 of a file that looks like a library for this machine, and is the one that was asked for.
pub(crate) fn examine(path: &Path, expected: Option<[u8; 32]>) -> Result<[u8; 32], LoadError> {
    if !path.is_absolute() {
        return Err(LoadError::RelativePath { path: path.to_owned() });
    }
    // Asked before opening: to open a FIFO would wait for its writer.
    if !fs::metadata(path).map_err(|source| unreadable(path, source))?.is_file() {
        return Err(LoadError::NotAFile { path: path.to_owned() });
    }
    let (found, header) = read(path)?;
    // A file that is not the wanted one is not worth another word.
    if let Some(expected) = expected.filter(|expected| *expected != found) {
        let path = path.to_owned();
        return Err(LoadError::DigestMismatch { path, expected, found });
    }
    if cfg!(target_os = "linux") {
        machine::check(&header).map_err(|refusal| refused(path, refusal))?;
    }
    Ok(found)
}

/// Looks again after loading. The loader opens the path itself, so another file could have been put there between; one
/// that was put there and taken away again within that time is not noticed.
pub(crate) fn same_as_before(path: &Path, before: [u8; 32]) -> Result<(), LoadError> {
    let (after, _) = read(path)?;
    if after == before {
        return Ok(());
    }
    let path = path.to_owned();
    Err(LoadError::Changed { path, before, after })
}

fn read(path: &Path) -> Result<([u8; 32], Vec<u8>), LoadError> {
    digest_and_header(path).map_err(|source| unreadable(path, source))
}

fn digest_and_header(path: &Path) -> io::Result<([u8; 32], Vec<u8>)> {
    let mut file = File::open(path)?;
    let mut header = Vec::with_capacity(machine::HEADER_BYTES);
    Read::by_ref(&mut file)
        .take(machine::HEADER_BYTES as u64)
        .read_to_end(&mut header)?;
    file.seek(SeekFrom::Start(0))?;
    let mut hasher = blake3::Hasher::new();
    hasher.update_reader(&mut file)?;
    Ok((*hasher.finalize().as_bytes(), header))
}

fn unreadable(path: &Path, source: io::Error) -> LoadError {
    let path = path.to_owned();
    match source.kind() {
        io::ErrorKind::NotFound | io::ErrorKind::NotADirectory => LoadError::Missing { path },
        _ => LoadError::Unreadable { path, source },
    }
}

fn refused(path: &Path, refusal: Refusal) -> LoadError {
    let path = path.to_owned();
    match refusal {
        Refusal::NotALibrary(reason) => LoadError::NotALibrary { path, reason },
        Refusal::OtherMachine { found, expected } => LoadError::OtherMachine { path, found, expected },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_changed_after_it_was_examined_is_noticed() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("plugin.so");
        fs::write(&path, b"one").unwrap();
        let (before, _) = read(&path).unwrap();
        assert!(same_as_before(&path, before).is_ok());
        fs::write(&path, b"two").unwrap();
        let error = same_as_before(&path, before).unwrap_err();
        assert!(matches!(error, LoadError::Changed { .. }), "{error}");
        assert!(error.to_string().contains("restart the node"), "{error}");
    }
}
