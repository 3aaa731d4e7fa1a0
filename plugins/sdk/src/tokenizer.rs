//! The model's tokenizer, while a plugin is activated.

use std::ptr;

use mesh_plugin_abi::{MESH_MAX_ENCODE_BYTES, MESH_OK, MeshBytes, MeshTokenizer};

use crate::Error;
use crate::borrow::Borrowed;

/// Bytes that most tokens fit into; longer ones take a second call.
const USUAL_PIECE_BYTES: usize = 64;

/// The model's tokenizer. Borrowed for [`crate::Plugin::activate`]: copy what you need.
#[derive(Debug, Clone, Copy)]
pub struct Tokenizer<'a> {
    raw: MeshTokenizer,
    _activation: Borrowed<'a>,
}

impl<'a> Tokenizer<'a> {
    pub(crate) fn new(raw: MeshTokenizer, activation: Borrowed<'a>) -> Self {
        Self {
            raw,
            _activation: activation,
        }
    }

    /// Ids are 0 to this less one.
    pub fn token_count(&self) -> u32 {
        self.raw.token_count
    }

    /// Bytes of a token. They may end inside a UTF-8 character.
    pub fn piece(&self, token: i32) -> Result<Vec<u8>, Error> {
        let piece = self.raw.piece.ok_or_else(|| Error::new("the node gives no pieces"))?;
        let refused = || Error::new(format!("the tokenizer has no token {token}"));
        fill(USUAL_PIECE_BYTES, refused, |buffer: *mut u8, capacity, length| {
            // SAFETY: `buffer` holds `capacity` bytes, and the activation that lends the tokenizer is not over.
            unsafe { piece(self.raw.context, token, buffer, capacity, length) }
        })
    }

    /// Token ids of a text of at most [`MESH_MAX_ENCODE_BYTES`] bytes, without beginning-of-text and without looking for
    /// special tokens. An error if the text cannot be given back without loss.
    pub fn encode(&self, text: &str) -> Result<Vec<i32>, Error> {
        let encode = self.raw.encode.ok_or_else(|| Error::new("the node does not encode"))?;
        if text.len() > MESH_MAX_ENCODE_BYTES {
            return Err(Error::new(format!(
                "split the text: the tokenizer takes {MESH_MAX_ENCODE_BYTES} bytes"
            )));
        }
        let bytes = MeshBytes {
            data: text.as_ptr(),
            length: text.len() as u64,
        };
        let refused = || Error::new("the tokenizer cannot give this text back without loss");
        // A token is seldom shorter than a byte, so that this nearly always suffices.
        fill(text.len() + 8, refused, |buffer: *mut i32, capacity, count| {
            // SAFETY: `buffer` holds `capacity` ids, `bytes` is borrowed from `text`, and the activation is not over.
            unsafe { encode(self.raw.context, bytes, buffer, capacity, count) }
        })
    }
}

/// Calls with a buffer of `capacity` values, and once more if it says that it needs a larger one.
fn fill<T: Copy + Default>(
    capacity: usize,
    refused: impl Fn() -> Error,
    call: impl Fn(*mut T, u64, *mut u64) -> i32,
) -> Result<Vec<T>, Error> {
    let mut buffer = vec![T::default(); capacity];
    for _ in 0..2 {
        let mut length = 0_u64;
        let status = call(buffer.as_mut_ptr(), buffer.len() as u64, ptr::from_mut(&mut length));
        let length = usize::try_from(length).unwrap_or(usize::MAX);
        if status == MESH_OK && length <= buffer.len() {
            buffer.truncate(length);
            return Ok(buffer);
        }
        // What is larger than any answer can be is no length but a fault.
        if length <= buffer.len() || length > MESH_MAX_ENCODE_BYTES + 8 {
            break;
        }
        buffer = vec![T::default(); length];
    }
    Err(refused())
}
