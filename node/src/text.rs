//! Tokenizer and chat template of a model, in a child process.
//!
//! llama.cpp ends its process on texts that it did not expect, and a template is a program that came with the model; here
//! that costs one request its answer, and nothing else.
//!
//! ```text
//! RequestActor ─ask─▶ ChildVocabulary ─desk─▶ Worker (task) ──stdin──▶ child: side.rs, a thread for each question
//!              ◀───────── oneshot ──────────────┘   └─◀──stdout── answers
//! ```
//!
//! [`ChildVocabularies`] starts a child for each head, has it load and try the vocabulary, and takes from it what the node
//! needs at each token ([`pieces`]): the node itself never reads the file. [`machine`] decides what a child is given, and
//! who is to blame when it ends; [`worker`] carries that out and ends, with its child, when the vocabulary is dropped.

mod machine;
mod pieces;
mod side;
mod start;
mod vocabulary;
mod wire;
mod worker;

pub use side::run_text;
pub(crate) use vocabulary::ChildVocabularies;
