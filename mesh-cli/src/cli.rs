//! What can be typed: noun, verb.

use clap::{Parser, Subcommand};

use crate::{
    commands,
    failure::{EXIT_CODES, Failure},
    local_node,
};

const EXAMPLES: &str = "\
Examples:
  mesh demo                                        three nodes on this machine, one answer
  mesh node start --name a                         a node; prints how others join
  mesh node join TICKET --name b                   another node, on another machine
  mesh serve model.gguf --name smol --stages 2     one model, two nodes
  mesh run smol \"What is a mesh?\"                  ask it
  curl localhost:9470/v1/chat/completions -H 'content-type: application/json' \\
    -d '{\"model\":\"smol\",\"messages\":[{\"role\":\"user\",\"content\":\"Hi\"}]}'";

/// Serves a GGUF model that is too big for any one machine from several machines at once.
#[derive(Debug, Parser)]
#[command(name = "mesh", after_help = EXAMPLES, after_long_help = format!("{EXAMPLES}\n\n{EXIT_CODES}"))]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Start three nodes on this machine, serve the built-in model from them, and ask it something
    Demo(commands::demo::DemoArgs),
    /// Start, join, list and leave
    #[command(subcommand)]
    Node(Box<commands::node::NodeCommand>),
    /// Serve a model from the nodes of the mesh; returns when it is ready
    Serve(commands::serve::ServeArgs),
    /// Stop serving a model
    Stop(commands::stop::StopArgs),
    /// Show the nodes, and who serves which layers of what
    Status(commands::status::StatusArgs),
    /// Watch what happens to requests, as it happens
    Events(commands::events::EventsArgs),
    /// List, show and cancel requests
    #[command(subcommand)]
    Requests(commands::requests::RequestsCommand),
    /// Read and check the receipts that a node keeps in its data directory
    #[command(subcommand)]
    Receipts(commands::receipts::ReceiptsCommand),
    /// List and show the native plugins of a node
    #[command(subcommand)]
    Plugins(commands::plugins::PluginsCommand),
    /// Look at model files
    #[command(subcommand)]
    Models(commands::models::ModelsCommand),
    /// Ask a served model; the answer goes to stdout as it comes
    Run(commands::run::RunArgs),
    /// Measure
    #[command(subcommand)]
    Bench(commands::bench::BenchCommand),
    /// What a node runs in child processes
    #[command(subcommand, hide = true)]
    Internal(commands::internal::InternalCommand),
}

impl Command {
    pub(crate) async fn run(self) -> Result<(), Failure> {
        match self {
            Self::Internal(_) => Err(Failure::failed("this command runs before the runtime starts")),
            Self::Demo(args) => commands::demo::run(args).await,
            Self::Node(command) => command.run().await,
            Self::Serve(args) => commands::serve::run(args).await,
            Self::Stop(args) => commands::stop::run(args).await,
            Self::Status(args) => commands::status::run(args).await,
            Self::Events(args) => commands::events::run(args).await,
            Self::Requests(command) => command.run().await,
            Self::Receipts(command) => command.run().await,
            Self::Plugins(command) => command.run().await,
            Self::Models(command) => command.run().await,
            Self::Run(args) => commands::run::run(args).await,
            Self::Bench(command) => command.run().await,
        }
    }
}

/// Ours, and that of the engine inside.
pub(crate) fn version() -> String {
    format!(
        "{} (llama.cpp {})",
        env!("CARGO_PKG_VERSION"),
        local_node::llama_version()
    )
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;

    #[test]
    fn the_definition_of_the_command_line_is_sound() {
        Cli::command().debug_assert();
    }

    #[test]
    fn every_command_of_the_design_is_there() {
        for line in [
            "mesh demo",
            "mesh node start --name a --http 127.0.0.1:0 --memory 2GiB --no-exact",
            "mesh node join TICKET --name b --data-dir d --grpc 127.0.0.1:0 --listen 127.0.0.1:0 --threads 1",
            "mesh node ticket",
            "mesh node list --output json",
            "mesh node show b",
            "mesh node leave",
            "mesh serve built-in --name x --stages a:0-3,b:3-8 --context 256 --lanes 2 --exact --prefill-chunk 8",
            "mesh stop x",
            "mesh status --output json --grpc 10.0.0.5:9471",
            "mesh status --watch --output json",
            "mesh events",
            "mesh events --follow --request i --deployment d --kind proposal_resolved --kind finished --text --tokens",
            "mesh events --follow --node-only --output json",
            "mesh requests list --ended --output json",
            "mesh requests show i --tokens",
            "mesh requests cancel i",
            "mesh receipts export --since 7 --output json",
            "mesh receipts verify --data-dir d",
            "mesh node start --receipts",
            "mesh node start --receipts=always --receipt-tokens",
            "mesh node start --plugin /p.so --plugin-config c --plugin-state s --plugin-deadline 8ms --plugin-required",
            "mesh node join TICKET --plugin /p.so --plugin /q.so",
            "mesh plugins list --output json",
            "mesh plugins show ngram-proposer --grpc 10.0.0.5:9471",
            "mesh models list",
            "mesh models inspect m.gguf --output json",
            "mesh run x hello --max-tokens 4 --temperature 0 --seed 7 --raw",
            "mesh bench events",
            "mesh bench events built-in --rounds 3 --output json",
            "mesh bench plugins",
            "mesh bench plugins m.gguf --rounds 3 --max-tokens 64 --event-log /e.so --ngram /n.so --output json",
            "mesh bench plugins --late /l.so --late-config l.conf",
            "mesh bench split built-in --stages 2 --threads 1 --rounds 3 --output json",
        ] {
            assert!(Cli::try_parse_from(line.split(' ')).is_ok(), "{line}");
        }
    }

    #[test]
    fn a_data_directory_and_an_address_contradict_each_other() {
        assert!(Cli::try_parse_from(["mesh", "status", "--data-dir", "d", "--grpc", "h:1"]).is_err());
    }
}
