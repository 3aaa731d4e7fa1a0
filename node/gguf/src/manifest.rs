//! What is written beside an artifact, as JSON: enough to reuse it, to verify it, and to fetch it layer by layer.

use serde::{Deserialize, Serialize};

/// Version of manifests *and* of what the cutter produces. Raise it whenever the same source and range would give
/// other bytes; older artifacts are then cut again.
pub const MANIFEST_VERSION: u32 = 3;

/// A digested range of a file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Section {
    /// First byte.
    pub offset: u64,
    /// Length, bytes.
    pub bytes: u64,
    /// Hex BLAKE3 of the range.
    pub blake3: String,
}

/// One layer of a stage. Its range and digest cover all tensors of the layer with their padding and nothing else, so
/// the same layer has the same bytes in every stage cut from the same source.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LayerDigest {
    /// Number in the whole model.
    pub layer: u32,
    /// Number in the stage file.
    pub local: u32,
    /// Where it is.
    #[serde(flatten)]
    pub section: Section,
}

/// Manifest of a stage file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StageManifest {
    /// [`MANIFEST_VERSION`].
    pub version: u32,
    /// Identity of the source (see [`crate::Gguf::source_id`]).
    pub source_id: String,
    /// `general.architecture`.
    pub architecture: String,
    /// First layer.
    pub start: u32,
    /// Layer after the last.
    pub end: u32,
    /// Layers of the whole model.
    pub total_layers: u32,
    /// Whether the stage embeds tokens.
    pub first: bool,
    /// Whether the stage gives logits.
    pub last: bool,
    /// Width of an activation row, elements.
    pub n_embd: u32,
    /// Tokens of the whole model.
    pub vocab_size: u32,
    /// Size of the file.
    pub bytes: u64,
    /// Hex BLAKE3 of the file.
    pub blake3: String,
    /// Keys and tensor descriptions.
    pub header: Section,
    /// Tensors outside the layers.
    pub globals: Section,
    /// The layers, ascending.
    pub layers: Vec<LayerDigest>,
}

impl StageManifest {
    /// Where the sections end, in file order, with their digests and names for messages.
    pub(crate) fn sections(&self) -> impl Iterator<Item = (String, &Section)> {
        [
            ("the header".to_owned(), &self.header),
            ("the global tensors".to_owned(), &self.globals),
        ]
        .into_iter()
        .chain(
            self.layers
                .iter()
                .map(|layer| (format!("layer {}", layer.layer), &layer.section)),
        )
    }
}

/// Manifest of a vocabulary file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct VocabularyManifest {
    /// [`MANIFEST_VERSION`].
    pub version: u32,
    /// Identity of the source (see [`crate::Gguf::source_id`]).
    pub source_id: String,
    /// `general.architecture`.
    pub architecture: String,
    /// Tokens.
    pub tokens: u32,
    /// Size of the file.
    pub bytes: u64,
    /// Hex BLAKE3 of the file.
    pub blake3: String,
}
