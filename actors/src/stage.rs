//! A stage: takes rows, runs them through its engine, sends what comes out to the next stage or back to the head.
//!
//! ```text
//!            rows, opens, frees            jobs               frames
//! head or ──────────────────────▶ StageActor ────▶ engine ────────▶ LinkActor ──▶ next stage, or the head
//! link    ◀────────── credits ──      ▲  ▲         thread              │
//!                                     │  └── results ──┘               │
//!                                     └────────── credits ─────────────┘
//! ```
//!
//! Spawned by the node's host of the deployment, ends with it. Every queue is bounded by credits: a stage that may not
//! send does not compute, and one that does not compute grants nothing.

mod actor;
pub mod batch;
mod handle;
pub mod machine;
mod meter;
pub mod thread;

pub use actor::{StageNotice, StageOptions, spawn_stage};
pub use handle::StageHandle;
pub use meter::{OutgoingFrame, StageMeter};
