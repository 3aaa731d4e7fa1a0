//! Bytes of one frame on `mesh/stage/1`.
//!
//! ```text
//! offset  size  what
//! 0       1     version, 1
//! 1       3     zero
//! 4       4     length of the header, u32 little-endian, at most MAX_HEADER_BYTES
//! 8       4     length of the payload, u32 little-endian, at most MAX_PAYLOAD_BYTES, a multiple of 4
//! 12      h     header: `mesh.wire.v1.StageHeader`
//! 12+h    p     payload: f32 little-endian
//! ```
//!
//! Nothing here allocates on a length that was not checked against its limit first.

use bytes::{Buf, BufMut, Bytes, BytesMut};
use prost::Message;

use crate::wire::StageHeader;

/// Version of the frame layout.
pub const FRAME_VERSION: u8 = 1;

/// Bytes before the header.
pub const PREFIX_BYTES: usize = 12;

/// Largest header: 8,192 rows of 5-byte tokens and 1,024 spans stay far below.
pub const MAX_HEADER_BYTES: usize = 256 * 1024;

/// Largest payload: 512 rows of 16,384 values is 32 MiB, twice that for headroom.
pub const MAX_PAYLOAD_BYTES: usize = 64 * 1024 * 1024;

/// Most rows in one frame.
pub const MAX_ROWS: usize = 8192;

/// A frame that cannot be read or written.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    /// The peer speaks another layout.
    #[error("stage frame has version {0}, this node reads version {FRAME_VERSION}; run the same release on all nodes")]
    Version(u8),
    /// Reserved bytes are not zero: not a frame.
    #[error("stage frame has non-zero reserved bytes")]
    Reserved,
    /// A length is over its limit.
    #[error("stage frame announces {what} of {bytes} bytes, the limit is {limit}")]
    TooLarge {
        /// `a header` or `a payload`.
        what: &'static str,
        /// Announced.
        bytes: usize,
        /// Allowed.
        limit: usize,
    },
    /// The payload is not whole f32 values.
    #[error("stage frame announces a payload of {0} bytes, not a multiple of 4")]
    Unaligned(usize),
    /// The header is not a `StageHeader`.
    #[error("stage frame header cannot be decoded: {0}")]
    Header(String),
}

/// Lengths announced by the first [`PREFIX_BYTES`] of a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FramePrefix {
    /// Bytes of the header.
    pub header: usize,
    /// Bytes of the payload.
    pub payload: usize,
}

impl FramePrefix {
    /// Reads a prefix; `max_payload` is what the link negotiated.
    pub fn decode(bytes: &[u8; PREFIX_BYTES], max_payload: usize) -> Result<Self, FrameError> {
        let mut bytes = bytes.as_slice();
        let version = bytes.get_u8();
        if version != FRAME_VERSION {
            return Err(FrameError::Version(version));
        }
        if bytes.get_uint(3) != 0 {
            return Err(FrameError::Reserved);
        }
        let (header, payload) = (bytes.get_u32_le() as usize, bytes.get_u32_le() as usize);
        check("a header", header, MAX_HEADER_BYTES)?;
        check("a payload", payload, max_payload.min(MAX_PAYLOAD_BYTES))?;
        if !payload.is_multiple_of(4) {
            return Err(FrameError::Unaligned(payload));
        }
        Ok(Self { header, payload })
    }
}

fn check(what: &'static str, bytes: usize, limit: usize) -> Result<(), FrameError> {
    if bytes > limit {
        return Err(FrameError::TooLarge { what, bytes, limit });
    }
    Ok(())
}

/// Reads a header.
pub fn decode_header(bytes: &[u8]) -> Result<StageHeader, FrameError> {
    StageHeader::decode(bytes).map_err(|error| FrameError::Header(error.to_string()))
}

/// Reads a payload: f32 little-endian.
pub fn decode_payload(bytes: &[u8]) -> Vec<f32> {
    bytes
        .chunks_exact(4)
        .map(|value| f32::from_le_bytes([value[0], value[1], value[2], value[3]]))
        .collect()
}

/// Writes one frame.
///
/// # Errors
///
/// [`FrameError::TooLarge`] when the header or payload is over its limit.
pub fn encode(header: &StageHeader, payload: &[f32]) -> Result<Bytes, FrameError> {
    let (header_len, payload_len) = (header.encoded_len(), payload.len() * 4);
    check("a header", header_len, MAX_HEADER_BYTES)?;
    check("a payload", payload_len, MAX_PAYLOAD_BYTES)?;
    let mut out = BytesMut::with_capacity(PREFIX_BYTES + header_len + payload_len);
    out.put_u8(FRAME_VERSION);
    out.put_uint(0, 3);
    out.put_u32_le(header_len as u32);
    out.put_u32_le(payload_len as u32);
    header.encode_raw(&mut out);
    out.resize(PREFIX_BYTES + header_len + payload_len, 0);
    for (bytes, value) in out[PREFIX_BYTES + header_len..].chunks_exact_mut(4).zip(payload) {
        bytes.copy_from_slice(&value.to_le_bytes());
    }
    Ok(out.freeze())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::wire::{Forward, LaneFree, RowSpan, stage_header::Body};

    fn forward() -> StageHeader {
        let span = RowSpan {
            lane: 3,
            session: 7,
            pos_start: 41,
            tokens: vec![5, 300],
            sampled_rows: 1,
        };
        StageHeader {
            sequence: 9,
            body: Some(Body::Forward(Forward {
                spans: vec![span],
                engine_ns: vec![1_000],
            })),
        }
    }

    fn decode(bytes: &[u8], max_payload: usize) -> Result<(StageHeader, Vec<f32>), FrameError> {
        let prefix: &[u8; PREFIX_BYTES] = bytes[..PREFIX_BYTES].try_into().unwrap();
        let prefix = FramePrefix::decode(prefix, max_payload)?;
        let (header, payload) = bytes[PREFIX_BYTES..].split_at(prefix.header);
        Ok((decode_header(header)?, decode_payload(payload)))
    }

    #[test]
    fn frames_have_these_bytes() {
        let hex =
            |header: &StageHeader, payload: &[f32]| data_encoding::HEXLOWER.encode(&encode(header, payload).unwrap());
        insta::assert_snapshot!(hex(&forward(), &[1.0, -2.5]));
        let free = StageHeader {
            sequence: 10,
            body: Some(Body::Free(LaneFree { lane: 3, session: 7 })),
        };
        insta::assert_snapshot!(hex(&free, &[]));
    }

    #[test]
    fn lengths_are_checked_before_anything_is_allocated() {
        let announce = |header: u32, payload: u32| {
            let mut bytes = [0u8; PREFIX_BYTES];
            bytes[0] = FRAME_VERSION;
            bytes[4..8].copy_from_slice(&header.to_le_bytes());
            bytes[8..12].copy_from_slice(&payload.to_le_bytes());
            FramePrefix::decode(&bytes, 1024)
        };
        assert!(matches!(
            announce(u32::MAX, 0),
            Err(FrameError::TooLarge { what: "a header", .. })
        ));
        assert!(matches!(
            announce(0, 1028),
            Err(FrameError::TooLarge {
                what: "a payload",
                limit: 1024,
                ..
            })
        ));
        assert_eq!(announce(0, 6), Err(FrameError::Unaligned(6)));
        assert_eq!(
            FramePrefix::decode(&[9; PREFIX_BYTES], 1024),
            Err(FrameError::Version(9))
        );
    }

    proptest! {
        #[test]
        fn any_payload_survives(values in proptest::collection::vec(any::<u32>(), 0..200)) {
            let payload: Vec<f32> = values.iter().map(|bits| f32::from_bits(*bits)).collect();
            let bytes = encode(&forward(), &payload).unwrap();
            let (header, back) = decode(&bytes, 1 << 20).unwrap();
            prop_assert_eq!(header, forward());
            let back: Vec<u32> = back.iter().map(|value| value.to_bits()).collect();
            prop_assert_eq!(back, values);
        }

        #[test]
        fn random_bytes_are_an_error_or_a_frame(bytes in proptest::collection::vec(any::<u8>(), PREFIX_BYTES..300)) {
            let prefix: &[u8; PREFIX_BYTES] = bytes[..PREFIX_BYTES].try_into().unwrap();
            let _ = FramePrefix::decode(prefix, 1 << 20);
            let _ = decode_header(&bytes);
        }
    }
}
