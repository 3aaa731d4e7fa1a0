//! Control messages on a stream: a little-endian u32 length, then that many bytes of protobuf.

use iroh::endpoint::{ReadExactError, RecvStream, SendStream};
use mesh_proto::MeshError;
use prost::Message;

use crate::error::{lost, protocol};

/// Writes one message.
pub async fn write(stream: &mut SendStream, message: &impl Message) -> Result<(), MeshError> {
    let length = message.encoded_len();
    let mut bytes = Vec::with_capacity(length + 4);
    bytes.extend_from_slice(&(length as u32).to_le_bytes());
    message.encode_raw(&mut bytes);
    stream
        .write_all(&bytes)
        .await
        .map_err(|error| lost("a control stream", &error))
}

/// Reads one message of at most `limit` bytes; `None` when the stream ends before it.
pub async fn read<M: Message + Default>(stream: &mut RecvStream, limit: usize) -> Result<Option<M>, MeshError> {
    let mut prefix = [0; 4];
    match stream.read_exact(&mut prefix).await {
        Ok(()) => {}
        Err(ReadExactError::FinishedEarly(0)) => return Ok(None),
        Err(error) => return Err(lost("a control stream", &error)),
    }
    let length = u32::from_le_bytes(prefix) as usize;
    if length > limit {
        return Err(protocol(format!(
            "a peer announced a control message of {length} bytes, the limit is {limit}"
        )));
    }
    let mut bytes = vec![0; length];
    stream
        .read_exact(&mut bytes)
        .await
        .map_err(|error| lost("a control stream", &error))?;
    M::decode(bytes.as_slice())
        .map(Some)
        .map_err(|error| protocol(format!("a control message is damaged: {error}")))
}

/// Reads one message that must come.
pub async fn expect<M: Message + Default>(stream: &mut RecvStream, limit: usize) -> Result<M, MeshError> {
    read(stream, limit)
        .await?
        .ok_or_else(|| protocol("a control stream ended where an answer was due"))
}
