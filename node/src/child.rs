//! Work that may die: jobs that run in a child process of this binary.
//!
//! llama.cpp ends the process on what it does not expect (assertions, foreign exceptions, overflown stacks), and a
//! template can ask for any amount of memory. Whatever touches what a stranger wrote runs in a child, so that the worst
//! it can do is to end that.
//!
//! ```text
//! ChildProgram ──spawn──▶ Child { input, output, process }          mesh internal JOB --memory N …
//!                            input.send(frame)  ───── stdin ────▶  run_child(limits, on_frame)
//!                            output.receive()   ◀──── stdout ───   FrameSender::send(frame)
//!                            process.end()      ◀──── stderr ───   last words: assertions, panics
//! ```
//!
//! The parent's side: [`ChildProgram::spawn`], then frames both ways; `receive` gives `None` when the child has ended,
//! and [`ChildProcess::end`] tells how. A deadline is the caller's: time out, then drop the child or `end` it. Dropping
//! [`ChildProcess`] kills the child, and tokio reaps it.
//!
//! The child's side: [`run_child`] sets the limits and calls a function with each frame, on the main thread. That must
//! not work itself but hand over to threads of its own: the main thread waits on stdin, whose end is the parent's, and
//! then ends the process at once, whatever its threads do. A new job is a variant of [`Job`] and an arm in `mesh-cli`'s
//! `commands/internal.rs`.
//!
//! No death signal of Linux (`PR_SET_PDEATHSIG`): it is sent when the thread that spawned ends, which may be a thread
//! of a pool. The end of stdin comes when the node is gone, however it ended.

mod end;
mod frame;
mod last_words;
mod limits;
mod program;
mod side;

pub use end::ChildEnd;
pub use frame::MAX_FRAME;
pub use limits::ChildLimits;
pub use program::{Child, ChildInput, ChildOutput, ChildProcess, ChildProgram, Job};
pub use side::{FrameSender, run_child};
