//! `mesh plugins show`.

use clap::Args;

use super::plugins;
use crate::{
    client::{Client, ConnectArgs},
    failure::{Exit, Failure},
    output::OutputArgs,
    plugin_view::PluginView,
};

#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  mesh plugins show ngram-proposer\n  mesh plugins show event-log --output json")]
pub(crate) struct ShowArgs {
    /// Name of the plugin, or the path of one that was not loaded
    plugin: String,
    #[command(flatten)]
    output: OutputArgs,
    #[command(flatten)]
    connect: ConnectArgs,
}

pub(crate) async fn run(args: ShowArgs) -> Result<(), Failure> {
    let plugins = plugins(&Client::connect(&args.connect).await?).await?;
    let names: Vec<String> = plugins.iter().map(|plugin| plugin.title().to_owned()).collect();
    let found = plugins.into_iter().find(|plugin| plugin.title() == args.plugin);
    let Some(plugin) = found else {
        let there = if names.is_empty() {
            "this node has none; load one with `mesh node start --plugin PATH`".to_owned()
        } else {
            format!("there are: {}", names.join(", "))
        };
        let message = format!("there is no plugin {}; {there}", args.plugin);
        return Err(Failure::new(Exit::NotFound, message));
    };
    args.output.print(&plugin, PluginView::describe)
}
