//! A plugin that does wrong, and what must come to hold of it, of the requests beside it, and of its node.

use std::{
    fs,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use mesh_plugin_fixtures::{Source, c_plugin};
use mesh_proto::v1::{Plugin, PluginHealth};
use mesh_tests::{Answer, Cluster, until};

use super::{PATIENCE, Prepared, ask, calls, errors, is_shut_out, log, node, plugin_when};

/// What a plugin does, and what the node must make of it.
pub(super) struct Case {
    pub(super) name: &'static str,
    pub(super) behave: &'static [&'static str],
    pub(super) defines: &'static [&'static str],
    pub(super) millis: u32,
    pub(super) expected: Expected,
}

/// What must come to hold.
#[derive(Default)]
pub(super) struct Expected {
    /// Nothing else is looked at if it is this from the beginning.
    pub(super) health: Option<PluginHealth>,
    /// Outcomes of proposals that were counted.
    pub(super) outcomes: &'static [&'static str],
    /// Functions that failed.
    pub(super) errors: &'static [&'static str],
    /// Decisions that were discarded.
    pub(super) discarded: bool,
    /// Wakes for nothing.
    pub(super) spurious: bool,
}

pub(super) const fn case(name: &'static str, behave: &'static [&'static str], expected: Expected) -> Case {
    Case {
        name,
        behave,
        defines: &[],
        millis: 40,
        expected,
    }
}

pub(super) const fn health(health: PluginHealth) -> Expected {
    Expected {
        health: Some(health),
        outcomes: &[],
        errors: &[],
        discarded: false,
        spurious: false,
    }
}

pub(super) const fn fails(callback: &'static [&'static str], is: PluginHealth) -> Expected {
    Expected {
        errors: callback,
        ..health(is)
    }
}

pub(super) const fn outcome(outcomes: &'static [&'static str], is: PluginHealth) -> Expected {
    Expected { outcomes, ..health(is) }
}

pub(super) const fn discards(outcomes: &'static [&'static str], is: PluginHealth) -> Expected {
    Expected {
        outcomes,
        discarded: true,
        ..health(is)
    }
}

/// What requests get without any plugin, and how long that takes.
pub(super) async fn alone() -> Result<(Vec<Answer>, Duration)> {
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
pub(super) fn limit(normal: Duration) -> Duration {
    normal * 3 + Duration::from_millis(16 * 8) + Duration::from_millis(500)
}

pub(super) fn prepare(case: &Case) -> Result<Prepared> {
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
pub(super) fn release(prepared: &Prepared) -> Result<()> {
    let path = fs::read_to_string(prepared.dir.path().join("release-path"))?;
    Ok(fs::write(path, "")?)
}

/// Two requests get their text in their time, and one that its client drops ends.
pub(super) async fn requests_do_not_notice(
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

pub(super) fn holds(plugin: &Plugin, expected: &Expected) -> bool {
    let counted = |outcome: &&str| plugin.proposals.get(*outcome).is_some_and(|count| *count > 0);
    expected.health.is_none_or(|health| plugin.health() == health)
        && expected.outcomes.iter().all(counted)
        && expected.errors.iter().all(|callback| errors(plugin, callback) > 0)
        && (!expected.discarded || plugin.discarded > 0)
        && (!expected.spurious || plugin.spurious_wakes > 0)
}

pub(super) async fn check(cases: &[Case]) -> Result<()> {
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

pub(super) async fn stops_in_time(case: &str, cluster: Cluster) -> Result<()> {
    let began = Instant::now();
    cluster.stop().await?;
    let took = began.elapsed();
    ensure!(took < Duration::from_secs(8), "{case}: the node took {took:?} to stop");
    Ok(())
}
