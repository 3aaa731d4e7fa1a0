//! The text that a template writes, up to a limit.

use std::io;

use minijinja::{Error, ErrorKind};

/// Takes so many bytes, and fails on the next.
pub(super) struct Limited {
    bytes: Vec<u8>,
    limit: usize,
}

impl Limited {
    pub(super) fn new(limit: usize) -> Self {
        Self {
            bytes: Vec::new(),
            limit,
        }
    }

    pub(super) fn into_text(self) -> Result<String, Error> {
        String::from_utf8(self.bytes).map_err(|_| {
            Error::new(
                ErrorKind::BadSerialization,
                "the chat template gives text that is not UTF-8",
            )
        })
    }
}

impl io::Write for Limited {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.bytes.len() + bytes.len() > self.limit {
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        self.bytes.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
