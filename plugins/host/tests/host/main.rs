//! Tests of mesh-plugin-host over plugins that a C compiler builds from `tests/fixtures`.

#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

mod calls;
mod errors;
mod fixture;
mod loading;
mod proposals;
mod tables;
mod threads;
mod tokenizing;
mod waking;
mod watching;
