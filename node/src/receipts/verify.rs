//! Reads a log and finds what is wrong with it.

use std::{
    fs::File,
    io::{self, BufRead as _, BufReader},
    ops::RangeInclusive,
    path::{Path, PathBuf},
    thread,
    time::Duration,
};

use serde::Serialize;

use super::{
    chain::{ChainKey, GENESIS},
    directory::{self, LogFile},
    head::{self, BadHead, Head},
    line::Line,
    record::{Content, Record},
};
use crate::NodeError;

/// Faults that are named; a log with the wrong key has one in each line.
const MAX_FAULTS: usize = 100;

/// Reads of an unfinished last line: a node that runs is about to finish it.
const TORN_READS: usize = 5;
const TORN_PAUSE: Duration = Duration::from_millis(50);

/// What a log holds.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Verified {
    /// Files.
    pub files: usize,
    /// Whole lines.
    pub lines: u64,
    /// Lines that are receipts.
    pub receipts: u64,
    /// Receipts that did not get into the log, as it says itself. No fault of the files.
    pub lost: u64,
    /// Lines that a crash left unfinished, as the log says itself. No fault of the files.
    pub torn: u64,
    /// Number of the last line.
    pub last_seq: u64,
    /// What is wrong, in order of the files.
    pub faults: Vec<Fault>,
    /// More than could be named.
    pub more_faults: u64,
}

/// Something that is wrong.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Fault {
    /// Where.
    pub file: PathBuf,
    /// From 1.
    pub line: u64,
    /// What.
    pub fault: String,
}

/// Reads all receipts of a data directory.
///
/// # Errors
///
/// Files that cannot be read. What is wrong in them is in the answer.
pub fn verify(data_dir: &Path, key: &ChainKey) -> Result<Verified, NodeError> {
    let directory = directory::receipts_dir(data_dir);
    let unreadable = NodeError::file("read", &directory);
    verify_files(&directory, key).map_err(unreadable)
}

pub(super) fn verify_files(directory: &Path, key: &ChainKey) -> io::Result<Verified> {
    // The head first: lines that are written meanwhile are beyond it.
    let head = Head::read(directory, key)?;
    let files = directory::files(directory)?;
    let mut check = Check::new(key, head.ok());
    if files.is_empty() && head == Err(BadHead::Absent) {
        return Ok(check.found);
    }
    let head_path = directory.join(head::NAME);
    check.found.files = files.len();
    if let Err(bad) = head {
        check.fault_at(&head_path, 1, bad_head(bad));
    }
    if head == Err(BadHead::WrongKey) {
        // Every line would be one more fault.
        return Ok(check.found);
    }
    for (index, file) in files.iter().enumerate() {
        check.read(file, index + 1 == files.len())?;
    }
    check.end(files.last().map_or(&head_path, |file| &file.path));
    Ok(check.found)
}

fn bad_head(bad: BadHead) -> String {
    match bad {
        BadHead::Absent => "the file is gone: lines missing at the end do not show",
        BadHead::WrongKey => "written with another key than this node's",
        BadHead::Damaged => "the file was changed or damaged",
    }
    .to_owned()
}

/// A walk through the lines.
struct Check<'a> {
    key: &'a ChainKey,
    head: Option<Head>,
    /// The line with the highest number so far.
    newest: Head,
    /// Numbers that were skipped.
    skipped: Vec<RangeInclusive<u64>>,
    /// Where the walk is.
    path: PathBuf,
    line: u64,
    found: Verified,
}

impl<'a> Check<'a> {
    fn new(key: &'a ChainKey, head: Option<Head>) -> Self {
        Self {
            key,
            head,
            newest: Head { seq: 0, link: GENESIS },
            skipped: Vec::new(),
            path: PathBuf::new(),
            line: 0,
            found: Verified::default(),
        }
    }

    fn read(&mut self, file: &LogFile, last: bool) -> io::Result<()> {
        self.path.clone_from(&file.path);
        self.line = 0;
        let mut reader = BufReader::new(File::open(&file.path)?);
        let mut line = Vec::new();
        loop {
            line.clear();
            let whole = read_line(&mut reader, &mut line, last)?;
            if line.is_empty() {
                break;
            }
            self.line += 1;
            if whole {
                self.take(&line[..line.len() - 1], (self.line == 1).then_some(file.first));
            } else {
                self.fault("the line has no end: it is torn, as after a crash".to_owned());
            }
        }
        if self.line == 0 && !last {
            self.line = 1;
            self.fault("the file is empty".to_owned());
        }
        Ok(())
    }

    /// One line. `named` is what the name of its file says that it begins with.
    fn take(&mut self, bytes: &[u8], named: Option<u64>) {
        self.found.lines += 1;
        let Some(line) = Line::parse(bytes) else {
            return self.fault("not a line of a log: changed or damaged".to_owned());
        };
        let seq = line.record.seq;
        if named.is_some_and(|named| named != seq) {
            self.fault(format!("the file's name does not fit its first line, number {seq}"));
        }
        self.count(&line.record);
        let expected = self.newest.seq.saturating_add(1);
        if seq < expected {
            return self.fault(self.out_of_order(seq));
        }
        if seq > expected {
            self.fault(format!(
                "numbers {} are missing before this line",
                range(expected, seq - 1)
            ));
            self.skipped.push(expected..=seq - 1);
        } else if !line.follows(self.key, &self.newest.link) {
            self.fault(format!("line number {seq} or the one before it was changed"));
        }
        self.newest = Head { seq, link: line.link };
        let head = self.head.filter(|head| head.seq == seq);
        if head.is_some_and(|head| head.link != line.link) {
            self.fault(format!("line number {seq} is not the one that head.json knows"));
        }
    }

    fn out_of_order(&self, seq: u64) -> String {
        if self.skipped.iter().any(|skipped| skipped.contains(&seq)) {
            format!("line number {seq} is out of order")
        } else {
            format!("line number {seq} is here for a second time")
        }
    }

    fn count(&mut self, record: &Record) {
        match &record.content {
            Content::Receipt { .. } => self.found.receipts += 1,
            Content::Lost { count } => self.found.lost = self.found.lost.saturating_add(*count),
            Content::Torn { .. } => self.found.torn += 1,
            Content::Missing { from, to: 0 } => {
                self.fault(format!(
                    "the node found no head.json: lines from number {from} on may be missing"
                ));
            }
            Content::Missing { from, to } => {
                self.fault(format!(
                    "the node found lines missing here: it had written numbers {} before",
                    range(*from, *to)
                ));
            }
        }
    }

    /// After the last line: what the head says must be there.
    fn end(&mut self, path: &Path) {
        self.found.last_seq = self.newest.seq;
        let Some(head) = self.head.filter(|head| head.seq > self.newest.seq) else {
            return;
        };
        let missing = range(self.newest.seq + 1, head.seq);
        let line = self.line.max(1);
        self.fault_at(
            path,
            line,
            format!("numbers {missing} are missing after this line: the end was cut off"),
        );
    }

    fn fault(&mut self, fault: String) {
        let path = self.path.clone();
        self.fault_at(&path, self.line, fault);
    }

    fn fault_at(&mut self, path: &Path, line: u64, fault: String) {
        if self.found.faults.len() >= MAX_FAULTS {
            self.found.more_faults += 1;
            return;
        }
        let file = path.to_owned();
        self.found.faults.push(Fault { file, line, fault });
    }
}

/// Reads a line with its end; `false` if it has none. `patient` waits a moment for one.
pub(super) fn read_line(reader: &mut BufReader<File>, line: &mut Vec<u8>, patient: bool) -> io::Result<bool> {
    for attempt in 0..TORN_READS {
        reader.read_until(b'\n', line)?;
        let torn = !line.is_empty() && !line.ends_with(b"\n");
        if !torn || !patient {
            return Ok(!torn);
        }
        if attempt + 1 < TORN_READS {
            thread::sleep(TORN_PAUSE);
        }
    }
    Ok(false)
}

fn range(from: u64, to: u64) -> String {
    if from == to {
        from.to_string()
    } else {
        format!("{from} to {to}")
    }
}
