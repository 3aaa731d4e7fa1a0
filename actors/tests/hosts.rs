//! Hosts on one node: whose a name is there, how long, and who hears of a stage's end.

use std::time::Duration;

use mesh_actors::{
    host::StageOwner,
    scripted::{Call, Chain, ChainOptions, Verdict, chain_owner, eventually, generate_text, read_all},
};
use mesh_proto::{ErrorCode, MeshError, NodeId, wire::host_event::Event};
use tokio::time::timeout;

/// Nothing here takes a tenth of it.
const DEADLINE: Duration = Duration::from_secs(20);

fn stranger() -> StageOwner {
    StageOwner {
        node: NodeId([9; 32]),
        name: "b".to_owned(),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_owner_of_a_name_is_refused_in_words_and_takes_no_stage_away() {
    let chain = Chain::start(ChainOptions::default()).await;
    for stage in 0..3 {
        for epoch in [1, 2] {
            let mut second = chain.ask_again(stage, stranger(), epoch).await;
            let Event::Failed(refusal) = second.says().await else {
                panic!("hosted")
            };
            let error = MeshError::from(refusal);
            assert_eq!(error.code, ErrorCode::Conflict);
            assert!(
                error.message.contains("scripted is already served by node node 0"),
                "{error}"
            );
            second.host.stop().await;
        }
    }
    let request = generate_text("as before", 1, 20);
    let mut generation = chain.generate(request.clone()).await.expect("admitted");
    assert_eq!(read_all(&mut generation.events).await.0, chain.expected(&request).text);
    chain.quiet().await;
    // The name is free with the last of its stages.
    chain.stop_soon();
    eventually("another owner", || chain.loader.loaded() == 0).await;
    let mut second = chain.ask_again(1, stranger(), 1).await;
    while let Event::Failed(_) = second.says().await {
        second = chain.ask_again(1, stranger(), 1).await;
    }
    second.host.stop().await;
    chain.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_new_epoch_loads_when_the_memory_of_the_one_before_is_free() {
    let chain = Chain::start(ChainOptions {
        stages: 1,
        ..ChainOptions::default()
    })
    .await;
    let gate = chain.hold(|_| true);
    let _generation = chain.generate(generate_text("long", 1, 20)).await.expect("admitted");
    gate.reached(1).await;
    chain.stop_soon();
    let mut next = chain.ask_again(0, chain_owner(), 2).await;
    // A call of the old epoch still runs.
    let early = timeout(Duration::from_millis(100), next.says()).await;
    assert!(early.is_err(), "{early:?}");
    gate.open();
    let loaded = timeout(DEADLINE, next.says()).await.expect("in time");
    assert!(matches!(loaded, Event::Loaded(_)), "{loaded:?}");
    assert_eq!(chain.loader.most_loaded(), 1);
    next.host.stop().await;
    chain.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn neighbours_hear_of_a_stage_that_breaks_though_its_owner_does_nothing() {
    for broken in 0..3 {
        let mut chain = Chain::start(ChainOptions::default()).await;
        chain.loader.script(move |call: &Call<'_>| {
            if call.first_layer == broken * 2 {
                Verdict::Break
            } else {
                Verdict::Compute
            }
        });
        let mut generation = chain.generate(generate_text("lost", 1, 20)).await.expect("admitted");
        let end = timeout(DEADLINE, read_all(&mut generation.events))
            .await
            .expect("in time")
            .1;
        assert_eq!(end.expect_err("lost").code, ErrorCode::StageLost, "{broken}");
        for said in &mut chain.said {
            let failed = async { while !matches!(said.recv().await.expect("a word").event, Some(Event::Failed(_))) {} };
            timeout(DEADLINE, failed).await.expect("in time");
        }
        chain.stop().await;
    }
}
