//! `mesh bench …`.

mod events;
mod events_report;
mod plugins;
mod prompt;
mod report;
mod split;

use clap::Subcommand;

use crate::failure::Failure;

#[derive(Debug, Subcommand)]
pub(crate) enum BenchCommand {
    /// Compare a model served whole with the same model served in stages, on this machine
    Split(split::SplitArgs),
    /// Measure what lifecycle events and their subscribers cost decoding, on this machine
    Events(events::EventsArgs),
    /// Measure what native plugins cost decoding and what their candidates save, on this machine
    Plugins(plugins::PluginsArgs),
}

impl BenchCommand {
    pub(crate) async fn run(self) -> Result<(), Failure> {
        match self {
            Self::Split(args) => split::run(args).await,
            Self::Events(args) => events::run(args).await,
            Self::Plugins(args) => plugins::run(args).await,
        }
    }
}
