//! What is known of a loaded plugin.

use std::path::PathBuf;

use crate::Capabilities;

/// A plugin as it described itself, and the file that it came from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Description {
    /// 1 to 64 bytes.
    pub name: String,
    /// At most 64 bytes; may be empty.
    pub version: String,
    /// Major and minor version of the header that it was built against.
    pub abi: (u16, u16),
    /// What it wants and can.
    pub capabilities: Capabilities,
    /// The library, as given.
    pub path: PathBuf,
    /// BLAKE3 of the file.
    pub digest: [u8; 32],
    /// Bytes of its table.
    pub table_size: u32,
}

impl Description {
    /// The digest as 64 lower-case hexadecimal digits.
    pub fn digest_hex(&self) -> String {
        hex(&self.digest)
    }
}

pub(crate) fn hex(digest: &[u8; 32]) -> String {
    blake3::Hash::from_bytes(*digest).to_hex().to_string()
}
