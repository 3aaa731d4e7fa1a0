//! Lifecycle events of a mesh, as subscribers outside see them.

use std::time::Duration;

use anyhow::{Context as _, Result};
use futures::future::try_join_all;
use mesh_proto::v1::{
    Cursor, EventKind, LifecycleEvent, NodePosition, Scope, SubscribeRequest, SubscribeResponse, lifecycle_event::Kind,
    subscribe_response::Response,
};
use mesh_tests::{ChatCall, Cluster, Processes, checker::End, until};
use serde_json::{Value, json};
use tokio::{process::Command, time::timeout};
use tonic::{Code, Streaming};

/// Nothing here takes a tenth of it.
const LIMIT: Duration = Duration::from_secs(20);

async fn next(notices: &mut Streaming<SubscribeResponse>) -> Result<Response> {
    let notice = timeout(LIMIT, notices.message()).await.context("nothing was told")??;
    notice
        .and_then(|notice| notice.response)
        .context("the subscription ended")
}

async fn next_event(notices: &mut Streaming<SubscribeResponse>) -> Result<LifecycleEvent> {
    loop {
        if let Response::Event(event) = next(notices).await? {
            return Ok(event);
        }
    }
}

/// To the limit of the context.
fn endless() -> ChatCall {
    ChatCall::greedy("psalm", "Tell me all.")
        .with("max_tokens", json!(480))
        .with("logit_bias", json!({"2": -100, "0": -100}))
}

fn short(question: &str) -> ChatCall {
    ChatCall::greedy("psalm", question).with("max_tokens", json!(8))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_python_subscriber_is_told_exactly_what_fifty_mixed_requests_got() -> Result<()> {
    let Ok(python) = std::env::var("MESH_TEST_PYTHON") else {
        eprintln!("skipped: MESH_TEST_PYTHON is not set; tests/run.sh sets it");
        return Ok(());
    };
    let mesh = Processes::start(3).await?;
    let (code, _, err) = mesh
        .command(
            0,
            &["serve", "built-in", "--name", "psalm", "--stages", "a:0-3,b:3-5,c:5-8"],
        )
        .await?;
    assert_eq!(code, 0, "{err}");
    let urls: Vec<String> = (0..3).map(|node| mesh.api(node).http().to_owned()).collect();
    let output = Command::new(&python)
        .arg(concat!(env!("CARGO_MANIFEST_DIR"), "/clients/lifecycle_client.py"))
        .args([mesh.api(1).grpc(), &urls.join(","), "psalm"])
        .kill_on_drop(true)
        .output()
        .await?;
    let (out, err) = (
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr),
    );
    assert!(output.status.success(), "{out}{err}");
    let found: Value = serde_json::from_str(&out).with_context(|| out.to_string())?;
    assert_eq!(found["requests"], 50, "{found}");
    assert_eq!(
        found["ends"],
        json!({"finished": 20, "aborted": 10, "rejected": 20}),
        "{found}"
    );
    let told = mesh.finish().await?;
    assert_eq!(told.len(), 50);
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn filters_let_through_what_they_name_and_content_only_where_asked() -> Result<()> {
    let cluster = Cluster::start(2).await?;
    cluster.serve("built-in", "psalm", "a:0-4,b:4-8").await?;
    cluster.serve("built-in", "other", "b:0-8").await?;
    let wanted = SubscribeRequest {
        deployments: vec!["other".to_owned()],
        kinds: vec![EventKind::Committed.into(), EventKind::Finished.into()],
        scope: Scope::Mesh.into(),
        ..SubscribeRequest::default()
    };
    let mut told = cluster.api(0).subscribe(wanted.clone()).await?;
    let mut with_text = cluster
        .api(1)
        .subscribe(SubscribeRequest {
            include_text: true,
            ..wanted
        })
        .await?;
    // Both nodes' snapshots: what comes after is told.
    for notices in [&mut told, &mut with_text] {
        for _ in 0..2 {
            assert!(matches!(next(notices).await?, Response::Snapshot(_)));
        }
    }
    cluster.api(0).chat(&short("Recite Genesis 1:1.")).await?;
    let answer = cluster
        .api(0)
        .chat(&ChatCall::greedy("other", "Recite John 11:35."))
        .await?;
    let (mut count, mut text) = (0, String::new());
    loop {
        let (plain, full) = (next_event(&mut told).await?, next_event(&mut with_text).await?);
        assert_eq!(
            (&plain.deployment, &plain.request_id),
            (&"other".to_owned(), &full.request_id)
        );
        match (plain.kind, full.kind) {
            (Some(Kind::Committed(plain)), Some(Kind::Committed(full))) => {
                assert!(plain.text.is_empty() && plain.token_ids.is_empty() && full.token_ids.is_empty());
                count += plain.count;
                text.push_str(&full.text);
            }
            (Some(Kind::Finished(finished)), Some(Kind::Finished(_))) => {
                assert_eq!(finished.completion_tokens, count);
                assert!(finished.receipt.is_some_and(|receipt| receipt.token_ids.is_empty()));
                break;
            }
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(text, answer.text);
    cluster.stop().await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_subscriber_goes_on_where_it_left_off_and_hears_what_it_cannot_have() -> Result<()> {
    let cluster = Cluster::start(1).await?;
    cluster.serve("built-in", "psalm", "1").await?;
    let api = cluster.api(0);
    let mut first = api.subscribe(SubscribeRequest::default()).await?;
    let Response::Snapshot(snapshot) = next(&mut first).await? else {
        panic!("no snapshot");
    };
    let start = snapshot.position.context("no position")?;
    api.chat(&short("Recite Genesis 1:1.")).await?;
    let seen = next_event(&mut first).await?;
    drop(first);
    api.chat(&short("What does Psalm 23 say?")).await?;
    let resume = |position: NodePosition| {
        let cursor = Some(Cursor {
            positions: vec![position],
        });
        api.subscribe(SubscribeRequest {
            cursor,
            ..SubscribeRequest::default()
        })
    };
    let mut resumed = resume(NodePosition {
        node: seen.node.clone(),
        run: seen.node_run,
        sequence: seen.node_sequence,
    })
    .await?;
    for expected in 2..12 {
        assert_eq!(next_event(&mut resumed).await?.node_sequence, expected);
    }
    // Another run of the node: what that one told is lost, this one is told from its beginning.
    let mut other_run = resume(NodePosition {
        run: start.run ^ 1,
        sequence: 7,
        ..start.clone()
    })
    .await?;
    let Response::Gap(gap) = next(&mut other_run).await? else {
        panic!("no gap");
    };
    assert_eq!((gap.run, gap.from, gap.to), (start.run ^ 1, 8, 0));
    assert_eq!(next_event(&mut other_run).await?.node_sequence, 1);

    for (position, field) in [
        (
            NodePosition {
                sequence: 1 << 40,
                ..start.clone()
            },
            "cursor",
        ),
        (
            NodePosition {
                node: "elsewhere".to_owned(),
                ..start.clone()
            },
            "cursor",
        ),
    ] {
        let refused = resume(position).await.expect_err("refused");
        let status = refused.downcast::<tonic::Status>()?;
        assert_eq!(status.code(), Code::InvalidArgument);
        assert!(status.message().contains(field), "{status}");
    }
    cluster.stop().await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_subscriber_that_never_reads_and_a_hundred_that_leave_change_nothing() -> Result<()> {
    let cluster = Cluster::start(2).await?;
    cluster.serve("built-in", "psalm", "a:0-4,b:4-8").await?;
    let api = cluster.api(1);
    let everything = SubscribeRequest {
        include_text: true,
        include_token_ids: true,
        scope: Scope::Mesh.into(),
        ..SubscribeRequest::default()
    };
    let _stalled = api.subscribe(everything.clone()).await?;
    let alone = api
        .chat(&ChatCall::sampled("psalm", "What does Psalm 23 say?", 1))
        .await?;
    let leaving = try_join_all((0..100).map(|_| api.subscribe(everything.clone()))).await?;
    let asking = tokio::spawn({
        let api = api.clone();
        async move {
            api.chat(&ChatCall::sampled("psalm", "What does Psalm 23 say?", 1))
                .await
        }
    });
    for mut notices in leaving {
        let _ = next(&mut notices).await?;
        drop(notices);
    }
    assert_eq!(asking.await??.text, alone.text);
    cluster.stop().await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_subscriber_that_reads_again_is_told_exactly_how_much_it_missed() -> Result<()> {
    let mut mesh = Processes::with_environment(&[("MESH_EVENT_WINDOW", "256")]);
    mesh.add("a", &[]).await?;
    let (code, _, err) = mesh.command(0, &["serve", "built-in", "--name", "psalm"]).await?;
    assert_eq!(code, 0, "{err}");
    let api = mesh.api(0);
    let mut stalled = api.subscribe_narrowly(SubscribeRequest::default()).await?;
    let Response::Snapshot(snapshot) = next(&mut stalled).await? else {
        panic!("no snapshot");
    };
    const ANSWERS: u64 = 16;
    let mut position = snapshot.position.context("no position")?.sequence;
    // Each event takes some hundred bytes: these fill the window of HTTP/2 and then that of the node many times over.
    for _ in 0..ANSWERS {
        api.chat(&endless()).await?;
    }
    let (mut dropped, mut finished) = (0, 0);
    while finished == 0 || position < ANSWERS * 480 {
        match next(&mut stalled).await? {
            Response::Event(event) => {
                position += 1;
                assert_eq!(event.node_sequence, position, "after {dropped} dropped");
                finished += u32::from(matches!(event.kind, Some(Kind::Finished(_))));
            }
            Response::Lagged(lagged) => {
                position += lagged.dropped;
                dropped += lagged.dropped;
            }
            other => panic!("{other:?}"),
        }
    }
    assert!(dropped > 0, "it kept up without reading");
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn subscribers_that_never_read_do_not_hold_up_generations_over_the_same_connection() -> Result<()> {
    let mesh = Processes::start(2).await?;
    let (code, _, err) = mesh
        .command(0, &["serve", "built-in", "--name", "psalm", "--stages", "a:0-8"])
        .await?;
    assert_eq!(code, 0, "{err}");
    // Both the events and the text of node a reach node b over one connection, whose window is 64 MiB.
    let api = mesh.api(1);
    let everything = SubscribeRequest {
        include_text: true,
        include_token_ids: true,
        scope: Scope::Mesh.into(),
        ..SubscribeRequest::default()
    };
    let stalled = try_join_all((0..128).map(|_| api.subscribe_narrowly(everything.clone()))).await?;
    for _ in 0..16 {
        let answer = timeout(LIMIT, api.stream(&endless())).await.context("held up")??;
        assert!(answer.done);
    }
    drop(stalled);
    mesh.finish().await.map(drop)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_head_that_stops_tells_the_end_of_what_it_ran_for_other_nodes() -> Result<()> {
    let mut mesh = Processes::start(2).await?;
    let (code, _, err) = mesh
        .command(0, &["serve", "built-in", "--name", "psalm", "--stages", "a:0-8"])
        .await?;
    assert_eq!(code, 0, "{err}");
    let mut told = mesh
        .api(1)
        .subscribe(SubscribeRequest {
            kinds: vec![EventKind::Aborted.into()],
            scope: Scope::Mesh.into(),
            ..SubscribeRequest::default()
        })
        .await?;
    for _ in 0..2 {
        assert!(matches!(next(&mut told).await?, Response::Snapshot(_)));
    }
    // A new one whenever the last has ended: one of them runs when the node stops.
    let api = mesh.api(1);
    let running = tokio::spawn(async move {
        loop {
            match api.stream(&endless()).await {
                Ok(answer) if answer.done => {}
                other => return other,
            }
        }
    });
    let api = mesh.api(1);
    until("a request runs", LIMIT, || async {
        let list = api.requests(false).await.ok()?;
        list.requests.into_iter().find(|request| request.completion_tokens > 0)
    })
    .await;
    mesh.signal(0, "-TERM").await?;
    let event = next_event(&mut told).await?;
    assert!(
        matches!(&event.kind, Some(Kind::Aborted(aborted)) if aborted.reason == "draining"),
        "{event:?}"
    );
    assert!(running.await??.error.is_some());
    let status = timeout(LIMIT, mesh.wait(0))
        .await
        .context("it did not stop in time")??;
    assert!(status.success(), "{status}");
    mesh.finish().await.map(drop)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_are_listed_cancelled_and_accounted_for_from_any_node() -> Result<()> {
    let cluster = Cluster::start(2).await?;
    cluster.serve("built-in", "psalm", "a:0-4,b:4-8").await?;
    let (head, other) = (cluster.api(0), cluster.api(1));
    let api = other.clone();
    let running = tokio::spawn(async move { api.stream(&endless()).await });
    let open = until("the request is listed", LIMIT, || async {
        let list = other.requests(true).await.ok()?;
        list.requests.into_iter().find(|request| request.completion_tokens > 0)
    })
    .await;
    assert_eq!((open.node.as_str(), open.deployment.as_str()), ("a", "psalm"));
    assert!(head.receipt(&open.request_id).await.is_err(), "it has not ended");
    other.cancel_request(&open.request_id).await?;
    let answer = running.await??;
    assert!(answer.error.is_some_and(|error| error.contains("cancel")));
    let receipt = until("the receipt is there", LIMIT, || async {
        other.receipt(&open.request_id).await.ok()
    })
    .await;
    assert_eq!(receipt.abort_reason, "cancelled");
    assert!(receipt.completion_tokens >= open.completion_tokens);
    let unknown = other.cancel_request("0189d0c1-7a4b-7c3d-9e8f-001122334455").await;
    assert!(unknown.is_err());
    cluster.stop().await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_agent_session_comes_from_the_header_alone_and_reaches_events_on_another_node() -> Result<()> {
    let mut mesh = Processes::start(1).await?;
    mesh.add("b", &["--agent-session-header", "X-Agent-Session"]).await?;
    let (code, _, err) = mesh
        .command(0, &["serve", "built-in", "--name", "psalm", "--stages", "a:0-8"])
        .await?;
    assert_eq!(code, 0, "{err}");
    let body = short("Recite John 11:35.").with("agent_session", json!("forged"));
    for (node, header, expected) in [
        (1, Some(" conversation 7 "), "conversation 7"),
        (1, None, ""),
        (0, Some("not asked for"), ""),
    ] {
        let headers: Vec<(&str, &str)> = header.map(|value| ("x-agent-session", value)).into_iter().collect();
        let response = mesh
            .api(node)
            .post_with("/v1/chat/completions", body.body(), &headers)
            .await?;
        assert_eq!(response.status().as_u16(), 200);
        let id = response.headers()["x-request-id"].to_str()?.to_owned();
        let receipt = until("the receipt is there", LIMIT, || async {
            mesh.api(0).receipt(&id).await.ok()
        })
        .await;
        assert_eq!(receipt.agent_session, expected);
    }
    for bad in ["", "   ", &"x".repeat(513)] {
        let headers = [("x-agent-session", bad)];
        let response = mesh
            .api(1)
            .post_with("/v1/chat/completions", body.body(), &headers)
            .await?;
        assert_eq!(response.status().as_u16(), 400, "{bad:?}");
    }
    let told = mesh.finish().await?;
    assert_eq!(told.len(), 3);
    assert!(told.values().all(|told| told.end == Some(End::Finished)));
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_stops_in_time_with_a_subscriber_that_never_reads_also_with_one_worker() -> Result<()> {
    for workers in ["1", "2"] {
        let mut mesh = Processes::with_environment(&[("TOKIO_WORKER_THREADS", workers)]);
        mesh.add("a", &[]).await?;
        let (code, _, err) = mesh.command(0, &["serve", "built-in", "--name", "psalm"]).await?;
        assert_eq!(code, 0, "{err}");
        let api = mesh.api(0);
        let _stalled = api
            .subscribe(SubscribeRequest {
                include_text: true,
                ..SubscribeRequest::default()
            })
            .await?;
        api.chat(&ChatCall::greedy("psalm", "What does Psalm 23 say?")).await?;
        mesh.signal(0, "-TERM").await?;
        let status = timeout(LIMIT, mesh.wait(0))
            .await
            .context("it did not stop in time")??;
        assert!(status.success(), "{status}");
    }
    Ok(())
}
