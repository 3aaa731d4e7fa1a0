//! `mesh`, the one binary of Mesh: nodes, and the commands that talk to them.
//!
//! ```text
//! main ──▶ cli (what was typed) ──▶ commands::* ──┬──▶ local_node   a node in this process (`mesh node start|join`)
//!                                                 ├──▶ client       gRPC to a running node (most commands)
//!                                                 └──▶ cluster      child processes of this binary (`mesh demo|bench`)
//! ```
//!
//! Data goes to stdout ([`output`]), everything else to stderr; what a command ends with is in [`failure`].

mod cli;
mod client;
mod cluster;
mod commands;
mod event_view;
mod failure;
mod generate;
mod local_node;
mod models_view;
mod node_flags;
mod output;
mod path;
mod plugin_flags;
mod plugin_view;
mod progress;
mod request_view;
mod screen;
mod signals;
mod status_view;

use std::{process::ExitCode, time::Duration};

use clap::{CommandFactory as _, FromArgMatches as _};

use crate::{
    cli::{Cli, Command},
    failure::Failure,
};

/// Work on blocking threads that nobody waits for any more (a file that is read or written) gets this long to end.
const LAST_WORK_LIMIT: Duration = Duration::from_secs(1);

fn main() -> ExitCode {
    // Before any thread: it sets what llama.cpp reads from the environment once.
    let exact = !std::env::args_os().skip(1).any(|argument| argument == "--no-exact");
    local_node::prepare_process(exact);

    let matches = Cli::command().version(cli::version()).get_matches();
    let cli = Cli::from_arg_matches(&matches).unwrap_or_else(|error| error.exit());
    if let Command::Internal(command) = &cli.command {
        return command.run();
    }
    let result = runtime().and_then(|runtime| {
        let result = runtime.block_on(cli.command.run());
        runtime.shutdown_timeout(LAST_WORK_LIMIT);
        result
    });
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.report(),
    }
}

/// Half of the cores: engines need the others, and on two cores a token's way through one worker is shorter than
/// through two, which wake each other. `TOKIO_WORKER_THREADS` says otherwise.
fn runtime() -> Result<tokio::runtime::Runtime, Failure> {
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    if std::env::var_os("TOKIO_WORKER_THREADS").is_none() {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        builder.worker_threads((cores / 2).max(1));
    }
    let runtime = builder.thread_name("mesh").enable_all().build();
    runtime.map_err(|error| {
        Failure::failed(format!(
            "cannot start the runtime: {error}; check the limits of this user"
        ))
    })
}
