//! The head of a deployment, beside stage 0: it owns the lanes, the queue for them and the requests.
//!
//! ```text
//! gateway ── generate ──▶ HeadHandle ──▶ HeadActor ── spawns ──▶ RequestActor ── opens, rows, frees ──▶ stage 0
//!                                          ▲   ── lane, returned rows ──▶  │
//! output stage ── return link ─────────────┘   ◀── asks, releases ─────────┘
//! ```
//!
//! Spawned by the host of stage 0 once all links are up; ends with it, ending every request with one error.

mod actor;
mod handle;
pub mod machine;

pub(crate) use actor::HeadMessage;
pub use actor::{HeadOptions, spawn_head};
pub use handle::HeadHandle;

/// Requests that may wait for a lane; one more is refused with `queue_full`. At four lanes and ten seconds an answer
/// the last of them waits under three minutes; the metric is the number waiting in the deployment's status.
pub const WAITING_LIMIT: usize = 64;
