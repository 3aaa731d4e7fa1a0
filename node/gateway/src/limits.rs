//! How many connections a gateway holds, and how many bodies it reads, at once.

use crate::serve::Bounds;

/// Most connections of a listener: an idle one costs some 10 KiB.
const MAX_CONNECTIONS: usize = 4096;

/// Below this a node could not be used; it gets so many even where files are scarcer.
const MIN_CONNECTIONS: usize = 32;

/// Of eight files of the process, each of the two listeners takes three; links, model files and the log have the rest.
const FILES_TAKEN: (u64, u64) = (3, 8);

/// Bodies that are being read at once: each may hold up to the body's limit in memory.
const MAX_BODIES: usize = 128;

/// Of the places, how many bodies, and how many one address may hold.
const BODY_SHARE: usize = 6;
const ADDRESS_SHARE: usize = 4;

/// Limits of a gateway.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ConnectionLimits {
    /// Connections of each listener. When all are taken, the one that was silent the longest gives way.
    pub all: usize,
    /// Of these, from one address (an IPv6 network of 64 bits). Loopback has no such limit.
    pub per_address: usize,
    /// Bodies that are being read, over both listeners.
    pub bodies: usize,
}

impl ConnectionLimits {
    /// For a process that may open so many files.
    pub fn for_files(files: u64) -> Self {
        let (taken, of) = FILES_TAKEN;
        let all = usize::try_from(files / of * taken).unwrap_or(MAX_CONNECTIONS);
        let all = all.clamp(MIN_CONNECTIONS, MAX_CONNECTIONS);
        Self {
            all,
            per_address: all / ADDRESS_SHARE,
            bodies: MAX_BODIES.min(all / BODY_SHARE),
        }
    }

    /// Requests that may run: two thirds of the connections at most, so that probes and bodies find a place beside them.
    pub(crate) fn in_flight(&self, wanted: u32) -> u32 {
        let most = u32::try_from(self.all * 2 / 3).unwrap_or(u32::MAX);
        wanted.min(most).max(1)
    }

    pub(crate) fn connections(&self) -> Bounds {
        Bounds {
            all: self.all.max(1),
            per_address: self.per_address.max(1),
        }
    }

    pub(crate) fn bodies(&self) -> Bounds {
        let all = self.bodies.max(1);
        Bounds {
            all,
            // An address that may hold all connections, such as that of a proxy, may send all bodies.
            per_address: (all * self.per_address).div_ceil(self.all.max(1)).clamp(1, all),
        }
    }
}

/// Those of the usual 1,024 files.
impl Default for ConnectionLimits {
    fn default() -> Self {
        Self::for_files(1024)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn running_requests_and_bodies_leave_places_for_probes() {
        for files in [0, 64, 256, 1024, 20_000, 1 << 20, u64::MAX] {
            let limits = ConnectionLimits::for_files(files);
            let taken = limits.in_flight(256) as usize + limits.bodies().all;
            assert!(taken < limits.all, "{files}: {limits:?}");
            assert!(
                files < 100 || 2 * limits.all as u64 <= files / 4 * 3,
                "{files}: {limits:?}"
            );
        }
        let usual = ConnectionLimits::default();
        assert_eq!(
            (usual.all, usual.in_flight(256), usual.bodies, usual.per_address),
            (384, 256, 64, 96)
        );
    }

    #[test]
    fn an_address_with_all_connections_has_all_bodies() {
        let limits = ConnectionLimits::default();
        let proxy = ConnectionLimits {
            per_address: limits.all,
            ..limits
        };
        assert_eq!(proxy.bodies().per_address, proxy.bodies);
        assert_eq!(limits.bodies().per_address, 16);
    }
}
