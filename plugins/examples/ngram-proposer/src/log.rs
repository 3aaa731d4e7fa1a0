//! The log of all calls, one JSON line each.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::Path;
use std::sync::Mutex;

use mesh_plugin_sdk::Error;

use crate::generations::lock;
use crate::line::Line;

/// A log, or none. Lines are in the order of their numbers.
#[derive(Debug)]
pub(crate) struct Log(Option<Mutex<Open>>);

#[derive(Debug)]
struct Open {
    file: File,
    sequence: u64,
}

impl Log {
    pub(crate) fn open(path: Option<&Path>) -> Result<Self, Error> {
        let Some(path) = path else {
            return Ok(Self(None));
        };
        let file = OpenOptions::new()
            .create(true)
            .append(true)
            .open(path)
            .map_err(|error| Error::new(format!("cannot append to {}: {error}", path.display())))?;
        Ok(Self(Some(Mutex::new(Open { file, sequence: 0 }))))
    }

    /// The line is made only if there is a log.
    pub(crate) fn write(&self, line: impl FnOnce() -> Line) -> Result<(), Error> {
        let Some(open) = &self.0 else {
            return Ok(());
        };
        let line = line();
        let mut open = lock(open);
        open.sequence += 1;
        let line = line.finish(open.sequence);
        open.file.write_all(line.as_bytes())?;
        Ok(())
    }
}
