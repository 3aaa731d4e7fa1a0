//! Reads the lines of a log, oldest first.

use std::{fs::File, io::BufReader, path::Path};

use super::{directory, line::Line, record::Record, verify::read_line};
use crate::NodeError;

/// A line, as it is in its file and as what it means.
#[derive(Debug)]
pub struct ExportedLine<'a> {
    /// Without its end.
    pub text: &'a str,
    /// What it says.
    pub record: Record,
}

/// Gives each line from number `since` on to `take`, until that has enough and says `false`. Hashes are not checked.
///
/// # Errors
///
/// Files that cannot be read, or a line that is none.
pub fn export<E: From<NodeError>>(
    data_dir: &Path,
    since: u64,
    mut take: impl FnMut(ExportedLine<'_>) -> Result<bool, E>,
) -> Result<(), E> {
    let directory = directory::receipts_dir(data_dir);
    let files = directory::files(&directory).map_err(NodeError::file("read", &directory))?;
    for (index, file) in files.iter().enumerate() {
        let next = files.get(index + 1);
        if next.is_some_and(|next| next.first <= since) {
            continue;
        }
        let unreadable = |error| NodeError::file("read", &file.path)(error);
        let mut reader = BufReader::new(File::open(&file.path).map_err(unreadable)?);
        let (mut bytes, mut number) = (Vec::new(), 0u64);
        loop {
            bytes.clear();
            let whole = read_line(&mut reader, &mut bytes, next.is_none()).map_err(unreadable)?;
            if bytes.is_empty() {
                break;
            }
            number += 1;
            let line = line_of(&bytes, whole).ok_or_else(|| damaged(&file.path, number))?;
            if line.record.seq >= since && !take(line)? {
                return Ok(());
            }
        }
    }
    Ok(())
}

fn line_of(bytes: &[u8], whole: bool) -> Option<ExportedLine<'_>> {
    let bytes = bytes.strip_suffix(b"\n").filter(|_| whole)?;
    let record = Line::parse(bytes)?.record;
    let text = std::str::from_utf8(bytes).ok()?;
    Some(ExportedLine { text, record })
}

fn damaged(path: &Path, line: u64) -> NodeError {
    NodeError::DataDir(format!(
        "{} line {line} is damaged; `mesh receipts verify` tells what is wrong with all of them",
        path.display()
    ))
}
