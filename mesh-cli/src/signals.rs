//! When to stop: signals, and the end of the parent.

use std::{io::Read as _, sync::Arc, thread, time::Duration};

use tokio::{
    signal::unix::{Signal, SignalKind, signal},
    sync::Notify,
};

use crate::{
    failure::{Exit, Failure},
    output,
};

/// A node whose parent is gone gets this long to stop by itself.
const ORPHAN_DEADLINE: Duration = Duration::from_secs(5);

/// SIGINT and SIGTERM, from the moment this is made.
#[derive(Debug)]
pub(crate) struct Interrupts {
    interrupt: Signal,
    terminate: Signal,
}

impl Interrupts {
    pub(crate) fn listen() -> Result<Self, Failure> {
        let listen = |kind| signal(kind).map_err(|error| Failure::failed(format!("cannot wait for signals: {error}")));
        Ok(Self {
            interrupt: listen(SignalKind::interrupt())?,
            terminate: listen(SignalKind::terminate())?,
        })
    }

    /// The next one. Cancel-safe.
    pub(crate) async fn next(&mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
        }
    }
}

/// Resolves at the first signal; a second one ends the process at once.
///
/// The watching task lives until the process ends.
pub(crate) fn stop_then_force() -> Result<impl Future<Output = ()>, Failure> {
    let mut interrupts = Interrupts::listen()?;
    let first = Arc::new(Notify::new());
    let told = first.clone();
    tokio::spawn(async move {
        interrupts.next().await;
        output::note("mesh: stopping; once more to stop at once");
        told.notify_one();
        interrupts.next().await;
        end_process(Exit::Interrupted);
    });
    Ok(async move { first.notified().await })
}

/// Resolves when stdin ends, which it does when the parent that holds the other end of the pipe is gone, however it
/// died. Afterwards the process ends within [`ORPHAN_DEADLINE`] in any case.
pub(crate) fn end_of_parent() -> Result<impl Future<Output = ()>, Failure> {
    let gone = Arc::new(Notify::new());
    let told = gone.clone();
    let watch = move || {
        // What the parent writes means nothing; only the end counts. An error is an end, too.
        let mut buffer = [0; 64];
        while matches!(std::io::stdin().read(&mut buffer), Ok(read) if read > 0) {}
        told.notify_one();
        thread::sleep(ORPHAN_DEADLINE);
        end_process(Exit::Failed);
    };
    let thread = thread::Builder::new().name("parent-watch".to_owned()).spawn(watch);
    thread
        .map_err(|error| Failure::failed(format!("cannot start a thread: {error}; check the limits of this user")))?;
    Ok(async move { gone.notified().await })
}

#[expect(
    clippy::exit,
    reason = "the orderly way was tried and took too long, or the user does not want to wait"
)]
fn end_process(exit: Exit) {
    std::process::exit(exit as i32);
}
