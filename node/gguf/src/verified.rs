//! Which files still have the content that they should: found out by their digest, and remembered for as long as nothing
//! has touched them.

use std::collections::HashMap;
use std::fs::{File, Metadata};
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use crate::open::open_regular;

/// Bytes hashed between two looks at whether to go on.
const BUFFER_BYTES: usize = 1 << 20;

/// A file changed so shortly before it was looked at may change again without another time: file systems count ticks of
/// some milliseconds, FAT two seconds.
const SETTLED: Duration = Duration::from_secs(3);

/// Files that were found whole by this process. One that has been touched since, or was replaced, is read again; a change
/// that leaves no trace in device, inode, size and both times needs the clock set back.
#[derive(Debug, Default)]
pub struct Verified {
    known: Mutex<HashMap<PathBuf, Known>>,
}

#[derive(Debug)]
struct Known {
    stamp: Stamp,
    digest: blake3::Hash,
}

/// What changes when a file does.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Stamp {
    device: u64,
    inode: u64,
    bytes: u64,
    modified: (i64, i64),
    changed: (i64, i64),
}

impl Verified {
    /// Whether a regular file of this size and digest (hexadecimal BLAKE3) is there. `go_on` is asked every megabyte.
    ///
    /// # Errors
    /// It is there and cannot be read, or `go_on` said no (`Interrupted`).
    pub fn holds(&self, path: &Path, bytes: u64, digest: &str, go_on: &dyn Fn() -> bool) -> io::Result<bool> {
        let Ok(wanted) = blake3::Hash::from_hex(digest) else {
            return Ok(false);
        };
        let (mut file, facts) = match open_regular(path) {
            Ok(opened) => opened,
            Err(error) if error.kind() == io::ErrorKind::NotFound || crate::open::is_not_regular(&error) => {
                return Ok(false);
            }
            Err(error) => return Err(error),
        };
        if facts.len() != bytes {
            return Ok(false);
        }
        let before = stamp(&facts);
        if before.is_some() && self.found(path) == before.clone().map(|stamp| (stamp, wanted)) {
            return Ok(true);
        }
        let found = hash(&mut file, go_on)?;
        let after = stamp(&file.metadata()?);
        self.remember(path, found, before.filter(|before| after.as_ref() == Some(before)));
        Ok(found == wanted)
    }

    fn found(&self, path: &Path) -> Option<(Stamp, blake3::Hash)> {
        let known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        known.get(path).map(|known| (known.stamp.clone(), known.digest))
    }

    fn remember(&self, path: &Path, digest: blake3::Hash, stamp: Option<Stamp>) {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        match stamp.filter(Stamp::is_settled) {
            Some(stamp) => drop(known.insert(path.to_owned(), Known { stamp, digest })),
            None => drop(known.remove(path)),
        }
    }
}

impl Stamp {
    fn is_settled(&self) -> bool {
        let (seconds, nanos) = self.changed.max(self.modified);
        let since = Duration::new(u64::try_from(seconds).unwrap_or(0), u32::try_from(nanos).unwrap_or(0));
        let last = SystemTime::UNIX_EPOCH + since;
        SystemTime::now().duration_since(last).is_ok_and(|age| age >= SETTLED)
    }
}

#[cfg(unix)]
fn stamp(facts: &Metadata) -> Option<Stamp> {
    use std::os::unix::fs::MetadataExt;
    Some(Stamp {
        device: facts.dev(),
        inode: facts.ino(),
        bytes: facts.size(),
        modified: (facts.mtime(), facts.mtime_nsec()),
        changed: (facts.ctime(), facts.ctime_nsec()),
    })
}

/// Nothing here says whether a file was touched: it is always read.
#[cfg(not(unix))]
fn stamp(_: &Metadata) -> Option<Stamp> {
    None
}

/// Read, not mapped: a file cut short meanwhile would end the process.
fn hash(file: &mut File, go_on: &dyn Fn() -> bool) -> io::Result<blake3::Hash> {
    let mut hasher = blake3::Hasher::new();
    let mut buffer = vec![0; BUFFER_BYTES];
    loop {
        if !go_on() {
            return Err(io::ErrorKind::Interrupted.into());
        }
        match file.read(&mut buffer)? {
            0 => return Ok(hasher.finalize()),
            count => drop(hasher.update(&buffer[..count])),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::fs::{self, FileTimes};

    use super::*;

    struct World {
        dir: tempfile::TempDir,
        verified: Verified,
    }

    impl World {
        fn new() -> Self {
            let world = Self {
                dir: tempfile::tempdir().unwrap(),
                verified: Verified::default(),
            };
            fs::write(world.path(), "content").unwrap();
            world
        }

        fn path(&self) -> PathBuf {
            self.dir.path().join("file")
        }

        /// Whether it holds `content`, and whether it was read for that.
        fn holds(&self) -> (bool, bool) {
            let read = Cell::new(false);
            let digest = blake3::hash(b"content").to_hex();
            let go_on = || {
                read.set(true);
                true
            };
            let holds = self.verified.holds(&self.path(), 7, &digest, &go_on).unwrap();
            (holds, read.get())
        }

        /// As if the file had not been touched for a while. Its change time cannot be set.
        fn settle(&self) {
            let mut known = self.verified.known.lock().unwrap();
            let (facts, digest) = (fs::metadata(self.path()).unwrap(), blake3::hash(b"content"));
            known.insert(
                self.path(),
                Known {
                    stamp: stamp(&facts).unwrap(),
                    digest,
                },
            );
        }
    }

    #[cfg(unix)]
    #[test]
    fn a_file_that_was_touched_is_read_again_even_with_its_old_size_and_time() {
        let world = World::new();
        assert_eq!(world.holds(), (true, true));
        assert_eq!(world.holds(), (true, true), "too young to be remembered");
        world.settle();
        assert_eq!(world.holds(), (true, false));
        let modified = fs::metadata(world.path()).unwrap().modified().unwrap();
        fs::write(world.path(), "CONTENT").unwrap();
        let file = fs::OpenOptions::new().write(true).open(world.path()).unwrap();
        file.set_times(FileTimes::new().set_modified(modified)).unwrap();
        assert_eq!(world.holds(), (false, true));
        fs::write(world.path(), "content").unwrap();
        assert_eq!(world.holds(), (true, true));
        // Another file of this name.
        world.settle();
        let other = world.dir.path().join("other");
        fs::write(&other, "Content").unwrap();
        fs::rename(other, world.path()).unwrap();
        assert_eq!(world.holds(), (false, true));
    }

    #[test]
    fn another_size_and_no_file_are_found_without_reading() {
        let world = World::new();
        fs::write(world.path(), "longer content").unwrap();
        assert_eq!(world.holds(), (false, false));
        fs::remove_file(world.path()).unwrap();
        assert_eq!(world.holds(), (false, false));
        fs::create_dir(world.path()).unwrap();
        assert_eq!(world.holds(), (false, false));
    }

    #[test]
    fn nobody_who_has_gone_keeps_a_disk_busy() {
        let world = World::new();
        let digest = blake3::hash(b"content").to_hex();
        let stopped = world.verified.holds(&world.path(), 7, &digest, &|| false);
        assert_eq!(stopped.unwrap_err().kind(), io::ErrorKind::Interrupted);
    }
}
