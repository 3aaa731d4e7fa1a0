//! What one line says.

use std::time::SystemTime;

use prost_types::Timestamp;
use serde::{Deserialize, Serialize};

use super::view::ReceiptView;

/// A line, without its hash.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Record {
    /// From 1, without gaps over files and restarts.
    pub seq: u64,
    /// When it was written, RFC 3339.
    pub time: String,
    /// What it says.
    #[serde(flatten)]
    pub content: Content,
}

/// Kinds of lines.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Content {
    /// What a request came to.
    Receipt {
        /// The account.
        receipt: Box<ReceiptView>,
    },
    /// Receipts that did not get into the log: the queue was full, or the disk took nothing.
    Lost {
        /// How many.
        count: u64,
    },
    /// The log ended in the middle of a line, as after a crash; that piece was cut off.
    Torn {
        /// Length of the piece.
        bytes: u64,
    },
    /// The log had come further than its files: lines at the end are gone. Their numbers are used again.
    Missing {
        /// First number.
        from: u64,
        /// Last number; 0 if `head.json` was gone too, and nobody knows.
        to: u64,
    },
}

impl Record {
    pub(super) fn now(seq: u64, content: Content) -> Self {
        Self {
            seq,
            time: Timestamp::from(SystemTime::now()).to_string(),
            content,
        }
    }
}
