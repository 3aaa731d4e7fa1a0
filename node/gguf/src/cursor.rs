//! Reads little-endian values from a file without ever believing a claimed length.

use std::io::{self, Read};

use crate::limits::MAX_METADATA_BYTES;
use crate::malformation::Malformation;

/// A reader that knows where it is and how much can still come.
pub(crate) struct Cursor<R> {
    inner: R,
    at: u64,
    size: u64,
}

impl<R: Read> Cursor<R> {
    /// `size` is the real size of the file, bytes.
    pub(crate) fn new(inner: R, size: u64) -> Self {
        Self { inner, at: 0, size }
    }

    /// Offset of the next byte.
    pub(crate) fn at(&self) -> u64 {
        self.at
    }

    /// Fails unless the file still has `need` bytes, and the header stays within its limit.
    pub(crate) fn expect(&self, need: u64, what: &dyn Fn() -> String) -> Result<(), Malformation> {
        let left = self.size.saturating_sub(self.at);
        if need > left {
            return Err(Malformation::Truncated {
                what: what(),
                at: self.at,
                need,
                left,
            });
        }
        let end = self.at.saturating_add(need);
        if end > MAX_METADATA_BYTES {
            return Err(Malformation::OverLimit {
                what: format!("the header, in {},", what()),
                at: self.at,
                claimed: end,
                limit: MAX_METADATA_BYTES,
            });
        }
        Ok(())
    }

    fn fill(&mut self, buffer: &mut [u8], what: &dyn Fn() -> String) -> Result<(), Malformation> {
        self.expect(buffer.len() as u64, what)?;
        self.inner.read_exact(buffer).map_err(|source| match source.kind() {
            // The file shrank since its size was taken.
            io::ErrorKind::UnexpectedEof => Malformation::Truncated {
                what: what(),
                at: self.at,
                need: buffer.len() as u64,
                left: 0,
            },
            _ => Malformation::Unreadable { at: self.at, source },
        })?;
        self.at += buffer.len() as u64;
        Ok(())
    }

    pub(crate) fn array<const N: usize>(&mut self, what: &dyn Fn() -> String) -> Result<[u8; N], Malformation> {
        let mut bytes = [0; N];
        self.fill(&mut bytes, what)?;
        Ok(bytes)
    }

    pub(crate) fn u32(&mut self, what: &dyn Fn() -> String) -> Result<u32, Malformation> {
        Ok(u32::from_le_bytes(self.array(what)?))
    }

    pub(crate) fn u64(&mut self, what: &dyn Fn() -> String) -> Result<u64, Malformation> {
        Ok(u64::from_le_bytes(self.array(what)?))
    }

    /// `count` bytes, allocated only after the file was found to have them.
    pub(crate) fn bytes(&mut self, count: u64, what: &dyn Fn() -> String) -> Result<Vec<u8>, Malformation> {
        self.expect(count, what)?;
        let mut bytes = vec![0; count as usize];
        self.fill(&mut bytes, what)?;
        Ok(bytes)
    }

    /// A string: a 64-bit length, then that many bytes.
    pub(crate) fn string(&mut self, limit: u64, what: &dyn Fn() -> String) -> Result<Vec<u8>, Malformation> {
        let at = self.at;
        let length = self.u64(what)?;
        if length > limit {
            return Err(Malformation::OverLimit {
                what: format!("the length of {}", what()),
                at,
                claimed: length,
                limit,
            });
        }
        self.bytes(length, what)
    }

    /// A non-empty UTF-8 string.
    pub(crate) fn name(&mut self, limit: u64, what: &dyn Fn() -> String) -> Result<String, Malformation> {
        let at = self.at;
        let name = self.string(limit, what)?;
        if name.is_empty() {
            return Err(Malformation::EmptyName { what: what(), at });
        }
        String::from_utf8(name).map_err(|_| Malformation::NotUtf8 { what: what(), at })
    }
}
