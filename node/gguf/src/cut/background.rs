//! A digester on a thread of its own, so that hashing twice (whole and sections) does not slow copying down.
//!
//! ```text
//! copier ──full buffers──▶ thread "mesh-cut-digest"      both directions hold BUFFERS buffers at most;
//!        ◀──empty buffers──                              the thread ends when the copier does
//! ```

use std::io;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::{Builder, JoinHandle};

use super::Digester;

/// Size of a buffer, bytes: large enough for disks to run at full speed.
pub(super) const BUFFER_BYTES: usize = 4 << 20;

/// Buffers of a cut: one being filled, one being hashed, one waiting; 12 MiB together, and nothing else is large.
const BUFFERS: usize = 3;

type Digests = (blake3::Hash, Vec<blake3::Hash>);

enum Fed {
    /// The first `usize` bytes of a buffer.
    Bytes(Vec<u8>, usize),
    /// Bytes that are in no buffer of the pool.
    Header(Vec<u8>),
    Zeros(u64),
}

/// The copier's side. Dropped without [`BackgroundDigester::finish`], the thread ends on its own.
pub(super) struct BackgroundDigester {
    full: SyncSender<Fed>,
    empty: Receiver<Vec<u8>>,
    thread: JoinHandle<Digests>,
}

impl BackgroundDigester {
    pub(super) fn start(mut digester: Digester) -> io::Result<Self> {
        let (full, fed) = sync_channel::<Fed>(BUFFERS);
        let (back, empty) = sync_channel(BUFFERS);
        for _ in 0..BUFFERS {
            back.send(vec![0; BUFFER_BYTES]).map_err(|_| ended())?;
        }
        let thread = Builder::new().name("mesh-cut-digest".to_owned()).spawn(move || {
            for fed in fed {
                match fed {
                    Fed::Zeros(count) => digester.zeros(count),
                    Fed::Header(bytes) => digester.update(&bytes),
                    Fed::Bytes(buffer, length) => {
                        digester.update(&buffer[..length]);
                        // Nobody takes buffers back at the end.
                        let _ = back.send(buffer);
                    }
                }
            }
            digester.finish()
        })?;
        Ok(Self { full, empty, thread })
    }

    /// An empty buffer of [`BUFFER_BYTES`], to be given back by [`BackgroundDigester::bytes`].
    pub(super) fn buffer(&self) -> io::Result<Vec<u8>> {
        self.empty.recv().map_err(|_| ended())
    }

    /// Hashes the first `length` bytes of a buffer.
    pub(super) fn bytes(&self, buffer: Vec<u8>, length: usize) -> io::Result<()> {
        self.full.send(Fed::Bytes(buffer, length)).map_err(|_| ended())
    }

    /// Hashes bytes of the caller's own.
    pub(super) fn header(&self, bytes: Vec<u8>) -> io::Result<()> {
        self.full.send(Fed::Header(bytes)).map_err(|_| ended())
    }

    /// Hashes `count` zeros.
    pub(super) fn zeros(&self, count: u64) -> io::Result<()> {
        self.full.send(Fed::Zeros(count)).map_err(|_| ended())
    }

    /// The digests of everything given.
    pub(super) fn finish(self) -> io::Result<Digests> {
        drop(self.full);
        self.thread.join().map_err(|_| ended())
    }
}

fn ended() -> io::Error {
    io::Error::other("the hashing thread ended early")
}
