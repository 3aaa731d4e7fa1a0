//! The writer of the files. Belongs to the thread of [`super::sink`]; blocks on the disk.

use std::{
    fs::{self, File},
    io::{self, Read as _, Seek as _, SeekFrom, Write as _},
    path::{Path, PathBuf},
};

use super::{
    chain::ChainKey,
    directory::{self, LogFile},
    head::{BadHead, Head},
    line::{self, Line},
    record::{Content, Record},
};
use crate::NodeError;

/// Size at which the next file begins: about 100,000 requests, and still quick to look through.
pub(super) const ROTATE_BYTES: u64 = 64 << 20;

/// How a log is written.
#[derive(Debug, Clone)]
pub(super) struct LogOptions {
    pub directory: PathBuf,
    pub key: ChainKey,
    pub rotate_bytes: u64,
}

/// An open log.
#[derive(Debug)]
pub(super) struct ReceiptLog {
    options: LogOptions,
    /// The newest line.
    newest: Head,
    file: Option<OpenFile>,
    /// Something was written since the last [`Self::commit`].
    dirty: bool,
}

#[derive(Debug)]
struct OpenFile {
    file: File,
    /// Up to here are whole lines; what is beyond is of a write that failed.
    length: u64,
}

impl ReceiptLog {
    /// Opens the log where it ended. What a crash left of a line is cut off, and a record says so.
    ///
    /// # Errors
    ///
    /// The directory cannot be used, or holds the log of another key or none at all.
    pub(super) fn open(options: LogOptions) -> Result<Self, NodeError> {
        let directory = options.directory.clone();
        let cannot = NodeError::file("use", &directory);
        Self::open_in(options).map_err(cannot)?
    }

    fn open_in(options: LogOptions) -> io::Result<Result<Self, NodeError>> {
        directory::make(&options.directory)?;
        let head = Head::read(&options.directory, &options.key)?;
        if head == Err(BadHead::WrongKey) {
            return Ok(Err(foreign(&options.directory)));
        }
        let mut files = directory::files(&options.directory)?;
        let Some(mut tail) = Tail::find(&mut files)? else {
            return Ok(Err(unreadable(&options.directory)));
        };
        let mut log = Self {
            newest: tail.newest,
            file: tail.file.take(),
            options,
            dirty: false,
        };
        log.note_what_is_missing(head, tail.torn)?;
        log.write_head(true)?;
        Ok(Ok(log))
    }

    fn note_what_is_missing(&mut self, head: Result<Head, BadHead>, torn: u64) -> io::Result<()> {
        let last = self.newest.seq;
        // Without a head nobody knows how far the log had come.
        let to = head.map_or((last > 0).then_some(0), |head| (head.seq > last).then_some(head.seq));
        let torn = (torn > 0).then_some(Content::Torn { bytes: torn });
        let missing = to.map(|to| Content::Missing { from: last + 1, to });
        self.append(torn.into_iter().chain(missing))
    }

    /// Writes lines, all or none of those that go into one file. They are safe after [`Self::commit`].
    pub(super) fn append(&mut self, contents: impl IntoIterator<Item = Content>) -> io::Result<()> {
        let (mut bytes, mut newest) = (Vec::new(), self.newest);
        for content in contents {
            let record = Record::now(newest.seq + 1, content);
            let (line, link) = line::write(&record, &self.options.key, &newest.link)?;
            bytes.extend_from_slice(&line);
            newest = Head { seq: record.seq, link };
        }
        if bytes.is_empty() {
            return Ok(());
        }
        self.rotate_for(bytes.len() as u64)?;
        let first = self.newest.seq + 1;
        let file = match &mut self.file {
            Some(file) => file,
            None => self.file.insert(OpenFile::create(&self.options.directory, first)?),
        };
        file.append(&bytes)?;
        self.newest = newest;
        self.dirty = true;
        Ok(())
    }

    fn rotate_for(&mut self, more: u64) -> io::Result<()> {
        let full = |file: &OpenFile| file.length > 0 && file.length + more > self.options.rotate_bytes;
        if self.file.as_ref().is_some_and(full) {
            self.commit(true)?;
            self.file = None;
        }
        Ok(())
    }

    /// The head follows the lines; with `sync`, after they are safe on the disk.
    pub(super) fn commit(&mut self, sync: bool) -> io::Result<()> {
        if !self.dirty {
            return Ok(());
        }
        if let Some(file) = self.file.as_ref().filter(|_| sync) {
            file.file.sync_data()?;
        }
        self.write_head(sync)?;
        self.dirty = false;
        Ok(())
    }

    fn write_head(&self, sync: bool) -> io::Result<()> {
        let Self { options, newest, .. } = self;
        newest.write(&options.directory, &options.key, sync)?;
        if sync {
            directory::sync(&options.directory)?;
        }
        Ok(())
    }
}

impl OpenFile {
    fn create(directory: &Path, first: u64) -> io::Result<Self> {
        let file = directory::open(&directory::path_of(directory, first))?;
        // Left over from a write that failed before its first line was whole.
        file.set_len(0)?;
        Ok(Self { file, length: 0 })
    }

    fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        if self.file.metadata()?.len() != self.length {
            self.file.set_len(self.length)?;
        }
        let written = self.file.write_all(bytes);
        match written {
            Ok(()) => self.length += bytes.len() as u64,
            // Tried again before the next write if the disk does not even take this.
            Err(_) => drop(self.file.set_len(self.length)),
        }
        written
    }
}

/// Where a log ended.
struct Tail {
    newest: Head,
    file: Option<OpenFile>,
    /// Bytes that were cut off after the last whole line.
    torn: u64,
}

impl Tail {
    /// Looks for the last whole line, from the newest file back; `None` if it is not a line of a log.
    fn find(files: &mut Vec<LogFile>) -> io::Result<Option<Self>> {
        let mut torn = 0;
        while let Some(newest) = files.pop() {
            let file = directory::open(&newest.path)?;
            let (length, last) = last_line(&newest.path)?;
            torn += file.metadata()?.len() - length;
            file.set_len(length)?;
            if length == 0 {
                fs::remove_file(&newest.path)?;
                continue;
            }
            let file = Some(OpenFile { file, length });
            return Ok(Line::parse(&last).map(|line| Self {
                newest: Head {
                    seq: line.record.seq,
                    link: line.link,
                },
                file,
                torn,
            }));
        }
        Ok(Some(Self {
            newest: Head::NEW,
            file: None,
            torn,
        }))
    }
}

/// Length of the whole lines of a file, and the last of them without its end.
fn last_line(path: &Path) -> io::Result<(u64, Vec<u8>)> {
    /// Read at a time, from the end: most lines are shorter.
    const PIECE: u64 = 64 << 10;
    let mut file = File::open(path)?;
    let mut start = file.metadata()?.len();
    let mut tail = Vec::new();
    loop {
        let length = start.min(PIECE);
        start -= length;
        file.seek(SeekFrom::Start(start))?;
        let mut piece = vec![0; length as usize];
        file.read_exact(&mut piece)?;
        tail.splice(..0, piece);
        let mut ends = tail.iter().enumerate().rev().filter(|(_, byte)| **byte == b'\n');
        let end = ends.next().map(|(at, _)| at);
        let before = ends.next().map(|(at, _)| at + 1);
        match (end, before) {
            (Some(end), Some(before)) => return Ok((start + end as u64 + 1, tail[before..end].to_vec())),
            (Some(end), None) if start == 0 => return Ok((end as u64 + 1, tail[..end].to_vec())),
            (None, _) if start == 0 => return Ok((0, Vec::new())),
            _ => {}
        }
    }
}

fn foreign(directory: &Path) -> NodeError {
    NodeError::DataDir(format!(
        "{} holds the receipts of a node with another key; move it away, or use another --data-dir",
        directory.display()
    ))
}

fn unreadable(directory: &Path) -> NodeError {
    NodeError::DataDir(format!(
        "the last line of the receipts in {} is damaged; see `mesh receipts verify`, then move the directory away",
        directory.display()
    ))
}
