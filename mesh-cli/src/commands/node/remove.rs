//! `mesh node remove`.

use clap::Args;
use mesh_proto::v1::RemoveNodeRequest;

use crate::{
    client::{Client, ConnectArgs},
    failure::Failure,
    output,
};

#[derive(Debug, Args)]
#[command(
    after_help = "For a node that is dead, lost or stolen. Its connections end on every node at once, what it served is\n\
    lost as when it dies, and its name is free. Tickets printed so far are no longer good; to take the node\n\
    in again, print a new one.\n\n\
    Examples:\n  mesh node remove b\n  mesh node remove b --data-dir a"
)]
pub(crate) struct RemoveArgs {
    /// Its name or id
    name: String,
    #[command(flatten)]
    connect: ConnectArgs,
}

pub(crate) async fn run(args: RemoveArgs) -> Result<(), Failure> {
    let client = Client::connect(&args.connect).await?;
    let request = RemoveNodeRequest {
        name: args.name.clone(),
    };
    client.nodes().remove_node(request).await?;
    output::note(&format!(
        "node {} is out of the mesh; tickets printed so far are no longer good",
        args.name
    ));
    Ok(())
}
