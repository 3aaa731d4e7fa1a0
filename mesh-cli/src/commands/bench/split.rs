//! `mesh bench split`: what splitting costs, measured with real processes on loopback.
//!
//! One node holds the whole model and N nodes hold a stage each. All live at once; requests go to one mesh at a time,
//! in turn, so that whatever else the machine does falls on both alike.

use std::path::PathBuf;

use clap::Args;
use mesh_proto::v1::ServeRequest;

use super::{
    prompt::{calibrated_prompt, context_for, go_on},
    report::{Report, Sample, SideReport},
};
use crate::{
    cluster::{Cluster, ClusterOptions},
    commands::serve::serve,
    failure::Failure,
    generate::Generated,
    output::{self, OutputArgs},
    path,
    signals::Interrupts,
    status_view::DeploymentView,
};

/// Name of the deployment on both meshes.
const DEPLOYMENT: &str = "bench";

/// Stages that a name can be given to; far more than a machine can run.
const MAX_STAGES: u32 = 64;

const HELP: &str = "\
TTFT is what the client sees; prompt and decode rates are the head's clock. Overhead per hop is the wall time per
token minus the engines' time per token, divided by the hops: one per stage, the return to the head counted.
Results mean something only where the machine is otherwise idle and threads × stages fit its cores.

Examples:
  mesh bench split built-in --stages 2
  mesh bench split model.gguf --stages 2 --threads 1 --rounds 9 --output json | jq .decode_ratio";

#[derive(Debug, Args)]
#[command(after_help = HELP)]
pub(crate) struct SplitArgs {
    /// Path of a GGUF file, or built-in
    model: PathBuf,
    /// Stages of the split mesh, each a process
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=i64::from(MAX_STAGES)))]
    stages: u32,
    /// Compute threads of the whole, and of each stage
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    threads: u32,
    /// Measurements of each
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// Length of the prompt, about
    #[arg(long, value_name = "N", default_value_t = 128, value_parser = clap::value_parser!(u32).range(1..=1 << 20))]
    prompt_tokens: u32,
    /// Most tokens to generate; what came is counted
    #[arg(long, value_name = "N", default_value_t = 128, value_parser = clap::value_parser!(u32).range(2..=1 << 20))]
    max_tokens: u32,
    /// Measure without exact mode
    #[arg(long)]
    no_exact: bool,
    #[command(flatten)]
    output: OutputArgs,
}

pub(crate) async fn run(args: SplitArgs) -> Result<(), Failure> {
    warn_of_too_few_cores(&args);
    let mut interrupts = Interrupts::listen()?;
    let report = tokio::select! {
        report = measure(&args) => report?,
        () = interrupts.next() => return Err(Failure::interrupted("the nodes are stopped")),
    };
    args.output.print(&report, Report::describe)
}

fn warn_of_too_few_cores(args: &SplitArgs) {
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    if args.threads as usize * args.stages as usize > cores {
        output::note(&format!(
            "mesh: {} stages of {} thread(s) do not fit on {cores} cores; the figures will be poor",
            args.stages, args.threads
        ));
    }
}

async fn measure(args: &SplitArgs) -> Result<Report, Failure> {
    let options = ClusterOptions {
        threads: args.threads,
        exact: !args.no_exact,
        events: true,
        plugins: &[],
    };
    let names: Vec<String> = (0..args.stages).map(|stage| format!("stage-{stage}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    output::note("starting the nodes …");
    let whole = Side::start(&["whole"], options, args).await?;
    let split = Side::start(&names, options, args).await?;

    let prompt = calibrated_prompt(whole.cluster.client(), DEPLOYMENT, args.prompt_tokens, args.max_tokens).await?;
    let warm = (
        whole.generate(&prompt, args.max_tokens).await?,
        split.generate(&prompt, args.max_tokens).await?,
    );
    let same_text = warm.0.text == warm.1.text;
    let (mut wholes, mut splits) = (Vec::new(), Vec::new());
    for round in 1..=args.rounds {
        output::note(&format!("round {round} of {}", args.rounds));
        wholes.push(whole.sample(&prompt, args).await?);
        splits.push(split.sample(&prompt, args).await?);
    }
    let report = Report::new(
        SideReport::new(wholes, whole.deployment.clone()),
        SideReport::new(splits, split.deployment.clone()),
        same_text,
    );
    whole.cluster.stop().await;
    split.cluster.stop().await;
    report
}

/// One of the two meshes that are compared.
#[derive(Debug)]
struct Side {
    cluster: Cluster,
    deployment: DeploymentView,
}

impl Side {
    async fn start(names: &[&str], options: ClusterOptions<'_>, args: &SplitArgs) -> Result<Self, Failure> {
        let cluster = Cluster::start(names, options).await?;
        let request = ServeRequest {
            model: path::model(&args.model)?,
            name: DEPLOYMENT.to_owned(),
            stages: names.len().to_string(),
            context: context_for(args.prompt_tokens, args.max_tokens),
            lanes: 1,
            exact: options.exact,
            ..ServeRequest::default()
        };
        let deployment = serve(cluster.client(), request).await?;
        Ok(Self {
            cluster,
            deployment: deployment.into(),
        })
    }

    async fn generate(&self, prompt: &str, max_tokens: u32) -> Result<Generated, Failure> {
        go_on(self.cluster.client(), DEPLOYMENT, prompt, max_tokens).await
    }

    async fn sample(&self, prompt: &str, args: &SplitArgs) -> Result<Sample, Failure> {
        Sample::of(&self.generate(prompt, args.max_tokens).await?)
    }
}
