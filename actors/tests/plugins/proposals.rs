//! Proposals change how many steps a request takes, and nothing else.

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use futures::future::join_all;
use mesh_actors::{
    events::Lifecycle,
    plugin::{Callback, Health, PluginLimits, PluginOptions, ProposalOutcome},
    ports::plugin::{PluginAbilities, ProposalQuery},
    scripted::{BYTES_VOCABULARY, Call, Chain, Gate, ScriptedPlugin, Told, Verdict, eventually, model::mix},
};
use mesh_proto::v1::GenerateRequest;

use crate::world::*;

#[derive(Debug, Clone, Copy, PartialEq)]
enum Quality {
    Right,
    Wrong,
    Random,
    PartlyRight,
}

/// A plugin that proposes so.
fn proposer(name: &str, quality: Quality, oracle: &Oracle) -> ScriptedPlugin {
    let (oracle, noise) = (oracle.clone(), AtomicU64::new(0));
    ScriptedPlugin::new(name, move |called, query| match query {
        Some(query) if called == Callback::Poll => propose(quality, &oracle, query, &noise),
        _ => Told::Fine,
    })
}

fn propose(quality: Quality, oracle: &Oracle, query: &ProposalQuery, noise: &AtomicU64) -> Told {
    let right = oracle.next(query);
    let other = |token: &u32| (token + 1) % BYTES_VOCABULARY;
    let tokens = match quality {
        Quality::Right => right,
        Quality::Wrong => right.iter().map(other).collect(),
        Quality::PartlyRight => {
            let (good, bad) = right.split_at(right.len().div_ceil(2));
            good.iter().copied().chain(bad.iter().map(other)).collect()
        }
        Quality::Random => {
            let next = || mix(7, noise.fetch_add(1, Ordering::Relaxed));
            let count = next() % (u64::from(query.max_tokens) + 1);
            (0..count)
                .map(|_| (next() % u64::from(BYTES_VOCABULARY)) as u32)
                .collect()
        }
    };
    // Candidates are one or more; a plugin that has none abstains.
    if tokens.is_empty() {
        Told::Fine
    } else {
        Told::Proposes(tokens)
    }
}

/// Counts the rows and spans that stage 0 decodes.
fn count_steps(chain: &Chain) -> Arc<AtomicUsize> {
    let steps = Arc::new(AtomicUsize::new(0));
    let count = steps.clone();
    chain.loader.script(move |call: &Call<'_>| {
        if call.is_first() {
            let decoding = call.batch.spans.iter().filter(|span| span.sampled_rows > 0);
            count.fetch_add(decoding.count(), Ordering::SeqCst);
        }
        Verdict::Compute
    });
    steps
}

async fn run_all(chain: &Chain, requests: &[GenerateRequest]) -> Vec<String> {
    join_all(requests.iter().map(|request| answered(chain, request))).await
}

#[tokio::test(flavor = "multi_thread")]
async fn text_is_that_without_a_plugin_however_good_its_proposals_are() {
    let requests: Vec<GenerateRequest> = (0..6).map(|index| request(index, 40)).collect();
    for stages in [1, 3] {
        let oracle = Oracle::new(&requests, stages);
        let alone = chain_of(stages, &[]).await;
        let steps_alone = count_steps(&alone);
        run_all(&alone, &requests).await;
        alone.quiet().await;
        alone.stop().await;
        let steps_alone = steps_alone.load(Ordering::SeqCst);
        for quality in [Quality::Right, Quality::Wrong, Quality::Random, Quality::PartlyRight] {
            let plugin = proposer("p", quality, &oracle);
            let chain = chain_of(stages, &[(&plugin, patient())]).await;
            let steps = count_steps(&chain);
            let ids = run_all(&chain, &requests).await;
            for (id, request) in ids.iter().zip(&requests) {
                heard_end(&plugin, id).await;
                check_finished(&plugin, id, &chain.expected(request).tokens);
            }
            chain.quiet().await;
            let (steps, figures) = (steps.load(Ordering::SeqCst), figures(&chain, 0));
            assert_eq!(figures.health, Health::Healthy, "{}", figures.reason);
            match quality {
                Quality::Right => {
                    assert!(steps * 2 < steps_alone, "{steps} steps, {steps_alone} without");
                    assert_eq!(figures.accepted_tokens, figures.proposed_tokens);
                }
                Quality::PartlyRight => {
                    assert!(steps < steps_alone && figures.accepted_tokens < figures.proposed_tokens);
                }
                Quality::Wrong => assert_eq!((steps, figures.accepted_tokens), (steps_alone, 0)),
                Quality::Random => assert!(steps <= steps_alone),
            }
            chain.stop().await;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn events_tell_of_every_proposal_what_came_of_it() {
    let requests = [request_of(30)];
    let plugin = proposer("teller", Quality::PartlyRight, &Oracle::new(&requests, STAGES));
    let chain = chain_with(&plugin, patient()).await;
    let id = answered(&chain, &requests[0]).await;
    chain.quiet().await;
    heard_end(&plugin, &id).await;
    let (mut proposed, mut told) = (Vec::new(), Vec::new());
    let mut before = None;
    for event in chain.events.of(&id) {
        match (&event.kind, &before) {
            (
                Lifecycle::Proposed {
                    proposer,
                    decision,
                    count,
                },
                _,
            ) => {
                assert_eq!(&**proposer, "teller");
                proposed.push((decision.clone(), *count));
            }
            (
                Lifecycle::ProposalResolved {
                    decision,
                    accepted,
                    reason,
                },
                Some(Lifecycle::Proposed { count, .. }),
            ) => {
                // As the scripted plugin is right in half, rounded up.
                assert_eq!(*accepted, count.div_ceil(2));
                told.push(format!("{decision} {reason} {accepted}"));
            }
            (Lifecycle::ProposalResolved { .. }, other) => panic!("resolved behind {other:?}"),
            (Lifecycle::Committed { tokens, .. }, Some(Lifecycle::ProposalResolved { accepted, .. })) => {
                assert!(tokens.len() as u32 >= *accepted);
            }
            (_, Some(Lifecycle::ProposalResolved { .. })) => panic!("{event:?} behind a resolution"),
            _ => {}
        }
        before = Some(event.kind);
    }
    assert_eq!(proposed.len(), told.len());
    assert!(told.len() > 2, "{told:?}");
    assert_eq!(words(&plugin, &id, Callback::Report), told);
    chain.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_first_of_two_plugins_to_answer_proposes_and_both_hear_of_their_own() {
    let requests = [request_of(24)];
    let oracle = Oracle::new(&requests, STAGES);
    // The fast one answers when the slow one looks.
    let (looks, ready) = (Arc::new(Gate::closed()), Arc::new(Gate::closed()));
    let (held, waits) = (looks.clone(), ready.clone());
    let fast = ScriptedPlugin::new("fast", move |called, query| match query {
        Some(query) if called == Callback::Poll => {
            waits.pass();
            Told::Proposes(oracle.next(query))
        }
        _ => Told::Fine,
    });
    let slow = ScriptedPlugin::new("slow", move |called, query| match query {
        Some(_) if called == Callback::Poll => {
            held.pass();
            guess(query)
        }
        _ => Told::Fine,
    });
    let chain = chain_of(STAGES, &[(&slow, patient()), (&fast, patient())]).await;
    let start = async {
        looks.reached(1).await;
        ready.open();
    };
    let (id, ()) = tokio::join!(answered(&chain, &requests[0]), start);
    heard_end(&fast, &id).await;
    assert_eq!(ends(&slow, &id), 0, "it still looks");
    looks.open();
    heard_end(&slow, &id).await;
    let tokens = chain.expected(&requests[0]).tokens;
    check_finished(&fast, &id, &tokens);
    check_finished(&slow, &id, &tokens);
    assert!(words(&fast, &id, Callback::Report).len() > 1);
    assert!(words(&slow, &id, Callback::Report).is_empty());
    assert_eq!(words(&slow, &id, Callback::Discard), ["decision-1 cancelled"]);
    assert_eq!(figures(&chain, 0).health, Health::Healthy, "it had time");
    let mut proposers = chain.events.of(&id).into_iter().filter_map(|event| match event.kind {
        Lifecycle::Proposed { proposer, .. } => Some(proposer),
        _ => None,
    });
    assert!(proposers.all(|name| &*name == "fast"));
    chain.quiet().await;
    chain.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_plugin_may_follow_without_proposing_and_propose_without_following() {
    let requests = [request_of(24)];
    let oracle = Oracle::new(&requests, STAGES);
    let follows = proposer("follows", Quality::Right, &oracle).with(FOLLOWS);
    let proposes = proposer("proposes", Quality::Right, &oracle).with(PluginAbilities {
        proposes: true,
        ..PluginAbilities::default()
    });
    let chain = chain_of(STAGES, &[(&follows, patient()), (&proposes, patient())]).await;
    let id = answered(&chain, &requests[0]).await;
    heard_end(&follows, &id).await;
    heard_end(&proposes, &id).await;
    check_finished(&follows, &id, &chain.expected(&requests[0]).tokens);
    assert_eq!(follows.count(Callback::Start), 0);
    let told = callbacks(&proposes, &id);
    let kinds = [Callback::Begin, Callback::Start, Callback::Poll, Callback::Finish];
    assert!(told.iter().all(|callback| kinds.contains(callback)), "{told:?}");
    assert!(told.len() > 4 && figures(&chain, 1).accepted_tokens > 10, "{told:?}");
    chain.quiet().await;
    chain.stop().await;
}

/// A plugin whose polls wait at the first gate, and its discards at the second.
fn held_twice(looks: &Arc<Gate>, discards: &Arc<Gate>) -> ScriptedPlugin {
    let (looks, discards) = (looks.clone(), discards.clone());
    ScriptedPlugin::new("late", move |called, query| match called {
        Callback::Poll => {
            looks.pass();
            guess(query)
        }
        Callback::Discard => {
            discards.pass();
            Told::Fine
        }
        _ => Told::Fine,
    })
}

fn in_half_a_second() -> PluginOptions {
    PluginOptions {
        deadline: Duration::from_millis(500),
        limits: PluginLimits {
            faults: 1000,
            ..PluginLimits::default()
        },
        ..patient()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_late_candidate_is_discarded_and_finish_waits_for_a_slow_discard() {
    let (looks, discards) = (Arc::new(Gate::closed()), Arc::new(Gate::closed()));
    let plugin = held_twice(&looks, &discards);
    let chain = chain_with(&plugin, in_half_a_second()).await;
    let first = request_of(6);
    let id = answered(&chain, &first).await;
    looks.open();
    discards.reached(1).await;
    let late = figures(&chain, 0);
    assert_eq!(
        (
            outcomes(&late, ProposalOutcome::Late),
            outcomes(&late, ProposalOutcome::Ready)
        ),
        (1, 0)
    );
    assert_eq!(words(&plugin, &id, Callback::Discard), ["decision-1 deadline_exceeded"]);
    assert_eq!(ends(&plugin, &id), 0, "finish waits");
    // Another request does not.
    let next = request_of(7);
    let other = answered(&chain, &next).await;
    heard_end(&plugin, &other).await;
    assert_eq!(ends(&plugin, &id), 0, "finish waits");
    discards.open();
    heard_end(&plugin, &id).await;
    check_finished(&plugin, &id, &chain.expected(&first).tokens);
    check_finished(&plugin, &other, &chain.expected(&next).tokens);
    assert!(
        !words(&plugin, &other, Callback::Report).is_empty(),
        "its proposals are its own"
    );
    chain.quiet().await;
    chain.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_plugin_that_always_misses_costs_a_deadline_a_token_until_it_is_shut_out() {
    let plugin = ScriptedPlugin::new("never", |called, _| match called {
        Callback::Poll => Told::Pending,
        _ => Told::Fine,
    });
    let options = PluginOptions {
        deadline: Duration::from_millis(50),
        limits: PluginLimits {
            faults: 3,
            ..PluginLimits::default()
        },
        ..patient()
    };
    let chain = chain_with(&plugin, options).await;
    let began = Instant::now();
    let id = answered(&chain, &request_of(60)).await;
    let later = answered(&chain, &request_of(61)).await;
    assert!(
        began.elapsed() < Duration::from_secs(5),
        "three deadlines of 50 ms, and no more"
    );
    healthy_as(&chain, 0, Health::Quarantined).await;
    let counted = figures(&chain, 0);
    let missed = [ProposalOutcome::ExpiredInPlugin, ProposalOutcome::ExpiredBeforeDispatch];
    assert_eq!(missed.map(|outcome| outcomes(&counted, outcome)).iter().sum::<u64>(), 3);
    assert!(plugin.count(Callback::Start) <= 3);
    assert_eq!(plugin.count(Callback::Cancel), plugin.count(Callback::Start));
    heard_end(&plugin, &id).await;
    check_order(&plugin, &id);
    assert_eq!(plugin.told(&later), []);
    chain.quiet().await;
    chain.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_decision_under_way_at_a_cancel_is_discarded_as_cancelled() {
    let plugin = ScriptedPlugin::new("p", |called, query| match called {
        Callback::Poll => guess(query),
        _ => Told::Fine,
    });
    let chain = chain_with(&plugin, patient()).await;
    let gate = chain.hold(|call| call.is_first() && call.batch.spans.iter().any(|span| span.sampled_rows > 1));
    let generation = chain.generate(request_of(20)).await.expect("admitted");
    let id = generation.started.request_id.clone();
    gate.reached(1).await;
    drop(generation);
    heard_end(&plugin, &id).await;
    check_order(&plugin, &id);
    assert_eq!(words(&plugin, &id, Callback::Discard), ["decision-1 cancelled"]);
    assert_eq!(words(&plugin, &id, Callback::Abort), ["Cancelled"]);
    gate.open();
    chain.quiet().await;
    let resolved = chain.events.of(&id).into_iter().filter_map(|event| match event.kind {
        Lifecycle::ProposalResolved { accepted, reason, .. } => Some((accepted, reason)),
        _ => None,
    });
    assert_eq!(resolved.collect::<Vec<_>>(), [(0, "cancelled")]);
    chain.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_that_goes_while_a_plugin_looks_cancels_what_it_finds() {
    let (looks, open) = (Arc::new(Gate::closed()), Arc::new(Gate::default()));
    let plugin = held_twice(&looks, &open);
    let chain = chain_with(&plugin, patient()).await;
    let generation = chain.generate(request_of(20)).await.expect("admitted");
    let id = generation.started.request_id.clone();
    looks.reached(1).await;
    drop(generation);
    chain.quiet().await;
    assert_eq!(ends(&plugin, &id), 0, "it is in a call");
    looks.open();
    heard_end(&plugin, &id).await;
    check_order(&plugin, &id);
    assert_eq!(words(&plugin, &id, Callback::Discard), ["decision-1 cancelled"]);
    assert_eq!(outcomes(&figures(&chain, 0), ProposalOutcome::Cancelled), 1);
    chain.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_error_of_a_question_ends_the_questions_of_its_request_only() {
    let failed = Mutex::new(false);
    let plugin = ScriptedPlugin::new("p", move |called, query| {
        let first = called == Callback::Start && !std::mem::replace(&mut *failed.lock().expect("no panic"), true);
        match called {
            _ if first => Told::Fails(mesh_actors::ports::plugin::CallFaultKind::Error),
            Callback::Poll => guess(query),
            _ => Told::Fine,
        }
    });
    let chain = chain_with(&plugin, patient()).await;
    let id = answered(&chain, &request_of(20)).await;
    heard_end(&plugin, &id).await;
    check_finished(&plugin, &id, &chain.expected(&request_of(20)).tokens);
    assert_eq!(words(&plugin, &id, Callback::Start).len(), 1, "it is asked no more");
    assert_eq!(outcomes(&figures(&chain, 0), ProposalOutcome::Error), 1);
    assert_eq!(errors(&figures(&chain, 0), Callback::Start), 1);
    let next = answered(&chain, &request_of(21)).await;
    heard_end(&plugin, &next).await;
    assert!(words(&plugin, &next, Callback::Report).len() > 1);
    eventually("nothing is followed", || figures(&chain, 0).followed == 0).await;
    chain.quiet().await;
    chain.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn more_candidates_than_were_wanted_are_cancelled_then_discarded_and_it_is_asked_no_more() {
    let plugin = ScriptedPlugin::new("p", |called, query| match query {
        Some(query) if called == Callback::Poll => Told::Proposes(vec![1; query.max_tokens as usize + 1]),
        _ => Told::Fine,
    });
    let chain = chain_with(&plugin, patient()).await;
    let id = answered(&chain, &request_of(20)).await;
    heard_end(&plugin, &id).await;
    check_finished(&plugin, &id, &chain.expected(&request_of(20)).tokens);
    let asked = callbacks(&plugin, &id)
        .into_iter()
        .filter(|callback| *callback != Callback::Commit);
    assert_eq!(
        asked.collect::<Vec<_>>(),
        [
            Callback::Begin,
            Callback::Start,
            Callback::Poll,
            Callback::Cancel,
            Callback::Discard,
            Callback::Finish
        ]
    );
    assert_eq!(
        words(&plugin, &id, Callback::Discard),
        ["decision-1 invalid_token_count"]
    );
    assert_eq!(outcomes(&figures(&chain, 0), ProposalOutcome::Error), 1);
    chain.quiet().await;
    chain.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_question_that_is_pending_is_polled_again_when_the_plugin_wakes() {
    let polls = AtomicUsize::new(0);
    // The scripted plugin wakes from within each poll.
    let plugin = ScriptedPlugin::new("p", move |called, query| match called {
        Callback::Poll if polls.fetch_add(1, Ordering::SeqCst) % 3 < 2 => Told::Pending,
        Callback::Poll => guess(query),
        _ => Told::Fine,
    });
    let chain = chain_with(&plugin, patient()).await;
    let id = answered(&chain, &request_of(9)).await;
    heard_end(&plugin, &id).await;
    check_finished(&plugin, &id, &chain.expected(&request_of(9)).tokens);
    let calls = [Callback::Start, Callback::Poll, Callback::Report, Callback::Cancel];
    let [starts, polls, reports, cancels] = calls.map(|callback| plugin.count(callback));
    assert!(starts > 2, "{starts}");
    assert_eq!((polls, reports, cancels), (3 * starts, starts, 0));
    chain.quiet().await;
    chain.stop().await;
}
