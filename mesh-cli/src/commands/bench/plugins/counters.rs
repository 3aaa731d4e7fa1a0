//! What a plugin has counted, between two moments.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::plugin_view::PluginView;

/// Proposals that came too late, by the node's names.
const MISSES: [&str; 3] = ["expired_before_dispatch", "expired_in_plugin", "late"];

/// Proposals by what came of them, and the candidates that were verified.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub(super) struct Counters {
    /// Those that happened.
    pub(super) proposals: BTreeMap<String, u64>,
    pub(super) proposed_tokens: u64,
    pub(super) accepted_tokens: u64,
}

impl From<&PluginView> for Counters {
    fn from(plugin: &PluginView) -> Self {
        Self {
            proposals: plugin.proposals.clone(),
            proposed_tokens: plugin.tokens.proposed,
            accepted_tokens: plugin.tokens.accepted,
        }
    }
}

impl Counters {
    pub(super) fn since(&self, before: &Self) -> Self {
        let earlier = |name: &str| before.proposals.get(name).copied().unwrap_or_default();
        let changed = self
            .proposals
            .iter()
            .map(|(name, count)| (name.clone(), count.saturating_sub(earlier(name))));
        Self {
            proposals: changed.filter(|(_, count)| *count > 0).collect(),
            proposed_tokens: self.proposed_tokens.saturating_sub(before.proposed_tokens),
            accepted_tokens: self.accepted_tokens.saturating_sub(before.accepted_tokens),
        }
    }

    pub(super) fn add(&mut self, other: &Self) {
        for (name, count) in &other.proposals {
            *self.proposals.entry(name.clone()).or_default() += count;
        }
        self.proposed_tokens += other.proposed_tokens;
        self.accepted_tokens += other.accepted_tokens;
    }

    pub(super) fn count(&self, outcome: &str) -> u64 {
        self.proposals.get(outcome).copied().unwrap_or_default()
    }

    /// Deadlines that were missed.
    pub(super) fn misses(&self) -> u64 {
        MISSES.iter().map(|name| self.count(name)).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counters(counts: &[(&str, u64)], proposed_tokens: u64, accepted_tokens: u64) -> Counters {
        Counters {
            proposals: counts
                .iter()
                .map(|(name, count)| ((*name).to_owned(), *count))
                .collect(),
            proposed_tokens,
            accepted_tokens,
        }
    }

    #[test]
    fn only_what_happened_in_between_is_counted() {
        let before = counters(&[("ready", 2), ("abstained", 5)], 8, 6);
        let after = counters(&[("ready", 3), ("abstained", 5), ("late", 1)], 12, 7);
        let mut sum = after.since(&before);
        assert_eq!(sum, counters(&[("ready", 1), ("late", 1)], 4, 1));
        sum.add(&counters(&[("expired_in_plugin", 2), ("late", 1)], 1, 1));
        assert_eq!((sum.misses(), sum.count("ready"), sum.proposed_tokens), (4, 1, 5));
    }
}
