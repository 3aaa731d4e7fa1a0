//! A stage of a model on llama.cpp: engine, sampling, vocabulary, chat templates.
//!
//! [`LlamaLoader`] loads stage files (small valid GGUFs) for the [`StageEngine`] port, on the thread that will own them;
//! [`LlamaVocabularyLoader`] loads vocabularies, in the child process that answers for the [`Vocabulary`] port. Call
//! [`prepare_process`] first in `main`.
//!
//! ```text
//!  StageActor ──Batch──▶ LlamaStage ──calls──▶ raw::Context ──▶ llama.cpp
//!             ◀─BatchOutput─┘   └─logits─▶ Sampler ─▶ draw        (output stage)
//! ```
//!
//! All `unsafe` is in `raw`.
//!
//! [`StageEngine`]: mesh_actors::ports::engine::StageEngine
//! [`Vocabulary`]: mesh_actors::ports::vocabulary::Vocabulary

mod calls;
mod chat;
mod draw;
mod file_check;
mod lane;
mod limits;
mod loader;
mod lone_rows;
mod penalties;
mod philox;
mod prove;
#[cfg(feature = "random-models")]
mod random_model;
mod raw;
mod sampling;
mod self_check;
mod special;
mod stage;
mod text_limits;
mod vocabulary;

pub use chat::{ChatTemplate, TemplateFacts};
pub use draw::{DrawKey, draw, greedy};
pub use limits::{EXACT_CALL_ROWS, FAST_CALL_ROWS, cells_per_lane};
pub use loader::LlamaLoader;
pub use prove::prove;
#[cfg(feature = "random-models")]
pub use random_model::RandomModel;
pub use raw::backend::{is_process_exact, prepare_process};
pub use sampling::{Sampler, SamplerScratch};
pub use stage::{LlamaStage, RecordedLogits};
pub use text_limits::{MAX_STRETCH, MAX_TEXT, STACK_PER_CHARACTER};
pub use vocabulary::{LlamaVocabulary, LlamaVocabularyLoader, Rendered, TemplateChoice};
