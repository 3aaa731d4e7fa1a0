//! Whether a plugin is to be trusted, from how its calls went.

use std::time::Instant;

use mesh_proto::v1::PluginHealth;

/// How a plugin is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Health {
    /// All went well lately.
    #[default]
    Healthy,
    /// Errors or missed deadlines lately.
    Degraded,
    /// No calls but those that end something.
    Quarantined,
    /// No calls any more.
    Stopped,
}

impl Health {
    /// All of them, from good to bad.
    pub const ALL: [Self; 4] = [Self::Healthy, Self::Degraded, Self::Quarantined, Self::Stopped];

    /// As metrics and commands name it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Healthy => "healthy",
            Self::Degraded => "degraded",
            Self::Quarantined => "quarantined",
            Self::Stopped => "stopped",
        }
    }
}

impl From<Health> for PluginHealth {
    fn from(health: Health) -> Self {
        match health {
            Health::Healthy => Self::Healthy,
            Health::Degraded => Self::Degraded,
            Health::Quarantined => Self::Quarantined,
            Health::Stopped => Self::Stopped,
        }
    }
}

/// Good calls after trouble until a plugin counts as healthy again: about a second of decoding.
const RECENT: u32 = 64;

/// Follows the calls of a plugin.
#[derive(Debug)]
pub struct HealthMonitor {
    /// Proposals in a row that failed or missed their deadline until it is quarantined.
    limit: u32,
    faults: u32,
    /// When the last miss counted.
    last_miss: Option<Instant>,
    /// Good calls that are still wanted.
    recent: u32,
    health: Health,
    reason: String,
}

impl HealthMonitor {
    /// `limit` proposals in a row may go wrong, less one.
    pub fn new(limit: u32) -> Self {
        Self {
            limit: limit.max(1),
            faults: 0,
            last_miss: None,
            recent: 0,
            health: Health::Healthy,
            reason: String::new(),
        }
    }

    /// How it is.
    pub fn health(&self) -> Health {
        self.health
    }

    /// Why.
    pub fn reason(&self) -> &str {
        &self.reason
    }

    /// Only calls that end something are made.
    pub fn is_shut_out(&self) -> bool {
        self.health >= Health::Quarantined
    }

    /// A call went well.
    pub fn good(&mut self) {
        self.recent = self.recent.saturating_sub(1);
        if self.recent == 0 && self.health == Health::Degraded {
            self.set(Health::Healthy, "");
        }
    }

    /// A proposal was answered in time.
    pub fn answered(&mut self) {
        self.faults = 0;
        self.good();
    }

    /// Something went wrong that is no reason to shut it out.
    pub fn trouble(&mut self, reason: &str) {
        self.recent = RECENT;
        if self.health <= Health::Degraded {
            self.set(Health::Degraded, reason);
        }
    }

    /// A proposal missed its deadline. What one stall did to many lanes at once is one fault: those that were asked before
    /// the last one that counted do not count again.
    pub fn miss(&mut self, reason: &str, asked: Option<Instant>, now: Instant) {
        let is_new = match (self.last_miss, asked) {
            (Some(last), Some(asked)) => asked >= last,
            _ => true,
        };
        if is_new {
            self.last_miss = Some(now);
            self.fault(reason);
        } else {
            self.trouble(reason);
        }
    }

    /// A proposal failed or missed its deadline.
    pub fn fault(&mut self, reason: &str) {
        self.trouble(reason);
        self.faults += 1;
        if self.faults >= self.limit {
            self.quarantine(&format!(
                "{} proposals in a row failed; the last: {reason}",
                self.faults
            ));
        }
    }

    /// It did what must not be.
    pub fn quarantine(&mut self, reason: &str) {
        if !self.is_shut_out() {
            self.set(Health::Quarantined, reason);
        }
    }

    /// It is over.
    pub fn stop(&mut self) {
        if self.health != Health::Stopped {
            let reason = std::mem::take(&mut self.reason);
            self.set(Health::Stopped, &reason);
        }
    }

    fn set(&mut self, health: Health, reason: &str) {
        self.health = health;
        reason.clone_into(&mut self.reason);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn faults_in_a_row_shut_a_plugin_out_for_good() {
        let mut monitor = HealthMonitor::new(3);
        monitor.fault("late");
        monitor.fault("late");
        assert_eq!(monitor.health(), Health::Degraded);
        monitor.answered();
        monitor.fault("late");
        monitor.fault("late");
        assert!(!monitor.is_shut_out());
        monitor.fault("late");
        assert!(monitor.is_shut_out());
        for _ in 0..1000 {
            monitor.answered();
        }
        assert_eq!(monitor.health(), Health::Quarantined);
        assert!(monitor.reason().contains("3 proposals"), "{}", monitor.reason());
    }

    #[test]
    fn one_stall_of_many_lanes_is_one_fault() {
        use std::time::Duration;
        let mut monitor = HealthMonitor::new(3);
        let start = Instant::now();
        let at = |ms| start + Duration::from_millis(ms);
        for _ in 0..100 {
            monitor.miss("late", Some(at(0)), at(8));
        }
        assert_eq!(monitor.health(), Health::Degraded);
        monitor.miss("late", Some(at(9)), at(17));
        monitor.miss("late", Some(at(18)), at(26));
        assert!(monitor.is_shut_out());
    }

    #[test]
    fn errors_alone_never_shut_a_plugin_out_and_are_forgotten() {
        let mut monitor = HealthMonitor::new(3);
        for _ in 0..1000 {
            monitor.trouble("commit failed");
        }
        assert_eq!(monitor.health(), Health::Degraded);
        for _ in 0..RECENT {
            monitor.good();
        }
        assert_eq!((monitor.health(), monitor.reason()), (Health::Healthy, ""));
    }

    #[test]
    fn a_stopped_plugin_stays_stopped() {
        let mut monitor = HealthMonitor::new(1);
        monitor.quarantine("it unwound");
        monitor.stop();
        monitor.trouble("x");
        assert_eq!((monitor.health(), monitor.reason()), (Health::Stopped, "it unwound"));
    }
}
