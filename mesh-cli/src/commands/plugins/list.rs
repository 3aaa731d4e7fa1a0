//! `mesh plugins list`.

use clap::Args;

use super::plugins;
use crate::{
    client::{Client, ConnectArgs},
    failure::Failure,
    output::OutputArgs,
    plugin_view::plugins_table,
};

const HELP: &str = "\
A plugin follows the requests whose head (the node of stage 0) is its node: ask that node. PROPOSALS are those with
candidates in time, of all that were asked for; ACCEPTED are candidates that the model produced too, of all that were
verified. `mesh plugins show` tells what became of the others.

Examples:
  mesh plugins list
  mesh plugins list --output json | jq -r '.[] | select(.health != \"healthy\") | .reason'";

#[derive(Debug, Args)]
#[command(after_help = HELP)]
pub(crate) struct ListArgs {
    #[command(flatten)]
    output: OutputArgs,
    #[command(flatten)]
    connect: ConnectArgs,
}

pub(crate) async fn run(args: ListArgs) -> Result<(), Failure> {
    let plugins = plugins(&Client::connect(&args.connect).await?).await?;
    args.output.print(&plugins, |plugins| plugins_table(plugins))
}
