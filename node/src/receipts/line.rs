//! Bytes of a line: a record's JSON with the hash at its end.
//!
//! ```text
//! {"seq":7,"time":"…","kind":"receipt","receipt":{…},"hash":"64 hexadecimal digits"}
//! └──────────────── body, hashed byte for byte ────┘└───────── suffix ────────────┘
//! ```
//!
//! The hash is over bytes, not over what they mean, and the suffix has one form: no change of a line goes unseen.

use super::{
    chain::{ChainKey, Link},
    record::Record,
};

const HASH: &[u8] = b",\"hash\":\"";
const END: &[u8] = b"\"}";
const SUFFIX: usize = HASH.len() + 64 + END.len();

/// Writes a line, with its end; gives the link for the next.
pub(super) fn write(record: &Record, key: &ChainKey, previous: &Link) -> serde_json::Result<(Vec<u8>, Link)> {
    let mut line = serde_json::to_vec(record)?;
    // The brace that closes the object comes after the hash.
    line.pop();
    let link = key.link(previous, &line);
    line.extend_from_slice(HASH);
    line.extend_from_slice(data_encoding::HEXLOWER.encode(&link).as_bytes());
    line.extend_from_slice(END);
    line.push(b'\n');
    Ok((line, link))
}

/// A line as it is in a file, without its end.
#[derive(Debug)]
pub(super) struct Line<'a> {
    body: &'a [u8],
    /// What the line says its link is.
    pub link: Link,
    pub record: Record,
}

impl<'a> Line<'a> {
    /// Takes a line apart; `None` if it has not the form of one.
    pub(super) fn parse(line: &'a [u8]) -> Option<Self> {
        let (body, suffix) = line.split_at_checked(line.len().checked_sub(SUFFIX)?)?;
        let digits = suffix.strip_prefix(HASH)?.strip_suffix(END)?;
        // Lower case only: another form of the same hash would be a change that nobody sees.
        let link = data_encoding::HEXLOWER.decode(digits).ok()?.try_into().ok()?;
        let record = serde_json::from_slice(&[body, b"}"].concat()).ok()?;
        Some(Self { body, link, record })
    }

    /// Whether it follows a line with this link.
    pub(super) fn follows(&self, key: &ChainKey, previous: &Link) -> bool {
        key.link(previous, self.body) == self.link
    }
}
