//! What is printed about plugins. Scripts rely on the names of the fields: the tests pin them.

use std::collections::BTreeMap;

use mesh_proto::v1;
use serde::Serialize;

use crate::output::{Table, harmless, name, sentence};

/// As scripts and people read it.
pub(crate) fn health_name(health: v1::PluginHealth) -> &'static str {
    match health {
        v1::PluginHealth::Healthy => "healthy",
        v1::PluginHealth::Degraded => "degraded",
        v1::PluginHealth::Quarantined => "quarantined",
        v1::PluginHealth::Stopped => "stopped",
        v1::PluginHealth::NotLoaded => "not_loaded",
        v1::PluginHealth::Unspecified => "unknown",
    }
}

/// A plugin of a node.
#[derive(Debug, Serialize)]
pub(crate) struct PluginView {
    /// None if it was not loaded.
    pub(crate) name: Option<String>,
    pub(crate) version: String,
    pub(crate) path: String,
    pub(crate) digest: String,
    /// `healthy`, `degraded`, `quarantined`, `stopped` or `not_loaded`.
    pub(crate) health: &'static str,
    /// Why it is not healthy.
    pub(crate) reason: Option<String>,
    pub(crate) last_error: Option<String>,
    pub(crate) abilities: Vec<String>,
    pub(crate) abi: String,
    pub(crate) deadline_us: u64,
    pub(crate) required: bool,
    /// Generations that have begun and not ended.
    pub(crate) generations: u64,
    pub(crate) queue: QueueView,
    pub(crate) proposals: BTreeMap<String, u64>,
    pub(crate) tokens: TokensView,
    pub(crate) discarded: u64,
    pub(crate) lost: BTreeMap<String, u64>,
    pub(crate) callbacks: Vec<CallbackView>,
    pub(crate) spurious_wakes: u64,
}

/// Its mailbox.
#[derive(Debug, Serialize)]
pub(crate) struct QueueView {
    pub(crate) used: u64,
    pub(crate) capacity: u64,
    pub(crate) wait: TimesView,
}

/// Candidates that were verified.
#[derive(Debug, Serialize)]
pub(crate) struct TokensView {
    pub(crate) proposed: u64,
    pub(crate) accepted: u64,
}

/// A function of it.
#[derive(Debug, Serialize)]
pub(crate) struct CallbackView {
    pub(crate) name: String,
    pub(crate) errors: u64,
    #[serde(flatten)]
    pub(crate) times: TimesView,
}

/// Times, microseconds.
#[derive(Debug, Default, Serialize)]
pub(crate) struct TimesView {
    pub(crate) count: u64,
    pub(crate) p50_us: u64,
    pub(crate) p99_us: u64,
    pub(crate) longest_us: u64,
}

impl From<Option<v1::CallTimes>> for TimesView {
    fn from(times: Option<v1::CallTimes>) -> Self {
        let times = times.unwrap_or_default();
        Self {
            count: times.count,
            p50_us: times.p50_us,
            p99_us: times.p99_us,
            longest_us: times.longest_us,
        }
    }
}

impl From<v1::Plugin> for PluginView {
    fn from(plugin: v1::Plugin) -> Self {
        let health = health_name(plugin.health());
        let some = |text: String| (!text.is_empty()).then(|| harmless(&text));
        Self {
            name: some(plugin.name),
            version: plugin.version,
            path: plugin.path,
            digest: plugin.digest,
            health,
            reason: some(plugin.reason),
            last_error: some(plugin.last_error),
            abilities: plugin.abilities,
            abi: plugin.abi,
            deadline_us: plugin.deadline_us,
            required: plugin.required,
            generations: plugin.generations,
            queue: QueueView {
                used: plugin.queued,
                capacity: plugin.queue_capacity,
                wait: plugin.queue_wait.into(),
            },
            proposals: plugin.proposals.into_iter().collect(),
            tokens: TokensView {
                proposed: plugin.proposed_tokens,
                accepted: plugin.accepted_tokens,
            },
            discarded: plugin.discarded,
            lost: plugin.lost.into_iter().collect(),
            callbacks: plugin
                .callbacks
                .into_iter()
                .map(|callback| CallbackView {
                    name: callback.name,
                    errors: callback.errors,
                    times: callback.times.into(),
                })
                .collect(),
            spurious_wakes: plugin.spurious_wakes,
        }
    }
}

impl PluginView {
    /// Its name, or the path of one that was not loaded.
    pub(crate) fn title(&self) -> &str {
        self.name.as_deref().unwrap_or(&self.path)
    }

    /// As `mesh plugins show` prints it.
    pub(crate) fn describe(&self) -> String {
        let mut text = format!("{}  {}\n", name(self.title()), self.health);
        let mut fact = |name: &str, value: String| text.push_str(&format!("  {name:<17}  {}\n", sentence(&value)));
        if let Some(reason) = &self.reason {
            fact("reason", reason.clone());
        }
        if let Some(error) = &self.last_error {
            fact("last error", error.clone());
        }
        fact("file", self.path.clone());
        if self.name.is_some() {
            fact("version", format!("{} (interface {})", self.version, self.abi));
            fact("digest", self.digest.clone());
            let wants = self.abilities.join(", ");
            fact(
                "wants",
                if wants.is_empty() {
                    "no more than ends".to_owned()
                } else {
                    wants
                },
            );
            fact("deadline", millis(self.deadline_us));
            fact("required", if self.required { "yes" } else { "no" }.to_owned());
            fact("follows", format!("{} generations", self.generations));
            let QueueView { used, capacity, wait } = &self.queue;
            let waits = format!("waits {} (p99 {})", millis(wait.p50_us), millis(wait.p99_us));
            fact("queue", format!("{used} of {capacity}, {waits}"));
            let TokensView { proposed, accepted } = self.tokens;
            fact("verified", format!("{proposed} tokens, {accepted} accepted"));
            fact("discarded", format!("{} decisions", self.discarded));
            fact("wakes for nothing", self.spurious_wakes.to_string());
        }
        for (title, counts) in [("proposals", &self.proposals), ("not told", &self.lost)] {
            if counts.values().any(|count| *count > 0) {
                let counts = counts.iter().filter(|(_, count)| **count > 0);
                let counts: Vec<String> = counts.map(|(name, count)| format!("{name} {count}")).collect();
                text.push_str(&format!("{title}: {}\n", counts.join(", ")));
            }
        }
        if self.callbacks.iter().any(|callback| callback.times.count > 0) {
            let mut calls = Table::new(&["FUNCTION", "CALLS", "ERRORS", "P50", "P99", "LONGEST"]);
            for callback in self.callbacks.iter().filter(|callback| callback.times.count > 0) {
                let times = &callback.times;
                calls.row([
                    callback.name.clone(),
                    times.count.to_string(),
                    callback.errors.to_string(),
                    millis(times.p50_us),
                    millis(times.p99_us),
                    millis(times.longest_us),
                ]);
            }
            text.push_str(&calls.render(0));
        }
        text
    }
}

/// As `mesh plugins list` prints them.
pub(crate) fn plugins_table(plugins: &[PluginView]) -> String {
    let mut table = Table::new(&[
        "PLUGIN",
        "HEALTH",
        "FOLLOWS",
        "QUEUE",
        "PROPOSALS",
        "ACCEPTED",
        "ERRORS",
        "REASON",
    ]);
    for plugin in plugins {
        let asked: u64 = plugin.proposals.values().sum();
        let ready = plugin.proposals.get("ready").copied().unwrap_or_default();
        let TokensView { proposed, accepted } = plugin.tokens;
        let errors: u64 = plugin.callbacks.iter().map(|callback| callback.errors).sum();
        table.row([
            plugin.title().to_owned(),
            plugin.health.to_owned(),
            plugin.generations.to_string(),
            format!("{}/{}", plugin.queue.used, plugin.queue.capacity),
            format!("{ready}/{asked}"),
            format!("{accepted}/{proposed}"),
            errors.to_string(),
            plugin.reason.clone().unwrap_or_default(),
        ]);
    }
    table.render(0)
}

fn millis(us: u64) -> String {
    match us {
        0..1_000 => format!("{us} µs"),
        _ => format!("{:.1} ms", us as f64 / 1e3),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plugin() -> v1::Plugin {
        v1::Plugin {
            name: "ngram".to_owned(),
            health: v1::PluginHealth::Degraded.into(),
            reason: "late\u{1b}[2J".to_owned(),
            proposals: [("ready".to_owned(), 3), ("late".to_owned(), 1)].into(),
            proposed_tokens: 9,
            accepted_tokens: 7,
            callbacks: vec![v1::PluginCallback {
                name: "begin_generation".to_owned(),
                errors: 2,
                times: Some(v1::CallTimes {
                    count: 4,
                    p50_us: 8,
                    p99_us: 1_500,
                    longest_us: 1_500,
                }),
            }],
            ..v1::Plugin::default()
        }
    }

    #[test]
    fn scripts_find_the_fields_where_they_were() {
        let json = serde_json::to_value(PluginView::from(plugin())).unwrap();
        assert_eq!(json["name"], "ngram");
        assert_eq!(json["health"], "degraded");
        assert_eq!(json["proposals"]["ready"], 3);
        assert_eq!(json["tokens"]["accepted"], 7);
        assert_eq!(json["callbacks"][0]["errors"], 2);
        assert_eq!(json["callbacks"][0]["p99_us"], 1_500);
        assert_eq!(json["queue"]["capacity"], 0);
        assert!(!json["reason"].as_str().unwrap().contains('\u{1b}'));
    }

    #[test]
    fn a_plugin_that_was_not_loaded_is_listed_by_its_path() {
        let refused = PluginView::from(v1::Plugin {
            path: "/x.so".to_owned(),
            health: v1::PluginHealth::NotLoaded.into(),
            reason: "it is no library".to_owned(),
            ..v1::Plugin::default()
        });
        let table = plugins_table(&[refused, plugin().into()]);
        assert!(
            table.contains("/x.so") && table.contains("not_loaded") && table.contains("3/4"),
            "{table}"
        );
        assert!(PluginView::from(plugin()).describe().contains("begin_generation"));
    }
}
