//! Native plugins: one actor for each loaded library, which orders and bounds what the library is told, decides when it
//! has had its time, and shuts it out when it misbehaves. Nothing here is waited for by a request but the answer to a
//! question, until its deadline.
//!
//! ```text
//!                    places          inputs           calls           statuses
//! RequestActor ──▶ PluginHandle ──▶ PluginActor ──▶ threads ──▶ library ──┐
//!   (Followers)  ◀── answers ──────     ▲  ▲          │                   │
//!                                       │  └── done ──┘                   │
//!                                       └── WakeBoard ◀──── wake ─────────┘
//! ```
//!
//! Spawned by the node when a library is loaded, under the root; [`PluginHandle::close`] ends it when the node stops.

mod actor;
mod alarm;
mod call;
mod follow;
mod handle;
mod health;
mod ledger;
pub mod machine;
mod permits;
mod sync;
mod wakes;
mod worker;

pub use actor::{PluginOptions, spawn_plugin};
pub use call::{Call, CallResult, GenerationKey, InstanceKey, Job, WorkerKey};
pub use follow::{Followers, ModelPlugins};
pub use handle::{PluginHandle, PluginReading, Seat};
pub use health::Health;
pub use ledger::{Callback, Loss, PluginFigures, PluginLedger, ProposalOutcome, TimesSummary};
pub use machine::PluginLimits;
pub use permits::{Class, Permit, Permits};
