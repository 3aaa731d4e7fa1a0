//! Whether receipts are kept in files, and when they are safe on the disk.

use serde::{Deserialize, Serialize};

/// The setting `receipts`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ReceiptPolicy {
    /// No files.
    #[default]
    Off,
    /// fsync after each write: a receipt that is in the file survives a power cut.
    Always,
    /// fsync once a second: a power cut costs at most the receipts of that second.
    Interval,
    /// The operating system decides: the end of the process costs nothing, a power cut may.
    Never,
}

impl ReceiptPolicy {
    /// All of them, as they are written.
    pub const NAMES: [&str; 4] = ["off", "always", "interval", "never"];

    /// By name.
    pub fn parse(name: &str) -> Option<Self> {
        match name {
            "off" => Some(Self::Off),
            "always" => Some(Self::Always),
            "interval" => Some(Self::Interval),
            "never" => Some(Self::Never),
            _ => None,
        }
    }
}
