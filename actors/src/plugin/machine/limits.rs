//! Bounds of a plugin.

use std::time::Duration;

/// Bounds of a plugin.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PluginLimits {
    /// Threads that serve its generations side by side; one for a serial plugin.
    pub threads: usize,
    /// Places in the mailbox for begin, commits and queries.
    pub queue: usize,
    /// Places beside these for messages that end something.
    pub reserve: usize,
    /// Generations that are followed at a time.
    pub generations: usize,
    /// Proposals in a row that may go wrong, less one.
    pub faults: u32,
    /// How long a finish waits for the calls before it.
    pub finish_budget: Duration,
    /// How long a call may take until its thread is given up.
    pub call_limit: Duration,
    /// How long an activation may take.
    pub activation_limit: Duration,
}

impl Default for PluginLimits {
    fn default() -> Self {
        Self {
            threads: 4,
            queue: 1024,
            reserve: 64,
            generations: 1024,
            // At the default deadline of 8 ms, an eighth of a second is lost before it is shut out.
            faults: 16,
            finish_budget: Duration::from_secs(5),
            call_limit: Duration::from_secs(5),
            activation_limit: Duration::from_secs(5),
        }
    }
}
