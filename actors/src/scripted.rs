//! Everything around this crate, scripted, for tests: an engine whose model is a pure function of a lane's tokens, a
//! vocabulary of bytes, a chain of real hosts joined in memory, and a log that checks lifecycle events.
//!
//! Behind the feature `scripted`. Nothing here sleeps: tests hold calls at a [`Gate`] and wait with [`eventually`].

mod chain;
mod desired;
mod engine;
mod events;
mod gate;
pub mod model;
mod owner;
mod plugin;
mod vocabulary;

pub use chain::{Chain, ChainOptions, ExtraHost, chain_owner, generate_text, read_all};
pub use desired::ScriptedDesired;
pub use engine::{Call, Script, ScriptedEngine, ScriptedLoader, Verdict};
pub use events::EventLog;
pub use gate::{Gate, eventually};
pub use owner::{ScriptedHosts, ScriptedStage, ScriptedStore, member};
pub use plugin::{PluginLine, PluginScript, ScriptedPlugin, Told};
pub use vocabulary::{BYTES_VOCABULARY, END, ScriptedVocabulary};
