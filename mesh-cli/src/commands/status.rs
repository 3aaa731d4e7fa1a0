//! `mesh status`.

mod watch;

use clap::Args;
use mesh_proto::v1::GetStatusRequest;

use crate::{
    client::{Client, ConnectArgs},
    failure::Failure,
    output::OutputArgs,
    status_view::StatusView,
};

const HELP: &str = "\
With --watch: drawn again whenever something happens, with the open requests and tokens per second, until Ctrl-C, which
ends it with 0. Where stdout is no terminal, a block at most once a second; with --output json, an object a line, with
requests and tokens_per_second beside what is there without it.

Examples:
  mesh status
  mesh status --watch
  mesh status --output json | jq '.deployments[].ready'";

#[derive(Debug, Args)]
#[command(after_help = HELP)]
pub(crate) struct StatusArgs {
    /// Go on showing it, with requests and tokens per second
    #[arg(long, short)]
    watch: bool,
    #[command(flatten)]
    output: OutputArgs,
    #[command(flatten)]
    connect: ConnectArgs,
}

pub(crate) async fn run(args: StatusArgs) -> Result<(), Failure> {
    let client = Client::connect(&args.connect).await?;
    if args.watch {
        return watch::run(&client, args.output.output).await;
    }
    let status = client.nodes().get_status(GetStatusRequest {}).await?.into_inner();
    args.output.print(&StatusView::from(status), StatusView::describe)
}
