//! End-to-end tests: real nodes, in this process or in their own, real QUIC, real models, real clients. One binary,
//! since each would link and compile the whole node again.

mod bad_input;
mod cancel;
#[cfg(target_os = "linux")]
mod claims;
mod client_key;
mod crowds;
mod exact;
mod files;
mod floods;
mod gguf_file;
mod join;
mod lifecycle;
mod membership;
mod mutants;
mod one_name;
mod openai_client;
mod owner_restart;
mod plugins;
mod real_models;
mod receipts;
mod serve;
mod stage_death;
mod strangers;
mod telemetry;
mod tokenizer;
