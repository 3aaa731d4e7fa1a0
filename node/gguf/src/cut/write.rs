//! Streams a planned stage to disk.

use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::ops::ControlFlow;
use std::path::Path;

use super::pieces::{Content, Piece};
use super::{Digester, Progress, StageArtifact, StageCut};
use crate::artifact::{PendingFile, publish_with_manifest, read_manifest};
use crate::error::GgufError;
use crate::gguf::modified_nanos;
use crate::manifest::{LayerDigest, MANIFEST_VERSION, Section, StageManifest};
use crate::open::open_regular;
use crate::verified::Verified;

/// The only buffer of a cut, bytes. Small enough to stay in the processor's cache between reading, hashing twice and
/// writing: measured faster than 4 MiB, and than hashing on a thread of its own when the cores are busy.
const BUFFER_BYTES: usize = 512 << 10;

impl StageCut {
    /// Writes the stage into `directory` (made if needed), or finds it there from an earlier time and reads it to be sure
    /// that it is still the same. The file appears
    /// under its name only when it is complete and on the disk. `progress` is called every half megabyte or tensor and stops
    /// the work by `Break`.
    ///
    /// # Errors
    /// [`GgufError::Cancelled`], [`GgufError::DiskFull`], [`GgufError::NotWritable`], [`GgufError::SourceChanged`] or
    /// [`GgufError::Io`]; nothing half-made remains.
    pub fn write(
        &self,
        directory: &Path,
        progress: &mut dyn FnMut(Progress) -> ControlFlow<()>,
    ) -> Result<StageArtifact, GgufError> {
        self.write_unless_verified(directory, &Verified::default(), &|| true, progress)
    }

    /// As [`Self::write`]; a file of an earlier time is not read if it is known to be whole. `go_on` is asked while it is.
    ///
    /// # Errors
    /// As [`Self::write`].
    pub fn write_unless_verified(
        &self,
        directory: &Path,
        verified: &Verified,
        go_on: &dyn Fn() -> bool,
        progress: &mut dyn FnMut(Progress) -> ControlFlow<()>,
    ) -> Result<StageArtifact, GgufError> {
        if let Some(manifest) = self.reusable(directory, verified, go_on)? {
            return Ok(StageArtifact {
                path: directory.join(self.file_name()),
                manifest,
                reused: true,
            });
        }
        self.check_source()?;
        let mut pending = PendingFile::create(directory, &self.file_name(), self.layout.file_bytes)?;
        let digests = Copier::new(self, &mut pending, progress)?.run()?;
        // A source rewritten meanwhile would have given a mixture.
        self.check_source()?;
        let manifest = self.manifest(digests);
        let path = publish_with_manifest(pending, directory, &self.manifest_name(), &manifest)?;
        Ok(StageArtifact {
            path,
            manifest,
            reused: false,
        })
    }

    fn reusable(
        &self,
        directory: &Path,
        verified: &Verified,
        go_on: &dyn Fn() -> bool,
    ) -> Result<Option<StageManifest>, GgufError> {
        let Some(manifest) = read_manifest::<StageManifest>(&self.manifest_path(directory)) else {
            return Ok(None);
        };
        let same = manifest.version == MANIFEST_VERSION
            && manifest.source_id == self.source_id
            && manifest.start == self.range.start
            && manifest.end == self.range.end
            && manifest.total_layers == self.total_layers
            && manifest.bytes == self.layout.file_bytes;
        let path = directory.join(self.file_name());
        let whole = same && is_whole(&path, manifest.bytes, &manifest.blake3, verified, go_on)?;
        Ok(whole.then_some(manifest))
    }

    fn check_source(&self) -> Result<(), GgufError> {
        for part in &self.source {
            let facts = fs::metadata(&part.path).map_err(|source| GgufError::Open {
                file: part.path.clone(),
                source,
            })?;
            let changed = |reason: &str| GgufError::SourceChanged {
                file: part.path.clone(),
                reason: reason.to_owned(),
            };
            if facts.len() != part.size {
                return Err(changed("its size is another"));
            }
            if modified_nanos(&facts) != part.modified {
                return Err(changed("its modification time is another"));
            }
        }
        Ok(())
    }

    /// Ends of the sections: header, global tensors, each layer.
    fn section_ends(&self) -> Vec<u64> {
        let mut ends = vec![self.layout.header.len() as u64];
        let mut current = None;
        for (piece, offset) in self.pieces.iter().zip(&self.layout.offsets) {
            if piece.layer != current {
                ends.push(*offset);
                current = piece.layer;
            }
        }
        ends.push(self.layout.file_bytes);
        ends
    }

    fn manifest(&self, (whole, sections): (blake3::Hash, Vec<blake3::Hash>)) -> StageManifest {
        let ends = self.section_ends();
        let starts = std::iter::once(0).chain(ends.iter().copied());
        let mut sections = starts.zip(&ends).zip(sections).map(|((offset, end), digest)| Section {
            offset,
            bytes: end - offset,
            blake3: digest.to_hex().to_string(),
        });
        let empty = || Section {
            offset: 0,
            bytes: 0,
            blake3: String::new(),
        };
        let header = sections.next().unwrap_or_else(empty);
        let globals = sections.next().unwrap_or_else(empty);
        let layers = sections
            .zip(self.range.clone())
            .map(|(section, layer)| LayerDigest {
                layer,
                local: layer - self.range.start,
                section,
            })
            .collect();
        StageManifest {
            version: MANIFEST_VERSION,
            source_id: self.source_id.clone(),
            architecture: self.architecture.to_owned(),
            start: self.range.start,
            end: self.range.end,
            total_layers: self.total_layers,
            first: self.is_first(),
            last: self.is_last(),
            n_embd: self.n_embd,
            vocab_size: self.vocab_size,
            bytes: self.layout.file_bytes,
            blake3: whole.to_hex().to_string(),
            header,
            globals,
            layers,
        }
    }
}

/// Whether a file of an earlier time is still what was written.
pub(crate) fn is_whole(
    path: &Path,
    bytes: u64,
    digest: &str,
    verified: &Verified,
    go_on: &dyn Fn() -> bool,
) -> Result<bool, GgufError> {
    let whole = verified.holds(path, bytes, digest, go_on);
    whole.map_err(|source| match source.kind() {
        io::ErrorKind::Interrupted => GgufError::Cancelled,
        _ => GgufError::Io {
            doing: "read",
            file: path.to_owned(),
            source,
        },
    })
}

/// Copies one stage, piece by piece, hashing what it writes.
struct Copier<'a> {
    cut: &'a StageCut,
    out: &'a mut PendingFile,
    progress: &'a mut dyn FnMut(Progress) -> ControlFlow<()>,
    digester: Digester,
    sources: Vec<File>,
    buffer: Vec<u8>,
    at: u64,
}

impl<'a> Copier<'a> {
    fn new(
        cut: &'a StageCut,
        out: &'a mut PendingFile,
        progress: &'a mut dyn FnMut(Progress) -> ControlFlow<()>,
    ) -> Result<Self, GgufError> {
        let open = |path: &Path| {
            let opened = open_regular(path).map_err(|source| GgufError::Open {
                file: path.to_owned(),
                source,
            });
            opened.map(|(file, _)| file)
        };
        let sources = cut
            .source
            .iter()
            .map(|part| open(&part.path))
            .collect::<Result<_, _>>()?;
        let digester = Digester::new(cut.section_ends());
        Ok(Self {
            cut,
            out,
            progress,
            digester,
            sources,
            buffer: vec![0; BUFFER_BYTES],
            at: 0,
        })
    }

    fn run(mut self) -> Result<(blake3::Hash, Vec<blake3::Hash>), GgufError> {
        self.report(None)?;
        self.put_header()?;
        for (piece, offset) in self.cut.pieces.iter().zip(&self.cut.layout.offsets) {
            self.hole(offset - self.at, piece.layer)?;
            match piece.content {
                Content::Copy { file, offset } => self.copy(piece, file, offset)?,
                Content::Hole => self.hole(piece.tensor.bytes, piece.layer)?,
            }
        }
        self.hole(self.cut.layout.file_bytes - self.at, None)?;
        // Seeking past the end does not lengthen a file.
        let total = self.cut.layout.file_bytes;
        self.out
            .file()
            .set_len(total)
            .map_err(|source| self.out.failed(source))?;
        self.report(None)?;
        Ok(self.digester.finish())
    }

    fn put_header(&mut self) -> Result<(), GgufError> {
        let header = &self.cut.layout.header;
        self.digester.update(header);
        self.out
            .file()
            .write_all(header)
            .map_err(|source| self.out.failed(source))?;
        self.at += header.len() as u64;
        Ok(())
    }

    fn copy(&mut self, piece: &Piece, file: usize, offset: u64) -> Result<(), GgufError> {
        let source = &mut self.sources[file];
        let path = &self.cut.source[file].path;
        let reading = |source: io::Error| match source.kind() {
            io::ErrorKind::UnexpectedEof => GgufError::SourceChanged {
                file: path.clone(),
                reason: "it became shorter".to_owned(),
            },
            _ => GgufError::Io {
                doing: "read",
                file: path.clone(),
                source,
            },
        };
        source.seek(SeekFrom::Start(offset)).map_err(reading)?;
        let mut left = piece.tensor.bytes;
        while left > 0 {
            let chunk = usize::try_from(left).unwrap_or(BUFFER_BYTES).min(BUFFER_BYTES);
            self.sources[file]
                .read_exact(&mut self.buffer[..chunk])
                .map_err(reading)?;
            self.digester.update(&self.buffer[..chunk]);
            self.out
                .file()
                .write_all(&self.buffer[..chunk])
                .map_err(|source| self.out.failed(source))?;
            left -= chunk as u64;
            self.at += chunk as u64;
            self.report(piece.layer)?;
        }
        Ok(())
    }

    /// Skips `bytes`, which are then read as zeros and take no disk.
    fn hole(&mut self, bytes: u64, layer: Option<u32>) -> Result<(), GgufError> {
        if bytes == 0 {
            return Ok(());
        }
        self.digester.zeros(bytes);
        self.at += bytes;
        let at = self.at;
        self.out
            .file()
            .seek(SeekFrom::Start(at))
            .map_err(|source| self.out.failed(source))?;
        if bytes >= BUFFER_BYTES as u64 {
            self.report(layer)
        } else {
            Ok(())
        }
    }

    fn report(&mut self, layer: Option<u32>) -> Result<(), GgufError> {
        let progress = Progress {
            done: self.at,
            total: self.cut.layout.file_bytes,
            layer,
        };
        match (self.progress)(progress) {
            ControlFlow::Continue(()) => Ok(()),
            ControlFlow::Break(()) => Err(GgufError::Cancelled),
        }
    }
}
