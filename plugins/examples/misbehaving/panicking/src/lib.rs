//! A plugin that panics in the calls that its configuration names.
//!
//! Lines of the file: `panic = begin` (activate, shutdown, drop, begin, commit, finish, abort, start, poll, cancel,
//! report, discard; several lines allowed), `log = /abs/path` for one JSON line for each call.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use mesh_plugin_sdk::{
    Abort, Activation, Candidates, Capabilities, Commit, DecisionId, Discard, Error, Finish, Operation, Outcome,
    Plugin, Poll, Query, Start, export_plugin,
};

struct Panicking {
    panics: Vec<String>,
    log: Mutex<Log>,
    operations: AtomicU64,
    decisions: AtomicU64,
    position: AtomicU64,
}

#[derive(Default)]
struct Log {
    file: Option<File>,
    sequence: u64,
}

impl Panicking {
    fn configured(activation: &Activation<'_>) -> Result<Self, Error> {
        let mut panics = Vec::new();
        let mut log = Log::default();
        let text = match activation.config_path {
            Some(path) => std::fs::read_to_string(path)?,
            None => String::new(),
        };
        for line in text.lines() {
            match line.split_once('=').map(|(key, value)| (key.trim(), value.trim())) {
                Some(("panic", call)) => panics.push(call.to_owned()),
                Some(("log", path)) => log.file = Some(OpenOptions::new().create(true).append(true).open(path)?),
                Some((key, _)) => return Err(Error::new(format!("unknown setting {key}"))),
                None => {}
            }
        }
        Ok(Self {
            panics,
            log: Mutex::new(log),
            operations: AtomicU64::new(0),
            decisions: AtomicU64::new(0),
            position: AtomicU64::new(0),
        })
    }

    /// Logs a call, then panics if it is told to. `request` is empty where the call has none.
    fn call(&self, name: &str, request: &str) {
        {
            let mut log = self.log.lock().unwrap_or_else(PoisonError::into_inner);
            log.sequence += 1;
            let line = format!(
                "{{\"seq\":{},\"event\":\"{name}\",\"request\":\"{request}\"}}\n",
                log.sequence
            );
            if let Some(file) = &mut log.file {
                file.write_all(line.as_bytes()).expect("the log can be written");
            }
        }
        if self.panics.iter().any(|panics| panics == name) {
            panic!("{name} panics on purpose");
        }
    }
}

impl Plugin for Panicking {
    const NAME: &'static str = "panicking";
    const VERSION: &'static str = env!("CARGO_PKG_VERSION");
    const CAPABILITIES: Capabilities = Capabilities::WANTS_COMMITS
        .with(Capabilities::WANTS_TOKEN_IDS)
        .with(Capabilities::WANTS_REPORTS)
        .with(Capabilities::PROPOSES);

    fn activate(activation: &Activation<'_>) -> Result<Self, Error> {
        let plugin = Self::configured(activation)?;
        plugin.call("activate", "");
        Ok(plugin)
    }

    fn shutdown(&self) -> Result<(), Error> {
        self.call("shutdown", "");
        Ok(())
    }

    fn begin(&self, start: &Start<'_>) -> Result<(), Error> {
        self.call("begin", start.ids.request);
        Ok(())
    }

    fn commit(&self, commit: &Commit<'_>) -> Result<(), Error> {
        self.call("commit", commit.ids.request);
        Ok(())
    }

    fn finish(&self, finish: &Finish<'_>) -> Result<(), Error> {
        self.call("finish", finish.ids.request);
        Ok(())
    }

    fn abort(&self, abort: &Abort<'_>) -> Result<(), Error> {
        self.call("abort", abort.ids.request);
        Ok(())
    }

    fn start_proposal(&self, query: &Query<'_>) -> Result<Operation, Error> {
        self.call("start", query.ids.request);
        self.position.store(query.position(), Ordering::SeqCst);
        Ok(Operation(self.operations.fetch_add(1, Ordering::SeqCst) + 1))
    }

    /// Always proposes token 0 once; it stays pending if it is to panic when it is cancelled, which is how it gets there.
    fn poll_proposal(&self, _: Operation) -> Poll {
        self.call("poll", "");
        if self.panics.iter().any(|call| call == "cancel") {
            return Poll::Pending;
        }
        Poll::Ready(Candidates {
            decision: DecisionId::from(self.decisions.fetch_add(1, Ordering::SeqCst) + 1),
            base_position: self.position.load(Ordering::SeqCst),
            tokens: vec![0],
        })
    }

    fn cancel_proposal(&self, _: Operation) -> Result<(), Error> {
        self.call("cancel", "");
        Ok(())
    }

    fn report(&self, outcome: &Outcome<'_>) -> Result<(), Error> {
        self.call("report", outcome.ids.request);
        Ok(())
    }

    fn discard(&self, discard: &Discard<'_>) -> Result<(), Error> {
        self.call("discard", discard.ids.request);
        Ok(())
    }
}

impl Drop for Panicking {
    fn drop(&mut self) {
        // One that panics when it is activated must not panic again while it is dropped: that would end the process.
        if !std::thread::panicking() {
            self.call("drop", "");
        }
    }
}

export_plugin!(Panicking);
