//! What the behaviour in this crate needs from outside, as small traits. Adapters live in the crates around:
//! llama.cpp in `mesh-engine`, iroh in `mesh-links`, files in `mesh-node`; scripted ones in the tests.

pub mod deployment;
pub mod desired;
pub mod engine;
pub mod inference;
pub mod lifecycle;
pub mod link;
pub mod plugin;
pub mod proposer;
pub mod telemetry;
pub mod vocabulary;
