//! `mesh receipts …`: the files that a node with `--receipts` keeps, read without the node.

mod export;
mod verify;

use std::path::PathBuf;

use clap::{Args, Subcommand};

use crate::{failure::Failure, local_node, path};

#[derive(Debug, Subcommand)]
pub(crate) enum ReceiptsCommand {
    /// Print the receipts that a node keeps in its data directory
    Export(export::ExportArgs),
    /// Find lines that are missing, changed, moved or torn; exit code 1 if there are any
    Verify(verify::VerifyArgs),
}

impl ReceiptsCommand {
    pub(crate) async fn run(self) -> Result<(), Failure> {
        match self {
            Self::Export(args) => on_disk(move || export::run(args)).await,
            Self::Verify(args) => on_disk(move || verify::run(args)).await,
        }
    }
}

/// Whose receipts.
#[derive(Debug, Clone, Args)]
pub(crate) struct DataDirArgs {
    /// Data directory of the node, which may run meanwhile [default: $MESH_HOME, else the platform's]
    #[arg(long, value_name = "DIR")]
    data_dir: Option<PathBuf>,
}

impl DataDirArgs {
    fn path(&self) -> Result<PathBuf, Failure> {
        match &self.data_dir {
            Some(data_dir) => path::absolute(data_dir),
            None => Ok(local_node::default_data_dir()),
        }
    }
}

/// Gigabytes may be read.
async fn on_disk(read: impl FnOnce() -> Result<(), Failure> + Send + 'static) -> Result<(), Failure> {
    let read = tokio::task::spawn_blocking(read).await;
    read.map_err(|error| Failure::failed(format!("reading receipts failed ({error}); report this defect")))?
}
