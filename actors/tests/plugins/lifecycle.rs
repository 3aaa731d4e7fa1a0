//! What a plugin is told of requests, and that nothing is lost in silence.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use mesh_actors::{
    plugin::{Callback, Health, Loss, PluginLimits, PluginOptions, ProposalOutcome},
    scripted::{Call, Gate, ScriptedPlugin, Told, Verdict, eventually, read_all},
};
use mesh_proto::ErrorCode;

use crate::world::*;

fn crowded() -> PluginOptions {
    PluginOptions {
        limits: PluginLimits {
            queue: 2,
            reserve: 8,
            ..PluginLimits::default()
        },
        ..patient()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_finds_no_place_is_counted_and_only_the_end_is_told() {
    let gate = Arc::new(Gate::closed());
    let plugin = ScriptedPlugin::held_in("p", Callback::Begin, gate.clone()).with(FOLLOWS);
    let chain = chain_with(&plugin, crowded()).await;
    let (first, second) = (request_of(20), request_of(21));
    // Decoding waits for nothing: both end while the plugin is in its first call.
    let crowding = answered(&chain, &first).await;
    let unheard = answered(&chain, &second).await;
    gate.reached(1).await;
    let reading = chain.plugins[0].read();
    assert!(
        reading.queued <= reading.capacity && reading.capacity == 10,
        "{reading:?}"
    );
    assert_eq!(lost(&reading.figures, Loss::Begin), 1);
    // All but the first of one request, all of the other.
    assert_eq!(lost(&reading.figures, Loss::Commit), 19 + 21);
    gate.open();
    heard_end(&plugin, &crowding).await;
    heard_end(&plugin, &unheard).await;
    let tokens = chain.expected(&first).tokens;
    assert_eq!(committed(&plugin, &crowding), tokens[..1]);
    assert_eq!(
        words(&plugin, &crowding, Callback::Finish),
        [format!("{tokens:?}, incomplete")]
    );
    let tokens = chain.expected(&second).tokens;
    assert_eq!(
        plugin.told(&unheard),
        [(Callback::Finish, format!("{tokens:?}, incomplete"))]
    );
    eventually("all places are free", || chain.plugins[0].read().queued == 0).await;
    // There is room again.
    let third = answered(&chain, &request_of(1)).await;
    heard_end(&plugin, &third).await;
    check_finished(&plugin, &third, &chain.expected(&request_of(1)).tokens);
    chain.quiet().await;
    chain.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_generation_that_lost_a_commit_is_not_asked_about_again() {
    let gate = Arc::new(Gate::closed());
    let plugin = ScriptedPlugin::held_in("p", Callback::Begin, gate.clone());
    let chain = chain_with(&plugin, crowded()).await;
    let request = request_of(20);
    let engine = chain.hold(|call| call.is_first());
    // The prompt and five tokens.
    engine.let_pass(prompt_of(&request).len().div_ceil(8) + 5);
    let mut generation = chain.generate(request.clone()).await.expect("admitted");
    let id = generation.started.request_id.clone();
    engine.reached(1).await;
    eventually("commits are lost", || lost(&figures(&chain, 0), Loss::Commit) > 3).await;
    assert_eq!(
        outcomes(&figures(&chain, 0), ProposalOutcome::QueueFull),
        1,
        "it abstains once, and is not asked again"
    );
    gate.open();
    eventually("there is room", || chain.plugins[0].read().queued == 0).await;
    engine.open();
    let (text, end) = read_all(&mut generation.events).await;
    end.expect("finished");
    assert_eq!(text, chain.expected(&request).text);
    heard_end(&plugin, &id).await;
    assert_eq!(
        callbacks(&plugin, &id),
        [Callback::Begin, Callback::Commit, Callback::Finish]
    );
    chain.quiet().await;
    chain.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_that_is_cancelled_is_aborted_as_cancelled() {
    let plugin = ScriptedPlugin::new("p", |_, _| Told::Fine);
    let chain = chain_with(&plugin, patient()).await;
    let engine = chain.hold(|call| call.is_first() && call.batch.spans[0].sampled_rows == 0);
    let generation = chain.generate(request_of(20)).await.expect("admitted");
    let id = generation.started.request_id.clone();
    engine.reached(1).await;
    drop(generation);
    gone(&chain, &id).await;
    engine.open();
    heard_end(&plugin, &id).await;
    check_order(&plugin, &id);
    assert_eq!(words(&plugin, &id, Callback::Abort), ["Cancelled"]);
    chain.quiet().await;
    chain.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_whose_deployment_breaks_is_aborted_as_stage_lost() {
    let plugin = ScriptedPlugin::new("p", |called, query| match called {
        Callback::Poll => guess(query),
        _ => Told::Fine,
    });
    let chain = chain_with(&plugin, patient()).await;
    chain.loader.script(|call: &Call<'_>| {
        let speculates = call.batch.spans.iter().any(|span| span.sampled_rows > 1);
        if !call.is_first() && speculates {
            Verdict::Break
        } else {
            Verdict::Compute
        }
    });
    let mut generation = chain.generate(request_of(20)).await.expect("admitted");
    let id = generation.started.request_id.clone();
    let (_, end) = read_all(&mut generation.events).await;
    assert_eq!(end.expect_err("lost").code, ErrorCode::StageLost);
    heard_end(&plugin, &id).await;
    check_order(&plugin, &id);
    assert_eq!(words(&plugin, &id, Callback::Discard), ["decision-1 execution_failed"]);
    assert_eq!(words(&plugin, &id, Callback::Abort), ["StageLost"]);
    chain.check();
    chain.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_that_never_held_a_lane_is_not_told() {
    let plugin = ScriptedPlugin::new("p", |_, _| Told::Fine);
    let chain = chain_with(&plugin, patient()).await;
    let engine = chain.hold(|call| call.is_first());
    let mut running = Vec::new();
    for index in 0..4 {
        running.push(chain.generate(request(index, 3)).await.expect("admitted"));
    }
    eventually("all lanes are held", || chain.head.lanes().used == 4).await;
    let waiting = chain.generate(request(9, 3)).await.expect("admitted");
    let id = waiting.started.request_id.clone();
    eventually("one waits", || chain.head.lanes().waiting == 1).await;
    drop(waiting);
    gone(&chain, &id).await;
    engine.open();
    for generation in &mut running {
        read_all(&mut generation.events).await.1.expect("finished");
        heard_end(&plugin, &generation.started.request_id).await;
    }
    assert_eq!(plugin.told(&id), []);
    chain.quiet().await;
    chain.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn closing_tells_all_ends_and_shutdown_before_it_returns() {
    let shutdowns = Arc::new(AtomicUsize::new(0));
    let count = shutdowns.clone();
    let plugin = ScriptedPlugin::new("p", move |called, _| {
        if called == Callback::Shutdown {
            count.fetch_add(1, Ordering::SeqCst);
        }
        Told::Fine
    });
    let chain = chain_with(&plugin, patient()).await;
    let engine = chain.hold(|call| call.is_first());
    let request = request_of(5);
    let mut generation = chain.generate(request.clone()).await.expect("admitted");
    let id = generation.started.request_id.clone();
    engine.reached(1).await;
    chain.plugins[0].close(Instant::now() + Duration::from_secs(15)).await;
    check_order(&plugin, &id);
    assert_eq!(words(&plugin, &id, Callback::Abort), ["Shutdown"]);
    assert_eq!(shutdowns.load(Ordering::SeqCst), 1);
    assert_eq!(figures(&chain, 0).health, Health::Stopped);
    assert_eq!(lost(&figures(&chain, 0), Loss::Abandoned), 0);
    // The request goes on without it.
    engine.open();
    let (text, end) = read_all(&mut generation.events).await;
    end.expect("finished");
    assert_eq!(text, chain.expected(&request).text);
    let later = answered(&chain, &request_of(6)).await;
    assert_eq!(plugin.told(&later), []);
    chain.quiet().await;
    chain.stop().await;
    assert_eq!((shutdowns.load(Ordering::SeqCst), ends(&plugin, &id)), (1, 1));
}

#[tokio::test(flavor = "multi_thread")]
async fn closing_does_not_wait_for_a_shutdown_that_hangs() {
    let gate = Arc::new(Gate::closed());
    let plugin = ScriptedPlugin::held_in("p", Callback::Shutdown, gate.clone());
    let chain = chain_with(&plugin, patient()).await;
    let id = answered(&chain, &request_of(3)).await;
    let began = Instant::now();
    chain.plugins[0].close(began + Duration::from_millis(50)).await;
    assert!(began.elapsed() < Duration::from_secs(5) && gate.waiting() == 1);
    let left = figures(&chain, 0);
    assert_eq!((left.health, lost(&left, Loss::Abandoned)), (Health::Stopped, 0));
    check_finished(&plugin, &id, &chain.expected(&request_of(3)).tokens);
    gate.open();
    chain.quiet().await;
    chain.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn closing_does_not_wait_for_a_stuck_thread_beyond_its_deadline() {
    let gate = Arc::new(Gate::closed());
    let plugin = ScriptedPlugin::held_in("p", Callback::Begin, gate.clone());
    let chain = chain_with(&plugin, patient()).await;
    let id = {
        let mut generation = chain.generate(request_of(1)).await.expect("admitted");
        read_all(&mut generation.events).await.1.expect("finished");
        generation.started.request_id
    };
    gate.reached(1).await;
    let began = Instant::now();
    chain.plugins[0].close(Instant::now() + Duration::from_millis(50)).await;
    assert!(began.elapsed() < Duration::from_secs(5));
    let left = figures(&chain, 0);
    assert_eq!((left.health, lost(&left, Loss::Abandoned)), (Health::Stopped, 1));
    assert_eq!(callbacks(&plugin, &id), [Callback::Begin]);
    gate.open();
    chain.quiet().await;
    chain.stop().await;
}
