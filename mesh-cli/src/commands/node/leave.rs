//! `mesh node leave`.

use clap::Args;
use mesh_proto::v1::LeaveMeshRequest;

use crate::{
    client::{Client, ConnectArgs},
    failure::Failure,
    output,
};

#[derive(Debug, Args)]
#[command(
    after_help = "To stop a node for a while, send it SIGTERM instead: it stays a member, and is down.\n\n\
    Examples:\n  mesh node leave --data-dir b"
)]
pub(crate) struct LeaveArgs {
    #[command(flatten)]
    connect: ConnectArgs,
}

pub(crate) async fn run(args: LeaveArgs) -> Result<(), Failure> {
    let client = Client::connect(&args.connect).await?;
    client.nodes().leave_mesh(LeaveMeshRequest {}).await?;
    output::note("the node has left the mesh and ends");
    Ok(())
}
