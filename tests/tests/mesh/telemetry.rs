//! Traces and metrics of real processes, and collectors that do not work.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result};
use collector::{Collector, Received, attribute};
use mesh_proto::v1::ServeRequest;
use mesh_tests::{ChatCall, Processes, until};
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use prometheus_parse::{Scrape, Value as Sample};
use serde_json::json;
use tokio::{net::TcpListener, sync::watch, time::timeout};

mod collector;

/// Batches leave a node twice a second; the rest is room for a busy machine.
const EXPORT_LIMIT: Duration = Duration::from_secs(20);

/// A node without telemetry stops in about a second; a collector may add two.
const STOP_LIMIT: Duration = Duration::from_secs(5);

/// Starting and answering take a tenth of it.
const NORMAL_LIMIT: Duration = Duration::from_secs(10);

/// A node answers a scrape at once.
const SCRAPE_LIMIT: Duration = Duration::from_secs(10);

const TRACE: [u8; 16] = *b"\x4b\xf9\x2f\x35\x77\xb3\x4d\xa6\xa3\xce\x92\x9d\x0e\x0e\x47\x36";
const PARENT: [u8; 8] = *b"\x00\xf0\x67\xaa\x0b\xa9\x02\xb7";
const TRACEPARENT: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
const UNSAMPLED: &str = "00-5bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-00";
const UNSAMPLED_TRACE: [u8; 16] = *b"\x5b\xf9\x2f\x35\x77\xb3\x4d\xa6\xa3\xce\x92\x9d\x0e\x0e\x47\x36";

async fn start(names: &[&str], environment: &[(&str, &str)]) -> Result<Processes> {
    let mut mesh = Processes::with_environment(environment);
    for name in names {
        mesh.add(name, &[]).await?;
    }
    Ok(mesh)
}

async fn serve(mesh: &Processes, stages: &str) -> Result<()> {
    let request = ServeRequest {
        model: "built-in".to_owned(),
        name: "psalm".to_owned(),
        stages: stages.to_owned(),
        ..ServeRequest::default()
    };
    mesh.api(0).serve(request).await.map(drop)
}

/// Asks with a `traceparent`; gives the tokens of prompt and answer.
async fn ask(mesh: &Processes, node: usize, traceparent: &str) -> Result<(i64, i64)> {
    let call = ChatCall::greedy("psalm", "Recite John 11:35.").with("max_tokens", json!(20));
    let url = format!("{}/v1/chat/completions", mesh.api(node).http());
    let request = reqwest::Client::new().post(url).json(call.body());
    let answer = request.header("traceparent", traceparent).send().await?;
    let body: serde_json::Value = answer.error_for_status()?.json().await?;
    let usage = |name: &str| body["usage"][name].as_i64().context("no usage");
    Ok((usage("prompt_tokens")?, usage("completion_tokens")?))
}

/// Prometheus' text of a node, parsed.
async fn scrape(mesh: &Processes, node: usize) -> Result<Scrape> {
    let url = format!("{}/metrics", mesh.api(node).http());
    let text = timeout(SCRAPE_LIMIT, async {
        reqwest::get(url).await?.error_for_status()?.text().await
    })
    .await??;
    Ok(Scrape::parse(text.lines().map(|line| Ok(line.to_owned())))?)
}

/// The sum over all label values that hold these pairs.
fn value(scrape: &Scrape, name: &str, labels: &[(&str, &str)]) -> f64 {
    let of = scrape.samples.iter().filter(|sample| {
        let holds = |(name, value): &(&str, &str)| sample.labels.get(name) == Some(value);
        sample.metric == name && labels.iter().all(holds)
    });
    of.map(|sample| match &sample.value {
        Sample::Counter(value) | Sample::Gauge(value) | Sample::Untyped(value) => *value,
        Sample::Histogram(buckets) => buckets.last().map_or(0.0, |bucket| bucket.count),
        Sample::Summary(_) => 0.0,
    })
    .sum()
}

fn spans<'a>(trace: &'a [Received], name: &'a str) -> impl Iterator<Item = &'a Received> {
    trace.iter().filter(move |received| received.span.name == name)
}

fn number(received: &Received, name: &str) -> Option<i64> {
    match attribute(&received.span.attributes, name) {
        Some(Value::IntValue(value)) => Some(value),
        _ => None,
    }
}

/// How many spans of a name each node sent, by stage.
fn by_stage(trace: &[Received], name: &str) -> BTreeMap<(i64, String), usize> {
    let mut counts = BTreeMap::new();
    for received in spans(trace, name) {
        let stage = number(received, "mesh.stage").unwrap_or(-1);
        *counts.entry((stage, received.node.clone())).or_default() += 1;
    }
    counts
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_request_is_one_trace_over_three_processes_and_shows_in_the_metrics_of_each() -> Result<()> {
    let collector = Collector::start().await?;
    let endpoint = collector.endpoint();
    let environment = [
        ("OTEL_EXPORTER_OTLP_ENDPOINT", endpoint.as_str()),
        ("OTEL_METRIC_EXPORT_INTERVAL", "300"),
    ];
    let mesh = start(&["a", "b", "c"], &environment).await?;
    serve(&mesh, "a:0-3,b:3-5,c:5-8").await?;
    // The gateway is on another node than the head: the trace crosses the control stream too.
    let (prompt, generated) = ask(&mesh, 1, TRACEPARENT).await?;
    // Every stage computes and sends each batch: the prompt's chunk, and each further token.
    let stage = [("mesh_stage", "0")];
    let batches = value(&scrape(&mesh, 0).await?, "mesh_stage_forward_duration_seconds", &stage) as usize;
    // The token that ends the text is not part of it.
    assert!(
        (generated..=generated + 1).contains(&(batches as i64)),
        "{batches} for {generated}"
    );
    ask(&mesh, 0, UNSAMPLED).await?;

    let stages = [(0, "a"), (1, "b"), (2, "c")].map(|(stage, node)| ((stage, node.to_owned()), batches));
    let expected = BTreeMap::from(stages);
    until("all spans of the trace", EXPORT_LIMIT, || async {
        let trace = collector.trace(&TRACE);
        let whole = spans(&trace, "mesh.request").count() == 1
            && by_stage(&trace, "mesh.stage.forward") == expected
            && by_stage(&trace, "mesh.link.send") == expected;
        whole.then_some(())
    })
    .await;
    let trace = collector.trace(&TRACE);
    assert_eq!(trace.len(), 1 + 2 * 3 * batches);
    let request = spans(&trace, "mesh.request").next().context("no request")?;
    assert_eq!(request.span.parent_span_id, PARENT);
    assert_eq!((request.node.as_str(), request.service.as_str()), ("a", "mesh"));
    assert_eq!(number(request, "gen_ai.usage.input_tokens"), Some(prompt));
    assert_eq!(number(request, "gen_ai.usage.output_tokens"), Some(generated));
    let ids: BTreeSet<_> = trace.iter().map(|received| received.span.span_id.clone()).collect();
    assert_eq!(ids.len(), trace.len(), "span ids are unique");
    for received in trace.iter().filter(|received| received.span.name != "mesh.request") {
        assert_eq!(received.span.parent_span_id, request.span.span_id, "{received:?}");
        assert!(received.span.start_time_unix_nano <= received.span.end_time_unix_nano);
    }
    assert!(collector.trace(&UNSAMPLED_TRACE).is_empty());

    for name in [
        "mesh.tokens",
        "mesh.link.rtt",
        "mesh.lanes.total",
        "gen_ai.server.time_to_first_token",
    ] {
        until(&format!("{name} at the collector"), EXPORT_LIMIT, || async {
            collector.metrics().contains(name).then_some(())
        })
        .await;
    }
    let head = scrape(&mesh, 0).await?;
    let psalm = ("mesh_deployment", "psalm");
    let both = 2.0;
    for (name, labels, wanted) in [
        (
            "mesh_tokens_total",
            [psalm, ("gen_ai_token_type", "input")].as_slice(),
            both * prompt as f64,
        ),
        (
            "mesh_tokens_total",
            &[psalm, ("gen_ai_token_type", "output")],
            both * generated as f64,
        ),
        (
            "mesh_requests_ended_total",
            &[psalm, ("mesh_outcome", "finished")],
            both,
        ),
        ("mesh_queue_wait_seconds", &[psalm], both),
        (
            "gen_ai_server_time_to_first_token_seconds",
            &[("gen_ai_request_model", "psalm")],
            both,
        ),
        ("gen_ai_server_time_per_output_token_seconds", &[], both),
        ("gen_ai_server_request_duration_seconds", &[], both),
        ("mesh_lanes_used", &[psalm], 0.0),
        ("mesh_queue_depth", &[psalm], 0.0),
        ("mesh_requests_open", &[], 0.0),
        ("mesh_events_subscribers", &[], 1.0),
        ("mesh_events_dropped_total", &[], 0.0),
        ("mesh_telemetry_dropped_total", &[], 0.0),
    ] {
        assert_eq!(value(&head, name, labels), wanted, "{name} {labels:?}");
    }
    assert!(value(&head, "mesh_lanes_total", &[psalm]) >= 1.0);
    for (node, stage) in ["0", "1", "2"].into_iter().enumerate() {
        let metrics = scrape(&mesh, node).await?;
        let labels = [psalm, ("mesh_stage", stage)];
        for name in [
            "mesh_stage_forward_duration_seconds",
            "mesh_batch_rows",
            "mesh_batch_lanes",
        ] {
            assert_eq!(
                value(&metrics, name, &labels),
                both * batches as f64,
                "{name} of stage {stage}"
            );
        }
        assert_eq!(
            value(&metrics, "mesh_link_send_duration_seconds", &labels),
            both * batches as f64
        );
        // Of the rows of activations; the last stage returns tokens.
        assert_eq!(
            value(&metrics, "mesh_link_sent_bytes_total", &labels) > 0.0,
            stage != "2"
        );
        let rtt = value(&metrics, "mesh_link_rtt_seconds", &labels);
        assert!(rtt > 0.0 && rtt < 1.0, "{rtt}");
    }
    mesh.finish().await.map(drop)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn metrics_need_the_key_of_a_node_that_has_one() -> Result<()> {
    let mesh = start(&["a"], &[("MESH_API_KEY", "the-key")]).await?;
    let url = format!("{}/metrics", mesh.api(0).http());
    assert_eq!(reqwest::get(&url).await?.status(), 401);
    let answer = reqwest::Client::new().get(&url).bearer_auth("the-key").send().await?;
    assert_eq!(answer.status(), 200);
    assert!(answer.text().await?.contains("mesh_events_published_total"));
    mesh.finish().await.map(drop)
}

/// A node of one worker starts, answers and stops as if the collector worked.
/// `meets` says that the node has met it.
async fn is_not_disturbed_by(endpoint: &str, protocol: &str, meets: impl AsyncFn(&Processes) -> bool) -> Result<()> {
    let environment = [
        ("OTEL_EXPORTER_OTLP_ENDPOINT", endpoint),
        ("OTEL_EXPORTER_OTLP_PROTOCOL", protocol),
        ("OTEL_METRIC_EXPORT_INTERVAL", "300"),
        ("TOKIO_WORKER_THREADS", "1"),
    ];
    let began = Instant::now();
    let mut mesh = start(&["a"], &environment).await?;
    serve(&mesh, "a:0-4,a:4-8").await?;
    for _ in 0..5 {
        ask(&mesh, 0, TRACEPARENT).await?;
    }
    until("an export is under way", EXPORT_LIMIT, || async {
        meets(&mesh).await.then_some(())
    })
    .await;
    ask(&mesh, 0, TRACEPARENT).await?;
    scrape(&mesh, 0).await?;
    assert!(began.elapsed() < NORMAL_LIMIT, "{:?}", began.elapsed());
    let stopped = Instant::now();
    mesh.signal(0, "-TERM").await?;
    assert!(timeout(STOP_LIMIT, mesh.wait(0)).await.context("it hangs")??.success());
    eprintln!("{endpoint} {protocol}: stopped within {:?}", stopped.elapsed());
    mesh.finish().await.map(drop)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_collector_that_swallows_everything_disturbs_nothing() -> Result<()> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let endpoint = format!("http://{}", listener.local_addr()?);
    let (met, meeting) = watch::channel(0);
    let hole = tokio::spawn(async move {
        let mut kept = Vec::new();
        while let Ok((stream, _)) = listener.accept().await {
            kept.push(stream);
            met.send_replace(kept.len());
        }
    });
    for protocol in ["http/protobuf", "grpc"] {
        let before = *meeting.borrow();
        is_not_disturbed_by(&endpoint, protocol, async |_| *meeting.borrow() > before).await?;
    }
    hole.abort();
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_collector_that_refuses_disturbs_nothing() -> Result<()> {
    let closed = TcpListener::bind("127.0.0.1:0").await?.local_addr()?;
    for protocol in ["http/protobuf", "grpc"] {
        let drops = async |mesh: &Processes| {
            let metrics = scrape(mesh, 0).await;
            metrics.is_ok_and(|metrics| value(&metrics, "mesh_telemetry_dropped_total", &[]) > 0.0)
        };
        is_not_disturbed_by(&format!("http://{closed}"), protocol, drops).await?;
    }
    Ok(())
}
