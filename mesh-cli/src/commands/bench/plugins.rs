//! `mesh bench plugins`: what native plugins cost decoding, and what their candidates save, measured with real
//! processes on loopback.
//!
//! First whole, then in three stages. Each situation has nodes of its own; all of them live at once, and one request
//! runs at a time. The first node of each mesh has stage 0, since plugins follow requests whose head is there.
//!
//! ```text
//! none, none_repeating, control ──▶ node each        event_log ──▶ node + libmesh_event_log
//! silent ──▶ node + libmesh_ngram_proposer (min_ngram that nothing reaches)
//! ngram_other, ngram_repeating ──▶ node + libmesh_ngram_proposer each        always_late ──▶ node + --late
//! ```

mod counters;
mod libraries;
mod mesh;
mod report;
mod situation;
mod texts;

use std::path::PathBuf;

use clap::Args;

use self::{libraries::Libraries, mesh::Mesh, report::Report, texts::Texts};
use crate::{
    failure::Failure,
    local_node::BUILT_IN,
    output::{self, OutputArgs},
    signals::Interrupts,
};

/// Stages of the split mesh.
const STAGES: usize = 3;

const HELP: &str = "\
Situations, measured in turn in each round, whole and in three stages:
  none             no plugin, text that does not repeat
  none_repeating   no plugin, text that repeats
  control          as none, in other processes: what its ratio is off 100 % by is noise
  event_log        a plugin that follows and proposes nothing (plugins/examples/event-log)
  silent           a plugin that is asked for candidates and has none
  ngram_other      ngram-proposer, text that does not repeat
  ngram_repeating  ngram-proposer, text that repeats
  always_late      a plugin that misses its deadline, if --late is given
Rates are the head's clock; ratios are medians over rounds of the rate over that of none with the same text in the same
round. Engines have one thread each. All outputs must be those of none: a difference is a failure (exit code 1).

Libraries that are not beside this program are left out, unless their paths are given. They are built by
  cargo build -p mesh-ngram-proposer
  make -C plugins/examples/event-log OUT=DIR

Examples:
  mesh bench plugins
  mesh bench plugins model.gguf --rounds 9 --output json | jq .split.ngram_repeating.ratio
  mesh bench plugins --late /abs/libmisbehaving.so --late-config late.conf";

#[derive(Debug, Args)]
#[command(after_help = HELP)]
pub(crate) struct PluginsArgs {
    /// Path of a GGUF file, or built-in
    #[arg(default_value = BUILT_IN)]
    model: PathBuf,
    /// Measurements of each
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// Most tokens to generate; what came is counted
    #[arg(long, value_name = "N", default_value_t = 128, value_parser = clap::value_parser!(u32).range(2..=1 << 20))]
    max_tokens: u32,
    /// Library of the event log [default: beside this program]
    #[arg(long, value_name = "PATH")]
    event_log: Option<PathBuf>,
    /// Library of the n-gram proposer [default: beside this program]
    #[arg(long, value_name = "PATH")]
    ngram: Option<PathBuf>,
    /// Library that misses its deadline
    #[arg(long, value_name = "PATH")]
    late: Option<PathBuf>,
    /// Its configuration
    #[arg(long, value_name = "FILE", requires = "late")]
    late_config: Option<PathBuf>,
    #[command(flatten)]
    output: OutputArgs,
}

pub(crate) async fn run(args: PluginsArgs) -> Result<(), Failure> {
    let mut interrupts = Interrupts::listen()?;
    let report = tokio::select! {
        report = measure(&args) => report?,
        () = interrupts.next() => return Err(Failure::interrupted("the nodes are stopped")),
    };
    args.output.print(&report, Report::describe)?;
    report.verdict()
}

async fn measure(args: &PluginsArgs) -> Result<Report, Failure> {
    let libraries = Libraries::find(args)?;
    for left_out in &libraries.left_out {
        output::note(&format!("mesh: {left_out}"));
    }
    output::note("starting whole nodes …");
    let mut whole = Mesh::start(args, &libraries, None).await?;
    let layers = whole.layers;
    let texts = Texts::find(whole.client(), args.max_tokens).await?;
    let (outputs, whole_report) = whole.measure(args, &texts, None).await?;
    whole.stop().await;
    output::note("starting nodes of three stages …");
    let mut split = Mesh::start(args, &libraries, Some(layers)).await?;
    let (_, split_report) = split.measure(args, &texts, Some(outputs)).await?;
    split.stop().await;
    Ok(Report {
        model: args.model.display().to_string(),
        max_tokens: args.max_tokens,
        whole: whole_report,
        split: split_report,
        left_out: libraries.left_out,
    })
}
