//! Read, describe and cut GGUF files; the table of supported architectures.
//!
//! This crate owns everything that is known about a model *file*. It never links llama.cpp, so it fuzzes cheaply and
//! judges a file before the engine sees it.
//!
//! ```text
//! path ──Gguf::open──▶ Gguf ──describe──▶ ModelDescription      (`mesh models inspect`)
//!                       │
//!                       ├─support──▶ Architecture               (legal cuts, or the reason of a refusal)
//!                       │
//!                       ├─StageCut::plan + write──▶ StageArtifact       (layers a..b as a GGUF of their own)
//!                       └─VocabularyCut::write────▶ VocabularyArtifact  (tokenizer keys, no tensors)
//! ```
//!
//! Nothing here is asynchronous: callers run it on a thread that may block on the disk.
//!
//! The GGUF format: <https://github.com/ggml-org/ggml/blob/master/docs/gguf.md>. Where this crate says "the loader", it
//! means llama.cpp's (`src/llama-model.cpp`, `src/models/*.cpp` as vendored by llama-cpp-sys-2 0.1.161).

mod architecture;
mod array;
mod artifact;
mod cursor;
mod cut;
mod describe;
mod error;
mod gguf;
mod identity;
mod limits;
mod malformation;
mod manifest;
mod open;
mod parse;
mod split;
mod tensor;
mod tensor_type;
mod value;
mod verified;
mod verify;
mod vocabulary;
mod writer;

pub use architecture::{
    Architecture, SUPPORTED, SupportedArchitecture, check_stage, check_vocabulary, refusal_reason, support,
};
pub use array::{Array, StringArray};
pub use artifact::remove_leftovers;
pub use cut::{Progress, StageArtifact, StageCut};
pub use describe::{ExpertCounts, FilePart, ModelDescription, QuantizationShare, TokenizerDescription, describe};
pub use error::GgufError;
pub use gguf::Gguf;
pub use limits::*;
pub use malformation::Malformation;
pub use manifest::{LayerDigest, MANIFEST_VERSION, Section, StageManifest, VocabularyManifest};
pub use open::{NotRegular, open_regular};
pub use tensor::TensorInfo;
pub use tensor_type::TensorType;
pub use value::{Value, ValueType};
pub use verified::Verified;
pub use verify::{verify, verify_vocabulary};
pub use vocabulary::{VocabularyArtifact, VocabularyCut};
pub use writer::{DEFAULT_ALIGNMENT, Layout, NewTensor, layout};
