//! Durable receipts: what every request came to, in files of the data directory.
//!
//! ```text
//! request ends ──▶ ReceiptObserver ── bounded queue ──▶ thread "receipts" ──▶ ReceiptLog ──▶ DATA_DIR/receipts/
//!  (EventBus)       never waits; counts                  owns the files        chain, rotation,  receipts-N.jsonl
//!                   what does not fit                                          head              head.json
//! ```
//!
//! [`ReceiptSink`] starts and ends the thread, for [`crate::run`]; [`verify`] and [`export`] read the files, also while
//! the node writes. A full or broken disk costs receipts, which are counted and told of in the log, never inference.
//!
//! # Format
//!
//! Each line is a JSON object, made by [`Record`]: `seq` (from 1, without gaps over files and restarts), `time`, `kind`
//! and what belongs to it, and last `hash`: BLAKE3 over the hash of the line before and the bytes of this one up to the
//! hash, keyed with what [`ChainKey`] derives from the node's secret key. Files are named after their first `seq`.
//! `head.json` says how far the log has come, so that lines missing at the end show.
//!
//! It shows changes by whoever does not have the node's key. Whoever has it can write another log; and whoever kept an
//! older `head.json` of this node can put it back and cut the lines after it, which does not show from here.

mod chain;
mod directory;
mod export;
mod head;
mod line;
mod log;
mod policy;
mod record;
mod sink;
#[cfg(test)]
mod tests;
mod verify;
mod view;

pub use chain::ChainKey;
pub use export::{ExportedLine, export};
pub use policy::ReceiptPolicy;
pub use record::{Content, Record};
pub use sink::ReceiptSink;
pub use verify::{Fault, Verified, verify};
pub use view::{ReceiptView, TimingsView};

pub(crate) use sink::SinkOptions;
