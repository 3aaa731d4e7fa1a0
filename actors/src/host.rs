//! The host of one stage on this node: fetches its files, loads it, links it, and takes it down.
//!
//! ```text
//! owner ── HostStage stream ──▶ HostActor ── supervises ──▶ StageActor, LinkActor, and at stage 0 HeadActor
//!       ◀── HostEvent ─────────     │
//!                                   └── registers ──▶ StageRegistry ◀── links and generate requests look up
//! ```
//!
//! Lives exactly as long as the owner's stream. A lost link or a failed child is reported once; the owner then ends
//! the epoch.

mod actor;
mod files;
mod registry;

pub use actor::{HostEnvironment, HostHandle, spawn_host};
pub use registry::StageRegistry;
