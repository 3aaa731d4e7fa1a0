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
    after_help = "To stop a node for a while, send it SIGTERM instead: it stays a member, and is down.\n\
    Models with layers on the node are not ready any more.\n\n\
    With --force a node leaves that cannot tell the node that admits others; take it out there with\n\
    `mesh node remove`. So does the node that admits others itself: the rest serve on among themselves, but\n\
    nobody can join them any more; each leaves with --force, and joins another mesh.\n\n\
    Examples:\n  mesh node leave --data-dir b\n  mesh node leave --data-dir b --force"
)]
pub(crate) struct LeaveArgs {
    /// Leave even if the node that admits others cannot be told, or is this one and others remain
    #[arg(long)]
    force: bool,
    #[command(flatten)]
    connect: ConnectArgs,
}

pub(crate) async fn run(args: LeaveArgs) -> Result<(), Failure> {
    let client = Client::connect(&args.connect).await?;
    client
        .nodes()
        .leave_mesh(LeaveMeshRequest { force: args.force })
        .await?;
    output::note("the node has left the mesh and ends");
    Ok(())
}
