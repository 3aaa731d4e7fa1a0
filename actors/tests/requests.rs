//! Requests over real actors: hosts, stages, links and a head, joined in memory, with scripted engines.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use mesh_actors::{
    events::Lifecycle,
    scripted::{Call, Chain, ChainOptions, ScriptedVocabulary, Verdict, eventually, generate_text, read_all},
};
use mesh_proto::{
    ErrorCode,
    sampling::default_sampling,
    v1::{FinishReason, GenerateRequest, Sampling},
};

async fn answer(chain: &Chain, request: GenerateRequest) -> String {
    let mut generation = chain.generate(request).await.expect("admitted");
    let (text, end) = read_all(&mut generation.events).await;
    end.expect("a normal end");
    assert_eq!(chain.events.text(&generation.started.request_id), text);
    text
}

fn prompt(index: usize) -> GenerateRequest {
    generate_text(
        &format!("secret marker {index} {}", "x".repeat(7 * index)),
        index as u64,
        60,
    )
}

#[tokio::test(flavor = "multi_thread")]
async fn sampling_that_makes_no_sense_is_refused_in_words() {
    let chain = Chain::with_lanes(1).await;
    let sampling = Sampling {
        temperature: -1.0,
        ..default_sampling()
    };
    let request = GenerateRequest {
        sampling: Some(sampling),
        ..prompt(1)
    };
    let refused = chain.generate(request).await.expect_err("refused");
    assert_eq!(
        (refused.code, refused.param.as_deref()),
        (ErrorCode::InvalidRequest, Some("temperature"))
    );
    chain.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_text_is_that_of_the_model_for_any_number_of_stages() {
    for (stages, one_node) in [(1, false), (1, true), (2, false), (3, false), (3, true)] {
        let chain = Chain::start(ChainOptions {
            stages,
            one_node,
            ..ChainOptions::default()
        })
        .await;
        for index in 0..6 {
            let request = prompt(index);
            let expected = chain.expected(&request);
            let mut generation = chain.generate(request).await.expect("admitted");
            let (text, end) = read_all(&mut generation.events).await;
            let end = end.expect("finished");
            assert_eq!(text, expected.text);
            assert_eq!(end.completion_tokens as usize, expected.tokens.len());
            let reason = if expected.stopped {
                FinishReason::Stop
            } else {
                FinishReason::Length
            };
            assert_eq!(end.reason, reason as i32);
            let kinds: Vec<_> = chain
                .events
                .of(&generation.started.request_id)
                .into_iter()
                .map(|event| event.kind)
                .collect();
            assert!(matches!(
                kinds[..3],
                [
                    Lifecycle::Queued,
                    Lifecycle::Started { .. },
                    Lifecycle::Prefilled { .. }
                ]
            ));
        }
        chain.quiet().await;
        chain.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn eight_at_once_and_three_of_them_cancelled_leave_the_others_as_they_are_alone() {
    for round in 0..12usize {
        let chain = Arc::new(Chain::with_lanes(3).await);
        let requests = (0..8).map(|index| {
            let chain = chain.clone();
            tokio::spawn(async move {
                let request = prompt(index);
                let expected = chain.expected(&request).text;
                let mut generation = chain.generate(request).await.expect("admitted");
                if index % 3 == 2 {
                    for _ in 0..(round * 5 + index) % 9 {
                        if generation.events.next().await.is_none() {
                            break;
                        }
                    }
                    return;
                }
                let (text, end) = read_all(&mut generation.events).await;
                end.expect("finished");
                assert_eq!(text, expected, "request {index}");
            })
        });
        for request in requests.collect::<Vec<_>>() {
            request.await.expect("as alone");
        }
        chain.quiet().await;
        Arc::into_inner(chain).expect("the last").stop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_can_be_cancelled_while_it_is_prepared() {
    let (vocabulary, gate) = ScriptedVocabulary::held(|text| text == "slow");
    let chain = Arc::new(
        Chain::start(ChainOptions {
            vocabulary,
            ..ChainOptions::default()
        })
        .await,
    );
    let id = mesh_proto::RequestId::random();
    let request = GenerateRequest {
        request_id: id.to_string(),
        ..generate_text("slow", 1, 5)
    };
    let asking = tokio::spawn({
        let chain = chain.clone();
        async move { chain.generate(request).await.map(drop) }
    });
    gate.reached(1).await;
    chain.head.cancel(id);
    let refused = asking.await.expect("joined").expect_err("cancelled");
    assert_eq!(refused.code, ErrorCode::Cancelled);
    // The one who asks may also just go.
    let gone = tokio::spawn({
        let chain = chain.clone();
        async move { chain.generate(generate_text("slow", 2, 5)).await.map(drop) }
    });
    gate.reached(2).await;
    gone.abort();
    let _ = gone.await;
    gate.open();
    chain.quiet().await;
    let ends: Vec<_> = chain
        .events
        .by_request()
        .into_values()
        .filter_map(|events| events.last().cloned())
        .collect();
    assert_eq!(ends.len(), 2);
    assert!(
        ends.iter()
            .all(|end| matches!(end.kind, Lifecycle::Rejected(_) | Lifecycle::Aborted { .. })),
        "{ends:?}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_can_be_cancelled_while_it_waits_and_while_it_is_prefilled() {
    let chain = Chain::with_lanes(1).await;
    let gate = chain.hold(|call| call.is_first());
    let prefilling = chain
        .generate(generate_text(&"p".repeat(100), 1, 5))
        .await
        .expect("admitted");
    gate.reached(1).await;
    let waiting = chain.generate(generate_text("waits", 2, 5)).await.expect("admitted");
    let next = generate_text("next", 3, 5);
    let mut next_one = chain.generate(next.clone()).await.expect("admitted");
    eventually("two wait", || chain.head.lanes().waiting == 2).await;
    drop(waiting);
    eventually("one waits", || chain.head.lanes().waiting == 1).await;
    // In the middle of its prompt.
    gate.let_pass(3);
    drop(prefilling);
    gate.open();
    let (text, end) = read_all(&mut next_one.events).await;
    end.expect("finished");
    assert_eq!(text, chain.expected(&next).text);
    chain.quiet().await;
    let aborted = chain.events.by_request().into_values().filter(|events| {
        events.last().is_some_and(
            |event| matches!(&event.kind, Lifecycle::Aborted { error, .. } if error.code == ErrorCode::Cancelled),
        )
    });
    assert_eq!(aborted.count(), 2);
    chain.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_can_be_cancelled_at_its_last_token() {
    let chain = Chain::start(ChainOptions {
        stages: 2,
        lanes: 1,
        ..ChainOptions::default()
    })
    .await;
    let request = (0..200)
        .map(|seed| generate_text("last", seed, 4))
        .find(|request| chain.expected(request).tokens.len() == 4)
        .expect("one that does not end by itself");
    // The prompt has four tokens: the row at position 6 draws the fourth and last.
    let gate = chain.hold(|call| !call.is_first() && call.batch.spans[0].pos_start == 6);
    for _ in 0..20 {
        gate.close();
        let generation = chain.generate(request.clone()).await.expect("admitted");
        gate.reached(1).await;
        gate.open();
        drop(generation);
        chain.quiet().await;
    }
    assert_eq!(answer(&chain, request.clone()).await, chain.expected(&request).text);
    chain.quiet().await;
    chain.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn one_more_than_may_wait_is_refused_and_lanes_are_reused() {
    let chain = Chain::start(ChainOptions {
        stages: 2,
        lanes: 2,
        ..ChainOptions::default()
    })
    .await;
    let gate = chain.hold(|_| true);
    let mut admitted = Vec::new();
    for index in 0..66 {
        admitted.push((index, chain.generate(prompt(index % 5)).await.expect("admitted")));
    }
    let refused = chain.generate(prompt(1)).await.expect_err("refused");
    assert_eq!(refused.code, ErrorCode::QueueFull);
    eventually("the figures", || {
        (chain.head.lanes().used, chain.head.lanes().waiting) == (2, 64)
    })
    .await;
    gate.open();
    for (index, mut generation) in admitted {
        let (text, end) = read_all(&mut generation.events).await;
        end.expect("finished");
        assert_eq!(text, chain.expected(&prompt(index % 5)).text);
    }
    chain.quiet().await;
    answer(&chain, prompt(1)).await;
    chain.quiet().await;
    chain.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lane_that_fails_in_the_middle_ends_only_its_request() {
    for long_prompt in [false, true] {
        let chain = Chain::start(ChainOptions::default()).await;
        let (middle, bad) = (2, "bad".repeat(if long_prompt { 30 } else { 1 }));
        let marker = ScriptedVocabulary::tokens(&bad)[..3].to_vec();
        let failing = std::sync::Mutex::new(None);
        chain.loader.script(move |call: &Call<'_>| {
            if call.first_layer != middle {
                return Verdict::Compute;
            }
            let mut failing = failing.lock().expect("no panic");
            let span = call.batch.spans.iter().find(|span| span.tokens.starts_with(&marker));
            if let Some(span) = span {
                failing.get_or_insert(span.session);
            }
            let lanes = call
                .batch
                .spans
                .iter()
                .filter(|span| Some(span.session) == *failing)
                .map(|span| span.lane);
            Verdict::FailLanes(lanes.collect())
        });
        let good = prompt(2);
        let mut beside = chain.generate(good.clone()).await.expect("admitted");
        let mut failed = chain.generate(generate_text(&bad, 1, 20)).await.expect("admitted");
        let (_, end) = read_all(&mut failed.events).await;
        assert_eq!(end.expect_err("failed").code, ErrorCode::EngineFailed);
        let (text, end) = read_all(&mut beside.events).await;
        end.expect("finished");
        assert_eq!(text, chain.expected(&good).text);
        chain.loader.no_script();
        chain.quiet().await;
        for index in 0..5 {
            assert_eq!(answer(&chain, prompt(index)).await, chain.expected(&prompt(index)).text);
        }
        chain.quiet().await;
        chain.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stage_that_cannot_open_a_session_ends_only_its_request() {
    for first_layer in [0, 2, 4] {
        let chain = Chain::start(ChainOptions::default()).await;
        chain.loader.refuse_opens(Some(first_layer));
        let mut failed = chain.generate(prompt(4)).await.expect("admitted");
        let (_, end) = read_all(&mut failed.events).await;
        assert_eq!(end.expect_err("failed").code, ErrorCode::EngineFailed);
        chain.loader.refuse_opens(None);
        assert_eq!(answer(&chain, prompt(3)).await, chain.expected(&prompt(3)).text);
        chain.quiet().await;
        chain.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_panic_in_a_request_ends_it_and_frees_its_lane() {
    let pieces = Arc::new(AtomicUsize::new(0));
    let count = pieces.clone();
    let vocabulary = ScriptedVocabulary::default().on_piece(move |_| {
        assert!(count.fetch_add(1, Ordering::SeqCst) != 3, "the fourth piece panics");
    });
    let chain = Chain::start(ChainOptions {
        lanes: 1,
        vocabulary,
        ..ChainOptions::default()
    })
    .await;
    let mut unlucky = chain.generate(prompt(1)).await.expect("admitted");
    let next = chain.generate(prompt(2)).await.expect("admitted");
    let (_, end) = read_all(&mut unlucky.events).await;
    assert_eq!(end.expect_err("panicked").code, ErrorCode::Internal);
    let (mut next, expected) = (next, chain.expected(&prompt(2)).text);
    assert_eq!(read_all(&mut next.events).await.0, expected);
    chain.quiet().await;
    chain.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_panic_in_the_tokenizer_refuses_the_request() {
    let vocabulary = ScriptedVocabulary::default().on_tokenize(|text| assert!(text != "boom", "the tokenizer panics"));
    let chain = Chain::start(ChainOptions {
        vocabulary,
        ..ChainOptions::default()
    })
    .await;
    let refused = chain.generate(generate_text("boom", 1, 5)).await.expect_err("refused");
    assert_eq!(refused.code, ErrorCode::Internal);
    assert_eq!(answer(&chain, prompt(1)).await, chain.expected(&prompt(1)).text);
    chain.quiet().await;
    chain.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_that_is_cancelled_while_it_is_tokenized_gives_its_place_back_at_once() {
    let (vocabulary, gate) = ScriptedVocabulary::held(|_| true);
    let chain = Chain::start(ChainOptions {
        lanes: 1,
        vocabulary,
        ..ChainOptions::default()
    })
    .await;
    // More than there are places.
    for _ in 0..70 {
        let id = mesh_proto::RequestId::random();
        let request = GenerateRequest {
            request_id: id.to_string(),
            ..prompt(0)
        };
        let mut asking = Box::pin(chain.generate(request));
        // It was cast to the head when the future was polled first; so is the cancellation, after it.
        let first = futures::poll!(asking.as_mut());
        chain.head.cancel(id);
        let end = match first {
            std::task::Poll::Ready(end) => end,
            std::task::Poll::Pending => asking.await,
        };
        assert_eq!(end.expect_err("refused").code, ErrorCode::Cancelled);
    }
    gate.open();
    chain.quiet().await;
    chain.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_slow_reader_does_not_slow_decoding() {
    let chain = Chain::with_lanes(1).await;
    let request = prompt(2);
    let mut unread = chain.generate(request.clone()).await.expect("admitted");
    let id = unread.started.request_id.clone();
    eventually("the end", || {
        chain
            .events
            .of(&id)
            .last()
            .is_some_and(|event| matches!(event.kind, Lifecycle::Finished(_)))
    })
    .await;
    assert_eq!(answer(&chain, prompt(3)).await, chain.expected(&prompt(3)).text);
    assert_eq!(read_all(&mut unread.events).await.0, chain.expected(&request).text);
    chain.quiet().await;
    chain.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn stop_strings_are_never_shown_and_free_the_lane() {
    let chain = Chain::start(ChainOptions::default()).await;
    for index in 0..5 {
        let whole = chain.expected(&prompt(index)).text;
        let Some((at, stop)) = whole
            .char_indices()
            .nth(9)
            .map(|(at, _)| (at, whole[at..].chars().take(3).collect::<String>()))
        else {
            continue;
        };
        let cut = whole.find(&stop).unwrap_or(at);
        let text = answer(
            &chain,
            GenerateRequest {
                stop: vec![stop],
                ..prompt(index)
            },
        )
        .await;
        assert_eq!(text, whole[..cut]);
    }
    chain.quiet().await;
    chain.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn sixty_four_requests_at_once_on_four_stages_never_lock_up() {
    for credits in 1..=4 {
        let options = ChainOptions {
            stages: 4,
            lanes: 5,
            credits,
            chunk: 4,
            ..ChainOptions::default()
        };
        let chain = Arc::new(Chain::start(options).await);
        let requests = (0..64).map(|index| {
            let chain = chain.clone();
            tokio::spawn(async move {
                let request = prompt(index % 9);
                let expected = chain.expected(&request).text;
                let mut generation = chain.generate(request).await.expect("admitted");
                if index % 5 == 4 {
                    return drop(generation.events.next().await);
                }
                assert_eq!(read_all(&mut generation.events).await.0, expected);
            })
        });
        for request in requests.collect::<Vec<_>>() {
            request.await.expect("as alone");
        }
        chain.quiet().await;
        assert!(chain.most_in_flight() <= credits);
        Arc::into_inner(chain).expect("the last").stop().await;
    }
}
