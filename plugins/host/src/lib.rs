//! Loads native serving plugins and makes single, guarded calls into them.
//!
//! A plugin is a shared library that follows `plugins/abi/include/mesh_plugin.h`. This crate owns what happens at the
//! border: which libraries are refused and why, what passes through each call, and what an answer means. It owns no
//! thread and no queue; who calls when, from which thread and for how long is decided by the plugin actors.
//!
//! ```text
//! path ──Library::load──▶ Library ──activate──▶ Instance ──begin, commit, start, poll ...──▶ shutdown
//!                            │                     ▲
//!                            ├─ description        └─ wake (from any thread of the plugin's)
//!                            └─ wants
//! ```
//!
//! Every call is synchronous: it returns when the plugin does. A library stays loaded as long as the process, whatever
//! happened to it, since a thread of it may run at any time. All unsafe code is below `raw`.

#![deny(unsafe_code)]

mod activation;
mod argument;
mod call_error;
mod callback;
mod candidates;
mod capabilities;
pub mod clock;
mod code;
mod description;
mod file;
mod gate;
mod instance;
mod last_words;
mod library;
mod load_error;
mod load_watch;
mod machine;
#[allow(unsafe_code, reason = "the border to the plugins")]
mod raw;
mod segments;
mod text;
pub mod thread;
mod tokenizer;

pub use activation::{ActivationRequest, Wake};
pub use argument::{
    GenerationAbort, GenerationCommit, GenerationFinish, GenerationStart, Ids, ProposalDiscard, ProposalOutcome,
    ProposalQuery,
};
pub use call_error::{CallError, CallErrorKind};
pub use callback::Callback;
pub use candidates::{CandidateBuffer, Invalid, check};
pub use capabilities::Capabilities;
pub use code::{AbortReason, DiscardReason, Disposition, FinishReason};
pub use description::Description;
pub use instance::{Instance, Poll};
pub use last_words::end_process;
pub use library::Library;
pub use load_error::{LoadError, NAME_BYTES, VERSION_BYTES};
pub use load_watch::{LoadPhase, LoadWatch};
pub use tokenizer::Tokenizer;
