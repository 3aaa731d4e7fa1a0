//! Figures of plugins.

use std::sync::Arc;

use mesh_actors::plugin::{Health, PluginHandle, PluginReading};
use opentelemetry::{KeyValue, metrics::Meter};

use crate::names::{attribute, metric};

type Plugins = Arc<[PluginHandle]>;

/// One figure of a plugin, with a label beside its name where it has several of the kind.
type Figures = fn(&PluginReading) -> Vec<(Option<KeyValue>, u64)>;

/// Makes the instruments of the plugins, if there are any.
pub fn observe(meter: &Meter, plugins: &Plugins) {
    if plugins.is_empty() {
        return;
    }
    count(meter, plugins);
    gauge(meter, plugins);
    let plugins = plugins.clone();
    let waits = meter.f64_observable_gauge(metric::PLUGIN_QUEUE_WAIT).with_unit("s");
    let look = waits
        .with_description("Wait of calls for a thread of their plugin, median and 99th percentile so far.")
        .with_callback(move |observer| {
            for plugin in plugins.iter() {
                let wait = plugin.read().figures.queue_wait;
                for (quantile, us) in [("0.5", wait.p50_us), ("0.99", wait.p99_us)] {
                    let labels = [named(plugin), KeyValue::new("quantile", quantile)];
                    observer.observe(us as f64 / 1e6, &labels);
                }
            }
        });
    let _ = look.build();
}

fn count(meter: &Meter, plugins: &Plugins) {
    let counter = |name, unit, about, figures: Figures| {
        let plugins = plugins.clone();
        let counter = meter.u64_observable_counter(name).with_unit(unit);
        let look = counter
            .with_description(about)
            .with_callback(move |observer| each(&plugins, figures, |value, labels| observer.observe(value, labels)));
        let _ = look.build();
    };
    counter(
        metric::PLUGIN_PROPOSALS,
        "{proposal}",
        "Proposals of plugins, by what came of them.",
        |reading| {
            labelled(
                reading
                    .figures
                    .proposals
                    .iter()
                    .map(|(outcome, count)| (outcome.name(), *count)),
            )
        },
    );
    counter(
        metric::PLUGIN_LOST,
        "{message}",
        "What plugins were not told.",
        |reading| labelled(reading.figures.losses.iter().map(|(loss, count)| (loss.name(), *count))),
    );
    counter(
        metric::PLUGIN_TOKENS,
        "{token}",
        "Tokens that plugins proposed and that were verified.",
        |reading| {
            let figures = &reading.figures;
            let wrong = figures.proposed_tokens.saturating_sub(figures.accepted_tokens);
            labelled([("accepted", figures.accepted_tokens), ("rejected", wrong)].into_iter())
        },
    );
    counter(
        metric::PLUGIN_DISCARDED,
        "{decision}",
        "Decisions of plugins that were not used.",
        |reading| vec![(None, reading.figures.discarded)],
    );
    counter(
        metric::PLUGIN_WAKES,
        "{wake}",
        "Wakes of plugins for operations that were not open.",
        |reading| vec![(None, reading.figures.spurious_wakes)],
    );
}

fn gauge(meter: &Meter, plugins: &Plugins) {
    let gauge = |name, unit, about, figures: Figures| {
        let plugins = plugins.clone();
        let gauge = meter.u64_observable_gauge(name).with_unit(unit);
        let look = gauge
            .with_description(about)
            .with_callback(move |observer| each(&plugins, figures, |value, labels| observer.observe(value, labels)));
        let _ = look.build();
    };
    gauge(
        metric::PLUGIN_QUEUE_DEPTH,
        "{message}",
        "Messages in the mailbox of a plugin.",
        |reading| vec![(None, reading.queued as u64)],
    );
    gauge(
        metric::PLUGIN_QUEUE_CAPACITY,
        "{message}",
        "Places in the mailbox of a plugin.",
        |reading| vec![(None, reading.capacity as u64)],
    );
    gauge(
        metric::PLUGIN_GENERATIONS,
        "{generation}",
        "Generations that a plugin follows.",
        |reading| vec![(None, reading.figures.followed)],
    );
    gauge(
        metric::PLUGIN_HEALTH,
        "{health}",
        "Health of a plugin: 0 healthy, 1 degraded, 2 quarantined, 3 stopped.",
        |reading| {
            let rank = Health::ALL.iter().position(|health| *health == reading.figures.health);
            vec![(None, rank.unwrap_or_default() as u64)]
        },
    );
}

fn labelled(counts: impl Iterator<Item = (&'static str, u64)>) -> Vec<(Option<KeyValue>, u64)> {
    counts
        .map(|(cause, count)| (Some(KeyValue::new(attribute::CAUSE, cause)), count))
        .collect()
}

fn named(plugin: &PluginHandle) -> KeyValue {
    KeyValue::new(attribute::PLUGIN, plugin.facts().name.to_string())
}

fn each(plugins: &Plugins, figures: Figures, mut observe: impl FnMut(u64, &[KeyValue])) {
    for plugin in plugins.iter() {
        for (label, value) in figures(&plugin.read()) {
            let labels: Vec<KeyValue> = [Some(named(plugin)), label].into_iter().flatten().collect();
            observe(value, &labels);
        }
    }
}
