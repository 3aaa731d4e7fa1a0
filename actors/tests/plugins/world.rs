//! Chains with plugins, and what has to hold of every log.

use std::{sync::Arc, time::Duration};

use mesh_actors::{
    plugin::{Callback, Health, Loss, PluginFigures, PluginLimits, PluginOptions, ProposalOutcome},
    ports::plugin::{NativePlugin, PluginAbilities, ProposalQuery},
    scripted::{
        Chain, ChainOptions, END, ScriptedPlugin, ScriptedVocabulary, Told, eventually, generate_text, model, read_all,
    },
};
use mesh_proto::{
    sampling::{default_sampling, greedy_sampling},
    v1::{GenerateRequest, Sampling, generate_request::Prompt},
};

/// Stages of the chains here, of two layers each.
pub const STAGES: u32 = 2;

/// What a plugin that only follows can.
pub const FOLLOWS: PluginAbilities = PluginAbilities {
    commits: true,
    token_ids: true,
    reports: false,
    proposes: false,
    serial: false,
};

/// A proposal has so much time that no machine is too slow for it.
pub fn patient() -> PluginOptions {
    PluginOptions {
        deadline: Duration::from_secs(15),
        required: false,
        limits: PluginLimits::default(),
    }
}

/// A call is given up after a moment, and a proposal before that.
pub fn short() -> PluginOptions {
    PluginOptions {
        deadline: Duration::from_millis(20),
        limits: PluginLimits {
            call_limit: Duration::from_millis(100),
            activation_limit: Duration::from_millis(100),
            ..PluginLimits::default()
        },
        ..patient()
    }
}

/// A chain with these plugins on its head's node.
pub async fn chain_of(stages: u32, plugins: &[(&ScriptedPlugin, PluginOptions)]) -> Chain {
    let plugins = plugins
        .iter()
        .map(|(plugin, options)| (Arc::new((*plugin).clone()) as Arc<dyn NativePlugin>, options.clone()))
        .collect();
    Chain::start(ChainOptions {
        stages,
        plugins,
        ..ChainOptions::default()
    })
    .await
}

pub async fn chain_with(plugin: &ScriptedPlugin, options: PluginOptions) -> Chain {
    chain_of(STAGES, &[(plugin, options)]).await
}

/// A request, other than its neighbours: every other one is sampled.
pub fn request(index: u64, max_tokens: u32) -> GenerateRequest {
    let sampling = if index.is_multiple_of(2) {
        greedy_sampling()
    } else {
        default_sampling()
    };
    GenerateRequest {
        sampling: Some(Sampling {
            seed: Some(index),
            ..sampling
        }),
        ..generate_text(&format!("request {index}"), index, max_tokens)
    }
}

/// A request that gives so many tokens and does not end before.
pub fn request_of(tokens: u32) -> GenerateRequest {
    (0..500)
        .map(|index| request(index, tokens))
        .find(|request| expected(request, STAGES).tokens.len() == tokens as usize)
        .expect("one that does not end by itself")
}

pub fn prompt_of(request: &GenerateRequest) -> Vec<u32> {
    match &request.prompt {
        Some(Prompt::Text(text)) => ScriptedVocabulary::tokens(text),
        _ => panic!("only text is used here"),
    }
}

fn expected(request: &GenerateRequest, stages: u32) -> model::Expected {
    let most = request.max_tokens.expect("a limit") as usize;
    let sampling = request.sampling.clone().expect("sampling");
    model::expected(&prompt_of(request), &sampling, stages * 2, most)
}

/// Knows what the model will say, for some requests.
#[derive(Clone)]
pub struct Oracle {
    requests: Arc<[GenerateRequest]>,
    layers: u32,
}

impl Oracle {
    pub fn new(requests: &[GenerateRequest], stages: u32) -> Self {
        Self {
            requests: requests.into(),
            layers: stages * 2,
        }
    }

    /// What comes next, as many tokens as are wanted unless generation ends before: then with the end.
    pub fn next(&self, query: &ProposalQuery) -> Vec<u32> {
        let is_asked = |request: &&GenerateRequest| query.tail.starts_with(&prompt_of(request));
        let request = self.requests.iter().find(is_asked).expect("a request that is known");
        let sampling = request.sampling.clone().expect("sampling");
        let most = query.max_tokens as usize;
        let next = model::expected(&query.tail, &sampling, self.layers, most);
        let end = (next.stopped && next.tokens.len() < most).then_some(END);
        next.tokens.into_iter().chain(end).collect()
    }
}

/// A few candidates, wrong as good as always.
pub fn guess(query: Option<&ProposalQuery>) -> Told {
    Told::Proposes(vec![1; query.map_or(1, |query| query.max_tokens.min(2)) as usize])
}

/// Runs a request to its end: its id. The text is that of the model.
pub async fn answered(chain: &Chain, request: &GenerateRequest) -> String {
    let expected = chain.expected(request);
    let mut generation = chain.generate(request.clone()).await.expect("admitted");
    let (text, end) = read_all(&mut generation.events).await;
    let end = end.expect("a normal end");
    assert_eq!(text, expected.text);
    assert_eq!(end.completion_tokens as usize, expected.tokens.len());
    generation.started.request_id
}

/// Waits until the plugin has heard the end of a request.
pub async fn heard_end(plugin: &ScriptedPlugin, request: &str) {
    eventually("the end is told", || ends(plugin, request) > 0).await;
}

/// Waits until a request has ended.
pub async fn gone(chain: &Chain, request: &str) {
    let ended = || {
        chain
            .events
            .of(request)
            .last()
            .is_some_and(|event| event.kind.is_terminal())
    };
    eventually("the end of the request", ended).await;
}

pub fn ends(plugin: &ScriptedPlugin, request: &str) -> usize {
    let told = plugin.told(request).into_iter();
    told.filter(|(callback, _)| matches!(callback, Callback::Finish | Callback::Abort))
        .count()
}

/// What was told under one function, in order.
pub fn words(plugin: &ScriptedPlugin, request: &str, callback: Callback) -> Vec<String> {
    let told = plugin.told(request).into_iter();
    told.filter(|(called, _)| *called == callback)
        .map(|(_, words)| words)
        .collect()
}

pub fn callbacks(plugin: &ScriptedPlugin, request: &str) -> Vec<Callback> {
    plugin.told(request).into_iter().map(|(callback, _)| callback).collect()
}

/// Tokens of all commits; they come without gaps.
pub fn committed(plugin: &ScriptedPlugin, request: &str) -> Vec<u32> {
    let mut all = Vec::new();
    for words in words(plugin, request, Callback::Commit) {
        let (tokens, total) = words.split_once("] of ").expect("tokens and a total");
        let tokens = tokens.trim_start_matches('[').split(", ");
        all.extend(tokens.map(|token| token.parse::<u32>().expect("a token")));
        assert_eq!(all.len().to_string(), total, "a gap");
    }
    all
}

/// Every decision that was given out is resolved once, before the end; nothing follows the end, and one end there is.
pub fn check_order(plugin: &ScriptedPlugin, request: &str) {
    let told = plugin.told(request);
    let (last, before) = told.split_last().expect("an end");
    assert!(matches!(last.0, Callback::Finish | Callback::Abort), "{told:?}");
    assert_eq!(ends(plugin, request), 1, "{told:?}");
    assert!(
        before.first().is_some_and(|first| first.0 == Callback::Begin),
        "{told:?}"
    );
    assert_eq!(words(plugin, request, Callback::Begin).len(), 1, "{told:?}");
    let mut resolved: Vec<String> = before
        .iter()
        .filter(|(callback, _)| matches!(callback, Callback::Report | Callback::Discard))
        .map(|(_, words)| words.split(' ').next().unwrap_or_default().to_owned())
        .collect();
    let mut given = plugin.decisions(request);
    resolved.sort();
    given.sort();
    assert_eq!(resolved, given, "{told:?}");
}

/// The log of a request that went well: begin and commits add up to the receipt.
pub fn check_finished(plugin: &ScriptedPlugin, request: &str, tokens: &[u32]) {
    check_order(plugin, request);
    assert_eq!(committed(plugin, request), tokens);
    assert_eq!(words(plugin, request, Callback::Finish), [format!("{tokens:?}")]);
}

pub fn figures(chain: &Chain, plugin: usize) -> PluginFigures {
    chain.plugins[plugin].read().figures
}

pub fn outcomes(figures: &PluginFigures, wanted: ProposalOutcome) -> u64 {
    let mut all = figures.proposals.iter();
    all.find(|(outcome, _)| *outcome == wanted)
        .map_or(0, |(_, count)| *count)
}

pub fn lost(figures: &PluginFigures, wanted: Loss) -> u64 {
    let mut all = figures.losses.iter();
    all.find(|(loss, _)| *loss == wanted).map_or(0, |(_, count)| *count)
}

pub fn errors(figures: &PluginFigures, wanted: Callback) -> u64 {
    let mut all = figures.calls.iter();
    all.find(|(callback, ..)| *callback == wanted)
        .map_or(0, |(.., errors)| *errors)
}

pub async fn healthy_as(chain: &Chain, plugin: usize, health: Health) {
    eventually(health.name(), || figures(chain, plugin).health == health).await;
}
