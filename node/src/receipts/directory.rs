//! The files of a log, by name.

use std::{
    fs::{self, File, OpenOptions},
    io,
    path::{Path, PathBuf},
};

const PREFIX: &str = "receipts-";
const SUFFIX: &str = ".jsonl";

/// Digits of the largest number, so that names sort as numbers do.
const DIGITS: usize = 20;

/// A file of the log.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct LogFile {
    /// Of its first line.
    pub first: u64,
    pub path: PathBuf,
}

/// The place of receipts in a data directory.
pub(super) fn receipts_dir(data_dir: &Path) -> PathBuf {
    data_dir.join("receipts")
}

/// Makes the directory, for its owner alone.
pub(super) fn make(directory: &Path) -> io::Result<()> {
    let mut builder = fs::DirBuilder::new();
    builder.recursive(true);
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    builder.create(directory)
}

/// All files, oldest first; none if there is no directory. Others in the directory are not looked at.
pub(super) fn files(directory: &Path) -> io::Result<Vec<LogFile>> {
    let entries = match fs::read_dir(directory) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries?,
    };
    let mut files = Vec::new();
    for entry in entries {
        let path = entry?.path();
        let first = path.file_name().and_then(|name| first_of(name.to_str()?));
        files.extend(first.map(|first| LogFile { first, path }));
    }
    files.sort();
    Ok(files)
}

fn first_of(name: &str) -> Option<u64> {
    let digits = name.strip_prefix(PREFIX)?.strip_suffix(SUFFIX)?;
    let right = digits.len() == DIGITS && digits.bytes().all(|digit| digit.is_ascii_digit());
    digits.parse().ok().filter(|_| right)
}

/// The file that begins with this number.
pub(super) fn path_of(directory: &Path, first: u64) -> PathBuf {
    directory.join(format!("{PREFIX}{first:0DIGITS$}{SUFFIX}"))
}

/// Opens a file to append to, for its owner alone.
pub(super) fn open(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.create(true).append(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    options.open(path)
}

/// Has the directory itself safe on the disk: names of new files.
pub(super) fn sync(directory: &Path) -> io::Result<()> {
    File::open(directory)?.sync_all()
}
