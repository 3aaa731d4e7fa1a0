//! Who may come in as far as to prove itself.
//!
//! ```text
//! Initial ─▶ many handshakes under way, address not validated? ── yes ─▶ Retry: nothing is kept
//!                │ no
//!                ▼
//!            a place for the handshake ─▶ the peer's id is known ─┬─ member ───▶ needs no place any more
//!                                                                 └─ stranger ─▶ a place for strangers
//! ```

use std::{
    net::{IpAddr, Ipv6Addr},
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use iroh::endpoint::{Incoming, IncomingAddr};
use mesh_actors::ports::telemetry::{Telemetry, TurnedAway};

use crate::{
    places::{Origin, Place, Places},
    protocol::{HANDSHAKES_PER_ADDRESS, MAX_HANDSHAKES, MAX_UNPROVEN, RETRY_FROM, UNPROVEN_PER_ADDRESS},
};

/// A flood is told in the log this often, with its size; the metric has each.
const LOG_PAUSE: Duration = Duration::from_secs(10);

/// Gives places to those that connect.
#[derive(Debug)]
pub struct Door {
    handshakes: Places,
    strangers: Places,
    telemetry: Arc<dyn Telemetry>,
    log: Mutex<FloodLog>,
}

/// What was turned away since the last line about it.
#[derive(Debug, Default)]
struct FloodLog {
    last: Option<Instant>,
    count: u64,
}

impl FloodLog {
    /// How many to tell of, if it is time to.
    fn count(&mut self, now: Instant) -> Option<u64> {
        self.count += 1;
        let is_due = self.last.is_none_or(|last| now.duration_since(last) >= LOG_PAUSE);
        is_due.then(|| {
            self.last = Some(now);
            std::mem::take(&mut self.count)
        })
    }
}

impl Door {
    pub fn new(telemetry: Arc<dyn Telemetry>) -> Self {
        Self {
            handshakes: Places::new(MAX_HANDSHAKES, HANDSHAKES_PER_ADDRESS),
            strangers: Places::new(MAX_UNPROVEN, UNPROVEN_PER_ADDRESS),
            telemetry,
            log: Mutex::default(),
        }
    }

    /// A place for a handshake. `None`: the peer was told to come again and show that its address is its own.
    pub fn knock(&self, incoming: Incoming) -> Option<(Incoming, Place)> {
        if !incoming.remote_addr_validated() && self.handshakes.taken() >= RETRY_FROM {
            self.turned_away(TurnedAway::Retry);
            if let Err(error) = incoming.retry() {
                error.into_incoming().ignore();
            }
            return None;
        }
        let place = self.handshakes.enter(origin(&incoming));
        Some((incoming, place))
    }

    /// A place for a peer that is not a member.
    pub fn stranger(&self, origin: Origin) -> Place {
        self.strangers.enter(origin)
    }

    /// Somebody was turned away.
    pub fn turned_away(&self, why: TurnedAway) {
        self.telemetry.turned_away(why);
        let count = self
            .log
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .count(Instant::now());
        if let Some(count) = count {
            tracing::warn!(count, last = why.name(), "connections turned away");
        }
    }
}

/// There are no relays here, so what has no address of its own shares one.
fn origin(incoming: &Incoming) -> Origin {
    Origin::of(match incoming.remote_addr() {
        IncomingAddr::Ip(address) => address.ip(),
        _ => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flood_is_one_line_now_and_then_that_tells_its_size() {
        let (mut log, start) = (FloodLog::default(), Instant::now());
        assert_eq!(log.count(start), Some(1));
        assert_eq!(log.count(start), None);
        assert_eq!(log.count(start + LOG_PAUSE / 2), None);
        assert_eq!(log.count(start + LOG_PAUSE), Some(3));
        assert_eq!(log.count(start + LOG_PAUSE), None);
    }
}
