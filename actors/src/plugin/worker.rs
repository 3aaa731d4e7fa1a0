//! The threads of a plugin: each makes one call at a time and says what it came to. A thread whose call does not return
//! is left behind; if the call returns after all, the thread serves again.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Arc, OnceLock,
        mpsc::{Receiver, SyncSender, sync_channel},
    },
    thread,
    time::{Duration, Instant},
};

use mesh_proto::MeshError;

use super::{
    call::{Call, CallResult, GenerationKey, InstanceKey, Job, WorkerKey},
    ledger::{Callback, PluginLedger},
    wakes::WakeBoard,
};
use crate::ports::{
    plugin::{
        CallFault, CallFaultKind, Demotion, GenerationCommit, GenerationIds, ModelFacts, NativePlugin, PluginInstance,
        Poll, ProposalQuery,
    },
    telemetry::{PluginCall, Telemetry},
};

/// What a call is made on.
#[derive(Clone)]
pub enum Target {
    /// The library, for an activation.
    Library(Box<ModelFacts>, Arc<WakeBoard>),
    /// An instance, for everything else.
    Instance(Seated),
}

/// An instance with its wakes.
#[derive(Clone)]
pub struct Seated {
    /// The instance.
    pub instance: Arc<dyn PluginInstance>,
    /// Its open operations.
    pub board: Arc<WakeBoard>,
}

/// What a thread says.
pub struct WorkerDone {
    /// Which thread.
    pub worker: WorkerKey,
    /// What the call came to.
    pub result: CallResult,
    /// The instance that an activation made.
    pub made: Option<Made>,
}

/// A new instance, with the key that it was asked for under.
pub type Made = (InstanceKey, Arc<dyn PluginInstance>);

/// What all threads of a plugin share.
pub struct WorkerContext {
    /// The library.
    pub plugin: Arc<dyn NativePlugin>,
    /// Counts calls.
    pub ledger: Arc<PluginLedger>,
    /// Measures calls.
    pub telemetry: Arc<dyn Telemetry>,
    /// Called with every result. False if there is nobody any more to hear it.
    pub reply: Box<dyn Fn(WorkerDone) -> bool + Send + Sync>,
}

/// The threads. Dropping them ends each when its call has returned.
pub struct Workers {
    threads: Vec<Worker>,
}

struct Worker {
    jobs: SyncSender<(Job, Target)>,
    /// Once it runs, and where it can be demoted.
    demotion: Arc<OnceLock<Demotion>>,
}

impl Workers {
    /// Starts them.
    ///
    /// # Errors
    ///
    /// The system refuses a thread.
    pub fn start(count: usize, context: &Arc<WorkerContext>) -> Result<Self, MeshError> {
        let name = context.plugin.facts().name.clone();
        let start = |index: usize| {
            // A thread gets its next job only when it has said what the last came to.
            let (jobs, queue) = sync_channel(1);
            let context = context.clone();
            let demotion = Arc::new(OnceLock::new());
            let own = demotion.clone();
            let body = move || {
                if let Some(demotion) = context.plugin.demotion() {
                    let _ = own.set(demotion);
                }
                serve(&queue, &context);
            };
            thread::Builder::new()
                .name(format!("plugin-{index}-{name}"))
                .spawn(body)
                .map_err(|error| MeshError::internal(format!("the system gave no thread for a plugin: {error}")))?;
            Ok(Worker { jobs, demotion })
        };
        let threads = (0..count).map(start).collect::<Result<_, MeshError>>()?;
        Ok(Self { threads })
    }

    /// A thread is stuck in a call.
    pub fn give_up(&self, worker: WorkerKey) {
        if let Some(demote) = self.threads.get(worker.0).and_then(|worker| worker.demotion.get()) {
            demote();
        }
    }

    /// Gives a thread its next call.
    pub fn run(&self, job: Job, target: Target) {
        if let Some(worker) = self.threads.get(job.worker.0)
            && worker.jobs.try_send((job, target)).is_err()
        {
            tracing::error!("a plugin's thread is not there for its call");
        }
    }
}

fn serve(queue: &Receiver<(Job, Target)>, context: &WorkerContext) {
    while let Ok((job, target)) = queue.recv() {
        let worker = job.worker;
        let mut timed = Timed {
            context,
            calls: Vec::with_capacity(2),
        };
        let (result, made) = perform(&job, &target, &mut timed);
        let instance = made.as_ref().map(|(_, instance)| instance.clone());
        if !(context.reply)(WorkerDone { worker, result, made })
            && let Some(instance) = instance
        {
            // The actor ended meanwhile: nobody else will end what was made for it.
            let _ = timed.call(Callback::Shutdown, || instance.shutdown());
        }
        let calls = timed.calls;
        // Behind the reply: nobody waits for measurements.
        for (callback, took, failed) in calls {
            context.telemetry.plugin_call(&PluginCall {
                plugin: &context.plugin.facts().name,
                callback: callback.name(),
                took,
                failed,
            });
        }
    }
}

fn our_panic() -> CallFault {
    CallFault {
        kind: CallFaultKind::Panicked,
        message: "the call panicked on the node's side; see its log".to_owned(),
    }
}

/// Takes the time of calls.
struct Timed<'a> {
    context: &'a WorkerContext,
    calls: Vec<(Callback, Duration, bool)>,
}

impl Timed<'_> {
    fn call<T>(&mut self, callback: Callback, call: impl FnOnce() -> Result<T, CallFault>) -> Result<T, CallFault> {
        let began = Instant::now();
        // A plugin does not unwind into the node: a panic is one of the adapter.
        let result = catch_unwind(AssertUnwindSafe(call)).unwrap_or_else(|_| Err(our_panic()));
        let took = began.elapsed();
        self.context.ledger.called(callback, took);
        if let Err(fault) = &result {
            self.context.ledger.failed(callback, &fault.message);
        }
        self.calls.push((callback, took, result.is_err()));
        result
    }
}

fn perform(job: &Job, target: &Target, timed: &mut Timed<'_>) -> (CallResult, Option<Made>) {
    match target {
        Target::Library(model, board) => {
            let board = board.clone();
            let wake = Arc::new(move |operation| board.wake(operation));
            let plugin = timed.context.plugin.clone();
            match timed.call(Callback::Activate, || plugin.activate(model, wake)) {
                Ok(instance) => (CallResult::Returned(Ok(())), Some((job.instance, instance))),
                Err(fault) => (CallResult::Returned(Err(fault)), None),
            }
        }
        Target::Instance(seated) => {
            let result = match &job.generation {
                Some((key, ids)) => call_instance(*key, ids, &job.call, seated, timed),
                None => CallResult::Returned(timed.call(Callback::Shutdown, || seated.instance.shutdown())),
            };
            (result, None)
        }
    }
}

fn call_instance(
    key: GenerationKey,
    ids: &GenerationIds,
    call: &Call,
    seated: &Seated,
    timed: &mut Timed<'_>,
) -> CallResult {
    let Seated { instance, board } = seated;
    let returned = match call {
        Call::Propose { query, deadline } => {
            let started = timed.call(Callback::Start, || instance.start_proposal(ids, query, *deadline));
            let operation = started.as_ref().ok().copied();
            let poll = started.and_then(|operation| {
                board.opened(operation, key);
                poll(key, operation, query, seated, timed)
            });
            return CallResult::Proposed { operation, poll };
        }
        Call::Poll { operation, query } => {
            board.polling(*operation);
            return CallResult::Polled(poll(key, *operation, query, seated, timed));
        }
        Call::Cancel { operation } => {
            board.over(*operation, key);
            timed.call(Callback::Cancel, || instance.cancel_proposal(*operation))
        }
        Call::Begin(start) => timed.call(Callback::Begin, || instance.begin(start)),
        Call::Commit { tokens, total } => timed.call(Callback::Commit, || {
            let total = *total;
            instance.commit(&GenerationCommit { ids, tokens, total })
        }),
        Call::Finish(finish) => timed.call(Callback::Finish, || instance.finish(finish)),
        Call::Abort(abort) => timed.call(Callback::Abort, || instance.abort(abort)),
        Call::Report(report) => {
            let (candidates, outcome) = &**report;
            timed.call(Callback::Report, || instance.report(ids, candidates, outcome))
        }
        Call::Discard(discarded) => timed.call(Callback::Discard, || instance.discard(ids, discarded)),
        Call::Activate | Call::Shutdown => Ok(()),
    };
    CallResult::Returned(returned)
}

fn poll(
    key: GenerationKey,
    operation: u64,
    query: &ProposalQuery,
    Seated { instance, board }: &Seated,
    timed: &mut Timed<'_>,
) -> Result<Poll, CallFault> {
    let poll = timed.call(Callback::Poll, || instance.poll_proposal(operation, query));
    if matches!(poll, Ok(Poll::Ready(_) | Poll::Abstain)) {
        board.over(operation, key);
    }
    poll
}

#[cfg(test)]
mod tests {
    use std::sync::{atomic::AtomicBool, mpsc};

    use super::*;
    use crate::{
        ports::telemetry::NoTelemetry,
        scripted::{ScriptedPlugin, ScriptedVocabulary, Told},
    };

    fn activate(worker: WorkerKey) -> Job {
        Job {
            worker,
            instance: InstanceKey(1),
            generation: None,
            call: Call::Activate,
        }
    }

    fn library(ledger: &Arc<PluginLedger>) -> Target {
        let model = ModelFacts {
            model: "m".into(),
            model_id: "m".into(),
            tokenizer_id: "t".into(),
            vocabulary: Arc::new(ScriptedVocabulary::default()),
            context: 16,
        };
        let board = WakeBoard::new(Box::new(|_, _| {}), ledger.clone());
        Target::Library(Box::new(model), Arc::new(board))
    }

    #[test]
    fn an_instance_is_ended_that_nobody_hears_of() {
        let (called, calls) = mpsc::channel();
        let plugin = ScriptedPlugin::new("late", move |callback, _| {
            let _ = called.send(callback);
            Told::Fine
        });
        let ledger = Arc::new(PluginLedger::default());
        let heard = Arc::new(AtomicBool::new(true));
        let is_heard = heard.clone();
        let context = Arc::new(WorkerContext {
            plugin: Arc::new(plugin),
            ledger: ledger.clone(),
            telemetry: Arc::new(NoTelemetry),
            reply: Box::new(move |_| is_heard.load(std::sync::atomic::Ordering::SeqCst)),
        });
        for (is_heard, expected) in [
            (true, vec![Callback::Activate]),
            (false, vec![Callback::Activate, Callback::Shutdown]),
        ] {
            heard.store(is_heard, std::sync::atomic::Ordering::SeqCst);
            let (jobs, queue) = sync_channel(1);
            assert!(jobs.send((activate(WorkerKey(0)), library(&ledger))).is_ok());
            drop(jobs);
            serve(&queue, &context);
            assert_eq!(calls.try_iter().collect::<Vec<_>>(), expected);
        }
    }
}
