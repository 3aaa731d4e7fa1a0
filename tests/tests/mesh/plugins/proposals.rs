//! Proposals over a split model: output is what it is without them.

use std::collections::BTreeSet;

use anyhow::{Result, ensure};
use futures::{StreamExt as _, TryStreamExt as _, stream};
use mesh_node::NodeConfig;
use mesh_plugin_fixtures::ngram_proposer;
use mesh_proto::v1::ServeRequest;
use mesh_tests::{Answer, ChatCall, Cluster, Processes, models};
use proptest::{
    prelude::*,
    strategy::ValueTree as _,
    test_runner::{TestRng, TestRunner},
};
use serde_json::json;

use super::{Prepared, log, plugin_when};

const REQUESTS: usize = 200;

/// Of what a prompt is made: it comes again, so that there is something to look up.
const PHRASES: [&str; 8] = [
    "In the beginning God created the heaven and the earth. ",
    "And God said, Let there be light: and there was light. ",
    "The LORD is my shepherd; I shall not want. ",
    "and the evening and the morning were the first day. ",
    "Blessed are the poor in spirit: for theirs is the kingdom of heaven. ",
    "begat sons and daughters: ",
    "the sea, and the dry land, ",
    "x y x y x y ",
];

/// What a random request asks.
#[derive(Debug, Clone)]
struct Wanted {
    phrases: Vec<usize>,
    max_tokens: u32,
    seed: Option<u32>,
    temperature: f64,
    stop: Option<&'static str>,
    penalty: bool,
    cancelled_after: Option<usize>,
}

fn wanted() -> impl Strategy<Value = Wanted> {
    (
        proptest::collection::vec(0..PHRASES.len(), 1..6),
        1u32..70,
        proptest::option::of(any::<u32>()),
        prop_oneof![Just(0.3), Just(0.7), Just(1.0)],
        proptest::option::weighted(0.2, prop_oneof![Just("LORD"), Just(" the "), Just(". ")]),
        proptest::bool::weighted(0.2),
        proptest::option::weighted(0.1, 1usize..12),
    )
        .prop_map(
            |(phrases, max_tokens, seed, temperature, stop, penalty, cancelled_after)| Wanted {
                phrases,
                max_tokens,
                seed,
                temperature,
                stop,
                penalty,
                cancelled_after,
            },
        )
}

impl Wanted {
    fn call(&self, model: &str) -> ChatCall {
        let question: String = self.phrases.iter().map(|phrase| PHRASES[*phrase]).collect();
        let mut call = match self.seed {
            Some(seed) => {
                let call = ChatCall::sampled(model, &question, u64::from(seed));
                call.with("temperature", json!(self.temperature))
            }
            None => ChatCall::greedy(model, &question),
        };
        if let Some(stop) = self.stop {
            call = call.with("stop", json!(stop));
        }
        if self.penalty {
            call = call
                .with("frequency_penalty", json!(0.4))
                .with("presence_penalty", json!(0.1));
        }
        call.with("max_tokens", json!(self.max_tokens))
    }
}

fn random_requests() -> Vec<Wanted> {
    // A seed of its own, the same in every run: what fails can be run again.
    let rng = TestRng::from_seed(prop::test_runner::RngAlgorithm::ChaCha, &[11; 32]);
    let mut runner = TestRunner::new_with_rng(ProptestConfig::default(), rng);
    let mut next = || wanted().new_tree(&mut runner).map(|tree| tree.current());
    (0..REQUESTS).map(|_| next().expect("a request")).collect()
}

async fn serve(nodes: &Processes, model: &str, name: &str, stages: &str) -> Result<()> {
    let request = ServeRequest {
        model: model.to_owned(),
        name: name.to_owned(),
        stages: stages.to_owned(),
        context: 512,
        exact: true,
        ..ServeRequest::default()
    };
    ensure!(nodes.api(0).serve(request).await?.exact, "the self-check disagreed");
    Ok(())
}

async fn answers(nodes: &Processes, model: &str, requests: &[Wanted]) -> Result<Vec<Answer>> {
    let one = |wanted: &Wanted| {
        let (call, cancelled_after) = (wanted.call(model), wanted.cancelled_after);
        async move {
            let mut answer = match cancelled_after {
                // A client that goes away: what it got is compared with as much of the other.
                Some(chunks) => {
                    nodes
                        .api(1)
                        .stream_until(&call, |answer| answer.chunks >= chunks)
                        .await?
                }
                None => nodes.api(1).stream(&call).await?,
            };
            // Accepted runs come in one chunk.
            answer.chunks = 0;
            anyhow::Ok(answer)
        }
    };
    let all: Vec<_> = requests.iter().map(one).collect();
    stream::iter(all).buffered(4).try_collect().await
}

/// Three processes, of which `a` has the n-gram proposer.
async fn three_nodes() -> Result<(Prepared, Processes)> {
    let ngram = Prepared::new(ngram_proposer(), &[])?;
    let mut nodes = Processes::with_environment(&[]);
    let (library, config) = (&ngram.setting.path, ngram.setting.config.as_ref());
    let library = library.display().to_string();
    let config = config.map(|path| path.display().to_string()).unwrap_or_default();
    // Long enough that a busy machine asks the plugin at all; it is not what is measured here.
    let flags = [
        "--plugin",
        &library,
        "--plugin-config",
        &config,
        "--plugin-deadline",
        "1s",
        "--plugin-required",
    ];
    nodes.add("a", &flags).await?;
    nodes.add("b", &[]).await?;
    nodes.add("c", &[]).await?;
    Ok((ngram, nodes))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_hundred_random_requests_give_the_text_they_give_without_proposals() -> Result<()> {
    let (ngram, nodes) = three_nodes().await?;
    // The plugin follows generations whose head is its node: stage 0 is on `a` in one and on `b` in the other.
    serve(&nodes, "built-in", "with", "a:0-3,b:3-5,c:5-8").await?;
    serve(&nodes, "built-in", "without", "b:0-3,c:3-5,a:5-8").await?;
    let requests = random_requests();
    let with = answers(&nodes, "with", &requests).await?;
    let without = answers(&nodes, "without", &requests).await?;
    for ((wanted, with), without) in requests.iter().zip(&with).zip(&without) {
        if wanted.cancelled_after.is_some() {
            let (short, long) = if with.text.len() <= without.text.len() {
                (with, without)
            } else {
                (without, with)
            };
            assert!(long.text.starts_with(&short.text), "{wanted:?}\n{with:?}\n{without:?}");
        } else {
            assert_eq!(with, without, "{wanted:?}");
        }
    }
    let idle = plugin_when(&nodes.api(0), "every generation is told", |plugin| {
        plugin.generations == 0
    })
    .await;
    assert_eq!(idle.lost.values().sum::<u64>(), 0, "{idle:?}");
    let told = nodes.finish().await?;
    let lines = ngram.log()?;
    let proof = log::prove(&lines)?;
    assert_eq!(proof.finished + proof.aborted, REQUESTS);
    assert!(proof.aborted > 0 && proof.finished > 150, "{proof:?}");
    assert!(proof.decisions > 100 && proof.accepted > 100, "{proof:?}");
    let accepted: u32 = told.values().map(|told| told.accepted).sum();
    assert_eq!(u64::from(accepted), proof.accepted, "events and plugin agree");
    let begun: BTreeSet<&str> = lines
        .iter()
        .filter(|line| line.event() == "begin")
        .map(log::Line::request)
        .collect();
    assert_eq!(begun.len(), REQUESTS, "one generation for each request to its node");
    Ok(())
}

/// Without exact mode, the rows beside a token may turn it into another: candidates would show.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_deployment_that_is_not_exact_asks_nobody() -> Result<()> {
    let ngram = Prepared::new(ngram_proposer(), &[])?;
    let cluster = Cluster::start_with(1, |config| NodeConfig {
        plugins: vec![ngram.setting.clone()],
        exact: false,
        ..config
    })
    .await?;
    let deployment = cluster.serve("built-in", "x", "a:0-8").await?;
    ensure!(!deployment.exact, "it is exact");
    let repeated = ChatCall::greedy("x", &PHRASES[0].repeat(3)).with("max_tokens", json!(20));
    cluster.api(0).chat(&repeated).await?;
    let told = plugin_when(cluster.api(0), "the generation is told", |plugin| {
        plugin.generations == 0
            && plugin
                .callbacks
                .iter()
                .any(|it| it.name == "finish_generation" && it.times.is_some_and(|times| times.count == 1))
    })
    .await;
    assert_eq!(told.proposals.values().sum::<u64>(), 0, "{told:?}");
    cluster.stop().await
}

/// With weights of a real model, and with sliding windows, over which a rewind must be exact too.
async fn real_model(file: &str, with: &str, without: &str) -> Result<()> {
    let Some(model) = models::real_model(file) else {
        return Ok(());
    };
    let model = model.to_string_lossy();
    let (ngram, nodes) = three_nodes().await?;
    serve(&nodes, &model, "with", with).await?;
    serve(&nodes, &model, "without", without).await?;
    let text = "The quick brown fox jumps over the lazy dog. ".repeat(4);
    for seed in [None, Some(3u64)] {
        let mut answers = Vec::new();
        for name in ["with", "without"] {
            let call = match seed {
                Some(seed) => {
                    ChatCall::sampled(name, &format!("Repeat this: {text}"), seed).with("temperature", json!(0.4))
                }
                None => ChatCall::greedy(name, &format!("Repeat this: {text}")),
            };
            let answer = nodes.api(1).stream(&call.with("max_tokens", json!(40))).await?;
            answers.push((answer.text, answer.finish_reason));
        }
        assert_eq!(answers[0], answers[1], "seed {seed:?}");
    }
    plugin_when(&nodes.api(0), "every generation is told", |plugin| {
        plugin.generations == 0
    })
    .await;
    nodes.finish().await?;
    let proof = log::prove(&ngram.log()?)?;
    ensure!(proof.finished == 2 && proof.accepted > 0, "{proof:?}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn smollm2_says_the_same_with_proposals() -> Result<()> {
    real_model(models::SMOLLM2, "a:0-10,b:10-20,c:20-30", "b:0-10,c:10-20,a:20-30").await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn gemma3_says_the_same_with_proposals() -> Result<()> {
    real_model(models::GEMMA3, "a:0-6,b:6-12,c:12-18", "b:0-6,c:6-12,a:12-18").await
}
