//! What can be wrong with the bytes of a GGUF file.

use std::io;

/// One fault of one file. Offsets are bytes from the start of that file.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Malformation {
    /// The first four bytes are not `GGUF`.
    #[error(
        "not a GGUF file: it starts with bytes {found}, not with `GGUF`; check that the download is complete and that this is the right file"
    )]
    NotGguf {
        /// The first bytes, printable.
        found: String,
    },
    /// The version number reads right only in the other byte order.
    #[error("big-endian GGUF (byte 4): convert it to little-endian with llama.cpp's `gguf_convert_endian.py`")]
    BigEndian,
    /// Version 1, dropped by llama.cpp.
    #[error("GGUF version {version} (byte 4) is no longer supported: convert the model again with a current llama.cpp")]
    OldVersion {
        /// What the file says.
        version: u32,
    },
    /// A version of the future.
    #[error(
        "GGUF version {version} (byte 4) is unknown; versions 2 and 3 can be read: update mesh, or convert the model to version 3"
    )]
    UnknownVersion {
        /// What the file says.
        version: u32,
    },
    /// The file ends inside something.
    #[error("truncated: {what} at byte {at} needs {need} bytes, {left} are left: fetch the file again")]
    Truncated {
        /// The header section, key or tensor that is cut off.
        what: String,
        /// Where it starts.
        at: u64,
        /// Bytes it claims.
        need: u64,
        /// Bytes the file still has.
        left: u64,
    },
    /// A claimed count or length is beyond the limit of this reader.
    #[error(
        "{what} at byte {at} claims {claimed}, the limit is {limit}: the file is damaged or hostile; fetch it again from a source you trust"
    )]
    OverLimit {
        /// What claims it.
        what: String,
        /// Where.
        at: u64,
        /// The claim.
        claimed: u64,
        /// See [`crate::limits`](crate#constants).
        limit: u64,
    },
    /// A key or tensor name of no characters.
    #[error("{what} at byte {at} is empty: convert the model again")]
    EmptyName {
        /// Key or tensor name, and its number.
        what: String,
        /// Where.
        at: u64,
    },
    /// A key or tensor name is not UTF-8.
    #[error("{what} at byte {at} is not valid UTF-8: the file is damaged; fetch it again")]
    NotUtf8 {
        /// Key or tensor name, and its number.
        what: String,
        /// Where.
        at: u64,
    },
    /// The same key twice.
    #[error("key `{key}` at byte {at} appears twice: convert the model again")]
    DuplicateKey {
        /// The key.
        key: String,
        /// Where the second one starts.
        at: u64,
    },
    /// A value type that the format does not have.
    #[error("key `{key}` has unknown value type {value_type} at byte {at}: the file is damaged; fetch it again")]
    UnknownValueType {
        /// The key.
        key: String,
        /// The number found.
        value_type: u32,
        /// Where.
        at: u64,
    },
    /// An array of arrays, which llama.cpp does not read either.
    #[error("key `{key}` is an array of arrays (byte {at}), which is not supported: convert the model again")]
    NestedArray {
        /// The key.
        key: String,
        /// Where.
        at: u64,
    },
    /// `general.alignment` is zero, no power of two, too large or not a `u32`.
    #[error(
        "key `general.alignment` at byte {at} is {found}; it must be a u32 power of two up to {limit}: convert the model again"
    )]
    BadAlignment {
        /// The value found.
        found: String,
        /// Where.
        at: u64,
        /// [`crate::MAX_ALIGNMENT`].
        limit: u32,
    },
    /// The same tensor twice.
    #[error("tensor `{tensor}` at byte {at} appears twice: convert the model again")]
    DuplicateTensor {
        /// Its name.
        tensor: String,
        /// Where the second description starts.
        at: u64,
    },
    /// A tensor type llama.cpp dropped or never had.
    #[error(
        "tensor `{tensor}` has {detail} (type number {type_id}, byte {at}): use a file with another quantization, such as Q4_0 or Q8_0"
    )]
    WrongQuantization {
        /// Its name.
        tensor: String,
        /// The number found.
        type_id: u32,
        /// "removed quantization Q4_0_4_4" or "unknown quantization".
        detail: String,
        /// Where.
        at: u64,
    },
    /// The product of the dimensions does not fit.
    #[error(
        "tensor `{tensor}` at byte {at} has shape {dims:?}, whose size overflows: the file is damaged; fetch it again"
    )]
    ShapeOverflow {
        /// Its name.
        tensor: String,
        /// Its shape.
        dims: Vec<u64>,
        /// Where its description starts.
        at: u64,
    },
    /// A row does not consist of whole blocks.
    #[error(
        "tensor `{tensor}` at byte {at} has rows of {row} elements, not a multiple of {block} as {tensor_type} needs: quantize the model again"
    )]
    PartialBlock {
        /// Its name.
        tensor: String,
        /// Row length.
        row: u64,
        /// Elements per block.
        block: u64,
        /// Name of the type.
        tensor_type: &'static str,
        /// Where its description starts.
        at: u64,
    },
    /// A tensor's offset is not a multiple of the alignment.
    #[error(
        "tensor `{tensor}` has data offset {offset} (byte {at}), not a multiple of the alignment {alignment}: convert the model again"
    )]
    Misaligned {
        /// Its name.
        tensor: String,
        /// Offset within the data section.
        offset: u64,
        /// The file's alignment.
        alignment: u64,
        /// Where the offset is written.
        at: u64,
    },
    /// A tensor's data would end behind the end of the file.
    #[error(
        "tensor `{tensor}` would end at byte {end}, the file has {size}: the download is incomplete, or this is one piece of a file cut with `split` (join the pieces with `cat`)"
    )]
    PastEnd {
        /// Its name.
        tensor: String,
        /// Where it would end (saturated).
        end: u64,
        /// Size of the file.
        size: u64,
    },
    /// Two tensors share bytes.
    #[error("tensors `{first}` and `{second}` overlap at byte {at}: the file is damaged; fetch it again")]
    Overlap {
        /// The one that starts first.
        first: String,
        /// The one that starts inside it.
        second: String,
        /// Where the second starts.
        at: u64,
    },
    /// Another GGUF follows behind the end of this one.
    #[error(
        "another GGUF starts at byte {at}: parts of a split model were joined with `cat`; keep the parts as separate files, or merge them with `llama-gguf-split --merge`"
    )]
    Concatenated {
        /// Where the second header starts.
        at: u64,
    },
    /// The operating system failed to read.
    #[error("cannot read at byte {at}: {source}; check the disk and the permissions")]
    Unreadable {
        /// Where.
        at: u64,
        /// What the system said.
        source: io::Error,
    },
}
