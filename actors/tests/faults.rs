//! Stages, links and hosts that go away under load.

use std::sync::Arc;

use mesh_actors::{
    events::Lifecycle,
    ports::inference::{Caller, Generation},
    scripted::{
        Call, Chain, ChainOptions, Gate, ScriptedLoader, ScriptedVocabulary, Verdict, eventually, generate_text, model,
        read_all,
    },
};
use mesh_proto::{ErrorCode, MeshError, v1::GenerateRequest, wire::host_event};

/// What can go wrong.
#[derive(Debug, Clone, Copy)]
enum Fault {
    Break(u32),
    Panic(u32),
    Cut(u32),
}

fn prompt(index: usize) -> GenerateRequest {
    generate_text(&format!("request {index}"), index as u64, 200)
}

async fn break_down(fault: Fault, round: u32) {
    let chain = Chain::with_lanes(2).await;
    let calls = std::sync::atomic::AtomicU32::new(0);
    let (at, verdict) = match fault {
        Fault::Break(stage) => (Some(stage * 2), Verdict::Break),
        Fault::Panic(stage) => (Some(stage * 2), Verdict::Panic),
        Fault::Cut(_) => (None, Verdict::Compute),
    };
    let gate = Arc::new(Gate::default());
    let held = gate.clone();
    chain.loader.script(move |call: &Call<'_>| {
        if call.is_first() && at.is_none() {
            held.pass();
        }
        let strikes =
            Some(call.first_layer) == at && calls.fetch_add(1, std::sync::atomic::Ordering::SeqCst) == round * 3;
        if strikes { verdict.clone() } else { Verdict::Compute }
    });
    if at.is_none() {
        gate.close();
        gate.let_pass(round as usize * 3);
    }
    let mut generations = Vec::new();
    for index in 0..5 {
        // The stage may be gone before all are in.
        match chain.generate(prompt(index)).await {
            Ok(generation) => generations.push(generation),
            Err(error) => assert_eq!(error.code, ErrorCode::StageLost, "{fault:?}"),
        }
    }
    if let Fault::Cut(link) = fault {
        gate.reached(1).await;
        chain.cut_link(link);
        gate.open();
    }
    let mut chain = chain;
    // The host at fault tells its owner, who takes all hosts down.
    let mut failed = false;
    while !failed {
        let events: Vec<_> = chain.said.iter_mut().map(|events| Box::pin(events.recv())).collect();
        let (event, ..) = futures::future::select_all(events).await;
        failed = matches!(event.expect("hosts live").event, Some(host_event::Event::Failed(_)));
    }
    let (loader, events, head) = (chain.loader.clone(), chain.events.clone(), chain.head.clone());
    chain.stop().await;
    for mut generation in generations {
        let (_, end) = read_all(&mut generation.events).await;
        if let Err(error) = end {
            assert_eq!(error.code, ErrorCode::StageLost, "{fault:?}: {error}");
        }
    }
    let refused = head.generate(prompt(1), Caller::default()).await.expect_err("over");
    assert!(
        matches!(refused.code, ErrorCode::StageLost | ErrorCode::NotReady),
        "{refused:?}"
    );
    eventually("all ended", || events.unended() == 0).await;
    events.check();
    assert_eq!(loader.open_sessions(), 0);
    assert_eq!(loader.violations(), Vec::<String>::new());
}

#[tokio::test(flavor = "multi_thread")]
async fn losing_a_stage_or_a_link_ends_every_request_once_with_stage_lost() {
    for round in 0..3 {
        for stage in 0..3 {
            for fault in [Fault::Break(stage), Fault::Panic(stage), Fault::Cut(stage)] {
                break_down(fault, round).await;
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn after_the_end_new_requests_are_refused_with_the_reason() {
    let chain = Chain::with_lanes(1).await;
    chain
        .head
        .end(MeshError::new(ErrorCode::StageLost, "the epoch is over"));
    for _ in 0..100 {
        let refused = chain.generate(prompt(0)).await.expect_err("over");
        assert_eq!(
            (refused.code, refused.message.as_str()),
            (ErrorCode::StageLost, "the epoch is over")
        );
    }
    chain.quiet().await;
    chain.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_during_the_end_are_told_that_it_ends_not_that_the_queue_is_full() {
    let (vocabulary, gate) = ScriptedVocabulary::held(|_| true);
    let chain = Arc::new(
        Chain::start(ChainOptions {
            lanes: 1,
            vocabulary,
            ..ChainOptions::default()
        })
        .await,
    );
    let preparing = tokio::spawn({
        let chain = chain.clone();
        async move { chain.generate(prompt(0)).await.map(drop) }
    });
    gate.reached(1).await;
    let finishing = tokio::spawn({
        let head = chain.head.clone();
        async move { head.finish(MeshError::new(ErrorCode::StageLost, "stopped")).await }
    });
    assert_eq!(
        preparing.await.expect("joined").expect_err("ended").code,
        ErrorCode::StageLost
    );
    assert_eq!(
        chain.generate(prompt(0)).await.expect_err("ending").code,
        ErrorCode::StageLost
    );
    gate.open();
    finishing.await.expect("finished");
    assert_eq!(
        chain.generate(prompt(0)).await.expect_err("ended").code,
        ErrorCode::StageLost
    );
    eventually("all ended", || chain.events.unended() == 0).await;
    chain.check();
}

#[tokio::test(flavor = "multi_thread")]
async fn stopping_under_load_frees_everything_at_once() {
    for lanes in [1, 4] {
        let chain = Chain::with_lanes(lanes).await;
        let mut generations = Vec::new();
        for index in 0..12 {
            generations.push(chain.generate(prompt(index)).await.expect("admitted"));
        }
        let events = chain.events.clone();
        chain.stop().await;
        for mut generation in generations {
            if let Err(error) = read_all(&mut generation.events).await.1 {
                assert_eq!(error.code, ErrorCode::StageLost);
            }
        }
        eventually("all ended", || events.unended() == 0).await;
        events.check();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_that_runs_when_the_host_stops_is_waited_for() {
    let chain = Chain::start(ChainOptions {
        stages: 1,
        ..ChainOptions::default()
    })
    .await;
    let gate = chain.hold(|_| true);
    let mut generation = chain.generate(prompt(0)).await.expect("admitted");
    gate.reached(1).await;
    let stopping = tokio::spawn(chain.stop());
    // The client does not wait for the engine.
    assert_eq!(
        read_all(&mut generation.events).await.1.expect_err("stopped").code,
        ErrorCode::StageLost
    );
    assert!(!stopping.is_finished());
    gate.open();
    stopping.await.expect("stopped");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_host_that_stops_while_loading_gives_up_loading() {
    let loader = ScriptedLoader::default();
    loader.loading().close();
    let starting = tokio::spawn(Chain::start_with(ChainOptions::default(), loader.clone()));
    loader.loading().reached(3).await;
    starting.abort();
    let _ = starting.await;
    eventually("loading given up", || loader.loading().waiting() == 0).await;
    assert_eq!(loader.loaded(), 0);
}

/// Random numbers of a seed.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 = model::mix(self.0, 1);
        self.0 % limit
    }
}

/// Requests that come, are read, cancelled, fail in any stage, or lose their stage, in any order.
async fn anything_goes(seed: u64) {
    let mut random = Random(seed);
    let options = ChainOptions {
        stages: 1 + random.below(4) as u32,
        lanes: 1 + random.below(3) as u32,
        credits: 1 + random.below(4) as u32,
        chunk: 1 + random.below(9) as u32,
        context: 64,
        ..ChainOptions::default()
    };
    let chain = Chain::start(options).await;
    let failing = random.below(40);
    let script = std::sync::Mutex::new(Random(seed + 1));
    chain.loader.script(move |call: &Call<'_>| {
        let mut random = script.lock().expect("no panic");
        match random.below(30 + failing) {
            0 => Verdict::FailLanes(vec![
                call.batch.spans[random.below(call.batch.spans.len() as u64) as usize].lane,
            ]),
            _ => Verdict::Compute,
        }
    });
    let mut running: Vec<(String, Generation)> = Vec::new();
    for step in 0..40 {
        let at = random.below(running.len().max(1) as u64) as usize;
        match random.below(8) {
            0..3 => {
                let request = generate_text(
                    &"p".repeat(1 + random.below(70) as usize),
                    step,
                    1 + random.below(60) as u32,
                );
                match chain.generate(request.clone()).await {
                    Ok(generation) => running.push((chain.expected(&request).text, generation)),
                    Err(error) => assert_eq!(error.code, ErrorCode::ContextLengthExceeded),
                }
            }
            3 | 4 if at < running.len() => drop(running[at].1.events.next().await),
            5 if at < running.len() => drop(running.swap_remove(at)),
            6 if at < running.len() => chain
                .head
                .cancel(running[at].1.started.request_id.parse().expect("an id")),
            _ => tokio::task::yield_now().await,
        }
    }
    let end = random.below(3);
    let stages = u64::from(chain.layers() / 2);
    // One stage is linked with itself inside its host.
    if end == 0 && stages > 1 {
        chain.cut_link(random.below(stages) as u32);
    }
    if end == 1 {
        chain.loader.script(|_: &Call<'_>| Verdict::Break);
    }
    let (events, loader) = (chain.events.clone(), chain.loader.clone());
    let chain = if end == 2 {
        Some(chain)
    } else {
        // A stage that breaks tells its owner, who takes all down.
        chain.stop().await;
        None
    };
    for (expected, mut generation) in running {
        let id = generation.started.request_id.clone();
        // Some of it was read already; all of it is in the events.
        while generation.events.next().await.is_some() {}
        let kinds: Vec<_> = events.of(&id).into_iter().map(|event| event.kind).collect();
        match kinds.last().expect("events") {
            Lifecycle::Finished(_) => assert_eq!(events.text(&id), expected, "seed {seed}"),
            Lifecycle::Aborted { error, .. } => assert!(
                matches!(
                    error.code,
                    ErrorCode::Cancelled | ErrorCode::EngineFailed | ErrorCode::StageLost
                ),
                "seed {seed}: {error:?}"
            ),
            other => panic!("seed {seed}: {other:?}"),
        }
    }
    if let Some(chain) = chain {
        chain.quiet().await;
        chain.stop().await;
    }
    eventually("all ended", || events.unended() == 0).await;
    events.check();
    assert_eq!(
        (loader.violations(), loader.open_sessions()),
        (Vec::new(), 0),
        "seed {seed}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn whatever_happens_every_journal_ends_once_and_no_lane_is_lost() {
    for seed in 0..150 {
        let patience = std::time::Duration::from_secs(30);
        tokio::time::timeout(patience, anything_goes(seed))
            .await
            .unwrap_or_else(|_| panic!("seed {seed} hangs"));
    }
}
