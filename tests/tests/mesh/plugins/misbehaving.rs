//! Every plugin that does wrong, one by one, beside normal requests on the same node: the same text in the normal time,
//! the right counters, the right health.

use std::{
    fs,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use mesh_plugin_fixtures::{Source, c_plugin, panicking};
use mesh_proto::v1::{
    EventKind, Plugin, PluginHealth, SubscribeRequest, lifecycle_event::Kind as LifecycleKind,
    subscribe_response::Response,
};
use mesh_tests::{Answer, ChatCall, Cluster, until};
use serde_json::json;

use super::{PATIENCE, Prepared, ask, calls, errors, is_shut_out, log, node, plugin, plugin_when};

/// What a plugin does, and what the node must make of it.
struct Case {
    name: &'static str,
    behave: &'static [&'static str],
    defines: &'static [&'static str],
    millis: u32,
    expected: Expected,
}

/// What must come to hold.
#[derive(Default)]
struct Expected {
    /// Nothing else is looked at if it is this from the beginning.
    health: Option<PluginHealth>,
    /// Outcomes of proposals that were counted.
    outcomes: &'static [&'static str],
    /// Functions that failed.
    errors: &'static [&'static str],
    /// Decisions that were discarded.
    discarded: bool,
    /// Wakes for nothing.
    spurious: bool,
}

const fn case(name: &'static str, behave: &'static [&'static str], expected: Expected) -> Case {
    Case {
        name,
        behave,
        defines: &[],
        millis: 40,
        expected,
    }
}

const fn health(health: PluginHealth) -> Expected {
    Expected {
        health: Some(health),
        outcomes: &[],
        errors: &[],
        discarded: false,
        spurious: false,
    }
}

const fn fails(callback: &'static [&'static str], is: PluginHealth) -> Expected {
    Expected {
        errors: callback,
        ..health(is)
    }
}

const fn outcome(outcomes: &'static [&'static str], is: PluginHealth) -> Expected {
    Expected { outcomes, ..health(is) }
}

const fn discards(outcomes: &'static [&'static str], is: PluginHealth) -> Expected {
    Expected {
        outcomes,
        discarded: true,
        ..health(is)
    }
}

use PluginHealth::{Degraded, Healthy, Quarantined};

/// What requests get without any plugin, and how long that takes.
async fn alone() -> Result<(Vec<Answer>, Duration)> {
    let cluster = Cluster::start(1).await?;
    cluster.serve("built-in", "x", "a:0-8").await?;
    ask(cluster.api(0)).await?;
    let began = Instant::now();
    let answers = ask(cluster.api(0)).await?;
    let took = began.elapsed();
    cluster.stop().await?;
    Ok((answers, took))
}

/// The normal time within noise: a plugin may cost its deadline, 8 ms, for each proposal until it is quarantined after
/// 16 of them. What waits for a stuck plugin takes five seconds.
fn limit(normal: Duration) -> Duration {
    normal * 3 + Duration::from_millis(16 * 8) + Duration::from_millis(500)
}

fn prepare(case: &Case) -> Result<Prepared> {
    let library = c_plugin(Source::Misbehaving, case.defines);
    let dir = tempfile::tempdir()?;
    let release = dir.path().join("release");
    let mut lines: Vec<String> = case.behave.iter().map(|behave| format!("behave = {behave}")).collect();
    lines.push(format!("millis = {}", case.millis));
    lines.push(format!("release = {}", release.display()));
    let prepared = Prepared::new(library, &lines)?;
    // Both directories live as long as the node.
    std::mem::drop(dir.keep());
    fs::write(prepared.dir.path().join("release-path"), release.display().to_string())?;
    Ok(prepared)
}

/// Lets hung calls go on.
fn release(prepared: &Prepared) -> Result<()> {
    let path = fs::read_to_string(prepared.dir.path().join("release-path"))?;
    Ok(fs::write(path, "")?)
}

/// Two requests get their text in their time, and one that its client drops ends.
async fn requests_do_not_notice(
    case: &str,
    cluster: &Cluster,
    (expected, normal): &(Vec<Answer>, Duration),
) -> Result<()> {
    let began = Instant::now();
    let answers = ask(cluster.api(0)).await?;
    let took = began.elapsed();
    ensure!(answers == *expected, "{case}: {answers:?}");
    ensure!(took < limit(*normal), "{case}: {took:?}, alone {normal:?}");
    let dropped = calls()[0].clone();
    cluster
        .api(0)
        .stream_until(&dropped, |answer| answer.chunks > 3)
        .await?;
    until("all lanes are free", PATIENCE, || async {
        (cluster.api(0).lanes_used("x").await.ok()? == (0, 0)).then_some(())
    })
    .await;
    Ok(())
}

fn holds(plugin: &Plugin, expected: &Expected) -> bool {
    let counted = |outcome: &&str| plugin.proposals.get(*outcome).is_some_and(|count| *count > 0);
    expected.health.is_none_or(|health| plugin.health() == health)
        && expected.outcomes.iter().all(counted)
        && expected.errors.iter().all(|callback| errors(plugin, callback) > 0)
        && (!expected.discarded || plugin.discarded > 0)
        && (!expected.spurious || plugin.spurious_wakes > 0)
}

async fn check(cases: &[Case]) -> Result<()> {
    let normal = alone().await?;
    for case in cases {
        let prepared = prepare(case)?;
        let cluster = node(vec![prepared.setting.clone()]).await.context(case.name)?;
        requests_do_not_notice(case.name, &cluster, &normal).await?;
        let seen = plugin_when(cluster.api(0), case.name, |plugin| {
            plugin.generations == 0 && holds(plugin, &case.expected)
        })
        .await;
        // A second time, whatever the first has made of the plugin.
        requests_do_not_notice(case.name, &cluster, &normal).await?;
        ensure!(seen.queued <= seen.queue_capacity);
        let last = plugin_when(cluster.api(0), case.name, |plugin| plugin.generations == 0).await;
        stops_in_time(case.name, cluster).await?;
        let proof = log::prove(&prepared.log()?).with_context(|| format!("{}: {last:?}", case.name))?;
        // Only who is shut out in mid-generation misses any of it.
        ensure!(proof.incomplete == 0 || is_shut_out(&last), "{}: {last:?}", case.name);
    }
    Ok(())
}

async fn stops_in_time(case: &str, cluster: Cluster) -> Result<()> {
    let began = Instant::now();
    cluster.stop().await?;
    let took = began.elapsed();
    ensure!(took < Duration::from_secs(8), "{case}: the node took {took:?} to stop");
    Ok(())
}

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

/// The plugin is stuck for good; requests are not, nor is the end of the node.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_plugin_that_hangs_is_given_up_and_the_end_is_told_when_it_comes_back() -> Result<()> {
    let normal = alone().await?;
    let mut stuck = Vec::new();
    for (call, more) in [
        ("begin", None),
        ("commit", None),
        ("finish", None),
        ("abort", None),
        ("start", None),
        ("poll", None),
        ("cancel", Some("always_pending")),
        ("report", Some("good")),
        ("discard", Some("late_in_poll")),
    ] {
        for defines in [&[][..], &["SERIAL"][..]] {
            let dir = tempfile::tempdir()?;
            let release = dir.path().join("release");
            let mut lines = vec![
                format!("behave = hang_{call}"),
                format!("release = {}", release.display()),
            ];
            lines.extend(more.map(|more| format!("behave = {more}")));
            let prepared = Prepared::new(c_plugin(Source::Misbehaving, defines), &lines)?;
            let cluster = node(vec![prepared.setting.clone()]).await?;
            requests_do_not_notice(call, &cluster, &normal).await.context(call)?;
            stuck.push((call, dir, prepared, cluster));
        }
    }
    for (call, dir, prepared, cluster) in stuck {
        let seen = plugin_when(cluster.api(0), call, is_shut_out).await;
        requests_do_not_notice(call, &cluster, &normal).await.context(call)?;
        // Deadlines missed shut it out sooner where it lets the next question come.
        if call != "cancel" {
            assert!(seen.reason.contains("did not return"), "{call}: {}", seen.reason);
        }
        fs::write(dir.path().join("release"), "")?;
        plugin_when(cluster.api(0), "the end is told", |plugin| plugin.generations == 0).await;
        stops_in_time(call, cluster).await?;
        log::prove(&prepared.log()?).context(call)?;
    }
    Ok(())
}

/// Threads that are given up take no time from engines any more, though they never stop.
#[cfg(target_os = "linux")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_plugin_in_a_loop_takes_no_time_once_it_is_given_up() -> Result<()> {
    let normal = alone().await?;
    let behave = ["behave = hang_poll".to_owned(), "behave = spin".to_owned()];
    let prepared = Prepared::new(c_plugin(Source::Misbehaving, &[]), &behave)?;
    let cluster = node(vec![prepared.setting.clone()]).await?;
    assert_eq!(ask(cluster.api(0)).await?, normal.0);
    plugin_when(cluster.api(0), "both threads are given up", |plugin| {
        plugin.lost["thread"] == 2
    })
    .await;
    let began = Instant::now();
    let answers = ask(cluster.api(0)).await?;
    let took = began.elapsed();
    assert_eq!(answers, normal.0);
    assert!(took < limit(normal.1), "{took:?}, alone {:?}", normal.1);
    stops_in_time("loop", cluster).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_stops_in_time_with_a_plugin_that_never_returns() -> Result<()> {
    let prepared = Prepared::new(c_plugin(Source::Misbehaving, &[]), &["behave = hang_begin".to_owned()])?;
    let cluster = node(vec![prepared.setting.clone()]).await?;
    ask(cluster.api(0)).await?;
    stops_in_time("hang", cluster).await
}

/// What it does at its own end is nobody's trouble but its own.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_plugin_that_does_wrong_when_it_is_shut_down_holds_up_nothing() -> Result<()> {
    let normal = alone().await?;
    let c = |behave: &str| Prepared::new(c_plugin(Source::Misbehaving, &[]), &[format!("behave = {behave}")]);
    for (what, prepared) in [
        ("error", c("error_shutdown")?),
        ("unknown", c("unknown_shutdown")?),
        ("hang", c("hang_shutdown")?),
        ("panic", Prepared::new(panicking(), &["panic = shutdown".to_owned()])?),
        (
            "panic in drop",
            Prepared::new(panicking(), &["panic = drop".to_owned()])?,
        ),
    ] {
        let cluster = node(vec![prepared.setting.clone()]).await?;
        requests_do_not_notice(what, &cluster, &normal).await?;
        cluster.api(0).stop("x").await?;
        let seen = plugin_when(cluster.api(0), what, |plugin| {
            what == "hang"
                || plugin
                    .callbacks
                    .iter()
                    .any(|it| it.name == "shutdown" && it.times.is_some_and(|times| times.count == 1))
        })
        .await;
        assert_eq!(errors(&seen, "shutdown"), u64::from(what != "hang"), "{what}: {seen:?}");
        // The next model gets the plugin, or goes without it.
        cluster.serve("built-in", "x", "a:0-8").await?;
        requests_do_not_notice(what, &cluster, &normal).await?;
        stops_in_time(what, cluster).await?;
    }
    Ok(())
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

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slow_discard_comes_before_finish_and_the_next_request_is_clean() -> Result<()> {
    let case = Case {
        millis: 60,
        ..case("slow discard", &["late_in_poll", "slow_discard"], Expected::default())
    };
    let prepared = prepare(&case)?;
    let cluster = node(vec![prepared.setting.clone()]).await?;
    let short = calls()[0].clone().with("max_tokens", json!(3));
    for _ in 0..3 {
        cluster.api(0).chat(&short).await?;
    }
    let seen = plugin_when(cluster.api(0), "all is told", |plugin| plugin.generations == 0).await;
    assert!(!is_shut_out(&seen), "{seen:?}");
    assert!(seen.proposals["late"] >= 3, "{seen:?}");
    cluster.stop().await?;
    let lines = prepared.log()?;
    let proof = log::prove(&lines)?;
    assert_eq!(proof.finished, 3);
    assert!(proof.decisions >= 3, "{proof:?}");
    let discards: Vec<_> = lines.iter().filter(|line| line.event() == "discard").collect();
    assert!(
        discards.iter().all(|line| line.text("reason") == "deadline_exceeded"),
        "{discards:?}"
    );
    Ok(())
}

/// Ten milliseconds for each commit, and far more tokens than that.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_plugin_slower_than_the_tokens_loses_some_and_is_told_so() -> Result<()> {
    let case = Case {
        millis: 10,
        ..case("slow commit", &["slow_commit"], Expected::default())
    };
    let mut prepared = prepare(&case)?;
    (prepared.setting.queue, prepared.setting.reserve) = (16, 4);
    let cluster = node(vec![prepared.setting.clone()]).await?;
    let long = ChatCall::greedy("x", "What does Psalm 23 say?").with("max_tokens", json!(200));
    let began = Instant::now();
    cluster.api(0).chat(&long).await?;
    assert!(
        began.elapsed() < Duration::from_secs(5),
        "two hundred commits of 10 ms were waited for"
    );
    let seen = plugin(cluster.api(0)).await?;
    assert!(seen.queued <= 20 && seen.queue_capacity == 20, "{seen:?}");
    let seen = plugin_when(cluster.api(0), "its end is told", |plugin| plugin.generations == 0).await;
    assert!(seen.lost["commit"] > 0, "{seen:?}");
    cluster.stop().await?;
    let lines = prepared.log()?;
    let (end, before) = lines
        .iter()
        .filter(|line| !line.request().is_empty())
        .collect::<Vec<_>>()
        .split_last()
        .map(|(end, before)| ((*end).clone(), before.to_vec()))
        .context("a log")?;
    assert_eq!((end.event(), end.number("flags") & 1), ("finish", 1), "{end:?}");
    let totals: Vec<u64> = before
        .iter()
        .filter(|line| line.event() == "commit")
        .map(|line| line.number("total"))
        .collect();
    assert!(
        totals.iter().copied().eq(1..=totals.len() as u64),
        "order is kept: {totals:?}"
    );
    assert!(end.number("generated_count") > totals.len() as u64);
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_activation_that_fails_or_hangs_leaves_the_model_served_without_the_plugin() -> Result<()> {
    let normal = alone().await?;
    for (behave, is) in [
        ("error_activate", Degraded),
        ("unknown_activate", Quarantined),
        ("hang_activate", Quarantined),
    ] {
        let prepared = prepare(&case(behave, &[], Expected::default()))?;
        let config = prepared.setting.config.clone().context("a configuration")?;
        fs::write(&config, format!("{}behave = {behave}\n", fs::read_to_string(&config)?))?;
        let cluster = node(vec![prepared.setting.clone()]).await?;
        requests_do_not_notice(behave, &cluster, &normal).await?;
        let seen = plugin_when(cluster.api(0), behave, |plugin| plugin.health() == is).await;
        assert!(!seen.reason.is_empty(), "{behave}");
        assert!(prepared.log()?.iter().all(|line| line.event() != "begin"), "{behave}");
        release(&prepared)?;
        stops_in_time(behave, cluster).await?;

        let required = mesh_node::config::PluginSetting {
            required: true,
            ..prepared.setting.clone()
        };
        fs::remove_file(fs::read_to_string(prepared.dir.path().join("release-path"))?)?;
        let error = node(vec![required]).await.err().context("it is required")?;
        assert!(format!("{error:#}").contains("misbehaving"), "{behave}: {error:#}");
        release(&prepared)?;
    }
    Ok(())
}
