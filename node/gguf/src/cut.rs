//! Cuts layers a..b out of a model: a small, valid GGUF that the unmodified llama.cpp loads.
//!
//! [`StageCut::plan`] decides everything without touching the disk; [`StageCut::write`] copies. The rules are those of
//! ARCHITECTURE.md ("how a stage GGUF is made"): blocks renumbered and copied as they are, per-layer metadata sliced,
//! window patterns written out, stubs where only the loader insists on a tensor, no tokenizer.

mod digester;
mod metadata;
mod pieces;
mod write;

use std::ops::Range;
use std::path::{Path, PathBuf};

use crate::architecture::Architecture;
use crate::error::GgufError;
use crate::gguf::{Gguf, Part};
use crate::manifest::StageManifest;
use crate::writer::{DEFAULT_ALIGNMENT, Layout, layout};

pub(crate) use digester::Digester;
use pieces::Piece;
pub(crate) use write::is_whole;

/// A planned stage: layers `start..end` of one source.
#[derive(Debug, Clone)]
pub struct StageCut {
    source_id: String,
    source: Vec<Part>,
    architecture: &'static str,
    range: Range<u32>,
    total_layers: u32,
    n_embd: u32,
    vocab_size: u32,
    layout: Layout,
    /// In file order: global tensors, then the layers one after another.
    pieces: Vec<Piece>,
}

/// How far [`StageCut::write`] is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Progress {
    /// Bytes done; holes count as done when they are skipped.
    pub done: u64,
    /// Bytes of the whole stage file.
    pub total: u64,
    /// The layer (number in the whole model) being written; `None` while in the header and the global tensors.
    pub layer: Option<u32>,
}

/// A stage file on disk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StageArtifact {
    /// The GGUF; its manifest lies beside it as `.manifest.json`.
    pub path: PathBuf,
    /// What is in it.
    pub manifest: StageManifest,
    /// Whether it was there already.
    pub reused: bool,
}

impl StageCut {
    /// Plans the stage of layers `range`. The whole model, `0..layers`, is cut by the same rules.
    ///
    /// # Errors
    /// [`GgufError::IllegalRange`], or what is wrong with the source.
    pub fn plan(gguf: &Gguf, architecture: &Architecture, range: Range<u32>) -> Result<Self, GgufError> {
        architecture.check_range(range.start, range.end)?;
        let pieces = pieces::pieces(gguf, architecture, &range);
        let metadata = metadata::stage_metadata(gguf, architecture, &range)?;
        let tensors: Vec<_> = pieces.iter().map(|piece| piece.tensor.clone()).collect();
        Ok(Self {
            source_id: gguf.source_id(),
            source: gguf.parts().to_vec(),
            architecture: architecture.name(),
            total_layers: architecture.layers(),
            n_embd: architecture.embedding_length(),
            vocab_size: architecture.vocab_size(),
            layout: layout(&metadata, &tensors, DEFAULT_ALIGNMENT),
            range,
            pieces,
        })
    }

    /// Size of the stage file, bytes; holes included.
    pub fn file_bytes(&self) -> u64 {
        self.layout.file_bytes
    }

    /// The layers.
    pub fn range(&self) -> Range<u32> {
        self.range.clone()
    }

    /// Whether the stage embeds tokens.
    pub fn is_first(&self) -> bool {
        self.range.start == 0
    }

    /// Whether the stage gives logits.
    pub fn is_last(&self) -> bool {
        self.range.end == self.total_layers
    }

    /// Name of the stage file: identity of the source and range.
    pub fn file_name(&self) -> String {
        format!("{}.gguf", self.stem())
    }

    /// Path of the manifest that belongs to a stage file in `directory`.
    pub fn manifest_path(&self, directory: &Path) -> PathBuf {
        directory.join(self.manifest_name())
    }

    fn manifest_name(&self) -> String {
        format!("{}.manifest.json", self.stem())
    }

    fn stem(&self) -> String {
        format!("{}-{}-{}", short_id(&self.source_id), self.range.start, self.range.end)
    }
}

/// The part of a source id that file names carry: 64 bits, enough to tell a node's sources apart; manifests hold it all.
pub(crate) fn short_id(source_id: &str) -> &str {
    source_id.get(..16).unwrap_or(source_id)
}
