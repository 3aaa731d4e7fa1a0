//! The only place with `unsafe`: model, context, batch, callbacks and log of llama.cpp.
//!
//! `llama-cpp-2` has neither activation batches nor the evaluation callback, and keeps its pointers private, so a
//! stage speaks `llama_cpp_sys_2` through these few owners. Nothing here decides anything.

pub(crate) mod backend;
mod capture;
pub(crate) mod context;
pub(crate) mod log;
pub(crate) mod model;
#[cfg(feature = "random-models")]
pub(crate) mod synthesis;
