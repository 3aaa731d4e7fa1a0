//! How a child ended.

use std::{fmt, os::unix::process::ExitStatusExt as _, process::ExitStatus};

/// The end of a child, for an error message: `it was ended by SIGABRT: GGML_ASSERT(…) failed`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChildEnd {
    /// Unknown if waiting for it failed.
    pub status: Option<ExitStatus>,
    /// Last lines of stderr, one line, printable.
    pub last_words: String,
}

impl fmt::Display for ChildEnd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.status.map(|status| (status.signal(), status.code())) {
            Some((Some(signal), _)) => write!(f, "it was ended by {}", signal_name(signal))?,
            Some((None, Some(code))) => write!(f, "it ended with status {code}")?,
            _ => f.write_str("it ended")?,
        }
        if !self.last_words.is_empty() {
            write!(f, ": {}", self.last_words)?;
        }
        Ok(())
    }
}

fn signal_name(signal: i32) -> String {
    use rustix::process::Signal;
    let known = [
        (Signal::ABORT, "SIGABRT"),
        (Signal::BUS, "SIGBUS"),
        (Signal::FPE, "SIGFPE"),
        (Signal::ILL, "SIGILL"),
        (Signal::KILL, "SIGKILL"),
        (Signal::SEGV, "SIGSEGV"),
        (Signal::TERM, "SIGTERM"),
        (Signal::XCPU, "SIGXCPU"),
    ];
    known
        .into_iter()
        .find(|(known, _)| known.as_raw() == signal)
        .map_or_else(|| format!("signal {signal}"), |(_, name)| name.to_owned())
}
