//! `mesh requests …`.

mod cancel;
mod list;
mod show;

use clap::Subcommand;

use crate::failure::Failure;

pub(super) use list::requests;

#[derive(Debug, Subcommand)]
pub(crate) enum RequestsCommand {
    /// List the requests of the mesh that have not ended
    List(list::ListArgs),
    /// Show one: how far it is, or what it came to
    Show(show::ShowArgs),
    /// End a request as if its client had gone
    Cancel(cancel::CancelArgs),
}

impl RequestsCommand {
    pub(crate) async fn run(self) -> Result<(), Failure> {
        match self {
            Self::List(args) => list::run(args).await,
            Self::Show(args) => show::run(args).await,
            Self::Cancel(args) => cancel::run(args).await,
        }
    }
}
