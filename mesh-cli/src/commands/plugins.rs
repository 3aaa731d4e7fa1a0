//! `mesh plugins …`.

mod list;
mod show;

use clap::Subcommand;
use mesh_proto::v1::ListPluginsRequest;

use crate::{client::Client, failure::Failure, plugin_view::PluginView};

#[derive(Debug, Subcommand)]
pub(crate) enum PluginsCommand {
    /// List the native plugins of a node, with their health
    List(list::ListArgs),
    /// Show one: what it wants, what became of its proposals, how long its calls take
    Show(show::ShowArgs),
}

impl PluginsCommand {
    pub(crate) async fn run(self) -> Result<(), Failure> {
        match self {
            Self::List(args) => list::run(args).await,
            Self::Show(args) => show::run(args).await,
        }
    }
}

/// Those of the node, in the order of its settings.
pub(super) async fn plugins(client: &Client) -> Result<Vec<PluginView>, Failure> {
    let listed = client.nodes().list_plugins(ListPluginsRequest {}).await?.into_inner();
    Ok(listed.plugins.into_iter().map(PluginView::from).collect())
}
