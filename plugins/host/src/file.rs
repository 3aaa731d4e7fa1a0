//! The file of a library, before and after it is loaded.

use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom};
use std::path::Path;

use crate::LoadError;
use crate::machine::{self, Refusal};
use crate::segments::{self, Headers};

/// BLAKE3 of a file that looks like a whole library for this machine, and is the one that was asked for.
pub(crate) fn examine(path: &Path, expected: Option<[u8; 32]>) -> Result<[u8; 32], LoadError> {
    if !path.is_absolute() {
        return Err(LoadError::RelativePath { path: path.to_owned() });
    }
    // Asked before opening: to open a FIFO would wait for its writer.
    if !fs::metadata(path).map_err(|source| unreadable(path, source))?.is_file() {
        return Err(LoadError::NotAFile { path: path.to_owned() });
    }
    let mut file = File::open(path).map_err(|source| unreadable(path, source))?;
    let (found, length) = digest(&mut file).map_err(|source| unreadable(path, source))?;
    // A file that is not the wanted one is not worth another word.
    if let Some(expected) = expected.filter(|expected| *expected != found) {
        let path = path.to_owned();
        return Err(LoadError::DigestMismatch { path, expected, found });
    }
    if cfg!(target_os = "linux") {
        look(path, &mut file, length)?;
    }
    Ok(found)
}

/// Looks again after loading. The loader opens the path itself, so another file could have been put there between; one
/// that was put there and taken away again within that time is not noticed.
pub(crate) fn same_as_before(path: &Path, before: [u8; 32]) -> Result<(), LoadError> {
    let (after, _) = File::open(path)
        .and_then(|mut file| digest(&mut file))
        .map_err(|source| unreadable(path, source))?;
    if after == before {
        return Ok(());
    }
    let path = path.to_owned();
    Err(LoadError::Changed { path, before, after })
}

/// With the number of bytes that it is of.
fn digest(file: &mut File) -> io::Result<([u8; 32], u64)> {
    let mut hasher = blake3::Hasher::new();
    hasher.update_reader(file)?;
    Ok((*hasher.finalize().as_bytes(), hasher.count()))
}

fn look(path: &Path, file: &mut File, length: u64) -> Result<(), LoadError> {
    let mut part = |offset, bytes| part(file, offset, bytes).map_err(|source| unreadable(path, source));
    let refused = |refusal| refused(path, refusal);
    let header = part(0, segments::HEADER_BYTES as u64)?;
    machine::check(&header).map_err(refused)?;
    let headers = Headers::find(&header, length).map_err(refused)?;
    let table = part(headers.offset(), headers.bytes())?;
    headers.check(&table, length).map_err(refused)
}

/// Less at the end of the file.
fn part(file: &mut File, offset: u64, bytes: u64) -> io::Result<Vec<u8>> {
    let mut part = Vec::new();
    file.seek(SeekFrom::Start(offset))?;
    file.take(bytes).read_to_end(&mut part)?;
    Ok(part)
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
        Refusal::CutShort => LoadError::CutShort { path },
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
        let (before, _) = digest(&mut File::open(&path).unwrap()).unwrap();
        assert!(same_as_before(&path, before).is_ok());
        fs::write(&path, b"two").unwrap();
        let error = same_as_before(&path, before).unwrap_err();
        assert!(matches!(error, LoadError::Changed { .. }), "{error}");
        assert!(error.to_string().contains("restart the node"), "{error}");
    }
}
