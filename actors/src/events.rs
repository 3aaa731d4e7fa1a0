//! Lifecycle events: the truth about every request whose head is on this node.
//!
//! ```text
//! RequestActor ── one event for each state change ──▶ EventBus ─┬─ window (bounded) ◀── Subscription, one cursor each
//!  (request/events.rs)                                          ├─ open requests ──▶ snapshots, `ListRequests`
//!                                                               ├─ receipts of the last ended ones ──▶ `GetReceipt`
//!                                                               └─ EndObserver: telemetry, the durable sink
//! ```
//!
//! The producer never waits: all subscribers read one shared window, each at its own position, and one that falls out
//! of it is told how much it lost. Nothing is built or kept for subscribers while there are none.

mod bus;
mod clock;
mod event;
mod filter;
mod kept;
mod open;
mod receipt;
mod subscription;
mod window;
mod wire;

pub(crate) use bus::{Change, RequestFacts};
pub use bus::{EventBus, EventFigures, EventOptions};
pub use clock::EventClock;
pub use event::{EndObserver, Lifecycle, LifecycleEvent, Operation, RequestEnd, RequestTrace};
pub use filter::{Content, EventFilter, MAX_FILTER_VALUES};
pub(crate) use receipt::digest_of;
pub use receipt::{Receipt, ReceiptEnd};
pub use subscription::{Notice, Subscription};

#[cfg(test)]
mod tests;
