//! The error of this crate.

use std::io;
use std::path::{Path, PathBuf};

use crate::malformation::Malformation;

/// Everything that reading, describing or cutting can fail with.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum GgufError {
    /// The file cannot be opened.
    #[error("cannot open {}: {source}; check the path and its permissions", file.display())]
    Open {
        /// The path as given.
        file: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The path is a directory, a device or the like.
    #[error("{} is not a regular file; give the path of a .gguf file", file.display())]
    NotAFile {
        /// The path as given.
        file: PathBuf,
    },
    /// The bytes are not a valid GGUF.
    #[error("{}: {fault}", file.display())]
    Malformed {
        /// The file.
        file: PathBuf,
        /// What is wrong, and where.
        fault: Box<Malformation>,
    },
    /// Parts of a split model are not there.
    #[error("{} of the {count} parts of this model are missing: {}; put all parts in one directory", missing.len(), list(missing))]
    MissingParts {
        /// How many parts there should be.
        count: u32,
        /// Paths where they were expected.
        missing: Vec<PathBuf>,
    },
    /// A part does not have the name its number asks for.
    #[error("{} is part {number} of {count} of a split model, so its name must end in `{expected}`: rename it back", file.display())]
    RenamedPart {
        /// The file.
        file: PathBuf,
        /// Its number inside, from 1.
        number: u32,
        /// How many parts there are.
        count: u32,
        /// What the name must end in.
        expected: String,
    },
    /// A file with the name of one part holds another one.
    #[error("{} should hold part {expected} of {count} but holds part {found} of {found_count}: parts were swapped or mixed; fetch this part again", file.display())]
    SwappedPart {
        /// The file.
        file: PathBuf,
        /// Number its name asks for, from 1.
        expected: u32,
        /// How many parts the set has.
        count: u32,
        /// Number inside, from 1; 0 if there is none.
        found: u32,
        /// Number of parts it says there are; 0 if it does not say.
        found_count: u32,
    },
    /// The parts do not fit together.
    #[error("the parts of {} do not belong together: {reason}; fetch all parts from the same place", file.display())]
    PartsDisagree {
        /// The first part.
        file: PathBuf,
        /// What does not fit.
        reason: String,
    },
    /// A key that is needed is not there.
    #[error("{}: key `{key}` is missing: convert the model again with a current llama.cpp", file.display())]
    MissingKey {
        /// The file.
        file: PathBuf,
        /// The key.
        key: String,
    },
    /// A key has a value that cannot be right.
    #[error("{}: key `{key}` {problem}", file.display())]
    BadKey {
        /// The file.
        file: PathBuf,
        /// The key.
        key: String,
        /// What is wrong and what to do.
        problem: String,
    },
    /// A tensor is missing, has the wrong shape or should not be there.
    #[error("{}: tensor `{tensor}` {problem}", file.display())]
    BadTensor {
        /// The file.
        file: PathBuf,
        /// The tensor.
        tensor: String,
        /// What is wrong and what to do.
        problem: String,
    },
    /// The architecture, or this file of it, is refused.
    #[error("architecture `{architecture}` is not supported: {reason}; `mesh models list` shows what is")]
    Unsupported {
        /// `general.architecture`.
        architecture: String,
        /// Why.
        reason: String,
    },
    /// Layers `start..end` cannot be a stage.
    #[error("layers {start}-{end} of a {layers}-layer `{architecture}` model cannot be a stage: {reason}")]
    IllegalRange {
        /// `general.architecture`.
        architecture: String,
        /// First layer.
        start: u32,
        /// Layer after the last.
        end: u32,
        /// Layers of the model.
        layers: u32,
        /// Why, and which cuts are possible.
        reason: String,
    },
    /// The source was changed after it was opened.
    #[error("{} changed while it was in use: {reason}; open it again", file.display())]
    SourceChanged {
        /// The file.
        file: PathBuf,
        /// What changed.
        reason: String,
    },
    /// The disk has no room.
    #[error("no space left in {}: {need} bytes are needed; free some, or set MESH_HOME to a larger disk", directory.display())]
    DiskFull {
        /// The directory written to.
        directory: PathBuf,
        /// Bytes the whole artifact takes.
        need: u64,
    },
    /// The directory cannot be written.
    #[error("cannot write in {}: {source}; make it writable, or set MESH_HOME to another directory", directory.display())]
    NotWritable {
        /// The directory written to.
        directory: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// Another failure of the operating system.
    #[error("cannot {doing} {}: {source}; check the disk and try again", file.display())]
    Io {
        /// "write", "read", …
        doing: &'static str,
        /// The file.
        file: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The caller's progress function asked to stop.
    #[error("cancelled; nothing was left behind")]
    Cancelled,
    /// An artifact does not match its manifest.
    #[error("{} does not match its manifest: {reason}; delete it and cut it again", file.display())]
    Corrupt {
        /// The artifact.
        file: PathBuf,
        /// What differs.
        reason: String,
    },
}

fn list(paths: &[PathBuf]) -> String {
    let names: Vec<String> = paths.iter().map(|path| path.display().to_string()).collect();
    names.join(", ")
}

impl GgufError {
    pub(crate) fn malformed(file: &Path, fault: Malformation) -> Self {
        Self::Malformed {
            file: file.to_owned(),
            fault: Box::new(fault),
        }
    }

    /// Sorts a failed write by what the user can do about it. `need` is the size of the whole artifact, bytes.
    pub(crate) fn writing(file: &Path, need: u64, source: io::Error) -> Self {
        let directory = file.parent().unwrap_or(Path::new(".")).to_owned();
        match source.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded | io::ErrorKind::FileTooLarge => {
                Self::DiskFull { directory, need }
            }
            io::ErrorKind::PermissionDenied
            | io::ErrorKind::ReadOnlyFilesystem
            | io::ErrorKind::NotADirectory
            | io::ErrorKind::NotFound => Self::NotWritable { directory, source },
            _ => Self::Io {
                doing: "write",
                file: file.to_owned(),
                source,
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failed_writes_say_what_to_do() {
        let said = |kind: io::ErrorKind| GgufError::writing(Path::new("/cache/x.gguf"), 123, kind.into()).to_string();
        let full = said(io::ErrorKind::StorageFull);
        assert_eq!(
            full,
            "no space left in /cache: 123 bytes are needed; free some, or set MESH_HOME to a larger disk"
        );
        assert!(said(io::ErrorKind::ReadOnlyFilesystem).starts_with("cannot write in /cache: "));
        assert!(said(io::ErrorKind::PermissionDenied).contains("make it writable"));
        assert!(said(io::ErrorKind::Other).starts_with("cannot write /cache/x.gguf: "));
    }
}
