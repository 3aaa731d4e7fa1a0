//! What a child may use, set by itself before it reads anything.

use std::{io, time::Duration};

use rustix::process::{Resource, Rlimit, setrlimit};

/// Limits of a child. Both are of Linux first; macOS takes them and counts memory less strictly.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ChildLimits {
    /// Private writable memory in bytes, stacks included, mapped files not (`RLIMIT_DATA`).
    pub memory: Option<u64>,
    /// Time of all its cores together, in whole seconds (`RLIMIT_CPU`); only for children that do one thing.
    pub cpu: Option<Duration>,
}

/// The kernel picks these first when memory runs out: between 0 (as others) and 1000 (always).
#[cfg(target_os = "linux")]
const OOM_SCORE: &str = "500";

impl ChildLimits {
    /// For the command line of the child.
    pub(super) fn arguments(&self) -> Vec<String> {
        let memory = self.memory.map(|bytes| format!("--memory={bytes}"));
        let cpu = self.cpu.map(|time| format!("--cpu-seconds={}", time.as_secs().max(1)));
        memory.into_iter().chain(cpu).collect()
    }

    /// Limits this process, for good.
    pub(super) fn apply(&self) -> io::Result<()> {
        limit(Resource::Core, 0)?;
        if let Some(bytes) = self.memory {
            limit(Resource::Data, bytes)?;
        }
        if let Some(time) = self.cpu {
            limit(Resource::Cpu, time.as_secs())?;
        }
        // Not in every container; the node is no worse off for it.
        #[cfg(target_os = "linux")]
        let _ = std::fs::write("/proc/self/oom_score_adj", OOM_SCORE);
        Ok(())
    }
}

fn limit(resource: Resource, value: u64) -> io::Result<()> {
    // What the user has set lower stays.
    let set = rustix::process::getrlimit(resource);
    let value = [set.current, set.maximum].into_iter().flatten().fold(value, u64::min);
    let limit = Rlimit {
        current: Some(value),
        maximum: Some(value),
    };
    Ok(setrlimit(resource, limit)?)
}
