//! `mesh stop NAME`.

use clap::Args;
use mesh_proto::v1::StopRequest;

use crate::{
    client::{Client, ConnectArgs},
    failure::Failure,
    output,
};

#[derive(Debug, Args)]
#[command(
    after_help = "Requests that run are ended with an error; files of the stages stay for the next time.\n\n\
    Examples:\n  mesh stop smol"
)]
pub(crate) struct StopArgs {
    /// Name of the deployment, as `mesh status` shows it
    name: String,
    #[command(flatten)]
    connect: ConnectArgs,
}

pub(crate) async fn run(args: StopArgs) -> Result<(), Failure> {
    let client = Client::connect(&args.connect).await?;
    client
        .deployments()
        .stop(StopRequest {
            name: args.name.clone(),
        })
        .await?;
    output::note(&format!("{} is not served any more", args.name));
    Ok(())
}
