//! Plugins that are slow, or never return.

use std::{
    fs,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result};
use mesh_plugin_fixtures::{Source, c_plugin, panicking};
use mesh_proto::v1::PluginHealth::{Degraded, Quarantined};
use mesh_tests::ChatCall;
use serde_json::json;

use super::{
    Prepared, ask, calls,
    case::{Case, Expected, alone, case, limit, prepare, release, requests_do_not_notice, stops_in_time},
    errors, is_shut_out, log, node, plugin, plugin_when,
};

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
