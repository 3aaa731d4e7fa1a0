//! What is looked at only when somebody collects: queues, lanes, events, and what became of telemetry itself.

mod plugins;

use std::sync::{Arc, atomic::Ordering};

use mesh_actors::{
    events::{EventBus, EventFigures},
    host::StageRegistry,
    plugin::PluginHandle,
};
use mesh_proto::v1::Lanes;
use opentelemetry::{KeyValue, metrics::Meter};

use crate::{
    names::{attribute, metric},
    queue::Fate,
};

/// Durable receipts since the start.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ReceiptFigures {
    /// In the files.
    pub written: u64,
    /// Those that did not fit in the queue, or that the disk did not take.
    pub lost: u64,
}

/// Where figures come from.
#[derive(Clone)]
pub struct Sources {
    /// Lifecycle events of the node.
    pub events: EventBus,
    /// Stages on the node.
    pub registry: Arc<StageRegistry>,
    /// Plugins of the node.
    pub plugins: Arc<[PluginHandle]>,
    /// Durable receipts, if they are kept.
    pub receipts: Option<Arc<dyn Fn() -> ReceiptFigures + Send + Sync>>,
}

/// Makes the instruments; they last as long as the meter's provider.
pub(crate) fn observe(meter: &Meter, sources: &Sources, fate: &Arc<Fate>) {
    observe_lanes(meter, &sources.registry);
    observe_events(meter, &sources.events);
    observe_receipts(meter, sources);
    plugins::observe(meter, &sources.plugins);
    observe_fate(meter, fate);
}

fn observe_receipts(meter: &Meter, sources: &Sources) {
    let Some(figures) = sources.receipts.clone() else {
        return;
    };
    let counter = meter.u64_observable_counter(metric::RECEIPTS).with_unit("{receipt}");
    let look = counter
        .with_description("Durable receipts, written or lost.")
        .with_callback(move |observer| {
            let ReceiptFigures { written, lost } = figures();
            observer.observe(written, &[KeyValue::new(attribute::OUTCOME, "written")]);
            observer.observe(lost, &[KeyValue::new(attribute::OUTCOME, "lost")]);
        });
    let _ = look.build();
}

fn observe_lanes(meter: &Meter, registry: &Arc<StageRegistry>) {
    let gauge = |name, unit, about, figure: fn(&Lanes) -> u32| {
        let registry = registry.clone();
        let gauge = meter.u64_observable_gauge(name).with_unit(unit).with_description(about);
        let look = gauge.with_callback(move |observer| {
            for (deployment, lanes) in registry.lanes() {
                let label = KeyValue::new(attribute::DEPLOYMENT, deployment);
                observer.observe(u64::from(figure(&lanes)), &[label]);
            }
        });
        let _ = look.build();
    };
    gauge(metric::LANES_USED, "{lane}", "Lanes held by requests.", |lanes| {
        lanes.used
    });
    gauge(metric::LANES_TOTAL, "{lane}", "Lanes of the deployment.", |lanes| {
        lanes.total
    });
    gauge(
        metric::QUEUE_DEPTH,
        "{request}",
        "Requests that wait for a lane.",
        |lanes| lanes.waiting,
    );
}

fn observe_events(meter: &Meter, events: &EventBus) {
    let counter = |name, about, figure: fn(&EventFigures) -> u64| {
        let events = events.clone();
        let counter = meter.u64_observable_counter(name).with_unit("{event}");
        let look = counter
            .with_description(about)
            .with_callback(move |observer| observer.observe(figure(&events.figures()), &[]));
        let _ = look.build();
    };
    counter(metric::EVENTS, "Lifecycle events.", |figures| figures.events);
    counter(
        metric::EVENTS_DROPPED,
        "Lifecycle events that subscribers missed.",
        |figures| figures.dropped,
    );
    let gauge = |name, unit, about, figure: fn(&EventFigures) -> usize| {
        let events = events.clone();
        let gauge = meter.u64_observable_gauge(name).with_unit(unit).with_description(about);
        let look = gauge.with_callback(move |observer| observer.observe(figure(&events.figures()) as u64, &[]));
        let _ = look.build();
    };
    gauge(
        metric::SUBSCRIBERS,
        "{subscriber}",
        "Subscribers to lifecycle events.",
        |figures| figures.subscribers,
    );
    gauge(
        metric::REQUESTS_OPEN,
        "{request}",
        "Requests that have not ended.",
        |figures| figures.open,
    );
}

fn observe_fate(meter: &Meter, fate: &Arc<Fate>) {
    let exported = fate.clone();
    let spans = meter.u64_observable_counter(metric::SPANS_EXPORTED).with_unit("{span}");
    let look = spans
        .with_description("Spans that the collector took.")
        .with_callback(move |observer| observer.observe(exported.exported.load(Ordering::Relaxed), &[]));
    let _ = look.build();
    let fate = fate.clone();
    let dropped = meter.u64_observable_counter(metric::DROPPED).with_unit("{item}");
    let look = dropped
        .with_description("Spans and exports of metrics that came to nothing, per cause.")
        .with_callback(move |observer| {
            for (cause, counter) in [
                ("queue_full", &fate.queue_full),
                ("export_failed", &fate.export_failed),
                ("shutdown", &fate.shutdown),
                ("metrics_export_failed", &fate.metrics_failed),
            ] {
                observer.observe(
                    counter.load(Ordering::Relaxed),
                    &[KeyValue::new(attribute::CAUSE, cause)],
                );
            }
        });
    let _ = look.build();
}
