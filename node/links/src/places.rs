//! Places for peers that have yet to prove something: so many in all, and a share for each address.
//!
//! A newcomer always gets a place. When there is none left, the one that has waited longest gives way: of its own
//! address if that has its share, else of the address that holds the most. So whoever takes many places pushes out its
//! own, and an honest peer, which needs its place for a few round trips, keeps it.

use std::{
    collections::{BTreeMap, HashMap},
    net::{IpAddr, Ipv6Addr},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};

/// What counts as one address: of IPv6 the first 64 bits, which is what one network hands out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Origin(IpAddr);

impl Origin {
    pub fn of(address: IpAddr) -> Self {
        Self(match address.to_canonical() {
            IpAddr::V4(address) => IpAddr::V4(address),
            IpAddr::V6(address) => IpAddr::V6(Ipv6Addr::from_bits(address.to_bits() >> 64 << 64)),
        })
    }
}

/// Cheap to clone.
#[derive(Debug, Clone)]
pub struct Places {
    held: Arc<Mutex<Held>>,
    /// In all.
    total: usize,
    /// Of one address.
    share: usize,
}

#[derive(Debug, Default)]
struct Held {
    last: u64,
    /// By number: those that wait longest first.
    waiting: BTreeMap<u64, Waiting>,
}

#[derive(Debug)]
struct Waiting {
    origin: Origin,
    displaced: CancellationToken,
}

/// A place; dropping it gives it back.
#[derive(Debug)]
pub struct Place {
    held: Arc<Mutex<Held>>,
    number: u64,
    origin: Origin,
    displaced: CancellationToken,
}

impl Places {
    pub fn new(total: usize, share: usize) -> Self {
        Self {
            held: Arc::default(),
            total,
            share,
        }
    }

    /// Places that are taken.
    pub fn taken(&self) -> usize {
        lock(&self.held).waiting.len()
    }

    /// Takes a place, whoever has to give way.
    pub fn enter(&self, origin: Origin) -> Place {
        let mut held = lock(&self.held);
        if let Some(number) = held.gives_way(origin, self.total, self.share)
            && let Some(waiting) = held.waiting.remove(&number)
        {
            waiting.displaced.cancel();
        }
        held.last += 1;
        let (number, displaced) = (held.last, CancellationToken::new());
        let waiting = Waiting {
            origin,
            displaced: displaced.clone(),
        };
        held.waiting.insert(number, waiting);
        Place {
            held: self.held.clone(),
            number,
            origin,
            displaced,
        }
    }
}

impl Held {
    fn gives_way(&self, newcomer: Origin, total: usize, share: usize) -> Option<u64> {
        let mut counts: HashMap<Origin, usize> = HashMap::new();
        for waiting in self.waiting.values() {
            *counts.entry(waiting.origin).or_default() += 1;
        }
        let most = counts.values().max().copied().unwrap_or_default();
        let gives_way = |origin: Origin| {
            if counts.get(&newcomer).is_some_and(|count| *count >= share) {
                origin == newcomer
            } else {
                self.waiting.len() >= total && counts.get(&origin) == Some(&most)
            }
        };
        let oldest = self.waiting.iter().find(|(_, waiting)| gives_way(waiting.origin));
        oldest.map(|(number, _)| *number)
    }
}

impl Place {
    pub fn origin(&self) -> Origin {
        self.origin
    }

    /// Resolves when another has taken the place; never once it was given back.
    pub fn displaced(&self) -> WaitForCancellationFutureOwned {
        self.displaced.clone().cancelled_owned()
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        lock(&self.held).waiting.remove(&self.number);
    }
}

fn lock(held: &Mutex<Held>) -> MutexGuard<'_, Held> {
    held.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn origin(text: &str) -> Origin {
        Origin::of(text.parse().unwrap())
    }

    #[test]
    fn an_address_that_takes_its_share_pushes_out_its_own_oldest() {
        let places = Places::new(8, 2);
        let honest = places.enter(origin("10.0.0.1"));
        let floods: Vec<Place> = (0..5).map(|_| places.enter(origin("10.0.0.2"))).collect();
        let displaced: Vec<bool> = floods.iter().map(|place| place.displaced.is_cancelled()).collect();
        assert_eq!(displaced, [true, true, true, false, false]);
        assert!(!honest.displaced.is_cancelled());
        assert_eq!(places.taken(), 3);
    }

    #[test]
    fn a_full_house_makes_room_at_the_address_that_holds_the_most() {
        let places = Places::new(4, 3);
        let mut held: Vec<Place> = ["10.0.0.1", "10.0.0.2", "10.0.0.2", "10.0.0.3"]
            .map(|address| places.enter(origin(address)))
            .into();
        held.push(places.enter(origin("10.0.0.4")));
        let displaced: Vec<bool> = held.iter().map(|place| place.displaced.is_cancelled()).collect();
        assert_eq!(displaced, [false, true, false, false, false]);
        // Who gave way frees nothing again when it goes.
        held.remove(1);
        assert_eq!(places.taken(), 4);
        held.clear();
        assert_eq!(places.taken(), 0);
    }

    #[test]
    fn a_network_is_one_address_and_so_is_an_ipv4_address_in_ipv6() {
        assert_eq!(origin("2001:db8:1:2::1"), origin("2001:db8:1:2:ffff::9"));
        assert_ne!(origin("2001:db8:1:2::1"), origin("2001:db8:1:3::1"));
        assert_eq!(origin("::ffff:10.0.0.1"), origin("10.0.0.1"));
        assert_ne!(origin("10.0.0.1"), origin("10.0.0.2"));
    }
}
