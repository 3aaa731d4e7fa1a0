//! Re-hashes artifacts against their manifests.

use std::io::Read;
use std::path::Path;

use crate::cut::Digester;
use crate::error::GgufError;
use crate::manifest::{StageManifest, VocabularyManifest};
use crate::open::open_regular;

/// Read size, bytes.
const BUFFER_BYTES: usize = 1 << 20;

/// Checks a stage file: its size, its whole digest and that of every section.
///
/// # Errors
/// [`GgufError::Corrupt`] naming the section that differs; [`GgufError::Open`] or [`GgufError::Io`].
pub fn verify(path: &Path, manifest: &StageManifest) -> Result<(), GgufError> {
    let ends = manifest
        .sections()
        .map(|(_, section)| section.offset.saturating_add(section.bytes))
        .collect();
    let (whole, sections) = digest(path, manifest.bytes, ends)?;
    let mut found = sections.into_iter();
    for (name, section) in manifest.sections() {
        if found
            .next()
            .is_none_or(|digest| digest.to_hex().as_str() != section.blake3)
        {
            let end = section.offset.saturating_add(section.bytes);
            return Err(corrupt(
                path,
                format!("{name} (bytes {} to {end}) differs", section.offset),
            ));
        }
    }
    check_whole(path, whole, &manifest.blake3)
}

/// Checks a vocabulary file: its size and its digest.
///
/// # Errors
/// As [`verify`].
pub fn verify_vocabulary(path: &Path, manifest: &VocabularyManifest) -> Result<(), GgufError> {
    let (whole, _) = digest(path, manifest.bytes, Vec::new())?;
    check_whole(path, whole, &manifest.blake3)
}

fn check_whole(path: &Path, found: blake3::Hash, expected: &str) -> Result<(), GgufError> {
    if found.to_hex().as_str() == expected {
        return Ok(());
    }
    Err(corrupt(path, "the digest of the file differs".to_owned()))
}

fn digest(path: &Path, bytes: u64, ends: Vec<u64>) -> Result<(blake3::Hash, Vec<blake3::Hash>), GgufError> {
    let opening = |source| GgufError::Open {
        file: path.to_owned(),
        source,
    };
    let (mut file, facts) = open_regular(path).map_err(opening)?;
    let size = facts.len();
    if size != bytes {
        return Err(corrupt(path, format!("it has {size} bytes instead of {bytes}")));
    }
    let mut digester = Digester::new(ends);
    let mut buffer = vec![0; BUFFER_BYTES];
    loop {
        let count = file.read(&mut buffer).map_err(|source| GgufError::Io {
            doing: "read",
            file: path.to_owned(),
            source,
        })?;
        if count == 0 {
            return Ok(digester.finish());
        }
        digester.update(&buffer[..count]);
    }
}

fn corrupt(path: &Path, reason: String) -> GgufError {
    GgufError::Corrupt {
        file: path.to_owned(),
        reason,
    }
}
