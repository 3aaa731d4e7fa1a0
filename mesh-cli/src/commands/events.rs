//! `mesh events`.

use std::collections::BTreeMap;

use clap::{Args, ValueEnum};
use mesh_proto::v1::{EventKind, Scope, SubscribeRequest};

use super::requests::requests;
use crate::{
    client::{Client, ConnectArgs},
    event_view::NoticeView,
    failure::Failure,
    output::{self, OutputArgs, OutputFormat},
    request_view::RequestView,
    signals::Interrupts,
};

const HELP: &str = "\
Without --follow: the requests that are open now, by node, then the end.
With it: those first, then each event as it comes, until Ctrl-C or the end of the node; both end with 0. What a slow
reader missed is said (lagged), and what a node no longer knew (gap).

With --output json: one JSON object a line. `type` is event, snapshot, gap, lagged or heartbeat. An event has
request_id, sequence, node, node_sequence, node_run, attempt, deployment, session_id, agent_session, time and `kind`;
what belongs to the kind is in an object of that name, such as .committed.total or .finished.receipt.
Text and token ids need the administration token.

Examples:
  mesh events --follow
  mesh events --follow --deployment smol --kind finished --kind aborted --output json
  mesh events --follow --request \"$ID\" --text --output json | jq -j '.committed.text // empty'";

#[derive(Debug, Args)]
#[command(after_help = HELP)]
pub(crate) struct EventsArgs {
    /// Go on with each event as it comes
    #[arg(long, short)]
    follow: bool,
    /// Only of this request; can be given several times
    #[arg(long, value_name = "ID")]
    request: Vec<String>,
    /// Only of this deployment; can be given several times
    #[arg(long, value_name = "NAME")]
    deployment: Vec<String>,
    /// Only of this agent session; can be given several times
    #[arg(long, value_name = "SESSION", requires = "follow")]
    agent_session: Vec<String>,
    /// Only of this kind; can be given several times
    #[arg(long, value_enum, requires = "follow")]
    kind: Vec<Kind>,
    /// With the text of commits
    #[arg(long, requires = "follow")]
    text: bool,
    /// With token ids of commits and receipts
    #[arg(long, requires = "follow")]
    tokens: bool,
    /// Only requests whose head is the node that is asked, instead of those of the whole mesh
    #[arg(long)]
    node_only: bool,
    #[command(flatten)]
    output: OutputArgs,
    #[command(flatten)]
    connect: ConnectArgs,
}

/// Kinds that can be asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
#[value(rename_all = "snake_case")]
enum Kind {
    Queued,
    Started,
    Prefilled,
    Committed,
    Proposed,
    ProposalResolved,
    Recovering,
    Recovered,
    Finished,
    Aborted,
    Rejected,
    PluginHealthChanged,
}

impl From<Kind> for EventKind {
    fn from(kind: Kind) -> Self {
        match kind {
            Kind::Queued => Self::Queued,
            Kind::Started => Self::Started,
            Kind::Prefilled => Self::Prefilled,
            Kind::Committed => Self::Committed,
            Kind::Proposed => Self::Proposed,
            Kind::ProposalResolved => Self::ProposalResolved,
            Kind::Recovering => Self::Recovering,
            Kind::Recovered => Self::Recovered,
            Kind::Finished => Self::Finished,
            Kind::Aborted => Self::Aborted,
            Kind::Rejected => Self::Rejected,
            Kind::PluginHealthChanged => Self::PluginHealthChanged,
        }
    }
}

pub(crate) async fn run(args: EventsArgs) -> Result<(), Failure> {
    let mut interrupts = Interrupts::listen()?;
    let told = async {
        let client = Client::connect(&args.connect).await?;
        if args.follow {
            follow(&client, &args).await
        } else {
            show_open(&client, &args).await
        }
    };
    tokio::select! {
        told = told => told,
        // Whoever follows events leaves so: it is the normal end.
        () = interrupts.next() => Ok(()),
    }
}

async fn follow(client: &Client, args: &EventsArgs) -> Result<(), Failure> {
    let mut notices = client.lifecycle().subscribe(args.subscription()).await?.into_inner();
    while let Some(notice) = notices.message().await? {
        if let Some(view) = NoticeView::new(notice, args.tokens, args.text)
            && !print(&view, args.output)?
        {
            return Ok(());
        }
    }
    output::note("mesh: the node stops; no more events come from it");
    Ok(())
}

/// What is open now, in the words of a snapshot.
async fn show_open(client: &Client, args: &EventsArgs) -> Result<(), Failure> {
    let list = requests(client, args.deployment.clone(), false, args.scope()).await?;
    list.warn_of_missing();
    let mut nodes: BTreeMap<String, Vec<RequestView>> = BTreeMap::new();
    for request in list.requests {
        if args.request.is_empty() || args.request.contains(&request.request_id) {
            nodes.entry(request.node.clone()).or_default().push(request);
        }
    }
    for (node, requests) in nodes {
        print(&NoticeView::open(node, requests), args.output)?;
    }
    Ok(())
}

impl EventsArgs {
    fn scope(&self) -> Scope {
        if self.node_only { Scope::Node } else { Scope::Mesh }
    }

    fn subscription(&self) -> SubscribeRequest {
        SubscribeRequest {
            deployments: self.deployment.clone(),
            request_ids: self.request.clone(),
            agent_sessions: self.agent_session.clone(),
            kinds: self.kind.iter().map(|kind| EventKind::from(*kind).into()).collect(),
            include_token_ids: self.tokens,
            include_text: self.text,
            cursor: None,
            scope: self.scope().into(),
        }
    }
}

/// `false` if nobody reads any more.
fn print(view: &NoticeView, output: OutputArgs) -> Result<bool, Failure> {
    match output.output {
        OutputFormat::Table => output::print_lines(&view.describe()),
        OutputFormat::Json => output::print_json_line(view),
    }
}
