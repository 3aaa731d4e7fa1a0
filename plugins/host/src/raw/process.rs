//! The process, without the standard library around it.

/// Writes to stderr; what does not fit at once is lost.
pub(crate) fn write_error(bytes: &[u8]) {
    // SAFETY: pointer and length are of a slice that outlives the call, and a closed stderr is an error, no fault.
    let _ = unsafe { libc::write(libc::STDERR_FILENO, bytes.as_ptr().cast(), bytes.len()) };
}

/// Ends the process at once.
pub(crate) fn end(status: i32) -> ! {
    // SAFETY: the call takes a number and does not return; that nothing is cleaned up is what it is for.
    unsafe { libc::_exit(status) }
}
