//! One request at its head: prepared, given a lane, decoded step by step, ended once.

mod actor;
mod clock;
mod draft;
mod events;
mod handle;
pub mod journal;
pub mod machine;
mod proposals;
pub mod text;

pub(crate) use actor::{LaneDesk, RequestStart, id_taken, spawn_request};
pub use draft::{MAX_CANDIDATES, candidates_for};
pub(crate) use events::{Arrival, RequestEvents};
pub use handle::{RequestHandle, RequestOptions};
