//! Tests of mesh-gguf over files made by its own writer, and over the built-in model.

#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

mod architectures;
mod built_in;
mod cutting;
mod describing;
mod durability;
mod fixture;
mod fuzzing;
mod hostile;
mod malformed;
mod splits;
mod vocabulary;
