//! Opening files that others name: only regular ones, and never waiting for one.
//!
//! Opening a FIFO waits for a writer, and reading a device may never end.

use std::fs::{self, File, Metadata, OpenOptions};
use std::io;
use std::path::Path;

/// The path is a directory, a FIFO, a device or a socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("it is not a regular file")]
pub struct NotRegular;

/// Opens a regular file for reading, and gives its facts.
///
/// # Errors
/// [`NotRegular`] inside an error of kind `InvalidInput`, or what the system says.
pub fn open_regular(path: &Path) -> io::Result<(File, Metadata)> {
    // Opening alone can do something, at a device.
    regular(fs::metadata(path)?)?;
    let mut options = OpenOptions::new();
    options.read(true);
    #[cfg(unix)]
    {
        // It may have become another meanwhile. Regular files are read as before.
        use std::os::unix::fs::OpenOptionsExt;
        options.custom_flags(libc::O_NONBLOCK);
    }
    let file = options.open(path)?;
    let facts = regular(file.metadata()?)?;
    Ok((file, facts))
}

fn regular(facts: Metadata) -> io::Result<Metadata> {
    if facts.is_file() {
        Ok(facts)
    } else {
        Err(io::Error::new(io::ErrorKind::InvalidInput, NotRegular))
    }
}

/// Whether that was the reason.
pub(crate) fn is_not_regular(error: &io::Error) -> bool {
    error.get_ref().is_some_and(|inner| inner.is::<NotRegular>())
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_regular_file_is_refused_at_once() {
        let dir = tempfile::tempdir().unwrap();
        let fifo = dir.path().join("fifo");
        let made = std::process::Command::new("mkfifo").arg(&fifo).status().unwrap();
        assert!(made.success());
        let socket = dir.path().join("socket");
        let _listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
        let link = dir.path().join("link");
        std::os::unix::fs::symlink(&fifo, &link).unwrap();
        for path in [&fifo, &socket, &link, Path::new("/dev/zero"), dir.path()] {
            let error = open_regular(path).expect_err("no file");
            assert!(is_not_regular(&error), "{path:?}: {error}");
        }
        let file = dir.path().join("file");
        fs::write(&file, "text").unwrap();
        assert_eq!(open_regular(&file).unwrap().1.len(), 4);
        assert_eq!(
            open_regular(&dir.path().join("none")).unwrap_err().kind(),
            io::ErrorKind::NotFound
        );
    }
}
