//! Hashes a file and its consecutive sections in one pass.

/// Fed a file's bytes in order; gives the digest of each section and of the whole.
pub(crate) struct Digester {
    whole: blake3::Hasher,
    section: blake3::Hasher,
    /// Ends of the sections still to come, nearest last.
    ends: Vec<u64>,
    done: Vec<blake3::Hash>,
    at: u64,
}

impl Digester {
    /// `ends` are the sections' ends in ascending order; bytes behind the last belong to the whole only.
    pub(crate) fn new(mut ends: Vec<u64>) -> Self {
        ends.reverse();
        Self {
            whole: blake3::Hasher::new(),
            section: blake3::Hasher::new(),
            ends,
            done: Vec::new(),
            at: 0,
        }
    }

    pub(crate) fn update(&mut self, mut bytes: &[u8]) {
        self.whole.update(bytes);
        while let Some(end) = self.ends.last().copied() {
            let left = end.saturating_sub(self.at);
            let (now, later) = bytes.split_at(bytes.len().min(usize::try_from(left).unwrap_or(usize::MAX)));
            self.section.update(now);
            self.at += now.len() as u64;
            bytes = later;
            if self.at < end {
                return;
            }
            self.done.push(self.section.finalize());
            self.section.reset();
            self.ends.pop();
        }
        self.at += bytes.len() as u64;
    }

    /// As [`Digester::update`] with `count` zeros.
    pub(crate) fn zeros(&mut self, mut count: u64) {
        static ZEROS: [u8; 1 << 16] = [0; 1 << 16];
        while count > 0 {
            let chunk = usize::try_from(count).unwrap_or(ZEROS.len()).min(ZEROS.len());
            self.update(&ZEROS[..chunk]);
            count -= chunk as u64;
        }
    }

    /// Digest of the whole, and of every section that was complete.
    pub(crate) fn finish(self) -> (blake3::Hash, Vec<blake3::Hash>) {
        (self.whole.finalize(), self.done)
    }
}
