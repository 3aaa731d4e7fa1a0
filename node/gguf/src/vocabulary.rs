//! The vocabulary as a file of its own: metadata only, loaded `vocab_only` by nodes that tokenize or sample.
//!
//! What `vocab_only` reads: `general.architecture`, `general.name` (both decide special cases of some tokenizers) and
//! the tokenizer's keys. Hyper-parameters are not read, and a file without tensors is accepted.

use std::io::Write;
use std::path::{Path, PathBuf};

use crate::artifact::{PendingFile, publish_with_manifest, read_manifest};
use crate::cut::{is_whole, short_id};
use crate::error::GgufError;
use crate::gguf::Gguf;
use crate::manifest::{MANIFEST_VERSION, VocabularyManifest};
use crate::value::Value;
use crate::verified::Verified;
use crate::writer::{DEFAULT_ALIGNMENT, layout};

/// Keys of the architecture that readers of the file want, besides the tokenizer's.
const ARCHITECTURE_KEYS: [&str; 2] = ["context_length", "vocab_size"];

/// Makes vocabulary files.
#[derive(Debug, Clone, Copy)]
pub struct VocabularyCut;

/// A vocabulary file on disk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VocabularyArtifact {
    /// The GGUF; its manifest lies beside it as `.manifest.json`.
    pub path: PathBuf,
    /// What is in it.
    pub manifest: VocabularyManifest,
    /// Whether it was there already.
    pub reused: bool,
}

impl VocabularyCut {
    /// Writes the vocabulary of `gguf` into `directory` (made if needed), or finds it there from an earlier time and
    /// reads it to be sure that it is still the same; as safe against crashes as [`crate::StageCut::write`].
    ///
    /// # Errors
    /// [`GgufError::MissingKey`] if the model has no tokenizer; otherwise as [`crate::StageCut::write`].
    pub fn write(gguf: &Gguf, directory: &Path) -> Result<VocabularyArtifact, GgufError> {
        Self::write_unless_verified(gguf, directory, &Verified::default())
    }

    /// As [`Self::write`]; a file of an earlier time is not read if it is known to be whole.
    ///
    /// # Errors
    /// As [`Self::write`].
    pub fn write_unless_verified(
        gguf: &Gguf,
        directory: &Path,
        verified: &Verified,
    ) -> Result<VocabularyArtifact, GgufError> {
        if gguf.get("tokenizer.ggml.model").is_none() {
            return Err(gguf.missing("tokenizer.ggml.model"));
        }
        let source_id = gguf.source_id();
        let stem = format!("{}-vocabulary", short_id(&source_id));
        let path = directory.join(format!("{stem}.gguf"));
        let manifest_name = format!("{stem}.manifest.json");
        let content = layout(&metadata(gguf)?, &[], DEFAULT_ALIGNMENT).header;
        let manifest = VocabularyManifest {
            version: MANIFEST_VERSION,
            source_id,
            architecture: gguf.architecture()?.to_owned(),
            tokens: gguf
                .get_array("tokenizer.ggml.tokens")
                .map_or(0, |tokens| tokens.len() as u32),
            bytes: content.len() as u64,
            blake3: blake3::hash(&content).to_hex().to_string(),
        };
        if read_manifest(&directory.join(&manifest_name)).as_ref() == Some(&manifest)
            && is_whole(&path, manifest.bytes, &manifest.blake3, verified, &|| true)?
        {
            return Ok(VocabularyArtifact {
                path,
                manifest,
                reused: true,
            });
        }
        let mut pending = PendingFile::create(directory, &format!("{stem}.gguf"), manifest.bytes)?;
        pending
            .file()
            .write_all(&content)
            .map_err(|source| pending.failed(source))?;
        let path = publish_with_manifest(pending, directory, &manifest_name, &manifest)?;
        Ok(VocabularyArtifact {
            path,
            manifest,
            reused: false,
        })
    }
}

fn metadata(gguf: &Gguf) -> Result<Vec<(String, Value)>, GgufError> {
    let prefix = format!("{}.", gguf.architecture()?);
    let wanted = |key: &str| {
        key.starts_with("tokenizer.")
            || (key.starts_with("general.") && key != "general.alignment" && !key.starts_with("general.tensor_extra."))
            || key
                .strip_prefix(&prefix)
                .is_some_and(|suffix| ARCHITECTURE_KEYS.contains(&suffix))
    };
    Ok(gguf
        .metadata()
        .filter(|(key, _)| wanted(key))
        .map(|(key, value)| (key.to_owned(), value.clone()))
        .collect())
}
