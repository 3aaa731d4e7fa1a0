//! Which requests are traced: `OTEL_TRACES_SAMPLER`.

use mesh_proto::TraceContext;

/// Decides at the arrival of a request, for the whole mesh: stages trace what its head traces.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Sampler {
    /// Do as the caller does, if it says.
    follow_parent: bool,
    /// Share of the rest, from 0 to 1.
    ratio: f64,
}

impl Sampler {
    /// By the two variables; `Err` is the name that is not known, and the default is used for it.
    pub fn read(name: &str, argument: &str) -> Result<Self, String> {
        let ratio = argument.trim().parse::<f64>().ok();
        let ratio = ratio.filter(|ratio| (0.0..=1.0).contains(ratio)).unwrap_or(1.0);
        let (follow_parent, ratio) = match name.trim() {
            "" | "parentbased_always_on" => (true, 1.0),
            "always_on" => (false, 1.0),
            "always_off" => (false, 0.0),
            "traceidratio" => (false, ratio),
            "parentbased_always_off" => (true, 0.0),
            "parentbased_traceidratio" => (true, ratio),
            other => return Err(other.to_owned()),
        };
        Ok(Self { follow_parent, ratio })
    }

    /// Whether a request of this trace is recorded.
    pub fn takes(&self, trace_id: &[u8; 16], parent: Option<TraceContext>) -> bool {
        if let Some(parent) = parent.filter(|_| self.follow_parent) {
            return parent.is_sampled();
        }
        // As the SDKs do it, so that all services of a trace agree: its last 63 bits against the ratio.
        let low = u64::from_be_bytes(trace_id[8..].try_into().unwrap_or_default()) >> 1;
        self.ratio >= 1.0 || (low as f64) < self.ratio * (1u64 << 63) as f64
    }
}

impl Default for Sampler {
    fn default() -> Self {
        Self {
            follow_parent: true,
            ratio: 1.0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parent(flags: u8) -> Option<TraceContext> {
        Some(TraceContext {
            trace_id: [7; 16],
            span_id: [1; 8],
            flags,
        })
    }

    #[test]
    fn samplers_do_what_their_names_say() {
        let takes = |name, argument, parent| Sampler::read(name, argument).unwrap().takes(&[7; 16], parent);
        assert!(takes("", "", None) && takes("", "", parent(1)) && !takes("", "", parent(0)));
        assert!(takes("always_on", "", parent(0)));
        assert!(!takes("always_off", "", parent(1)) && !takes("always_off", "", None));
        assert!(!takes("parentbased_always_off", "", None) && takes("parentbased_always_off", "", parent(1)));
        // 0x0707… is 2.7 % of the range.
        assert!(takes("traceidratio", "0.03", None) && !takes("traceidratio", "0.02", None));
        assert!(
            takes("traceidratio", "nonsense", None),
            "a ratio that cannot be read is 1"
        );
        assert_eq!(Sampler::read("jaeger_remote", ""), Err("jaeger_remote".into()));
    }
}
