//! `mesh node ticket`.

use clap::Args;
use mesh_proto::v1::CreateTicketRequest;

use crate::{
    client::{Client, ConnectArgs},
    failure::Failure,
    output,
};

#[derive(Debug, Args)]
#[command(after_help = "Whoever has the ticket can join: keep it as you keep a password.\n\n\
    Examples:\n  mesh node join \"$(mesh node ticket)\" --name b --data-dir b --http 127.0.0.1:9480 --grpc 127.0.0.1:9481")]
pub(crate) struct TicketArgs {
    #[command(flatten)]
    connect: ConnectArgs,
}

pub(crate) async fn run(args: TicketArgs) -> Result<(), Failure> {
    let client = Client::connect(&args.connect).await?;
    let created = client.nodes().create_ticket(CreateTicketRequest {}).await?.into_inner();
    output::print(&format!("{}\n", created.ticket))
}
