//! Subscribes to a whole mesh while a test runs, and compares what was told with what clients got.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use anyhow::{Context as _, Result, ensure};
use mesh_proto::v1::{Scope, SubscribeRequest, SubscribeResponse};
use tokio::{sync::watch, task::JoinHandle, time::timeout};
use tonic::Streaming;

use crate::{
    Api,
    checker::{Checker, End, Told},
};

/// After the last answer, its terminal is under way for less than this.
const TERMINAL_LIMIT: Duration = Duration::from_secs(20);

/// What a client got for one request.
#[derive(Debug, Clone, Default)]
struct Got {
    text: String,
    /// To the end: `[DONE]`, or the whole body.
    done: bool,
}

/// What clients got, by request id. Clones share it.
#[derive(Debug, Clone, Default)]
pub struct Ledger(Arc<Mutex<BTreeMap<String, Got>>>);

impl Ledger {
    /// A client got this so far.
    pub fn note(&self, request_id: &str, text: &str, done: bool) {
        let got = Got {
            text: text.to_owned(),
            done,
        };
        self.lock().insert(request_id.to_owned(), got);
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, Got>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A subscriber to everything, from before the first request on.
#[derive(Debug)]
pub struct Witness {
    ledger: Ledger,
    seen: watch::Receiver<Seen>,
    task: JoinHandle<()>,
}

#[derive(Debug, Default)]
struct Seen {
    checker: Checker,
    broken: Option<anyhow::Error>,
}

impl Drop for Witness {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Witness {
    /// Subscribes through a node.
    pub async fn start(api: &Api, ledger: Ledger) -> Result<Self> {
        let request = SubscribeRequest {
            include_token_ids: true,
            include_text: true,
            scope: Scope::Mesh.into(),
            ..SubscribeRequest::default()
        };
        let notices = api.subscribe(request).await?;
        let (sender, seen) = watch::channel(Seen::default());
        let task = tokio::spawn(read(notices, sender));
        Ok(Self { ledger, seen, task })
    }

    /// Waits for the terminals of everything that clients asked for, and proves the invariants.
    ///
    /// # Errors
    ///
    /// An invariant is broken, a request has not ended in time, or a client got other text than was told.
    pub async fn finish(mut self) -> Result<BTreeMap<String, Told>> {
        let got = self.ledger.lock().clone();
        let ended = self.seen.wait_for(|seen| {
            let known = got.keys().all(|id| seen.checker.has_ended(id));
            seen.broken.is_some() || (known && seen.checker.open().is_empty())
        });
        let waited = timeout(TERMINAL_LIMIT, ended).await.map(|ended| ended.is_ok());
        let seen = self.seen.borrow();
        if let Some(error) = &seen.broken {
            anyhow::bail!("lifecycle events: {error:#}");
        }
        let missing: Vec<&String> = got.keys().filter(|id| !seen.checker.has_ended(id)).collect();
        ensure!(
            waited == Ok(true),
            "no terminal within {TERMINAL_LIMIT:?}: open {:?}, not told {missing:?}",
            seen.checker.open()
        );
        for (id, got) in &got {
            let told = seen.checker.requests().get(id).context("not told")?;
            compare(got, told).with_context(|| format!("request {id}: client {got:?}, told {told:?}"))?;
        }
        Ok(seen.checker.requests().clone())
    }
}

fn compare(got: &Got, told: &Told) -> Result<()> {
    if got.done {
        ensure!(
            told.end == Some(End::Finished),
            "the client has an answer that did not finish"
        );
        ensure!(got.text == told.text, "the client has other text than was told");
    } else {
        ensure!(
            told.text.starts_with(&got.text),
            "the client has text that was not told"
        );
    }
    Ok(())
}

/// Until the node ends, or the witness is dropped.
async fn read(mut notices: Streaming<SubscribeResponse>, seen: watch::Sender<Seen>) {
    while let Ok(Some(notice)) = notices.message().await {
        seen.send_modify(|seen| {
            if seen.broken.is_none() {
                seen.broken = seen.checker.see(&notice).err();
            }
        });
    }
}
