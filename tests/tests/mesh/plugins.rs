//! Native plugins, loaded into real nodes: those that do wrong, beside requests that must not notice, and those that
//! propose.

mod case;
mod loading;
mod log;
mod misbehaving;
mod proposals;
mod stuck;

use std::{fs, path::PathBuf, time::Duration};

use anyhow::{Context as _, Result};
use mesh_node::config::PluginSetting;
use mesh_proto::v1::{Plugin, PluginHealth};
use mesh_tests::{Answer, Api, ChatCall, Cluster, until};
use serde_json::json;
use tempfile::TempDir;

/// A busy machine may take this long for what takes milliseconds; what takes a plugin's limits is below it too.
const PATIENCE: Duration = Duration::from_secs(20);

/// A plugin with its configuration, log and release file in a directory of its own.
struct Prepared {
    dir: TempDir,
    setting: PluginSetting,
}

impl Prepared {
    /// `lines` of its configuration; its log is added.
    fn new(library: PathBuf, lines: &[String]) -> Result<Self> {
        let dir = tempfile::tempdir()?;
        let config = dir.path().join("plugin.conf");
        let log = format!("log = {}\n", dir.path().join("log.jsonl").display());
        fs::write(&config, lines.join("\n") + "\n" + &log)?;
        let setting = PluginSetting {
            config: Some(config),
            ..PluginSetting::new(library)
        };
        Ok(Self { dir, setting })
    }

    /// What the plugin was told so far.
    fn log(&self) -> Result<Vec<log::Line>> {
        log::read(&self.dir.path().join("log.jsonl"))
    }
}

/// One node with these plugins, and the built-in model on it as `x`.
async fn node(settings: Vec<PluginSetting>) -> Result<Cluster> {
    let cluster = Cluster::start_with(1, |config| mesh_node::NodeConfig {
        plugins: settings.clone(),
        ..config
    })
    .await?;
    cluster.serve("built-in", "x", "a:0-8").await?;
    Ok(cluster)
}

/// A greedy and a sampled request.
fn calls() -> [ChatCall; 2] {
    [
        ChatCall::greedy("x", "What does Psalm 23 say?").with("max_tokens", json!(40)),
        ChatCall::sampled("x", "Tell me of the sea and of the dry land.", 7).with("max_tokens", json!(40)),
    ]
}

/// Both at once.
async fn ask(api: &Api) -> Result<Vec<Answer>> {
    let [first, second] = calls();
    let (first, second) = tokio::try_join!(api.chat(&first), api.chat(&second))?;
    Ok(vec![first, second])
}

/// The only plugin of a node.
async fn plugin(api: &Api) -> Result<Plugin> {
    api.plugins()
        .await?
        .into_iter()
        .next()
        .context("the node has no plugin")
}

/// The plugin, as soon as `is_so`.
async fn plugin_when(api: &Api, what: &str, is_so: impl Fn(&Plugin) -> bool) -> Plugin {
    until(what, PATIENCE, || async {
        let plugin = plugin(api).await.ok()?;
        is_so(&plugin).then_some(plugin)
    })
    .await
}

fn errors(plugin: &Plugin, callback: &str) -> u64 {
    let callbacks = plugin.callbacks.iter();
    callbacks.filter(|it| it.name == callback).map(|it| it.errors).sum()
}

fn is_shut_out(plugin: &Plugin) -> bool {
    plugin.health() == PluginHealth::Quarantined
}
