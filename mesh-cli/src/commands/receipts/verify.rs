//! `mesh receipts verify`.

use clap::Args;

use super::DataDirArgs;
use crate::{
    failure::Failure,
    local_node::receipts::{ChainKey, Verified, verify},
    output::OutputArgs,
};

const HELP: &str = "\
Each line holds a hash over itself and the line before it, keyed with a key of the node: what is changed, removed,
moved or doubled shows, with file and line. head.json says how far the log has come, so that lines cut off at the end
show too, but for those of the last second of a node that was killed. Receipts that were lost because the disk was too
slow or full are in the log itself, and no fault of it.

Examples:
  mesh receipts verify
  mesh receipts verify --data-dir b --output json | jq .faults";

#[derive(Debug, Args)]
#[command(after_help = HELP)]
pub(crate) struct VerifyArgs {
    #[command(flatten)]
    output: OutputArgs,
    #[command(flatten)]
    data_dir: DataDirArgs,
}

pub(super) fn run(args: VerifyArgs) -> Result<(), Failure> {
    let data_dir = args.data_dir.path()?;
    let found = verify(&data_dir, &ChainKey::read(&data_dir)?)?;
    args.output.print(&found, describe)?;
    let faults = found.faults.len() as u64 + found.more_faults;
    if faults == 0 {
        return Ok(());
    }
    Err(Failure::failed(format!(
        "the receipts in {} have {faults} fault(s); keep the files as they are, and find out who changed them",
        data_dir.display()
    )))
}

fn describe(found: &Verified) -> String {
    let mut text = String::new();
    for fault in &found.faults {
        text += &format!("{}:{}: {}\n", fault.file.display(), fault.line, fault.fault);
    }
    if found.more_faults > 0 {
        text += &format!("and {} more\n", found.more_faults);
    }
    text + &format!(
        "{} receipts in {} lines of {} files, last number {}; {} lost, {} torn, as the log says itself\n",
        found.receipts, found.lines, found.files, found.last_seq, found.lost, found.torn
    )
}
