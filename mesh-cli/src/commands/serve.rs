//! `mesh serve MODEL`.

use std::path::PathBuf;

use clap::Args;
use mesh_proto::v1::{Deployment, ServeRequest, serve_response::Event};

use crate::{
    client::{Client, ConnectArgs},
    failure::Failure,
    output::{self, OutputArgs},
    path,
    progress::ServeDisplay,
    signals::Interrupts,
    status_view::DeploymentView,
};

const HELP: &str = "\
The path is read by the node the command talks to, which cuts the file and sends each node its layers.

Examples:
  mesh serve built-in
  mesh serve path/to/model.gguf --name smol --stages 3
  mesh serve path/to/model.gguf --name smol --stages \"a:0-10,b:10-20,c:20-30\" --lanes 8";

#[derive(Debug, Args)]
#[command(after_help = HELP)]
pub(crate) struct ServeArgs {
    /// Path of a GGUF file (of any part, if it is split), or built-in
    model: PathBuf,
    /// Name of the deployment: the model id of the API [default: the file's name]
    #[arg(long)]
    name: Option<String>,
    /// auto, a number of stages, or NODE:START-END,…
    #[arg(long, default_value = "auto")]
    stages: String,
    /// Tokens per lane [default: the trained length, at most 131072, or what memory allows]
    #[arg(long, value_name = "TOKENS", value_parser = clap::value_parser!(u32).range(1..))]
    context: Option<u32>,
    /// Requests that run at once [default: 4]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    lanes: Option<u32>,
    /// Refuse unless results are the same split or whole, alone or in company
    #[arg(long)]
    exact: bool,
    /// Prompt tokens computed at a time [default: 60 in exact mode, else 512]
    #[arg(long, value_name = "TOKENS", value_parser = clap::value_parser!(u32).range(1..))]
    prefill_chunk: Option<u32>,
    #[command(flatten)]
    output: OutputArgs,
    #[command(flatten)]
    connect: ConnectArgs,
}

pub(crate) async fn run(args: ServeArgs) -> Result<(), Failure> {
    let request = ServeRequest {
        model: path::model(&args.model)?,
        name: args.name.unwrap_or_default(),
        stages: args.stages,
        context: args.context.unwrap_or_default(),
        lanes: args.lanes.unwrap_or_default(),
        exact: args.exact,
        prefill_chunk: args.prefill_chunk.unwrap_or_default(),
    };
    let mut interrupts = Interrupts::listen()?;
    let serving = async { serve(&Client::connect(&args.connect).await?, request).await };
    // Whoever goes away while the model is being prepared gives it up: the node takes everything back.
    let deployment = tokio::select! {
        deployment = serving => deployment?,
        () = interrupts.next() => return Err(Failure::interrupted("the model is not served")),
    };
    args.output.print(&DeploymentView::from(deployment), |deployment| {
        format!(
            "{} is ready, context {}\n{}",
            output::name(&deployment.name),
            deployment.context_in_words(),
            deployment.stages_table(0)
        )
    })
}

/// Serves a model, shows the progress and waits until it is ready. Dropping the future gives up.
pub(crate) async fn serve(client: &Client, request: ServeRequest) -> Result<Deployment, Failure> {
    let mut display = ServeDisplay::new();
    let mut events = client.deployments().serve(request).await?.into_inner();
    while let Some(response) = events.message().await? {
        match response.event {
            Some(Event::Progress(progress)) => display.show(&progress),
            Some(Event::Ready(deployment)) => {
                display.finish();
                if deployment.chat_template.contains("fallback") {
                    output::note(&format!(
                        "mesh: the model has no chat template of use: {}",
                        deployment.chat_template
                    ));
                }
                return Ok(deployment);
            }
            None => {}
        }
    }
    Err(Failure::failed(
        "the node ended without saying whether the model is ready; see `mesh status` and its log",
    ))
}
