//! `mesh status`.

use clap::Args;
use mesh_proto::v1::GetStatusRequest;

use crate::{
    client::{Client, ConnectArgs},
    failure::Failure,
    output::OutputArgs,
    status_view::StatusView,
};

#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  mesh status\n  mesh status --output json | jq '.deployments[].ready'")]
pub(crate) struct StatusArgs {
    #[command(flatten)]
    output: OutputArgs,
    #[command(flatten)]
    connect: ConnectArgs,
}

pub(crate) async fn run(args: StatusArgs) -> Result<(), Failure> {
    let client = Client::connect(&args.connect).await?;
    let status = client.nodes().get_status(GetStatusRequest {}).await?.into_inner();
    args.output.print(&StatusView::from(status), StatusView::describe)
}
