//! What the environment asks for. A value that cannot be used is told in the log and ignored, as the specification
//! wants: telemetry never keeps a node from starting.

use std::time::Duration;

use mesh_proto::NodeId;
use opentelemetry::KeyValue;
use opentelemetry_sdk::{Resource, resource::EnvResourceDetector};

use crate::{
    names::{SERVICE, attribute, variable},
    sampler::Sampler,
};

/// The specification's default.
const METRIC_INTERVAL: Duration = Duration::from_secs(60);

/// Shorter than this, collecting would cost more than it tells.
const SHORTEST_METRIC_INTERVAL: Duration = Duration::from_millis(100);

/// What is exported, and how often.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Settings {
    /// Spans go to a collector.
    pub traces: bool,
    /// Metrics go to a collector this often.
    pub metrics: Option<Duration>,
    /// Which requests are traced.
    pub sampler: Sampler,
}

impl Settings {
    /// Of this process.
    pub fn from_environment() -> Self {
        Self::read(|name| std::env::var(name).ok())
    }

    fn read(variable: impl Fn(&str) -> Option<String>) -> Self {
        let text = |name| variable(name).unwrap_or_default();
        let disabled = text(variable::DISABLED).trim().eq_ignore_ascii_case("true");
        let exports = |endpoint, exporter| {
            let named = !text(variable::ENDPOINT).is_empty() || !text(endpoint).is_empty();
            named && !disabled && text(exporter).trim() != "none"
        };
        let sampler = Sampler::read(&text(variable::SAMPLER), &text(variable::SAMPLER_ARG));
        Self {
            traces: exports(variable::TRACES_ENDPOINT, variable::TRACES_EXPORTER),
            metrics: exports(variable::METRICS_ENDPOINT, variable::METRICS_EXPORTER)
                .then(|| interval(&text(variable::METRIC_INTERVAL))),
            sampler: sampler.unwrap_or_else(|name| {
                tracing::warn!(sampler = name, "{} is not known and is ignored", variable::SAMPLER);
                Sampler::default()
            }),
        }
    }
}

fn interval(text: &str) -> Duration {
    let chosen = text.trim().parse().ok().map(Duration::from_millis);
    chosen.unwrap_or(METRIC_INTERVAL).max(SHORTEST_METRIC_INTERVAL)
}

/// Who exports: the environment's words come before ours.
pub(crate) fn resource(node: NodeId, name: &str) -> Resource {
    let own = [
        KeyValue::new(attribute::SERVICE_NAME, SERVICE),
        KeyValue::new(attribute::VERSION, env!("CARGO_PKG_VERSION")),
        KeyValue::new(attribute::INSTANCE, node.to_string()),
        KeyValue::new(attribute::NODE, name.to_owned()),
    ];
    let builder = Resource::builder_empty()
        .with_attributes(own)
        .with_detector(Box::new(EnvResourceDetector::new()));
    let named = std::env::var("OTEL_SERVICE_NAME").ok().filter(|name| !name.is_empty());
    match named {
        Some(name) => builder.with_service_name(name).build(),
        None => builder.build(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(variables: &[(&str, &str)]) -> Settings {
        Settings::read(|name| {
            let found = variables.iter().find(|(known, _)| *known == name);
            found.map(|(_, value)| (*value).to_owned())
        })
    }

    #[test]
    fn nothing_is_exported_unless_a_collector_is_named() {
        let off = settings(&[(variable::SAMPLER, "always_on")]);
        assert_eq!((off.traces, off.metrics), (false, None));
        let all = settings(&[
            (variable::ENDPOINT, "http://c:4318"),
            (variable::METRIC_INTERVAL, "5000"),
        ]);
        assert_eq!((all.traces, all.metrics), (true, Some(Duration::from_secs(5))));
        let one = settings(&[(variable::METRICS_ENDPOINT, "http://c:4318/v1/metrics")]);
        assert_eq!((one.traces, one.metrics), (false, Some(METRIC_INTERVAL)));
        let disabled = settings(&[(variable::ENDPOINT, "http://c:4318"), (variable::DISABLED, "TRUE")]);
        assert_eq!((disabled.traces, disabled.metrics), (false, None));
        let none = settings(&[
            (variable::ENDPOINT, "http://c:4318"),
            (variable::TRACES_EXPORTER, "none"),
        ]);
        assert!(!none.traces && none.metrics.is_some());
    }
}
