//! A Mesh node: configuration, composition root, adapters.
//!
//! Read [`run`] from top to bottom to see what a node is made of and in which order it starts and stops.

mod administration;
mod built_in;
pub mod child;
pub mod config;
pub mod data_dir;
mod desired;
mod enter;
pub mod environment;
mod error;
mod host_facts;
mod inference;
mod lifecycle;
mod members;
mod parts;
mod plugins;
mod private;
mod process;
mod proving;
pub mod receipts;
pub mod run;
mod servers;
mod store;
pub mod terminal;
mod text;

pub use built_in::{BUILT_IN, built_in_model};
pub use config::{ConfigOverrides, NodeConfig};
pub use data_dir::{RunningNode, default_data_dir, running_node};
pub use error::NodeError;
pub use process::{init_logging, llama_version, prepare_process};
pub use proving::run_prove;
pub use run::{Node, NodeFacts};
pub use store::describe_model;
pub use text::run_text;
