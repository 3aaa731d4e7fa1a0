//! The OS thread that owns an engine. Jobs go in through a bounded queue; results come back through a callback.

use std::{
    ops::ControlFlow,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
        mpsc::{Receiver, SyncSender, sync_channel},
    },
    thread,
    time::Instant,
};

use mesh_proto::{LaneId, MeshError, SessionId};
use tokio::sync::oneshot;

use super::{
    machine::{EngineDone, EngineJob},
    meter::StageMeter,
};
use crate::ports::engine::{Batch, EngineError, EngineLoader, MemoryFigures, StageEngine, StageLoad};

/// Places in the job queue: more than a stage machine ever has under way, so that sending never blocks.
const JOB_QUEUE: usize = 8;

/// Which sessions are over, readable by the engine's thread between two calls of the library.
#[derive(Debug)]
pub struct CancelBoard {
    /// For each lane the newest session that is over; sessions of a lane only grow.
    ended: Box<[AtomicU64]>,
}

impl CancelBoard {
    /// Nothing is cancelled.
    pub fn new(lanes: u32) -> Self {
        Self {
            ended: (0..lanes).map(|_| AtomicU64::new(0)).collect(),
        }
    }

    /// The session is over; older ones of the lane are too.
    pub fn cancel(&self, lane: LaneId, session: SessionId) {
        if let Some(ended) = self.ended.get(lane.0 as usize) {
            ended.fetch_max(session.0, Ordering::Relaxed);
        }
    }

    /// The session is over.
    pub fn is_cancelled(&self, lane: LaneId, session: SessionId) -> bool {
        self.ended
            .get(lane.0 as usize)
            .is_some_and(|ended| ended.load(Ordering::Relaxed) >= session.0)
    }
}

/// What a loaded stage says of itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Loaded {
    /// Memory in use.
    pub memory: MemoryFigures,
    /// Exact mode, self-check passed.
    pub exact: bool,
    /// Lanes can be rewound.
    pub rewinds: bool,
}

/// What the thread says.
#[derive(Debug)]
pub enum EngineReply {
    /// A job is done.
    Done(EngineDone),
    /// The stage as a whole broke; the thread ends.
    Broken(MeshError),
}

/// Handle to the thread. Dropping it ends the thread after the running job.
#[derive(Debug)]
pub struct EngineThread {
    jobs: SyncSender<EngineJob>,
    giving_up: Arc<AtomicBool>,
}

/// How to start an engine thread.
pub struct EngineStart<'a> {
    /// Loader.
    pub loader: Arc<dyn EngineLoader>,
    /// Stage.
    pub spec: StageLoad,
    /// Sessions that are over.
    pub board: Arc<CancelBoard>,
    /// Hears of every batch.
    pub meter: Arc<StageMeter>,
    /// Called with progress from 0 to 1 while loading.
    pub progress: Box<dyn Fn(f32) + Send>,
    /// Called with every result.
    pub reply: Box<dyn Fn(EngineReply) + Send>,
    /// Name of the thread.
    pub name: &'a str,
}

impl EngineThread {
    /// Starts the thread and loads the stage on it. The receiver gets the outcome of loading; the last one resolves
    /// when the thread has ended and the model's memory is free.
    ///
    /// # Errors
    ///
    /// The operating system refuses a thread.
    #[allow(clippy::type_complexity)]
    pub fn start(
        start: EngineStart<'_>,
    ) -> Result<
        (
            Self,
            oneshot::Receiver<Result<Loaded, EngineError>>,
            oneshot::Receiver<()>,
        ),
        EngineError,
    > {
        let (jobs, queue) = sync_channel(JOB_QUEUE);
        let (loaded, on_loaded) = oneshot::channel();
        let (ended, on_ended) = oneshot::channel();
        let giving_up = Arc::new(AtomicBool::new(false));
        let flag = giving_up.clone();
        let EngineStart {
            loader,
            spec,
            board,
            meter,
            progress,
            reply,
            name,
        } = start;
        let body = move || {
            let outcome = catch_unwind(AssertUnwindSafe(|| {
                let mut watch = |done: f32| {
                    progress(done);
                    if flag.load(Ordering::Relaxed) {
                        ControlFlow::Break(())
                    } else {
                        ControlFlow::Continue(())
                    }
                };
                match loader.load(&spec, &mut watch) {
                    Err(error) => drop(loaded.send(Err(error))),
                    Ok(engine) => {
                        let facts = Loaded {
                            memory: engine.memory(),
                            exact: engine.is_exact(),
                            rewinds: engine.can_rewind(),
                        };
                        if loaded.send(Ok(facts)).is_ok() {
                            serve(engine, &queue, &board, &meter, &reply);
                        }
                    }
                }
            }));
            if outcome.is_err() {
                let error = EngineError::Gone("it panicked; see the node's log".to_owned());
                reply(EngineReply::Broken(error.into()));
            }
            let _ = ended.send(());
        };
        thread::Builder::new()
            .name(name.to_owned())
            .spawn(body)
            .map_err(|error| EngineError::Gone(format!("the system gave no thread: {error}")))?;
        Ok((Self { jobs, giving_up }, on_loaded, on_ended))
    }

    /// Queues a job.
    ///
    /// # Errors
    ///
    /// The thread has ended.
    pub fn run(&self, job: EngineJob) -> Result<(), EngineError> {
        self.jobs
            .try_send(job)
            .map_err(|error| EngineError::Gone(error.to_string()))
    }
}

impl Drop for EngineThread {
    fn drop(&mut self) {
        self.giving_up.store(true, Ordering::Relaxed);
    }
}

fn serve(
    mut engine: Box<dyn StageEngine>,
    queue: &Receiver<EngineJob>,
    board: &CancelBoard,
    meter: &StageMeter,
    reply: &(dyn Fn(EngineReply) + Send),
) {
    while let Ok(job) = queue.recv() {
        match perform(engine.as_mut(), job, board, meter) {
            Ok((done, computed)) => {
                reply(EngineReply::Done(done));
                // Behind the reply: the token does not wait for its measurement.
                if let Some((batch, began, ended)) = computed {
                    meter.computed(&batch, began, ended);
                }
            }
            Err(error) => return reply(EngineReply::Broken(error.into())),
        }
    }
}

/// A batch, and when the engine began and ended it.
type Computed = (Batch, Instant, Instant);

fn perform(
    engine: &mut dyn StageEngine,
    job: EngineJob,
    board: &CancelBoard,
    meter: &StageMeter,
) -> Result<(EngineDone, Option<Computed>), EngineError> {
    let done = match job {
        EngineJob::Open(open) => match engine.open(open.lane, open.session, &open.sampling) {
            Ok(()) => {
                meter.opened(&open);
                EngineDone::Opened(open)
            }
            Err(error) => EngineDone::Failed {
                lane: open.lane,
                session: open.session,
                error: error.into(),
            },
        },
        EngineJob::Free { lane, session } => {
            engine.free(lane);
            EngineDone::Freed { lane, session }
        }
        EngineJob::Forward { batch, mut engine_ns } => {
            let start = Instant::now();
            let output = engine.forward(&batch, &|lane, session| board.is_cancelled(lane, session))?;
            let end = Instant::now();
            engine_ns.push(u64::try_from((end - start).as_nanos()).unwrap_or(u64::MAX));
            return Ok((EngineDone::Computed { output, engine_ns }, Some((batch, start, end))));
        }
    };
    Ok((done, None))
}
