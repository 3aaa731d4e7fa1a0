//! `mesh internal …`: what a node runs in child processes. Not for users; see `mesh_node::child`.

use std::{process::ExitCode, time::Duration};

use clap::{Args, Subcommand};

use crate::{
    failure::Failure,
    local_node::{self, ChildLimits},
};

#[derive(Debug, Subcommand)]
pub(crate) enum InternalCommand {
    /// Tokenize, and render chat templates
    Text(ChildArgs),
    /// Load a stage file for the first time
    Prove(ChildArgs),
}

/// As `ChildProgram::spawn` sets them.
#[derive(Debug, Args)]
pub(crate) struct ChildArgs {
    /// Bytes
    #[arg(long)]
    memory: Option<u64>,
    /// Of all cores together
    #[arg(long)]
    cpu_seconds: Option<u64>,
    /// Read by `main` before any thread starts
    #[arg(long)]
    no_exact: bool,
}

impl ChildArgs {
    fn limits(&self) -> ChildLimits {
        ChildLimits {
            memory: self.memory,
            cpu: self.cpu_seconds.map(Duration::from_secs),
        }
    }
}

impl InternalCommand {
    /// On the main thread, without a runtime: a child waits for frames there.
    pub(crate) fn run(&self) -> ExitCode {
        let ended = match self {
            Self::Text(args) => local_node::run_text(args.limits()),
            Self::Prove(args) => local_node::run_prove(args.limits()),
        };
        match ended {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => Failure::failed(error.to_string()).report(),
        }
    }
}
