//! The host of one stage on this node: fetches its files, loads it, links it, and takes it down.
//!
//! ```text
//! owner ── HostStage stream ──▶ HostActor ── supervises ──▶ StageActor, LinkActor, and at stage 0 HeadActor
//!       ◀── HostEvent ─────────     │
//!                                   └── registers ──▶ StageRegistry ◀── links and generate requests look up
//! ```
//!
//! Lives exactly as long as the owner's stream. A lost link or a failed child is reported once and closes the stage's
//! links, so that its neighbours hear of it from them; the owner then ends the epoch.

mod actor;
mod claims;
mod files;
mod plugins;
mod registry;

pub use actor::{HostEnvironment, HostHandle, spawn_host};
pub use claims::StageOwner;
pub(crate) use claims::already_served;
pub use registry::StageRegistry;
