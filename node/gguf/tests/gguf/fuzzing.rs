//! Random and mutated bytes: never a panic, never memory that the file's size does not justify.

use std::io::{Read, Seek, SeekFrom};

use mesh_gguf::{Gguf, StageCut, describe, support};
use proptest::prelude::*;

use crate::fixture::Model;

/// Everything that can be done with a file without writing one.
fn exercise(bytes: &[u8]) {
    let Ok(gguf) = Gguf::from_bytes(bytes) else { return };
    let _ = describe(&gguf);
    if let Ok(architecture) = support(&gguf) {
        let layers = architecture.layers();
        for cut in architecture.legal_cuts().into_iter().chain([layers]) {
            let plan = StageCut::plan(&gguf, &architecture, 0..cut);
            assert!(plan.is_err() || plan.is_ok_and(|plan| plan.file_bytes() > 0));
        }
    }
}

fn sample() -> Vec<u8> {
    let mut model = Model::new("gemma3", 3);
    model.arch("attention.sliding_window", mesh_gguf::Value::U32(8));
    model.bytes()
}

/// A reader that says it is huge and gives zeros for ever, after a header.
struct Endless<'a> {
    header: &'a [u8],
    at: u64,
    read: u64,
}

impl Read for Endless<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        let from = (self.at as usize).min(self.header.len());
        let known = buffer.len().min(self.header.len() - from);
        buffer[..known].copy_from_slice(&self.header[from..from + known]);
        buffer[known..].fill(0);
        self.at += buffer.len() as u64;
        self.read += buffer.len() as u64;
        Ok(buffer.len())
    }
}

impl Seek for Endless<'_> {
    fn seek(&mut self, to: SeekFrom) -> std::io::Result<u64> {
        if let SeekFrom::Start(at) = to {
            self.at = at;
        }
        Ok(self.at)
    }
}

#[test]
fn a_sparse_giant_is_refused_within_the_header_limit() {
    let mut header = b"GGUF\x03\0\0\0".to_vec();
    header.extend(0u64.to_le_bytes());
    header.extend(60_000u64.to_le_bytes());
    header.extend(1u64.to_le_bytes());
    header.push(b'k');
    header.extend(9u32.to_le_bytes());
    header.extend(8u32.to_le_bytes());
    header.extend((16u64 << 20).to_le_bytes());
    let mut reader = Endless {
        header: &header,
        at: 0,
        read: 0,
    };
    let result = Gguf::parse(&mut reader, 1 << 50, "giant");
    assert!(result.is_err());
    assert!(
        reader.read <= mesh_gguf::MAX_METADATA_BYTES + (1 << 20),
        "{} bytes read",
        reader.read
    );
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(2000) })]

    #[test]
    fn random_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..512)) {
        exercise(&bytes);
    }

    #[test]
    fn random_bytes_behind_a_header_never_panic(
        tensors in 0u64..4,
        keys in 0u64..4,
        bytes in prop::collection::vec(any::<u8>(), 0..512),
    ) {
        let mut file = b"GGUF\x03\0\0\0".to_vec();
        file.extend(tensors.to_le_bytes());
        file.extend(keys.to_le_bytes());
        file.extend(bytes);
        exercise(&file);
    }

    #[test]
    fn mutated_files_never_panic(
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..8),
        cut in any::<Option<prop::sample::Index>>(),
    ) {
        let mut bytes = sample();
        // The header is where changes matter.
        let header = 1800.min(bytes.len());
        for (at, byte) in changes {
            bytes[at.index(header)] = byte;
        }
        if let Some(cut) = cut {
            let length = cut.index(bytes.len());
            bytes.truncate(length);
        }
        exercise(&bytes);
    }

    #[test]
    fn mutated_numbers_never_panic(at in any::<prop::sample::Index>(), number in any::<u64>(), narrow in any::<bool>()) {
        let mut bytes = sample();
        let at = at.index(bytes.len() - 8);
        if narrow {
            bytes[at..at + 4].copy_from_slice(&(number as u32).to_le_bytes());
        } else {
            bytes[at..at + 8].copy_from_slice(&number.to_le_bytes());
        }
        exercise(&bytes);
    }
}
