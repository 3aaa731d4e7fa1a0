//! The engine against plain llama.cpp, in company, at its limits, and with bad input.

#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

mod answers;
mod chain;
mod chat_templates;
mod company;
mod failures;
mod limits;
#[cfg(target_os = "linux")]
mod memory;
mod models;
mod pre_tokenizers;
mod reference;
mod split_equals_whole;
mod vocabulary;
