//! Stage frames on a QUIC stream: sequence numbers, limits, bytes.

use iroh::endpoint::{RecvStream, SendStream};
use mesh_proto::{
    MeshError,
    frame::{self, FramePrefix, PREFIX_BYTES},
    wire::{StageHeader, stage_header::Body},
};

use crate::error::{lost, protocol};

/// Writes frames.
#[derive(Debug)]
pub struct FrameSender {
    stream: SendStream,
    sequence: u64,
}

impl FrameSender {
    /// Nothing was written yet.
    pub fn new(stream: SendStream) -> Self {
        Self { stream, sequence: 0 }
    }

    /// Writes one frame.
    pub async fn send(&mut self, body: Body, payload: &[f32]) -> Result<(), MeshError> {
        self.sequence += 1;
        let header = StageHeader {
            sequence: self.sequence,
            body: Some(body),
        };
        let bytes = frame::encode(&header, payload).map_err(|error| protocol(error.to_string()))?;
        self.stream
            .write_chunk(bytes)
            .await
            .map_err(|error| lost("a stage link", &error))
    }
}

/// Reads frames.
#[derive(Debug)]
pub struct FrameReceiver {
    stream: RecvStream,
    sequence: u64,
    max_payload: usize,
    buffer: Vec<u8>,
}

impl FrameReceiver {
    /// Payloads are refused until [`Self::allow_payload`].
    pub fn new(stream: RecvStream) -> Self {
        Self {
            stream,
            sequence: 0,
            max_payload: 0,
            buffer: Vec::new(),
        }
    }

    /// Largest payload from now on, bytes.
    pub fn allow_payload(&mut self, bytes: usize) {
        self.max_payload = bytes;
    }

    /// Reads one frame. Not cancel safe.
    ///
    /// # Errors
    ///
    /// The link is lost, or the bytes are no frame, or a sequence number is missing or repeated.
    pub async fn receive(&mut self) -> Result<(Body, Vec<f32>), MeshError> {
        let mut prefix = [0; PREFIX_BYTES];
        self.stream
            .read_exact(&mut prefix)
            .await
            .map_err(|error| lost("a stage link", &error))?;
        let lengths = FramePrefix::decode(&prefix, self.max_payload).map_err(|error| protocol(error.to_string()))?;
        self.buffer.resize(lengths.header + lengths.payload, 0);
        self.stream
            .read_exact(&mut self.buffer)
            .await
            .map_err(|error| lost("a stage link", &error))?;
        let (header, payload) = self.buffer.split_at(lengths.header);
        let header = frame::decode_header(header).map_err(|error| protocol(error.to_string()))?;
        self.sequence += 1;
        if header.sequence != self.sequence {
            return Err(protocol(format!(
                "stage frame {} came where {} was due",
                header.sequence, self.sequence
            )));
        }
        let body = header.body.ok_or_else(|| {
            protocol("a stage frame is of a kind that this node does not know; run the same release on all nodes")
        })?;
        Ok((body, frame::decode_payload(payload)))
    }
}
