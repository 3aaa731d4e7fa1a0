//! `mesh requests cancel ID`.

use clap::Args;
use mesh_proto::v1::CancelRequestRequest;

use crate::{
    client::{Client, ConnectArgs},
    failure::Failure,
    output,
};

#[derive(Debug, Args)]
#[command(
    after_help = "Its client gets the error `cancelled`; its lane is free after the step that runs.\n\n\
    Examples:\n  mesh requests cancel 7f1d4c1e-6a55-4a44-9d5b-0d1a6f0d3b52"
)]
pub(crate) struct CancelArgs {
    /// Id of the request, as `mesh requests list` shows it
    id: String,
    #[command(flatten)]
    connect: ConnectArgs,
}

pub(crate) async fn run(args: CancelArgs) -> Result<(), Failure> {
    let client = Client::connect(&args.connect).await?;
    let request = CancelRequestRequest {
        request_id: args.id.clone(),
    };
    client.lifecycle().cancel_request(request).await?;
    output::note(&format!("{} is cancelled", args.id));
    Ok(())
}
