//! An opened model: one file, or all parts of a split one.

use std::io::{Cursor, Read, Seek};
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use crate::array::Array;
use crate::error::GgufError;
use crate::identity;
use crate::open::{is_not_regular, open_regular};
use crate::parse;
use crate::split;
use crate::tensor::TensorInfo;
use crate::value::Value;

/// One file of a model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Part {
    pub(crate) path: PathBuf,
    /// Bytes.
    pub(crate) size: u64,
    /// Last modification, nanoseconds since 1970; 0 where the system has none.
    pub(crate) modified: u128,
    /// GGUF version.
    pub(crate) version: u32,
    /// BLAKE3 of the header: keys and tensor descriptions.
    pub(crate) header_digest: blake3::Hash,
}

/// A model's metadata and tensor directory. Holds no open file and no tensor data.
#[derive(Debug, Clone)]
pub struct Gguf {
    parts: Vec<Part>,
    metadata: Vec<(String, Value)>,
    tensors: Vec<TensorInfo>,
}

impl Gguf {
    /// Opens a model. Any part of a split model opens the whole set; the others are expected beside it under the
    /// names `llama-gguf-split` gives (`NAME-00001-of-00003.gguf`).
    ///
    /// # Errors
    /// What is wrong with which file, and where in it; see [`GgufError`].
    pub fn open(path: impl AsRef<Path>) -> Result<Self, GgufError> {
        split::open_set(path.as_ref())
    }

    /// Parses one file from a reader of `size` bytes; `name` stands for the path in errors. Split models need
    /// [`Gguf::open`], since their other parts are files.
    ///
    /// # Errors
    /// As [`Gguf::open`].
    pub fn parse<R: Read + Seek>(reader: R, size: u64, name: impl AsRef<Path>) -> Result<Self, GgufError> {
        let gguf = Self::parse_part(reader, size, name.as_ref(), 0, 0)?;
        match split::position(&gguf)? {
            Some(position) if position.count > 1 => Err(GgufError::PartsDisagree {
                file: name.as_ref().to_owned(),
                reason: format!("only part {} of {} was given", position.number, position.count),
            }),
            _ => Ok(gguf),
        }
    }

    /// [`Gguf::parse`] over bytes in memory.
    ///
    /// # Errors
    /// As [`Gguf::open`].
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, GgufError> {
        Self::parse(Cursor::new(bytes), bytes.len() as u64, "memory")
    }

    /// Reads one file, whatever part it is; `index` is its place in the set.
    pub(crate) fn read_part(path: &Path, index: usize) -> Result<Self, GgufError> {
        let opening = |source| GgufError::Open {
            file: path.to_owned(),
            source,
        };
        let (file, facts) = open_regular(path).map_err(|error| match is_not_regular(&error) {
            true => GgufError::NotAFile { file: path.to_owned() },
            false => opening(error),
        })?;
        Self::parse_part(file, facts.len(), path, index, modified_nanos(&facts))
    }

    fn parse_part<R: Read + Seek>(
        mut reader: R,
        size: u64,
        path: &Path,
        index: usize,
        modified: u128,
    ) -> Result<Self, GgufError> {
        let header = parse::parse(&mut reader, size, index).map_err(|fault| GgufError::malformed(path, fault))?;
        let header_digest =
            identity::header_digest(&mut reader, header.header_bytes).map_err(|source| GgufError::Io {
                doing: "read",
                file: path.to_owned(),
                source,
            })?;
        let part = Part {
            path: path.to_owned(),
            size,
            modified,
            version: header.version,
            header_digest,
        };
        Ok(Self {
            parts: vec![part],
            metadata: header.metadata,
            tensors: header.tensors,
        })
    }

    /// Appends a further part of a split model.
    pub(crate) fn append(&mut self, other: Self) {
        self.parts.extend(other.parts);
        self.tensors.extend(other.tensors);
    }

    pub(crate) fn parts(&self) -> &[Part] {
        &self.parts
    }

    /// The file that errors about the whole model name: the first part.
    pub fn path(&self) -> &Path {
        &self.parts[0].path
    }

    /// Every file of the model, in order.
    pub fn files(&self) -> impl Iterator<Item = &Path> {
        self.parts.iter().map(|part| part.path.as_path())
    }

    /// Size of all files together, bytes.
    pub fn file_bytes(&self) -> u64 {
        self.parts.iter().map(|part| part.size).sum()
    }

    /// A cheap identity of the source: hex BLAKE3 over the headers of all parts, their sizes and modification times.
    pub fn source_id(&self) -> String {
        identity::source_id(&self.parts)
    }

    /// Metadata in file order (of the first part; the others only repeat `split.*`).
    pub fn metadata(&self) -> impl Iterator<Item = (&str, &Value)> {
        self.metadata.iter().map(|(key, value)| (key.as_str(), value))
    }

    /// Tensors of all parts, in file order.
    pub fn tensors(&self) -> &[TensorInfo] {
        &self.tensors
    }

    /// The tensor of this name.
    pub fn tensor(&self, name: &str) -> Option<&TensorInfo> {
        self.tensors.iter().find(|tensor| tensor.name == name)
    }

    /// The value of a key.
    pub fn get(&self, key: &str) -> Option<&Value> {
        self.metadata
            .iter()
            .find(|(known, _)| known == key)
            .map(|(_, value)| value)
    }

    /// A non-negative integer of any width that fits `u32`.
    pub fn get_u32(&self, key: &str) -> Option<u32> {
        self.get_u64(key).and_then(|value| u32::try_from(value).ok())
    }

    /// A non-negative integer of any width.
    pub fn get_u64(&self, key: &str) -> Option<u64> {
        self.get(key).and_then(Value::as_u64)
    }

    /// A float.
    pub fn get_f32(&self, key: &str) -> Option<f32> {
        self.get(key).and_then(Value::as_f32)
    }

    /// A string that is valid UTF-8.
    pub fn get_str(&self, key: &str) -> Option<&str> {
        self.get(key).and_then(Value::as_str)
    }

    /// A boolean.
    pub fn get_bool(&self, key: &str) -> Option<bool> {
        self.get(key).and_then(Value::as_bool)
    }

    /// An array.
    pub fn get_array(&self, key: &str) -> Option<&Array> {
        self.get(key).and_then(Value::as_array)
    }

    /// `general.architecture`.
    ///
    /// # Errors
    /// [`GgufError::MissingKey`].
    pub fn architecture(&self) -> Result<&str, GgufError> {
        self.get_str("general.architecture")
            .ok_or_else(|| self.missing("general.architecture"))
    }

    /// The value of `{architecture}.{suffix}`.
    pub fn arch_value(&self, suffix: &str) -> Option<&Value> {
        let architecture = self.get_str("general.architecture")?;
        self.get(&format!("{architecture}.{suffix}"))
    }

    /// The integer `{architecture}.{suffix}`, which must be there.
    ///
    /// # Errors
    /// [`GgufError::MissingKey`], or [`GgufError::BadKey`] if it is no `u32`.
    pub fn require_arch_u32(&self, suffix: &str) -> Result<u32, GgufError> {
        let key = format!("{}.{suffix}", self.architecture()?);
        let value = self.get(&key).ok_or_else(|| self.missing(&key))?;
        value
            .as_u64()
            .and_then(|value| u32::try_from(value).ok())
            .ok_or_else(|| {
                self.bad_key(
                    &key,
                    format!(
                        "is of type {}, not a small integer: convert the model again",
                        value.value_type()
                    ),
                )
            })
    }

    /// `{architecture}.block_count`, within what the loader takes.
    ///
    /// # Errors
    /// [`GgufError::MissingKey`] or [`GgufError::BadKey`].
    pub fn layers(&self) -> Result<u32, GgufError> {
        let layers = self.require_arch_u32("block_count")?;
        if layers == 0 || layers > crate::limits::MAX_LAYERS {
            let key = format!("{}.block_count", self.architecture()?);
            let problem = format!(
                "is {layers}, llama.cpp takes 1 to {}: convert the model again",
                crate::limits::MAX_LAYERS
            );
            return Err(self.bad_key(&key, problem));
        }
        Ok(layers)
    }

    /// One integer per layer from `{architecture}.{suffix}`: an array as it is, a single value repeated. `None` if the
    /// key is absent.
    ///
    /// # Errors
    /// [`GgufError::BadKey`] if it is an array of another length, or not of non-negative integers.
    pub fn per_layer(&self, suffix: &str, layers: u32) -> Result<Option<Vec<u64>>, GgufError> {
        let Some(value) = self.arch_value(suffix) else {
            return Ok(None);
        };
        let values = match value {
            Value::Array(array) => array.to_u64s(),
            single => single.as_u64().map(|single| vec![single; layers as usize]),
        };
        match values {
            Some(values) if values.len() == layers as usize => Ok(Some(values)),
            _ => {
                let key = format!("{}.{suffix}", self.architecture()?);
                let problem = format!(
                    "must be an integer or an array of {layers} integers, one per layer: convert the model again"
                );
                Err(self.bad_key(&key, problem))
            }
        }
    }

    pub(crate) fn missing(&self, key: &str) -> GgufError {
        GgufError::MissingKey {
            file: self.path().to_owned(),
            key: key.to_owned(),
        }
    }

    pub(crate) fn bad_key(&self, key: &str, problem: String) -> GgufError {
        GgufError::BadKey {
            file: self.path().to_owned(),
            key: key.to_owned(),
            problem,
        }
    }

    pub(crate) fn bad_tensor(&self, tensor: &str, problem: impl Into<String>) -> GgufError {
        GgufError::BadTensor {
            file: self.path().to_owned(),
            tensor: tensor.to_owned(),
            problem: problem.into(),
        }
    }
}

/// Nanoseconds since 1970, or 0.
pub(crate) fn modified_nanos(facts: &std::fs::Metadata) -> u128 {
    facts
        .modified()
        .ok()
        .and_then(|time: SystemTime| time.duration_since(UNIX_EPOCH).ok())
        .map_or(0, |since| since.as_nanos())
}
