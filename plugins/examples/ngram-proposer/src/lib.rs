//! A plugin that proposes what followed the last tokens when they came before: in the prompt or in the output.
//!
//! It keeps the tokens of each generation and an index of their n-grams, which every commit extends. A query looks up
//! the last `max_ngram` tokens, then one fewer, down to `min_ngram`; the answer is there before `start_proposal` returns.
//!
//! Lines of the configuration file, all optional: `min_ngram = 2`, `max_ngram = 4`, `max_tokens = 16`,
//! `log = /abs/path` (one JSON line for each call).

mod answers;
mod config;
mod generations;
mod history;
mod line;
mod log;
mod proposer;

use mesh_plugin_sdk::export_plugin;

export_plugin!(proposer::Proposer);
