//! Every plugin that does wrong, one by one, beside normal requests on the same node: the same text in the normal time,
//! the right counters, the right health.

use anyhow::Result;
use mesh_plugin_fixtures::{Source, c_plugin, panicking};
use mesh_proto::v1::{
    EventKind, PluginHealth, SubscribeRequest, lifecycle_event::Kind as LifecycleKind, subscribe_response::Response,
};

use super::{
    PATIENCE, Prepared, ask,
    case::{
        Expected, alone, case, check, discards, fails, health, outcome, prepare, requests_do_not_notice, stops_in_time,
    },
    errors, is_shut_out, log, node, plugin_when,
};
use PluginHealth::{Degraded, Healthy, Quarantined};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn errors_are_counted_and_change_nothing() -> Result<()> {
    check(&[
        case("begin", &["error_begin"], fails(&["begin_generation"], Degraded)),
        case("commit", &["error_commit"], fails(&["commit_generation"], Degraded)),
        case("abort", &["error_abort"], fails(&["abort_generation"], Degraded)),
        case("start", &["error_start"], outcome(&["error"], Degraded)),
        case("poll", &["error_poll"], outcome(&["error"], Degraded)),
        case("failed", &["failed_poll"], outcome(&["error"], Degraded)),
        case(
            "report",
            &["good", "error_report"],
            fails(&["report_proposal"], Degraded),
        ),
        case(
            "discard",
            &["late_in_poll", "error_discard"],
            fails(&["discard_proposal"], Degraded),
        ),
        case(
            "cancel",
            &["always_pending", "error_cancel"],
            fails(&["cancel_proposal"], Quarantined),
        ),
        case(
            "no text",
            &["error_commit", "non_utf8_error"],
            fails(&["commit_generation"], Degraded),
        ),
        case(
            "endless",
            &["error_commit", "endless_error"],
            fails(&["commit_generation"], Degraded),
        ),
    ])
    .await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_failed_finish_is_followed_by_an_abort_that_says_so() -> Result<()> {
    let normal = alone().await?;
    let prepared = prepare(&case("finish", &["error_finish"], Expected::default()))?;
    let cluster = node(vec![prepared.setting.clone()]).await?;
    requests_do_not_notice("finish", &cluster, &normal).await?;
    plugin_when(cluster.api(0), "finish failed twice", |plugin| {
        plugin.generations == 0 && errors(plugin, "finish_generation") == 2 && plugin.health() == Degraded
    })
    .await;
    cluster.stop().await?;
    let lines = prepared.log()?;
    let finished: Vec<&str> = lines
        .iter()
        .filter(|line| line.event() == "finish")
        .map(log::Line::request)
        .collect();
    assert_eq!(finished.len(), 2);
    for request in finished {
        let after: Vec<_> = lines
            .iter()
            .filter(|line| line.request() == request)
            .rev()
            .take(2)
            .collect();
        assert_eq!((after[1].event(), after[0].event()), ("finish", "abort"));
        assert_eq!(after[0].number("flags") & 2, 2, "{after:?}");
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_status_that_nobody_knows_shuts_a_plugin_out() -> Result<()> {
    check(&[
        case("begin", &["unknown_begin"], health(Quarantined)),
        case("commit", &["unknown_commit"], health(Quarantined)),
        case(
            "finish",
            &["unknown_finish"],
            fails(&["finish_generation"], Quarantined),
        ),
        case("abort", &["unknown_abort"], health(Quarantined)),
        case("start", &["unknown_start"], health(Quarantined)),
        case("poll", &["unknown_poll"], health(Quarantined)),
        case("report", &["good", "unknown_report"], health(Quarantined)),
        case("discard", &["late_in_poll", "unknown_discard"], health(Quarantined)),
        case("cancel", &["always_pending", "unknown_cancel"], health(Quarantined)),
    ])
    .await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn candidates_that_do_not_hold_are_discarded() -> Result<()> {
    check(&[
        case("too many", &["too_many_tokens"], discards(&["error"], Degraded)),
        case(
            "beyond the buffer",
            &["more_than_capacity"],
            discards(&["error"], Degraded),
        ),
        case("none", &["no_tokens"], discards(&["error"], Degraded)),
        case("negative", &["negative_id"], discards(&["error"], Degraded)),
        case("huge", &["huge_id"], discards(&["error"], Degraded)),
        case("wrong position", &["wrong_position"], discards(&["error"], Degraded)),
        case("good", &["good"], outcome(&["ready"], Healthy)),
    ])
    .await
}

/// The plugin mixes up what it is asked: decisions come for other requests than they are resolved for.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_number_for_all_operations_confuses_the_plugin_alone() -> Result<()> {
    let normal = alone().await?;
    let behave = ["behave = good".to_owned(), "behave = duplicate_operation".to_owned()];
    let prepared = Prepared::new(c_plugin(Source::Misbehaving, &[]), &behave)?;
    let cluster = node(vec![prepared.setting.clone()]).await?;
    requests_do_not_notice("one number", &cluster, &normal).await?;
    plugin_when(cluster.api(0), "all is told", |plugin| plugin.generations == 0).await;
    stops_in_time("one number", cluster).await
}

/// Without a name there is nothing to discard: the log of the plugin has a decision that gets no word.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn decisions_without_a_name_are_errors() -> Result<()> {
    let normal = alone().await?;
    for behave in ["empty_decision", "long_decision"] {
        let prepared = Prepared::new(c_plugin(Source::Misbehaving, &[]), &[format!("behave = {behave}")])?;
        let cluster = node(vec![prepared.setting.clone()]).await?;
        requests_do_not_notice(behave, &cluster, &normal).await?;
        let seen = plugin_when(cluster.api(0), behave, |plugin| {
            plugin.proposals.get("error").is_some_and(|count| *count > 0) && plugin.generations == 0
        })
        .await;
        assert_eq!((seen.health(), seen.discarded), (Degraded, 0), "{behave}");
        cluster.stop().await?;
        let lines = prepared.log()?;
        let cancelled = lines.iter().filter(|line| line.event() == "cancel").count();
        let ready = lines.iter().filter(|line| line.event() == "ready").count();
        assert!(
            ready > 0 && cancelled == ready,
            "{behave}: {cancelled} of {ready} cancelled"
        );
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn late_plugins_cost_a_deadline_and_are_shut_out() -> Result<()> {
    check(&[
        case("late", &["late_in_poll"], discards(&["late"], Degraded)),
        case(
            "wakes late",
            &["late_ready"],
            outcome(&["expired_in_plugin"], Quarantined),
        ),
        case(
            "pending",
            &["always_pending"],
            outcome(&["expired_in_plugin"], Quarantined),
        ),
        case("spins", &["spin_pending"], outcome(&["expired_in_plugin"], Quarantined)),
        case(
            "slow begin",
            &["slow_begin"],
            outcome(&["expired_before_dispatch"], Degraded),
        ),
    ])
    .await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn wakes_from_anywhere_at_any_time_do_no_harm() -> Result<()> {
    let spurious = Expected {
        spurious: true,
        ..health(Healthy)
    };
    check(&[
        case(
            "re-entrant",
            &["reentrant_wake"],
            Expected {
                outcomes: &["abstained"],
                ..spurious
            },
        ),
        case(
            "storm",
            &["wake_storm"],
            Expected {
                spurious: true,
                ..Expected::default()
            },
        ),
        case("after shutdown", &["wake_after_shutdown"], health(Healthy)),
    ])
    .await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_panic_that_the_sdk_caught_shuts_a_plugin_out() -> Result<()> {
    let normal = alone().await?;
    for call in [
        "begin", "commit", "finish", "abort", "start", "poll", "cancel", "report",
    ] {
        let prepared = Prepared::new(panicking(), &[format!("panic = {call}")])?;
        let cluster = node(vec![prepared.setting.clone()]).await?;
        requests_do_not_notice(call, &cluster, &normal).await?;
        let seen = plugin_when(cluster.api(0), call, is_shut_out).await;
        if call != "cancel" {
            assert!(seen.reason.contains("unwound"), "{call}: {}", seen.reason);
        }
        assert!(seen.callbacks.iter().any(|it| it.errors > 0), "{call}: {seen:?}");
        requests_do_not_notice(call, &cluster, &normal).await?;
        stops_in_time(call, cluster).await?;
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_plugin_that_is_shut_out_is_told_of_in_events_and_metrics() -> Result<()> {
    let prepared = prepare(&case("unknown", &["unknown_begin"], Expected::default()))?;
    let cluster = node(vec![prepared.setting.clone()]).await?;
    let request = SubscribeRequest {
        kinds: vec![EventKind::PluginHealthChanged.into()],
        ..SubscribeRequest::default()
    };
    let mut notices = cluster.api(0).subscribe(request).await?;
    ask(cluster.api(0)).await?;
    let told = async {
        while let Some(notice) = notices.message().await? {
            if let Some(Response::Event(event)) = notice.response {
                return Ok(event);
            }
        }
        anyhow::bail!("the subscription ended")
    };
    let event = tokio::time::timeout(PATIENCE, told).await??;
    let Some(LifecycleKind::PluginHealthChanged(changed)) = event.kind else {
        anyhow::bail!("{event:?}")
    };
    assert_eq!(
        (changed.plugin.as_str(), changed.health()),
        ("misbehaving", Quarantined)
    );
    assert!(changed.reason.contains("77"), "{}", changed.reason);
    let metrics = cluster.api(0).text("/metrics").await?;
    for line in [
        "mesh_plugin_health{mesh_plugin=\"misbehaving\"",
        "mesh_plugin_errors_total{",
        "mesh_plugin_call_duration_seconds_count{",
        "mesh_plugin_queue_capacity{",
        "mesh_plugin_proposals_total{",
    ] {
        assert!(metrics.contains(line), "{line}\n{metrics}");
    }
    cluster.stop().await
}
