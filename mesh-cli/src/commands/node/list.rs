//! `mesh node list`.

use clap::Args;
use mesh_proto::v1::ListNodesRequest;

use crate::{
    client::{Client, ConnectArgs},
    failure::Failure,
    output::OutputArgs,
    status_view::{NodeView, nodes_table},
};

#[derive(Debug, Args)]
#[command(after_help = "The node that answered is marked with *.\n\n\
    Examples:\n  mesh node list\n  mesh node list --output json | jq -r '.[].name'")]
pub(crate) struct ListArgs {
    #[command(flatten)]
    output: OutputArgs,
    #[command(flatten)]
    connect: ConnectArgs,
}

pub(crate) async fn run(args: ListArgs) -> Result<(), Failure> {
    let nodes = nodes(&Client::connect(&args.connect).await?).await?;
    args.output.print(&nodes, |nodes| nodes_table(nodes))
}

/// All members.
pub(super) async fn nodes(client: &Client) -> Result<Vec<NodeView>, Failure> {
    let listed = client.nodes().list_nodes(ListNodesRequest {}).await?.into_inner();
    Ok(listed.nodes.into_iter().map(NodeView::from).collect())
}
