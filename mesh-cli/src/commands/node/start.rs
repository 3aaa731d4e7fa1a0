//! `mesh node start` and `mesh node join`: a node in this process.

use clap::Args;

use crate::{
    failure::Failure,
    local_node::{self, Node},
    node_flags::NodeFlags,
    output, signals,
};

const START_HELP: &str = "\
Prints where it listens and how others join, then `ready` on a line of its own.
A second node on one machine needs its own --data-dir, --http and --grpc.

Examples:
  mesh node start --name a
  mesh node start --name b --data-dir b --http 127.0.0.1:9480 --grpc 127.0.0.1:9481
  MESH_API_KEY=secret mesh node start --http 0.0.0.0:9470";

const JOIN_HELP: &str = "\
A second node on one machine needs its own --data-dir, --http and --grpc.

Examples:
  mesh node join TICKET --name b
  mesh node join \"$(mesh node ticket)\" --name b --data-dir b --http 127.0.0.1:9480 --grpc 127.0.0.1:9481";

#[derive(Debug, Args)]
#[command(after_help = START_HELP)]
pub(crate) struct StartArgs {
    #[command(flatten)]
    flags: NodeFlags,
}

#[derive(Debug, Args)]
#[command(after_help = JOIN_HELP)]
pub(crate) struct JoinArgs {
    /// What `mesh node ticket` printed on a node of the mesh
    ticket: String,
    #[command(flatten)]
    flags: NodeFlags,
}

pub(crate) async fn start(args: StartArgs) -> Result<(), Failure> {
    run(args.flags, None).await
}

pub(crate) async fn join(args: JoinArgs) -> Result<(), Failure> {
    run(args.flags, Some(args.ticket)).await
}

async fn run(flags: NodeFlags, ticket: Option<String>) -> Result<(), Failure> {
    let config = local_node::load_config(flags.overrides()?)?;
    if flags.print_config {
        return output::print(&config.to_toml_redacted());
    }
    local_node::init_logging(&config.log)?;
    let stop = stop_signal(flags.exit_with_parent)?;
    tokio::pin!(stop);
    let node = Node::start_unless(config, ticket, stop.as_mut()).await?;
    let announced = announce(&node);
    // Nobody could learn where a node listens that cannot say so.
    let stop = async {
        if announced.is_ok() {
            stop.await
        }
    };
    let ended = node.run_until(stop).await;
    announced.and(ended.map_err(Failure::from))
}

/// Resolves when the node should stop.
fn stop_signal(exit_with_parent: bool) -> Result<impl Future<Output = ()>, Failure> {
    let signal = signals::stop_then_force()?;
    let parent = exit_with_parent.then(signals::end_of_parent).transpose()?;
    Ok(async move {
        match parent {
            Some(parent) => tokio::select! { () = signal => {}, () = parent => {} },
            None => signal.await,
        }
    })
}

fn announce(node: &Node) -> Result<(), Failure> {
    let facts = node.facts();
    let addresses: Vec<String> = facts.addresses.iter().map(ToString::to_string).collect();
    let mut text = format!(
        "node  {}\nHTTP  http://{}/v1\ngRPC  {}\nQUIC  {} (UDP)\n",
        facts.name,
        facts.http,
        facts.grpc,
        addresses.join(", ")
    );
    // A node that joined cannot admit others; it is told where to ask when it tries.
    if let Ok(ticket) = node.ticket() {
        text += &format!("others join with\n  mesh node join {ticket}\n");
    }
    output::print(&(text + "ready\n"))
}
