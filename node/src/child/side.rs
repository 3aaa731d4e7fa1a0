//! The child's side.

use std::{
    fs::File,
    io::{self, stdin},
    sync::{Arc, Mutex, PoisonError},
};

use rustix::process::{Signal, getpid, kill_process};
use tokio::signal::unix::{SignalKind, signal};

use super::{ChildLimits, frame};

/// Sends frames to the parent, from any thread.
#[derive(Debug, Clone)]
pub struct FrameSender {
    output: Arc<Mutex<File>>,
}

/// Runs this process as a child: sets its limits, then calls `on_frame` with each frame from the parent, until the
/// parent closes the pipe or is gone. Then the process ends at once, whatever its threads do.
///
/// `on_frame` must not work itself: while it runs, the end of the parent goes unnoticed.
///
/// # Errors
///
/// The limits cannot be set, or what came is no frame.
pub fn run_child<F>(limits: ChildLimits, job: impl FnOnce(FrameSender) -> F) -> io::Result<()>
where
    F: FnMut(Vec<u8>),
{
    limits.apply()?;
    ignore_signals()?;
    let sender = FrameSender {
        output: Arc::new(Mutex::new(take_stdout()?)),
    };
    let mut on_frame = job(sender);
    let mut input = stdin().lock();
    while let Some(frame) = frame::read(&mut input)? {
        on_frame(frame);
    }
    end_process()
}

impl FrameSender {
    /// Sends a frame. If the parent is gone, so is this process.
    pub fn send(&self, frame: &[u8]) {
        let mut output = self.output.lock().unwrap_or_else(PoisonError::into_inner);
        if let Err(error) = frame::write(&mut *output, frame) {
            eprintln!("cannot answer the node: {error}");
            end_process();
        }
    }
}

/// Takes stdout for frames; what libraries print there goes to stderr.
fn take_stdout() -> io::Result<File> {
    let output = rustix::io::dup(io::stdout())?;
    rustix::io::fcntl_setfd(&output, rustix::io::FdFlags::CLOEXEC)?;
    rustix::stdio::dup2_stdout(io::stderr())?;
    Ok(File::from(output))
}

/// A supervisor that stops a service sends its signals to all of its processes, and the node needs its children while it
/// drains. A handler of tokio's stays for the life of the process, and this one does nothing.
fn ignore_signals() -> io::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build()?;
    let _context = runtime.enter();
    for kind in [SignalKind::terminate(), SignalKind::interrupt(), SignalKind::hangup()] {
        drop(signal(kind)?);
    }
    Ok(())
}

/// Without destructors of C++ libraries, which could wait for threads that are still at work.
fn end_process() -> ! {
    let _ = kill_process(getpid(), Signal::KILL);
    std::process::abort()
}
