//! The keyed chain of hashes that ties lines together.

use std::{fmt, path::Path};

use crate::{NodeError, data_dir};

/// Keeps keys of different uses apart; see BLAKE3's `derive_key`.
const CONTEXT: &str = "mesh receipts 2026-12 chain of lines v1";

/// What is hashed to name the key, without giving it away.
const NAME_OF_KEY: &[u8] = b"mesh receipts key";

/// A link of the chain.
pub(super) type Link = [u8; 32];

/// What the first line of a log follows.
pub(super) const GENESIS: Link = [0; 32];

/// The key of a node's log.
#[derive(Clone)]
pub struct ChainKey([u8; 32]);

impl fmt::Debug for ChainKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ChainKey(redacted)")
    }
}

impl ChainKey {
    /// From the secret key of a node.
    pub fn new(node_key: &[u8; 32]) -> Self {
        Self(blake3::derive_key(CONTEXT, node_key))
    }

    /// Of the node of a data directory, whether it runs or not.
    ///
    /// # Errors
    ///
    /// There is no key, or it cannot be read.
    pub fn read(data_dir: &Path) -> Result<Self, NodeError> {
        Ok(Self::new(&data_dir::read_key(data_dir)?))
    }

    /// Tells keys apart: 16 hexadecimal digits.
    pub(super) fn name(&self) -> String {
        let hash = blake3::keyed_hash(&self.0, NAME_OF_KEY).to_hex();
        hash[..16].to_owned()
    }

    /// The link of a line that follows another.
    pub(super) fn link(&self, previous: &Link, line: &[u8]) -> Link {
        let mut hasher = blake3::Hasher::new_keyed(&self.0);
        hasher.update(previous);
        hasher.update(line);
        hasher.finalize().into()
    }
}
