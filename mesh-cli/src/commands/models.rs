//! `mesh models list|inspect`.

use std::path::{Path, PathBuf};

use clap::{Args, Subcommand};
use mesh_proto::v1::ListDeploymentsRequest;

use crate::{
    client::{Client, ConnectArgs},
    failure::{Exit, Failure},
    local_node::{self, BUILT_IN, InspectedModel},
    models_view::{BuiltInView, ModelView, ModelsView, architectures},
    output::OutputArgs,
    status_view::DeploymentView,
};

#[derive(Debug, Subcommand)]
pub(crate) enum ModelsCommand {
    /// Show what can be served, and what is
    List(ListArgs),
    /// Describe a model file: layers, sizes, quantizations, and where it can be cut; needs no node
    Inspect(InspectArgs),
}

impl ModelsCommand {
    pub(crate) async fn run(self) -> Result<(), Failure> {
        match self {
            Self::List(args) => list(args).await,
            Self::Inspect(args) => inspect(args).await,
        }
    }
}

#[derive(Debug, Args)]
pub(crate) struct ListArgs {
    #[command(flatten)]
    output: OutputArgs,
    #[command(flatten)]
    connect: ConnectArgs,
}

#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  mesh models inspect model.gguf\n  mesh models inspect model-00001-of-00003.gguf --output json"
)]
pub(crate) struct InspectArgs {
    /// Path of a GGUF file (of any part, if it is split), or built-in
    path: PathBuf,
    #[command(flatten)]
    output: OutputArgs,
}

async fn list(args: ListArgs) -> Result<(), Failure> {
    let built_in = read(PathBuf::from(BUILT_IN)).await?.description;
    let view = ModelsView {
        built_in: BuiltInView {
            name: BUILT_IN.to_owned(),
            architecture: built_in.architecture,
            layers: built_in.layers,
            bytes: built_in.total_bytes,
        },
        served: served(&args.connect).await?,
        architectures: architectures(),
    };
    args.output.print(&view, ModelsView::describe)
}

/// What the mesh serves; `None` if no node was named and none runs here.
async fn served(connect: &ConnectArgs) -> Result<Option<Vec<DeploymentView>>, Failure> {
    let client = match Client::connect(connect).await {
        Ok(client) => client,
        Err(failure) if failure.exit == Exit::Unreachable && connect.names_no_node() => return Ok(None),
        Err(failure) => return Err(failure),
    };
    let listed = client
        .deployments()
        .list_deployments(ListDeploymentsRequest {})
        .await?
        .into_inner();
    Ok(Some(listed.deployments.into_iter().map(DeploymentView::from).collect()))
}

async fn inspect(args: InspectArgs) -> Result<(), Failure> {
    let view = ModelView::from(read(args.path).await?);
    args.output.print(&view, ModelView::describe)
}

async fn read(path: PathBuf) -> Result<InspectedModel, Failure> {
    let read = tokio::task::spawn_blocking(move || local_node::inspect(Path::new(&path))).await;
    read.map_err(|error| Failure::failed(format!("reading the model failed ({error}); report this defect")))?
}
