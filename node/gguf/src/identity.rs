//! Identity of a source file: cheap to compute, changes when content does.

use std::io::{self, Read, Seek, SeekFrom};

use crate::gguf::Part;

/// BLAKE3 of the first `bytes` bytes: keys and tensor descriptions.
pub(crate) fn header_digest<R: Read + Seek>(reader: &mut R, bytes: u64) -> io::Result<blake3::Hash> {
    reader.seek(SeekFrom::Start(0))?;
    let mut hasher = blake3::Hasher::new();
    hasher.update_reader(reader.take(bytes))?;
    Ok(hasher.finalize())
}

/// See [`crate::Gguf::source_id`]. Tensor data itself is not read: size and modification time stand for it.
pub(crate) fn source_id(parts: &[Part]) -> String {
    let mut hasher = blake3::Hasher::new_derive_key("mesh-gguf 1 source id");
    for part in parts {
        hasher.update(part.header_digest.as_bytes());
        hasher.update(&part.size.to_le_bytes());
        hasher.update(&part.modified.to_le_bytes());
    }
    hasher.finalize().to_hex().to_string()
}
