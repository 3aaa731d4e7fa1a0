//! What this machine is: for placing stages.

use std::{fs, thread};

use sysinfo::{MemoryRefreshKind, RefreshKind, System};

/// Facts of the machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostFacts {
    /// Hostname, made fit for a node's name.
    pub hostname: String,
    /// Digest of machine id and boot id; nodes with the same one share cores. Two containers on one machine share the
    /// boot id, so it alone decides where a machine has no id of its own.
    pub host_id: String,
    /// Cores that this process may use.
    pub cores: u32,
    /// Free memory, bytes.
    pub memory: u64,
}

/// Looks the machine up.
pub fn host_facts() -> HostFacts {
    let refresh = RefreshKind::nothing().with_memory(MemoryRefreshKind::nothing().with_ram());
    let system = System::new_with_specifics(refresh);
    let free = system.available_memory();
    let free = system
        .cgroup_limits()
        .map_or(free, |limits| free.min(limits.free_memory));
    HostFacts {
        hostname: fit_name(&System::host_name().unwrap_or_default()),
        host_id: host_id(),
        cores: thread::available_parallelism().map_or(1, |cores| cores.get() as u32),
        memory: free,
    }
}

fn fit_name(hostname: &str) -> String {
    let first = hostname.split('.').next().unwrap_or_default();
    let name: String = first
        .chars()
        .map(|c| if c.is_alphanumeric() || c == '-' { c } else { '-' })
        .take(64)
        .collect();
    if name.is_empty() { "node".to_owned() } else { name }
}

fn host_id() -> String {
    let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
    let machine = read("/etc/machine-id");
    let boot = read("/proc/sys/kernel/random/boot_id");
    let identity = if machine.trim().is_empty() && boot.trim().is_empty() {
        // Neither is known on this platform: the hostname has to do.
        System::host_name().unwrap_or_default()
    } else {
        format!("{}/{}", machine.trim(), boot.trim())
    };
    blake3::derive_key("mesh 2026 host id", identity.as_bytes())
        .iter()
        .take(8)
        .map(|byte| format!("{byte:02x}"))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hostnames_become_names_of_nodes() {
        assert_eq!(fit_name("big_box.example.org"), "big-box");
        assert_eq!(fit_name(""), "node");
    }

    #[test]
    fn this_machine_has_cores_and_memory_and_one_identity() {
        let facts = host_facts();
        assert!(facts.cores > 0 && facts.memory > 0);
        assert_eq!(facts.host_id, host_facts().host_id);
    }
}
