//! `mesh node …`.

mod leave;
mod list;
mod remove;
mod show;
mod start;
mod ticket;

use clap::Subcommand;

use crate::failure::Failure;

#[derive(Debug, Subcommand)]
pub(crate) enum NodeCommand {
    /// Run a node in the foreground until SIGTERM or Ctrl-C: a new mesh, or the one it was in before
    Start(start::StartArgs),
    /// Run a node that joins a mesh, in the foreground until SIGTERM or Ctrl-C
    Join(start::JoinArgs),
    /// Print a ticket, good for a day and several joins, and nothing else
    Ticket(ticket::TicketArgs),
    /// List the nodes of the mesh
    List(list::ListArgs),
    /// Show one node
    Show(show::ShowArgs),
    /// Take this node out of its mesh and end it
    Leave(leave::LeaveArgs),
    /// Take another node out of the mesh: one that is dead, lost or stolen
    Remove(remove::RemoveArgs),
}

impl NodeCommand {
    pub(crate) async fn run(self) -> Result<(), Failure> {
        match self {
            Self::Start(args) => start::start(args).await,
            Self::Join(args) => start::join(args).await,
            Self::Ticket(args) => ticket::run(args).await,
            Self::List(args) => list::run(args).await,
            Self::Show(args) => show::run(args).await,
            Self::Leave(args) => leave::run(args).await,
            Self::Remove(args) => remove::run(args).await,
        }
    }
}
