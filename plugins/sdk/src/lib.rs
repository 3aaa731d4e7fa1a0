//! Native serving plugins in safe Rust.
//!
//! Implement [`Plugin`] for your type and name it in [`export_plugin!`]; build the crate as a `cdylib`. The header
//! `mesh_plugin.h` says what is called when and by which thread; this crate turns it into references, slices, enums
//! and results, and a panic into a status that quarantines the plugin. It needs `panic = "unwind"`, which is cargo's
//! default.
//!
//! ```text
//!   node -> table of functions (export) -> guard: panics end here -> your methods
//!                   |                                                     |
//!            views of what passes (borrow)                        Error -> last_error
//! ```
//!
//! ```
//! use mesh_plugin_sdk::{Activation, Capabilities, Error, Finish, Plugin, export_plugin};
//!
//! struct Counter;
//!
//! impl Plugin for Counter {
//!     const NAME: &'static str = "counter";
//!     const VERSION: &'static str = "1.0.0";
//!     const CAPABILITIES: Capabilities = Capabilities::NONE;
//!
//!     fn activate(_: &Activation<'_>) -> Result<Self, Error> {
//!         Ok(Self)
//!     }
//!
//!     fn finish(&self, finish: &Finish<'_>) -> Result<(), Error> {
//!         println!("{} made {} tokens", finish.ids.request, finish.generated.count);
//!         Ok(())
//!     }
//! }
//!
//! export_plugin!(Counter);
//! ```

mod activation;
mod borrow;
mod capabilities;
mod error;
mod export;
mod generation;
mod guard;
mod host;
mod last_error;
mod plugin;
mod proposal;
mod reason;
mod tokenizer;

pub use activation::Activation;
pub use capabilities::Capabilities;
pub use error::Error;
pub use export::table;
pub use generation::{Abort, Commit, Finish, Ids, Start, Tokens};
pub use host::{Clock, Waker};
/// The C interface, for [`export_plugin!`] and for tests.
pub use mesh_plugin_abi as abi;
pub use plugin::Plugin;
pub use proposal::{Candidates, DecisionId, Discard, Operation, Outcome, Poll, Query};
pub use reason::{AbortReason, DiscardReason, Disposition, FinishReason};
pub use tokenizer::Tokenizer;

/// The example of the README compiles.
#[cfg(doctest)]
#[doc = include_str!("../../README.md")]
struct Readme;
