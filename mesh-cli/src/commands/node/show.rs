//! `mesh node show [NAME]`.

use clap::Args;

use super::list::nodes;
use crate::{
    client::{Client, ConnectArgs},
    failure::{Exit, Failure},
    output::{self, OutputArgs, Table, yes_no},
    status_view::NodeView,
};

#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  mesh node show\n  mesh node show b --output json")]
pub(crate) struct ShowArgs {
    /// Its name [default: the node that answers]
    name: Option<String>,
    #[command(flatten)]
    output: OutputArgs,
    #[command(flatten)]
    connect: ConnectArgs,
}

pub(crate) async fn run(args: ShowArgs) -> Result<(), Failure> {
    let nodes = nodes(&Client::connect(&args.connect).await?).await?;
    args.output.print(find(&nodes, args.name.as_deref())?, describe)
}

fn find<'a>(nodes: &'a [NodeView], name: Option<&str>) -> Result<&'a NodeView, Failure> {
    let found = nodes
        .iter()
        .find(|node| name.map_or(node.this, |name| node.name == name));
    found.ok_or_else(|| {
        let known: Vec<&str> = nodes.iter().map(|node| node.name.as_str()).collect();
        let name = name.unwrap_or_default();
        Failure::new(
            Exit::NotFound,
            format!("no node is named {name:?}; this mesh has {}", known.join(", ")),
        )
    })
}

fn describe(node: &NodeView) -> String {
    let mut table = Table::new(&["name", &node.name]);
    let mut row = |name: &str, value: String| table.row([name.to_owned(), value]);
    row("id", node.id.clone());
    row("state", node.state.to_owned());
    row("admits others", yes_no(node.issuer).to_owned());
    row("addresses", node.addresses.join(", "));
    row("host", node.host_id.clone());
    row("cores", node.cores.to_string());
    row("memory", output::bytes(node.memory_bytes));
    row("exact", yes_no(node.exact).to_owned());
    row("version", node.version.clone());
    if let Some(place) = &node.key_in_use_by {
        row("key also used at", place.clone());
    }
    table.render(0)
}

#[cfg(test)]
mod tests {
    use mesh_proto::v1::Node;

    use super::*;

    #[test]
    fn an_unknown_name_is_exit_code_4_and_names_the_known_ones() {
        let node = |name: &str, self_| {
            NodeView::from(Node {
                name: name.to_owned(),
                self_,
                ..Node::default()
            })
        };
        let nodes = [node("a", false), node("b", true)];
        assert_eq!(find(&nodes, Some("a")).unwrap().name, "a");
        assert_eq!(find(&nodes, None).unwrap().name, "b");
        let failure = find(&nodes, Some("c")).unwrap_err();
        assert_eq!(failure.exit, Exit::NotFound);
        assert!(failure.to_string().contains("a, b"));
    }
}
