//! One trial of a stage file: the node's side, and the child's.

use std::{fs, io, ops::ControlFlow, ops::Range, path::PathBuf, pin::pin, thread, time::Duration};

use mesh_actors::ports::engine::{EngineError, ExactCalls, StageLoad};
use mesh_engine::prove;
use serde::{Deserialize, Serialize};
use tokio::time::{Instant, timeout};

use super::proofs::Found;
use crate::child::{Child, ChildLimits, ChildProgram, FrameSender, Job, run_child};

/// How long a child may say nothing, beside the time that its file takes to read: a call of 18 rows in a stage of a large
/// model takes seconds.
const QUIET_LIMIT: Duration = Duration::from_secs(60);

/// Bytes of the file that are read in a second at least: half of what an old hard disk gives.
const SLOWEST_DISK: u64 = 32 << 20;

/// How soon it is noticed that the load was given up: the engine's interface can only be asked, and 20 questions take less
/// than a token.
const GIVE_UP_CHECK: Duration = Duration::from_millis(50);

/// How long a child may take to end after its last word: the system gives back the memory of a large model.
const END_LIMIT: Duration = Duration::from_secs(5);

/// Memory of the child beside as much as the file: cache of two short lanes, buffers, stacks, the runtime.
const CHILD_MEMORY: u64 = 4 << 30;

/// What the child is asked. The digest is none of its business.
#[derive(Debug, Serialize, Deserialize)]
struct Question {
    path: PathBuf,
    layers: Range<u32>,
    total_layers: u32,
    lanes: u32,
    context: u32,
    threads: u32,
    exact: bool,
    gpu_layers: Option<u32>,
    n_embd: u32,
    n_vocab: u32,
}

/// What the child says.
#[derive(Debug, Serialize, Deserialize)]
enum Answer {
    /// It is at work: so much is loaded, from 0 to 1.
    Loaded(f32),
    /// The stage computes; what the self-check of exact mode found.
    Proven(Option<Found>),
    /// It was refused without harm, and why.
    Refused(String),
}

/// Has a child try the file out.
///
/// # Errors
///
/// [`EngineError::Load`] if the child refuses it, ends over it or is stuck in it; [`EngineError::Cancelled`].
pub(super) async fn run(
    program: &ChildProgram,
    spec: &StageLoad,
    progress: &mut dyn FnMut(f32) -> ControlFlow<()>,
) -> Result<Option<ExactCalls>, EngineError> {
    let refused = |reason: String| EngineError::Load {
        path: spec.path.display().to_string(),
        reason,
    };
    let bytes = fs::metadata(&spec.path).map_or(0, |file| file.len());
    let limits = ChildLimits {
        memory: Some(CHILD_MEMORY.saturating_add(bytes)),
        cpu: None,
    };
    let started = Instant::now();
    let mut child = program.spawn(Job::Prove, limits, spec.exact).map_err(|error| {
        refused(format!(
            "no process can be started to try it out: {error}; free memory, or raise the limits of this user"
        ))
    })?;
    let question =
        question(spec).map_err(|error| refused(format!("it cannot be asked for: {error}; move the file")))?;
    // A child that has ended already says so below.
    let _ = child.input.send(&question).await;
    let quiet = QUIET_LIMIT + Duration::from_secs(bytes / SLOWEST_DISK);
    match answer(&mut child, quiet, progress).await {
        Outcome::Proven(found) => {
            let milliseconds = started.elapsed().as_millis();
            tracing::info!(path = %spec.path.display(), milliseconds, ?found, "stage file proven");
            Ok(found)
        }
        Outcome::Refused(reason) => Err(refused(reason)),
        Outcome::GivenUp => {
            child.process.end().await;
            Err(EngineError::Cancelled)
        }
        Outcome::Stuck => {
            let end = child.process.end().await;
            let words = end.last_words;
            Err(refused(format!(
                "llama.cpp did nothing for {} s in a process that tried it out{}{words}; fetch or convert the model again",
                quiet.as_secs(),
                if words.is_empty() { "" } else { ": " }
            )))
        }
        Outcome::Ended => {
            // A child that is not ending by itself is killed with the future.
            let end = timeout(END_LIMIT, child.process.wait()).await;
            let end = end.map_or_else(|_| "it sent what is no answer".to_owned(), |end| end.to_string());
            Err(refused(format!(
                "llama.cpp cannot hold this file: in a process that tried it out, {end}; fetch or convert the model again"
            )))
        }
    }
}

enum Outcome {
    Proven(Option<ExactCalls>),
    Refused(String),
    GivenUp,
    Stuck,
    Ended,
}

async fn answer(child: &mut Child, quiet: Duration, progress: &mut dyn FnMut(f32) -> ControlFlow<()>) -> Outcome {
    let mut fraction = 0.0;
    loop {
        let deadline = Instant::now() + quiet;
        // Kept until it is done: half a frame would be lost with it.
        let mut receive = pin!(child.output.receive());
        let frame = loop {
            if progress(fraction).is_break() {
                return Outcome::GivenUp;
            }
            match timeout(GIVE_UP_CHECK, &mut receive).await {
                Ok(frame) => break frame,
                Err(_) if Instant::now() > deadline => return Outcome::Stuck,
                Err(_) => {}
            }
        };
        let answer = match frame {
            Ok(Some(frame)) => serde_json::from_slice(&frame).ok(),
            Ok(None) | Err(_) => return Outcome::Ended,
        };
        match answer {
            // The node loads it once more: half of the way.
            Some(Answer::Loaded(loaded)) => fraction = loaded / 2.0,
            Some(Answer::Proven(found)) => return Outcome::Proven(found.map(ExactCalls::from)),
            Some(Answer::Refused(reason)) => return Outcome::Refused(reason),
            None => return Outcome::Ended,
        }
    }
}

fn question(spec: &StageLoad) -> serde_json::Result<Vec<u8>> {
    serde_json::to_vec(&Question {
        path: spec.path.clone(),
        layers: spec.layers.clone(),
        total_layers: spec.total_layers,
        lanes: spec.lanes,
        context: spec.context,
        threads: spec.threads,
        exact: spec.exact,
        gpu_layers: spec.gpu_layers,
        n_embd: spec.n_embd,
        n_vocab: spec.n_vocab,
    })
}

/// The child's side: tries each file out that it is asked for, until the node is gone.
///
/// # Errors
///
/// The limits cannot be set, or what came is no frame.
pub fn run_prove(limits: ChildLimits) -> io::Result<()> {
    run_child(limits, |sender| {
        move |frame: Vec<u8>| {
            let sender = sender.clone();
            // Owned by this process, which ends with its parent whatever the thread does.
            let work = thread::Builder::new().name("prove".to_owned());
            if let Err(error) = work.spawn(move || try_out(&frame, &sender)) {
                eprintln!("the system gives no thread: {error}");
                std::process::abort();
            }
        }
    })
}

fn try_out(frame: &[u8], sender: &FrameSender) {
    let answer = match serde_json::from_slice::<Question>(frame) {
        Ok(question) => computed(question, sender),
        Err(error) => Answer::Refused(format!("the question cannot be read: {error}; this is a defect")),
    };
    say(sender, &answer);
}

fn computed(question: Question, sender: &FrameSender) -> Answer {
    let load = StageLoad {
        path: question.path,
        digest: String::new(),
        layers: question.layers,
        total_layers: question.total_layers,
        lanes: question.lanes,
        context: question.context,
        threads: question.threads,
        exact: question.exact,
        exact_calls: None,
        gpu_layers: question.gpu_layers,
        n_embd: question.n_embd,
        n_vocab: question.n_vocab,
    };
    let mut said = -1.0;
    let mut progress = |loaded: f32| {
        // A hundred frames at most.
        if loaded - said >= 0.01 || loaded >= 1.0 {
            said = loaded;
            say(sender, &Answer::Loaded(loaded));
        }
        ControlFlow::Continue(())
    };
    match prove(&load, &mut progress) {
        Ok(found) => Answer::Proven(found.map(Found::from)),
        Err(EngineError::Load { reason, .. }) => Answer::Refused(reason),
        Err(error) => Answer::Refused(format!("{error}; fetch or convert the model again")),
    }
}

fn say(sender: &FrameSender, answer: &Answer) {
    match serde_json::to_vec(answer) {
        Ok(frame) => sender.send(&frame),
        Err(error) => eprintln!("an answer cannot be written: {error}"),
    }
}
