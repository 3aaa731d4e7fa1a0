//! Frames between a node and its children: the length in four bytes, little endian, then the bytes.

use std::io::{self, Read, Write};

use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};

/// Longest frame, bytes. The longest text that is tokenized has 8 MiB; as many token ids are at most 40 MiB.
pub const MAX_FRAME: usize = 64 << 20;

/// What is reserved before the bytes are there.
const RESERVED: usize = 1 << 20;

/// A frame with its length in front.
fn framed(frame: &[u8]) -> io::Result<Vec<u8>> {
    if frame.len() > MAX_FRAME {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, too_long(frame.len())));
    }
    let mut bytes = Vec::with_capacity(frame.len() + 4);
    bytes.extend((frame.len() as u32).to_le_bytes());
    bytes.extend(frame);
    Ok(bytes)
}

fn length(header: [u8; 4]) -> io::Result<usize> {
    let length = u32::from_le_bytes(header) as usize;
    if length > MAX_FRAME {
        return Err(io::Error::new(io::ErrorKind::InvalidData, too_long(length)));
    }
    Ok(length)
}

fn too_long(length: usize) -> String {
    format!("a frame has {length} bytes, more than the {MAX_FRAME} that are allowed")
}

fn complete(frame: Vec<u8>, length: usize) -> io::Result<Option<Vec<u8>>> {
    if frame.len() < length {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    Ok(Some(frame))
}

/// Writes one frame.
pub(super) fn write(output: &mut impl Write, frame: &[u8]) -> io::Result<()> {
    output.write_all(&framed(frame)?)?;
    output.flush()
}

/// Reads one frame; `None` at the end.
pub(super) fn read(input: &mut impl Read) -> io::Result<Option<Vec<u8>>> {
    let mut header = [0; 4];
    if let Err(error) = input.read_exact(&mut header) {
        return none_at_end(error);
    }
    let length = length(header)?;
    let mut frame = Vec::with_capacity(length.min(RESERVED));
    input.take(length as u64).read_to_end(&mut frame)?;
    complete(frame, length)
}

/// As [`write()`].
pub(super) async fn send(output: &mut (impl AsyncWrite + Unpin), frame: &[u8]) -> io::Result<()> {
    output.write_all(&framed(frame)?).await?;
    output.flush().await
}

/// As [`read`].
pub(super) async fn receive(input: &mut (impl AsyncRead + Unpin)) -> io::Result<Option<Vec<u8>>> {
    let mut header = [0; 4];
    if let Err(error) = input.read_exact(&mut header).await {
        return none_at_end(error);
    }
    let length = length(header)?;
    let mut frame = Vec::with_capacity(length.min(RESERVED));
    input.take(length as u64).read_to_end(&mut frame).await?;
    complete(frame, length)
}

fn none_at_end(error: io::Error) -> io::Result<Option<Vec<u8>>> {
    match error.kind() {
        io::ErrorKind::UnexpectedEof => Ok(None),
        _ => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_come_back_one_by_one() {
        let mut bytes = Vec::new();
        write(&mut bytes, b"one").unwrap();
        write(&mut bytes, b"").unwrap();
        assert_eq!(bytes, b"\x03\0\0\0one\0\0\0\0");
        let mut input = bytes.as_slice();
        assert_eq!(read(&mut input).unwrap().as_deref(), Some(&b"one"[..]));
        assert_eq!(read(&mut input).unwrap().as_deref(), Some(&b""[..]));
        assert_eq!(read(&mut input).unwrap(), None);
    }

    #[test]
    fn what_is_cut_short_or_too_long_is_an_error() {
        let kind = |bytes: &[u8]| read(&mut &*bytes).map_err(|error| error.kind());
        assert_eq!(kind(b"\x04\0\0\0one"), Err(io::ErrorKind::UnexpectedEof));
        assert_eq!(kind(b"\xff\xff\xff\xff"), Err(io::ErrorKind::InvalidData));
    }
}
