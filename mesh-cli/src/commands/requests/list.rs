//! `mesh requests list`.

use clap::Args;
use mesh_proto::v1::{ListRequestsRequest, Scope};

use crate::{
    client::{Client, ConnectArgs},
    failure::Failure,
    output::OutputArgs,
    request_view::RequestsView,
};

const HELP: &str = "\
Each node keeps the receipts of its last 1,024 requests that held a lane; --ended shows those too.

Examples:
  mesh requests list
  mesh requests list --ended --deployment smol
  mesh requests list --output json | jq -r '.requests[].request_id'";

#[derive(Debug, Args)]
#[command(after_help = HELP)]
pub(crate) struct ListArgs {
    /// The last ended ones too
    #[arg(long)]
    ended: bool,
    /// Only of this deployment; can be given several times
    #[arg(long, value_name = "NAME")]
    deployment: Vec<String>,
    #[command(flatten)]
    output: OutputArgs,
    #[command(flatten)]
    connect: ConnectArgs,
}

pub(crate) async fn run(args: ListArgs) -> Result<(), Failure> {
    let client = Client::connect(&args.connect).await?;
    let view = requests(&client, args.deployment, args.ended, Scope::Mesh).await?;
    view.warn_of_missing();
    args.output.print(&view, RequestsView::describe)
}

/// Requests of a node or the whole mesh.
pub(crate) async fn requests(
    client: &Client,
    deployments: Vec<String>,
    ended: bool,
    scope: Scope,
) -> Result<RequestsView, Failure> {
    let request = ListRequestsRequest {
        scope: scope.into(),
        deployments,
        include_ended: ended,
    };
    Ok(client.lifecycle().list_requests(request).await?.into_inner().into())
}
