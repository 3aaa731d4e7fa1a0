//! `mesh requests show ID`.

use clap::Args;
use mesh_proto::v1::{GetReceiptRequest, Scope};
use serde::Serialize;
use tonic::Code;

use super::list::requests;
use crate::{
    client::{Client, ConnectArgs},
    failure::{Exit, Failure},
    local_node::receipts::ReceiptView,
    output::{OutputArgs, Table, milliseconds},
    request_view::RequestView,
};

const HELP: &str = "\
The id is the one that HTTP returns in x-request-id. A request that has ended is known as long as its node keeps the
receipt: of the last 1,024 that held a lane. Ids of tokens need the administration token.

Examples:
  mesh requests show 7f1d4c1e-6a55-4a44-9d5b-0d1a6f0d3b52
  mesh requests show \"$ID\" --tokens --output json | jq .receipt.token_ids";

#[derive(Debug, Args)]
#[command(after_help = HELP)]
pub(crate) struct ShowArgs {
    /// Id of the request
    id: String,
    /// Ids of the generated tokens too
    #[arg(long)]
    tokens: bool,
    #[command(flatten)]
    output: OutputArgs,
    #[command(flatten)]
    connect: ConnectArgs,
}

/// What is known of a request: one of the two.
#[derive(Debug, Serialize)]
struct Known {
    /// It has not ended.
    request: Option<RequestView>,
    /// It has.
    receipt: Option<ReceiptView>,
    /// Of the receipt.
    rates: Option<Rates>,
}

/// What follows from a receipt.
#[derive(Debug, Serialize)]
struct Rates {
    /// From arrival to the first token.
    ttft_ms: Option<f64>,
    /// Decoded tokens per second, the first one left out.
    decode_tps: Option<f64>,
}

impl Rates {
    fn of(receipt: &ReceiptView) -> Self {
        let timings = &receipt.timings;
        let decoded = receipt.completion_tokens.saturating_sub(1);
        let measured = decoded > 0 && timings.decode_us > 0;
        Self {
            ttft_ms: receipt.token_us.first().map(|first| *first as f64 / 1000.0),
            decode_tps: measured.then(|| f64::from(decoded) * 1e6 / timings.decode_us as f64),
        }
    }
}

pub(crate) async fn run(args: ShowArgs) -> Result<(), Failure> {
    let client = Client::connect(&args.connect).await?;
    let known = known(&client, &args).await?;
    args.output.print(&known, Known::describe)
}

async fn known(client: &Client, args: &ShowArgs) -> Result<Known, Failure> {
    let not_ended = match receipt(client, args).await {
        Ok(receipt) => return Ok(Known::ended(receipt)),
        Err(failure) if failure.exit == Exit::NotFound => failure,
        Err(failure) => return Err(failure),
    };
    let open = requests(client, Vec::new(), false, Scope::Mesh).await?;
    open.warn_of_missing();
    if let Some(request) = open.requests.into_iter().find(|request| request.request_id == args.id) {
        return Ok(Known {
            request: Some(request),
            receipt: None,
            rates: None,
        });
    }
    // It may have ended between the two questions.
    receipt(client, args).await.map(Known::ended).map_err(|_| not_ended)
}

async fn receipt(client: &Client, args: &ShowArgs) -> Result<ReceiptView, Failure> {
    let request = GetReceiptRequest {
        request_id: args.id.clone(),
        include_token_ids: args.tokens,
    };
    let answer = match client.lifecycle().get_receipt(request).await {
        Err(status) if status.code() == Code::NotFound => {
            let message = format!(
                "{}; `mesh requests list --ended` has those that are known",
                status.message()
            );
            return Err(Failure::new(Exit::NotFound, message));
        }
        answer => answer?.into_inner(),
    };
    Ok(ReceiptView::new(answer.receipt.unwrap_or_default(), args.tokens))
}

impl Known {
    fn ended(receipt: ReceiptView) -> Self {
        Self {
            request: None,
            rates: Some(Rates::of(&receipt)),
            receipt: Some(receipt),
        }
    }

    fn describe(&self) -> String {
        let receipt = self.receipt.as_ref().map(describe_receipt);
        let request = self.request.as_ref().map(RequestView::describe);
        receipt.or(request).unwrap_or_default()
    }
}

fn describe_receipt(receipt: &ReceiptView) -> String {
    let (timings, rates) = (&receipt.timings, Rates::of(receipt));
    let mut table = Table::new(&["request", &receipt.request_id]);
    let mut row = |name: &str, value: String| {
        if !value.is_empty() {
            table.row([name.to_owned(), value]);
        }
    };
    let ended = if receipt.finish_reason.is_some() {
        "finished"
    } else {
        "aborted"
    };
    row("state", format!("{ended}: {}", receipt.end()));
    row("deployment", receipt.deployment.clone());
    row("node", receipt.node.clone());
    row("session", receipt.session_id.clone());
    row("agent session", receipt.agent_session.clone().unwrap_or_default());
    row("model", receipt.model_id.clone());
    row(
        "prompt",
        format!("{} tokens, digest {}", receipt.prompt_tokens, receipt.prompt_digest),
    );
    row("generated", format!("{} tokens", receipt.completion_tokens));
    if let Some(ids) = &receipt.token_ids {
        table.whole_row(["token ids".to_owned(), format!("{ids:?}")]);
    }
    let mut row = |name: &str, value: String| {
        if !value.is_empty() {
            table.row([name.to_owned(), value]);
        }
    };
    row("seed", receipt.seed.to_string());
    row("arrived", receipt.arrived.clone());
    row("ended", receipt.ended.clone());
    row("queued", milliseconds(timings.queued_us));
    row("prefill", milliseconds(timings.prefill_us));
    row("decode", milliseconds(timings.decode_us));
    row(
        "first token",
        rates
            .ttft_ms
            .map(|ttft| format!("after {ttft:.1} ms"))
            .unwrap_or_default(),
    );
    row(
        "rate",
        rates
            .decode_tps
            .map(|rate| format!("{rate:.1} tokens/s"))
            .unwrap_or_default(),
    );
    for (stage, computed) in timings.stage_us.iter().enumerate() {
        row(
            &format!("stage {stage}"),
            format!("{} computed, {} steps", milliseconds(*computed), timings.engine_steps),
        );
    }
    table.render(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::local_node::receipts::TimingsView;

    #[test]
    fn a_receipt_shows_where_the_time_went() {
        let receipt = ReceiptView {
            request_id: "r".to_owned(),
            completion_tokens: 11,
            finish_reason: Some("stop".to_owned()),
            token_us: vec![12_500],
            timings: TimingsView {
                decode_us: 2_000_000,
                engine_steps: 10,
                stage_us: vec![900_000, 800_000],
                ..TimingsView::default()
            },
            ..ReceiptView::default()
        };
        let text = describe_receipt(&receipt);
        for line in [
            "after 12.5 ms",
            "5.0 tokens/s",
            "stage 1",
            "800.0 ms computed",
            "finished: stop",
        ] {
            assert!(text.contains(line), "{line}: {text}");
        }
        assert!(!text.contains("agent session"));
    }

    #[test]
    fn an_answer_without_tokens_has_no_rates() {
        let rates = Rates::of(&ReceiptView::default());
        assert!(rates.ttft_ms.is_none() && rates.decode_tps.is_none());
    }
}
