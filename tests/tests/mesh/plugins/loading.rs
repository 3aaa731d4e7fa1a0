//! Libraries that are refused, and how a node says so.

use std::{
    fs,
    path::Path,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result};
use mesh_node::config::PluginSetting;
use mesh_plugin_fixtures::{Source, c_plugin, event_log, ngram_proposer};
use mesh_proto::v1::PluginHealth;
use mesh_tests::{Cluster, processes::run};

use super::{Prepared, ask, node, plugin, plugin_when};

async fn refused(path: &Path) -> Result<String> {
    let cluster = node(vec![PluginSetting::new(path.to_owned())]).await?;
    // The node goes on without it.
    ask(cluster.api(0)).await?;
    let seen = plugin(cluster.api(0)).await?;
    assert_eq!(seen.health(), PluginHealth::NotLoaded, "{}", path.display());
    assert_eq!(seen.path, path.display().to_string());
    cluster.stop().await?;

    let required = PluginSetting {
        required: true,
        ..PluginSetting::new(path.to_owned())
    };
    let error = node(vec![required]).await.err().context("it is required")?;
    let error = format!("{error:#}");
    assert!(error.contains("required") && error.contains(&seen.reason), "{error}");
    Ok(seen.reason)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_no_plugin_is_reported_and_the_node_starts_unless_it_is_required() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let text = dir.path().join("text.so");
    fs::write(&text, "this is no library")?;
    // An ELF header of another machine: 64 bits, little-endian, a shared object for RISC-V.
    let foreign = dir.path().join("foreign.so");
    let mut header = vec![
        0x7f, b'E', b'L', b'F', 2, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 3, 0, 243, 0, 1, 0, 0, 0,
    ];
    header.resize(64, 0);
    fs::write(&foreign, header)?;
    let missing = dir.path().join("missing.so");
    for (path, word) in [
        (Path::new("relative.so"), "absolute"),
        (&missing, "does not exist"),
        (&text, "library"),
        (&foreign, "RISC-V"),
        (dir.path(), "regular file"),
    ] {
        let reason = refused(path).await?;
        assert!(reason.contains(word), "{}: {reason}", path.display());
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tables_that_are_wrong_are_refused_and_older_and_newer_ones_are_served() -> Result<()> {
    for (define, words) in [
        ("WRONG_VERSION", "follows version 2"),
        ("NO_ENTRY", "does not export"),
        ("NULL_TABLE", "returned no table"),
        ("TINY_TABLE", "at least"),
        ("NULL_POLL", "no `poll_proposal`"),
        ("NULL_ACTIVATE", "no `activate`"),
        ("NON_UTF8_NAME", "is not UTF-8"),
        ("EMPTY_NAME", "an empty name"),
        ("LONG_NAME", "has 65 bytes"),
    ] {
        let reason = refused(&c_plugin(Source::Misbehaving, &[define])).await?;
        assert!(reason.contains(words), "{define}: {reason}");
    }
    // A table that ends before `last_error`, as an older header has it, and one with more than this node knows.
    for define in ["SMALL_TABLE=11", "LARGE_TABLE", "NEWER_MINOR", "NULL_FUNCTIONS"] {
        let prepared = Prepared::new(c_plugin(Source::Misbehaving, &[define]), &[])?;
        let cluster = node(vec![prepared.setting.clone()]).await?;
        ask(cluster.api(0)).await?;
        let seen = plugin_when(cluster.api(0), define, |plugin| plugin.generations == 0).await;
        assert_eq!(seen.health(), PluginHealth::Healthy, "{define}: {seen:?}");
        cluster.stop().await?;
        let finished = prepared.log()?.iter().filter(|line| line.event() == "finish").count();
        assert_eq!(finished, if define == "NULL_FUNCTIONS" { 0 } else { 2 }, "{define}");
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_library_that_is_cut_short_is_refused() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let short = dir.path().join("short.so");
    let whole = fs::read(event_log())?;
    fs::write(&short, &whole[..whole.len() / 4])?;
    let reason = refused(&short).await?;
    assert!(reason.contains("cut short"), "{reason}");
    Ok(())
}

/// The first ends the node, since nothing that touches the system's loader can go on; the second is left behind.
#[cfg(target_os = "linux")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_library_that_hangs_while_it_is_loaded_holds_up_nothing_for_long() -> Result<()> {
    let constructor = c_plugin(Source::Misbehaving, &["HANG_CONSTRUCTOR"])
        .display()
        .to_string();
    let dir = tempfile::tempdir()?;
    let any = "127.0.0.1:0";
    let began = Instant::now();
    let start = [
        "node",
        "start",
        "--http",
        any,
        "--grpc",
        any,
        "--listen",
        any,
        "--plugin",
        &constructor,
    ];
    let (code, _, err) = run(dir.path(), &start).await?;
    assert!(began.elapsed() < Duration::from_secs(15), "{:?}", began.elapsed());
    assert!(
        code == 1 && err.contains(&constructor) && err.contains("without this plugin"),
        "{code} {err}"
    );

    let reason = refused(&c_plugin(Source::Misbehaving, &["HANG_ENTRY"])).await?;
    assert!(reason.contains("entry"), "{reason}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_digest_that_does_not_match_and_a_name_twice_are_refused() -> Result<()> {
    let library = event_log();
    let state = tempfile::tempdir()?;
    let wrong = PluginSetting {
        digest: "00".repeat(32).parse().ok(),
        ..PluginSetting::new(library.clone())
    };
    let good = PluginSetting {
        state: Some(state.path().join("made")),
        ..PluginSetting::new(library)
    };
    let cluster = Cluster::start_with(1, |config| mesh_node::NodeConfig {
        plugins: vec![wrong.clone(), good.clone(), good.clone()],
        ..config
    })
    .await?;
    let plugins = cluster.api(0).plugins().await?;
    let healths: Vec<_> = plugins.iter().map(|plugin| plugin.health()).collect();
    assert_eq!(
        healths,
        [PluginHealth::NotLoaded, PluginHealth::Healthy, PluginHealth::NotLoaded]
    );
    assert!(plugins[0].reason.contains(&plugins[1].digest), "{}", plugins[0].reason);
    assert!(plugins[2].reason.contains("loaded already"), "{}", plugins[2].reason);
    cluster.serve("built-in", "x", "a:0-8").await?;
    ask(cluster.api(0)).await?;
    cluster.stop().await?;
    let lines = super::log::read(&state.path().join("made/events.jsonl"))?;
    assert_eq!(super::log::prove(&lines)?.finished, 2);
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_plugin_that_rejects_its_configuration_says_why() -> Result<()> {
    let prepared = Prepared::new(ngram_proposer(), &["min_ngrams = 2".to_owned()])?;
    let cluster = node(vec![prepared.setting.clone()]).await?;
    ask(cluster.api(0)).await?;
    let seen = plugin(cluster.api(0)).await?;
    assert!(seen.last_error.contains("min_ngrams"), "{seen:?}");
    let (code, out, _) = run(
        cluster.data_dir(0),
        &["plugins", "show", &seen.name, "--output", "json"],
    )
    .await?;
    assert!(code == 0 && out.contains("min_ngrams"), "{out}");
    let (code, out, _) = run(cluster.data_dir(0), &["plugins", "list"]).await?;
    assert!(code == 0 && out.contains("degraded"), "{out}");
    let (code, _, err) = run(cluster.data_dir(0), &["plugins", "show", "nobody"]).await?;
    assert!(code == 4 && err.contains(&seen.name), "{err}");
    cluster.stop().await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn plugins_of_the_configuration_file_are_loaded_and_absurd_deadlines_refused() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let library = ngram_proposer();
    let file = |deadline: &str| {
        let table = format!(
            "[[plugins]]\npath = {:?}\ndeadline = {deadline:?}\n",
            library.display().to_string()
        );
        fs::write(dir.path().join("config.toml"), table)
    };
    file("20ms")?;
    let (code, out, err) = run(dir.path(), &["node", "start", "--print-config"]).await?;
    assert!(
        code == 0 && out.contains("20ms") && out.contains("mesh_ngram_proposer"),
        "{out}{err}"
    );
    for deadline in ["0ms", "2h"] {
        file(deadline)?;
        let (code, _, err) = run(dir.path(), &["node", "start", "--print-config"]).await?;
        assert!(code != 0 && err.contains("such as 8ms"), "{err}");
        let flags = [
            "node",
            "start",
            "--print-config",
            "--plugin",
            "/p.so",
            "--plugin-deadline",
            deadline,
        ];
        let (code, _, err) = run(dir.path(), &flags).await?;
        assert!(code == 2 && err.contains("such as 8ms"), "{err}");
    }
    Ok(())
}

/// The second model gets the plugin as the first did, whole or split.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_model_whose_head_is_the_node_is_followed() -> Result<()> {
    let prepared = Prepared::new(event_log(), &[])?;
    let cluster = Cluster::start_with(2, |config| {
        let plugins = match config.name.as_deref() {
            Some("a") => vec![prepared.setting.clone()],
            _ => Vec::new(),
        };
        mesh_node::NodeConfig { plugins, ..config }
    })
    .await?;
    for (name, stages) in [
        ("whole", "a:0-8"),
        ("split", "a:0-4,b:4-8"),
        ("elsewhere", "b:0-4,a:4-8"),
    ] {
        cluster.serve("built-in", name, stages).await?;
        let [call, _] = super::calls();
        cluster.api(1).chat(&call.with("model", name.into())).await?;
    }
    cluster.api(0).stop("whole").await?;
    cluster.stop().await?;
    let lines = prepared.log()?;
    let count = |event: &str| lines.iter().filter(|line| line.event() == event).count();
    assert_eq!(
        (count("activate"), count("begin"), count("finish"), count("shutdown")),
        (2, 2, 2, 2)
    );
    Ok(())
}
