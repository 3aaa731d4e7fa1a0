//! A plugin that records its calls, and fails where its "configuration path" says.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use mesh_plugin_sdk::{
    Abort, Activation, Candidates, Capabilities, Commit, Discard, Error, Finish, Ids, Operation, Outcome, Plugin, Poll,
    Query, Start, Waker,
};

/// Calls of all instances, each with the number of its instance.
pub static CALLS: Mutex<Vec<(usize, String)>> = Mutex::new(Vec::new());

pub struct Recorder {
    fault: String,
    waker: Waker,
    position: AtomicU64,
}

impl Recorder {
    fn call(&self, name: &str, line: String) -> Result<(), Error> {
        let key = std::ptr::from_ref(self) as usize;
        CALLS.lock().unwrap().push((key, line));
        fail(&self.fault, name)
    }
}

fn fail(fault: &str, name: &str) -> Result<(), Error> {
    match fault.split_once(' ') {
        Some(("panic", names)) if names.split(" and ").any(|word| word == name) => panic!("{name} panics"),
        Some(("error", which)) if which == name => Err(Error::new(format!("{name} fails"))),
        _ => Ok(()),
    }
}

fn names(ids: Ids<'_>) -> String {
    format!("{}/{}/{}", ids.request, ids.session, ids.agent_session)
}

fn decision(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap()
}

static ACTIVATED: Mutex<String> = Mutex::new(String::new());

/// The line of the last activation, which has no instance yet.
pub fn activated() -> String {
    std::mem::take(&mut ACTIVATED.lock().unwrap())
}

impl Plugin for Recorder {
    const NAME: &'static str = "recorder";
    const VERSION: &'static str = "1.2.3";
    const CAPABILITIES: Capabilities = Capabilities::WANTS_COMMITS
        .with(Capabilities::WANTS_TOKEN_IDS)
        .with(Capabilities::WANTS_REPORTS)
        .with(Capabilities::PROPOSES);

    fn activate(activation: &Activation<'_>) -> Result<Self, Error> {
        let fault = activation.config_path.and_then(|path| path.to_str()).unwrap_or("");
        fail(fault, "activate")?;
        let mut line = format!(
            "activate model={} tokenizer={} budget={:?} context={} candidates={} now={:?} pieces={}",
            activation.model_id,
            activation.tokenizer_id,
            activation.proposal_budget,
            activation.context_length,
            activation.max_candidates,
            activation.clock.now(),
            activation.tokenizer.map_or(0, |tokenizer| tokenizer.token_count()),
        );
        if let Some(tokenizer) = activation.tokenizer {
            assert!(tokenizer.piece(5).is_err() && tokenizer.encode("?").is_err());
            assert_eq!(tokenizer.piece(0)?.len(), 100);
            let piece = String::from_utf8(tokenizer.piece(1)?)?;
            line += &format!(" {piece:?} {:?}", tokenizer.encode("aa")?);
        }
        *ACTIVATED.lock().unwrap() = line;
        Ok(Self {
            fault: fault.to_owned(),
            waker: activation.waker.clone(),
            position: AtomicU64::new(0),
        })
    }

    fn shutdown(&self) -> Result<(), Error> {
        fail(&self.fault, "shutdown")
    }

    fn begin(&self, start: &Start<'_>) -> Result<(), Error> {
        let Start { ids, attempt, prompt } = *start;
        let names = names(ids);
        self.call(
            "begin",
            format!(
                "begin {names} attempt={attempt} prompt={:?} of {}",
                prompt.ids, prompt.count
            ),
        )
    }

    fn commit(&self, commit: &Commit<'_>) -> Result<(), Error> {
        let Commit { ids, tokens, total } = *commit;
        self.call(
            "commit",
            format!(
                "commit {} {:?} of {} total={total}",
                names(ids),
                tokens.ids,
                tokens.count
            ),
        )
    }

    fn finish(&self, finish: &Finish<'_>) -> Result<(), Error> {
        let line = format!(
            "finish {} {:?} incomplete={} attempt={} {}+{:?}={} digest={} queued={:?} first={:?} all={:?} {:?}",
            names(finish.ids),
            finish.reason,
            finish.incomplete,
            finish.attempt,
            finish.prompt_count,
            finish.generated.ids,
            finish.final_position,
            finish.prompt_digest[31],
            finish.queued,
            finish.first_token,
            finish.generation,
            finish.token_ns,
        );
        self.call("finish", line)
    }

    fn abort(&self, abort: &Abort<'_>) -> Result<(), Error> {
        let line = format!(
            "abort {} {:?} incomplete={} after_finish={} attempt={} committed={}",
            names(abort.ids),
            abort.reason,
            abort.incomplete,
            abort.after_failed_finish,
            abort.attempt,
            abort.committed_count,
        );
        self.call("abort", line)
    }

    fn start_proposal(&self, query: &Query<'_>) -> Result<Operation, Error> {
        let line = format!(
            "start {} position={} most={} step={} deadline={:?} tail={:?}",
            names(query.ids),
            query.position(),
            query.max_tokens,
            query.step,
            query.deadline,
            query.tail.ids,
        );
        self.call("start", line)?;
        self.position.store(query.position(), Ordering::SeqCst);
        let operation = Operation(41);
        let waker = self.waker.clone();
        std::thread::spawn(move || waker.wake(operation)).join().unwrap();
        Ok(operation)
    }

    fn poll_proposal(&self, operation: Operation) -> Poll {
        if let Err(error) = self.call("poll", format!("poll {}", operation.0)) {
            return Poll::Failed(error);
        }
        if operation != Operation(41) {
            return Poll::Pending;
        }
        let base_position = self.position.load(Ordering::SeqCst);
        Poll::Ready(Candidates {
            decision: 5.into(),
            base_position,
            tokens: vec![7, 8],
        })
    }

    fn cancel_proposal(&self, operation: Operation) -> Result<(), Error> {
        self.call("cancel", format!("cancel {}", operation.0))
    }

    fn report(&self, outcome: &Outcome<'_>) -> Result<(), Error> {
        let line = format!(
            "report {} {:?} {:?} step={} {} of {} committed={:?} predictions={:?} at {}, {}, {}",
            names(outcome.ids),
            outcome.disposition,
            decision(outcome.decision),
            outcome.step,
            outcome.accepted_count,
            outcome.proposed_count,
            outcome.committed.ids,
            outcome.predictions.ids,
            outcome.base_position,
            outcome.verified_position,
            outcome.canonical_position,
        );
        self.call("report", line)
    }

    fn discard(&self, discard: &Discard<'_>) -> Result<(), Error> {
        let line = format!(
            "discard {} {:?} {:?} step={} of {} at {}",
            names(discard.ids),
            discard.reason,
            decision(discard.decision),
            discard.step,
            discard.proposed_count,
            discard.base_position,
        );
        self.call("discard", line)
    }
}

impl Drop for Recorder {
    fn drop(&mut self) {
        let _ = fail(&self.fault, "drop");
    }
}
