//! The end of a process that the system's loader has hold of.

use crate::raw;

/// Writes a line to stderr and ends the process with status 1, without anything that may want a lock of the loader:
/// no handlers, no destructors, no logging.
///
/// For a library whose constructor hangs: the lock that loading holds is wanted by every thread that first touches a
/// thread-local with a destructor, and by `exit` itself, so that the process is lost whatever it does.
pub fn end_process(line: &str) -> ! {
    raw::process::write_error(line.as_bytes());
    raw::process::write_error(b"\n");
    raw::process::end(1)
}
