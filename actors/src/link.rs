//! The sending end of a link, as an actor of its own, so that a stage never waits for the network.
//!
//! Its mailbox is bounded by the credits of the stage that sends through it (see [`crate::stage::machine`]).

mod actor;
pub mod memory;

pub use actor::{LinkHandle, spawn_link};

/// Frames that may be under way on one link. Four keep a pipeline of three stages full and leave room for the opens
/// and frees of cancelled requests; with chunks of 512 rows of 8,192 values that is 64 MiB at most.
pub const LINK_CREDITS: u32 = 4;
