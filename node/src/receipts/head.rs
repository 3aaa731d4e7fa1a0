//! `head.json`: how far the log has come.
//!
//! Written whole, after the lines it speaks of. Lines beyond it are none the worse: they came after it was written.

use std::{fs, io, path::Path};

use serde::{Deserialize, Serialize};

use super::chain::{ChainKey, GENESIS, Link};

/// Its name.
pub(super) const NAME: &str = "head.json";

/// The newest line that the head knows of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Head {
    /// 0 before the first line.
    pub seq: u64,
    pub link: Link,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct HeadFile {
    /// Name of the key.
    key: String,
    seq: u64,
    /// Link of that line.
    hash: String,
    /// Over the three above.
    mac: String,
}

/// Why a head cannot be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum BadHead {
    /// There is none.
    Absent,
    /// Written by a node with another key.
    WrongKey,
    /// Edited or damaged.
    Damaged,
}

impl Head {
    /// Of a log without lines.
    pub(super) const NEW: Self = Self { seq: 0, link: GENESIS };

    pub(super) fn read(directory: &Path, key: &ChainKey) -> io::Result<Result<Self, BadHead>> {
        match fs::read(directory.join(NAME)) {
            Ok(text) => Ok(Self::parse(&text, key)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Err(BadHead::Absent)),
            Err(error) => Err(error),
        }
    }

    fn parse(text: &[u8], key: &ChainKey) -> Result<Self, BadHead> {
        let file: HeadFile = serde_json::from_slice(text).map_err(|_| BadHead::Damaged)?;
        if file.key != key.name() {
            return Err(BadHead::WrongKey);
        }
        let link = data_encoding::HEXLOWER.decode(file.hash.as_bytes()).ok();
        let link = link.and_then(|link| link.try_into().ok()).ok_or(BadHead::Damaged)?;
        let head = Self { seq: file.seq, link };
        (head.to_file(key).mac == file.mac)
            .then_some(head)
            .ok_or(BadHead::Damaged)
    }

    /// Puts it in place whole; `sync` waits for the disk.
    pub(super) fn write(&self, directory: &Path, key: &ChainKey, sync: bool) -> io::Result<()> {
        // Temporary files are made with mode 0600.
        let mut file = tempfile::NamedTempFile::new_in(directory)?;
        serde_json::to_writer(&mut file, &self.to_file(key))?;
        if sync {
            file.as_file().sync_all()?;
        }
        file.persist(directory.join(NAME)).map_err(|error| error.error)?;
        Ok(())
    }

    fn to_file(self, key: &ChainKey) -> HeadFile {
        let name = key.name();
        let hex = |link: &Link| data_encoding::HEXLOWER.encode(link);
        let text = format!("head {name} {}", self.seq);
        HeadFile {
            key: name,
            seq: self.seq,
            hash: hex(&self.link),
            mac: hex(&key.link(&self.link, text.as_bytes())),
        }
    }
}
