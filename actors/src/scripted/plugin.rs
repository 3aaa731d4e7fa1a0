//! A plugin without a library: it logs what it is told, proposes what a script says, and waits where a test wants it.

use std::{
    collections::HashMap,
    fmt,
    path::PathBuf,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Instant,
};

use mesh_proto::RequestId;

use super::Gate;
use crate::{
    plugin::Callback,
    ports::plugin::{
        CallFault, CallFaultKind, Candidates, DecisionId, DiscardReason, Discarded, GenerationAbort, GenerationCommit,
        GenerationFinish, GenerationIds, GenerationStart, ModelFacts, NativePlugin, Outcome, PluginAbilities,
        PluginFacts, PluginInstance, Poll, ProposalQuery, Wake,
    },
};

/// What a call comes to.
#[derive(Debug, Clone)]
pub enum Told {
    /// All well; a poll abstains.
    Fine,
    /// An error.
    Fails(CallFaultKind),
    /// Of a poll: candidates.
    Proposes(Vec<u32>),
    /// Of a poll: nothing yet.
    Pending,
}

/// Decides about calls. It runs on the plugin's thread and may block there. The query is that of a poll.
pub type PluginScript = Arc<dyn Fn(Callback, Option<&ProposalQuery>) -> Told + Send + Sync>;

/// What a scripted plugin was told.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PluginLine {
    /// About which request.
    pub request: RequestId,
    /// Which function.
    pub callback: Callback,
    /// Tokens, counts, names: in words.
    pub words: String,
}

/// Cheap to clone; all clones share the log.
#[derive(Clone)]
pub struct ScriptedPlugin {
    facts: Arc<PluginFacts>,
    script: PluginScript,
    log: Arc<Mutex<Vec<PluginLine>>>,
    /// Decisions that it gave out.
    decisions: Arc<Mutex<Vec<(RequestId, String)>>>,
    operations: Arc<AtomicU64>,
}

impl fmt::Debug for ScriptedPlugin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("ScriptedPlugin").field(&self.facts.name).finish()
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl ScriptedPlugin {
    /// A plugin that follows and proposes.
    pub fn new(name: &str, script: impl Fn(Callback, Option<&ProposalQuery>) -> Told + Send + Sync + 'static) -> Self {
        let facts = PluginFacts {
            name: name.into(),
            version: "1".to_owned(),
            abi: (1, 0),
            path: PathBuf::from("/scripted"),
            digest: String::new(),
            abilities: PluginAbilities {
                commits: true,
                token_ids: true,
                reports: true,
                proposes: true,
                serial: false,
            },
        };
        Self {
            facts: Arc::new(facts),
            script: Arc::new(script),
            log: Arc::default(),
            decisions: Arc::default(),
            operations: Arc::default(),
        }
    }

    /// It waits at the gate in this function.
    pub fn held_in(name: &str, callback: Callback, gate: Arc<Gate>) -> Self {
        Self::new(name, move |called, _| {
            if called == callback {
                gate.pass();
            }
            Told::Fine
        })
    }

    /// The same with other abilities.
    #[must_use]
    pub fn with(mut self, abilities: PluginAbilities) -> Self {
        let facts = PluginFacts {
            abilities,
            ..(*self.facts).clone()
        };
        self.facts = Arc::new(facts);
        self
    }

    /// Everything it was told.
    pub fn log(&self) -> Vec<PluginLine> {
        lock(&self.log).clone()
    }

    /// What it was told of one request.
    pub fn told(&self, request: &str) -> Vec<(Callback, String)> {
        let lines = self.log().into_iter();
        lines
            .filter(|line| line.request.to_string() == request)
            .map(|line| (line.callback, line.words))
            .collect()
    }

    /// Decisions that it gave out for one request.
    pub fn decisions(&self, request: &str) -> Vec<String> {
        let decisions = lock(&self.decisions).clone().into_iter();
        decisions
            .filter(|(of, _)| of.to_string() == request)
            .map(|(_, decision)| decision)
            .collect()
    }

    /// How often a function was called about a request.
    pub fn count(&self, callback: Callback) -> usize {
        lock(&self.log).iter().filter(|line| line.callback == callback).count()
    }

    fn call(
        &self,
        request: RequestId,
        callback: Callback,
        words: String,
        query: Option<&ProposalQuery>,
    ) -> Result<Told, CallFault> {
        lock(&self.log).push(PluginLine {
            request,
            callback,
            words,
        });
        match (self.script)(callback, query) {
            Told::Fails(kind) => {
                let message = format!("the script fails {}", callback.name());
                Err(CallFault { kind, message })
            }
            told => Ok(told),
        }
    }
}

impl NativePlugin for ScriptedPlugin {
    fn facts(&self) -> &PluginFacts {
        &self.facts
    }

    fn activate(&self, _: &ModelFacts, wake: Wake) -> Result<Arc<dyn PluginInstance>, CallFault> {
        // A plugin may wake from within any call.
        wake(0);
        match (self.script)(Callback::Activate, None) {
            Told::Fails(kind) => Err(CallFault {
                kind,
                message: "the script refuses the model".to_owned(),
            }),
            _ => Ok(Arc::new(ScriptedInstance {
                plugin: self.clone(),
                open: Mutex::default(),
                wake,
            })),
        }
    }
}

struct ScriptedInstance {
    plugin: ScriptedPlugin,
    open: Mutex<HashMap<u64, RequestId>>,
    wake: Wake,
}

impl ScriptedInstance {
    /// Candidates, checked as the adapter of libraries does.
    fn ready(&self, request: RequestId, operation: u64, query: &ProposalQuery, tokens: Vec<u32>) -> Poll {
        let name = format!("decision-{operation}");
        let Some(decision) = DecisionId::new(name.as_bytes()) else {
            return Poll::Failed("a decision without a name".to_owned());
        };
        lock(&self.plugin.decisions).push((request, name));
        let candidates = Candidates {
            decision,
            step: query.step,
            tokens,
            base_position: query.base_position(),
        };
        if candidates.tokens.is_empty() || candidates.tokens.len() > query.max_tokens as usize {
            return Poll::Invalid {
                message: format!("{} candidates", candidates.tokens.len()),
                decision: Some(candidates.discarded(DiscardReason::InvalidTokenCount)),
            };
        }
        lock(&self.open).remove(&operation);
        Poll::Ready(candidates)
    }

    fn simple(&self, request: RequestId, callback: Callback, words: String) -> Result<(), CallFault> {
        self.plugin.call(request, callback, words, None).map(drop)
    }
}

impl PluginInstance for ScriptedInstance {
    fn begin(&self, start: &GenerationStart) -> Result<(), CallFault> {
        let words = format!("{} tokens", start.prompt.len());
        self.simple(start.ids.request, Callback::Begin, words)
    }

    fn commit(&self, commit: &GenerationCommit<'_>) -> Result<(), CallFault> {
        let words = format!("{:?} of {}", commit.tokens, commit.total);
        self.simple(commit.ids.request, Callback::Commit, words)
    }

    fn finish(&self, finish: &GenerationFinish) -> Result<(), CallFault> {
        let incomplete = if finish.incomplete { ", incomplete" } else { "" };
        let words = format!("{:?}{incomplete}", finish.receipt.generated);
        self.simple(finish.ids.request, Callback::Finish, words)
    }

    fn abort(&self, abort: &GenerationAbort) -> Result<(), CallFault> {
        let incomplete = if abort.incomplete { ", incomplete" } else { "" };
        let after = if abort.after_failed_finish {
            ", after finish"
        } else {
            ""
        };
        let words = format!("{:?}{incomplete}{after}", abort.reason);
        self.simple(abort.ids.request, Callback::Abort, words)
    }

    fn start_proposal(&self, ids: &GenerationIds, query: &ProposalQuery, _: Instant) -> Result<u64, CallFault> {
        let operation = self.plugin.operations.fetch_add(1, Ordering::Relaxed) + 1;
        let words = format!("step {} at {}", query.step, query.base_position());
        self.simple(ids.request, Callback::Start, words)?;
        lock(&self.open).insert(operation, ids.request);
        Ok(operation)
    }

    fn poll_proposal(&self, operation: u64, query: &ProposalQuery) -> Result<Poll, CallFault> {
        let request = lock(&self.open).get(&operation).copied().ok_or_else(|| CallFault {
            kind: CallFaultKind::Error,
            message: format!("operation {operation} is not open"),
        })?;
        let told = self
            .plugin
            .call(request, Callback::Poll, format!("operation {operation}"), Some(query))?;
        (self.wake)(operation);
        Ok(match told {
            Told::Proposes(tokens) => self.ready(request, operation, query, tokens),
            Told::Pending => Poll::Pending,
            _ => {
                lock(&self.open).remove(&operation);
                Poll::Abstain
            }
        })
    }

    fn cancel_proposal(&self, operation: u64) -> Result<(), CallFault> {
        let request = lock(&self.open).remove(&operation).ok_or_else(|| CallFault {
            kind: CallFaultKind::Error,
            message: format!("operation {operation} is cancelled and not open"),
        })?;
        self.simple(request, Callback::Cancel, format!("operation {operation}"))
    }

    fn report(&self, ids: &GenerationIds, candidates: &Candidates, outcome: &Outcome) -> Result<(), CallFault> {
        let Outcome {
            disposition, accepted, ..
        } = outcome;
        let words = format!("{} {} {accepted}", candidates.decision, disposition.name());
        self.simple(ids.request, Callback::Report, words)
    }

    fn discard(&self, ids: &GenerationIds, decision: &Discarded) -> Result<(), CallFault> {
        let words = format!("{} {}", decision.decision, decision.reason.name());
        self.simple(ids.request, Callback::Discard, words)
    }

    fn shutdown(&self) -> Result<(), CallFault> {
        match (self.plugin.script)(Callback::Shutdown, None) {
            Told::Fails(kind) => Err(CallFault {
                kind,
                message: "the script fails shutdown".to_owned(),
            }),
            _ => Ok(()),
        }
    }
}
