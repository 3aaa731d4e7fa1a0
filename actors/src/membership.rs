//! Who is in the mesh. The issuer of tickets keeps the list and pushes it; the others hold a copy.
//!
//! ```text
//! links (join, watch streams) ── admit, up, down, leave, remove ▶ MembershipActor ──▶ watch channel ──▶ planner, status,
//! issuer's push on a member ──── replace ──────────────────▶      │                              admission of peers
//!                                                                 └── MemberStore (survives a restart)
//! ```
//!
//! One for each node, from start to end. A list from gossip will replace the issuer behind the same handle.

mod actor;
pub mod machine;
mod revoked;

pub use actor::{Known, MemberStore, MembershipHandle, spawn_membership};
pub use machine::Incarnation;
pub use revoked::{MAX_REMOVED, Revoked};
