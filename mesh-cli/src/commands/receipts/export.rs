//! `mesh receipts export`.

use clap::Args;

use super::DataDirArgs;
use crate::{
    failure::Failure,
    local_node::receipts::{ChainKey, Content, ExportedLine, ReceiptView, export},
    output::{self, OutputArgs, OutputFormat},
};

const HELP: &str = "\
With --output json: the lines as they are in the files, one JSON object each, with seq, time, kind, hash and, by kind,
  receipt   receipt: what the request came to
  lost      count: receipts that did not get into the files
  torn      bytes: a line that a crash left unfinished was cut off
  missing   from, to: the node found lines missing when it started
Whoever keeps the last seq goes on with --since SEQ+1. Hashes are not checked: see `mesh receipts verify`.

Examples:
  mesh receipts export
  mesh receipts export --since 1001 --output json | jq 'select(.kind == \"receipt\").receipt.completion_tokens'";

#[derive(Debug, Args)]
#[command(after_help = HELP)]
pub(crate) struct ExportArgs {
    /// First number to print
    #[arg(long, value_name = "SEQ", default_value_t = 1)]
    since: u64,
    #[command(flatten)]
    output: OutputArgs,
    #[command(flatten)]
    data_dir: DataDirArgs,
}

pub(super) fn run(args: ExportArgs) -> Result<(), Failure> {
    let data_dir = args.data_dir.path()?;
    // A directory that is no node's has no receipts either, and should say so.
    ChainKey::read(&data_dir)?;
    if args.output.output == OutputFormat::Table {
        output::print(&row([
            "SEQ",
            "ENDED",
            "REQUEST",
            "DEPLOYMENT",
            "PROMPT",
            "TOKENS",
            "END",
        ]))?;
    }
    export(&data_dir, args.since, |line| match args.output.output {
        OutputFormat::Json => output::print_while_read(&format!("{}\n", line.text)),
        OutputFormat::Table => output::print_lines(&describe(&line)),
    })
}

fn describe(line: &ExportedLine<'_>) -> String {
    let seq = line.record.seq.to_string();
    match &line.record.content {
        Content::Receipt { receipt } => describe_receipt(&seq, receipt),
        Content::Lost { count } => format!("{seq:<8}  {count} receipts were lost here\n"),
        Content::Torn { bytes } => format!("{seq:<8}  an unfinished line of {bytes} bytes was cut off here\n"),
        Content::Missing { from, .. } => format!("{seq:<8}  lines from number {from} on were missing here\n"),
    }
}

fn describe_receipt(seq: &str, receipt: &ReceiptView) -> String {
    row([
        seq,
        &output::clock_time(&receipt.ended),
        &output::name(&receipt.request_id),
        &output::name(&receipt.deployment),
        &receipt.prompt_tokens.to_string(),
        &receipt.completion_tokens.to_string(),
        &output::sentence(receipt.end()),
    ])
}

/// Columns that fit almost everything: the log may be too long to wait for the widest cell.
fn row([seq, ended, request, deployment, prompt, tokens, end]: [&str; 7]) -> String {
    format!("{seq:<8}  {ended:<23}  {request:<36}  {deployment:<16}  {prompt:>6}  {tokens:>6}  {end}\n")
}
