//! A bounded number of places: when they run out, whoever has been silent the longest gives way to the newcomer.
//!
//! So nobody can hold a place by doing nothing, however many try, and the newest has one at once. Who is at work (a
//! generation, a subscription) is not asked to go; what may be at work at once is bounded elsewhere, below the number of
//! places.

use std::{
    collections::{BTreeMap, HashMap},
    net::{IpAddr, Ipv6Addr},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use tokio_util::sync::CancellationToken;

use super::seldom::Seldom;

/// Bits of an IPv6 address that tell networks apart: one machine has all addresses behind them.
const NETWORK_BITS: u32 = 64;

/// How many places there are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Bounds {
    /// In all; at least one.
    pub(crate) all: usize,
    /// For one address; loopback is not counted, where a proxy makes all clients one, and so are all users of a machine.
    pub(crate) per_address: usize,
}

/// Places of one kind. Cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct Places(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    what: &'static str,
    bounds: Bounds,
    held: Mutex<Held>,
    /// The log hears of it now and then, not each time.
    told: Seldom,
}

#[derive(Debug, Default)]
struct Held {
    /// Numbers places, and the order in which they were last heard of.
    last: u64,
    holders: HashMap<u64, Holder>,
    /// By when they were last heard of.
    silent: BTreeMap<u64, u64>,
    addresses: HashMap<IpAddr, usize>,
}

#[derive(Debug)]
struct Holder {
    address: Option<IpAddr>,
    /// Its key in `silent`; `None` while it works.
    heard: Option<u64>,
    /// Things it does at once.
    works: usize,
    gives_way: CancellationToken,
}

impl Places {
    pub(crate) fn new(what: &'static str, bounds: Bounds) -> Self {
        Self(Arc::new(Shared {
            what,
            bounds,
            held: Mutex::default(),
            told: Seldom::default(),
        }))
    }

    /// A place for a newcomer; `None` if everyone who could give way is at work.
    pub(crate) fn take(&self, address: IpAddr) -> Option<Place> {
        let address = counted(address);
        let mut held = self.0.lock();
        let crowded = |held: &Held| {
            let here = address.and_then(|address| held.addresses.get(&address));
            here.is_some_and(|count| *count >= self.0.bounds.per_address)
        };
        let room = match (crowded(&held), held.holders.len() >= self.0.bounds.all) {
            (true, _) => held.displace(|holder| holder.address == address),
            (false, true) => held.displace(|_| true),
            (false, false) => Room::Free,
        };
        self.0.tell(&room);
        match room {
            Room::None => None,
            Room::Free | Room::Displaced => Some(Place::new(self.clone(), held.add(address))),
        }
    }
}

enum Room {
    Free,
    Displaced,
    None,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Held> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn tell(&self, room: &Room) {
        let outcome = match room {
            Room::Free => return,
            Room::Displaced => "the one that was silent the longest gave way",
            Room::None => "a new one was refused",
        };
        if let Some(times) = self.told.now() {
            let what = self.what;
            tracing::warn!(what, times, limit = self.bounds.all, outcome, "no free place");
        }
    }
}

impl Held {
    fn add(&mut self, address: Option<IpAddr>) -> (u64, CancellationToken) {
        self.last += 1;
        let (number, gives_way) = (self.last, CancellationToken::new());
        if let Some(address) = address {
            *self.addresses.entry(address).or_default() += 1;
        }
        let holder = Holder {
            address,
            heard: Some(number),
            works: 0,
            gives_way: gives_way.clone(),
        };
        self.holders.insert(number, holder);
        self.silent.insert(number, number);
        (number, gives_way)
    }

    /// Has the longest silent of these give way.
    fn displace(&mut self, of: impl Fn(&Holder) -> bool) -> Room {
        let longest = self.silent.values().copied();
        let longest = longest
            .into_iter()
            .find(|number| self.holders.get(number).is_some_and(&of));
        let Some(number) = longest else { return Room::None };
        if let Some(holder) = self.remove(number) {
            holder.gives_way.cancel();
        }
        Room::Displaced
    }

    fn remove(&mut self, number: u64) -> Option<Holder> {
        let holder = self.holders.remove(&number)?;
        if let Some(heard) = holder.heard {
            self.silent.remove(&heard);
        }
        if let Some(address) = holder.address
            && let Some(count) = self.addresses.get_mut(&address)
        {
            *count -= 1;
            if *count == 0 {
                self.addresses.remove(&address);
            }
        }
        Some(holder)
    }

    /// Something came of it now: it is the last to give way.
    fn heard(&mut self, number: u64) {
        self.last += 1;
        let last = self.last;
        let Some(holder) = self.holders.get_mut(&number) else {
            return;
        };
        if let Some(heard) = holder.heard.take() {
            self.silent.remove(&heard);
        }
        if holder.works == 0 {
            holder.heard = Some(last);
            self.silent.insert(last, number);
        }
    }

    fn works(&mut self, number: u64, change: impl FnOnce(usize) -> usize) {
        if let Some(holder) = self.holders.get_mut(&number) {
            holder.works = change(holder.works);
        }
        self.heard(number);
    }
}

/// A held place. Dropping it gives it back.
#[derive(Debug)]
pub(crate) struct Place {
    places: Places,
    number: u64,
    gives_way: CancellationToken,
}

impl Place {
    fn new(places: Places, (number, gives_way): (u64, CancellationToken)) -> Self {
        Self {
            places,
            number,
            gives_way,
        }
    }

    /// Its holder did something.
    pub(crate) fn heard(&self) {
        self.places.0.lock().heard(self.number);
    }

    /// Its holder is at work for as long as the guard lives, and does not give way.
    pub(crate) fn work(self: &Arc<Self>) -> AtWork {
        self.places.0.lock().works(self.number, |works| works + 1);
        AtWork(self.clone())
    }

    /// Cancelled when the holder has to go.
    pub(crate) fn gives_way(&self) -> &CancellationToken {
        &self.gives_way
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.places.0.lock().remove(self.number);
    }
}

/// Keeps a place from giving way.
#[derive(Debug)]
pub(crate) struct AtWork(Arc<Place>);

impl Drop for AtWork {
    fn drop(&mut self) {
        let place = &self.0;
        place
            .places
            .0
            .lock()
            .works(place.number, |works| works.saturating_sub(1));
    }
}

/// The address as it is counted; loopback is not.
fn counted(address: IpAddr) -> Option<IpAddr> {
    match address.to_canonical() {
        address if address.is_loopback() => None,
        IpAddr::V6(address) => {
            let network = u128::from(address) >> (Ipv6Addr::BITS - NETWORK_BITS) << (Ipv6Addr::BITS - NETWORK_BITS);
            Some(Ipv6Addr::from(network).into())
        }
        address => Some(address),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn places(all: usize, per_address: usize) -> Places {
        Places::new("tests", Bounds { all, per_address })
    }

    fn take(places: &Places, address: &str) -> Option<Arc<Place>> {
        places.take(address.parse().unwrap()).map(Arc::new)
    }

    fn gave_way(place: &Place) -> bool {
        place.gives_way().is_cancelled()
    }

    #[test]
    fn the_longest_silent_gives_way_to_a_newcomer() {
        let places = places(3, 3);
        let held: Vec<_> = (0..3).map(|_| take(&places, "127.0.0.1").unwrap()).collect();
        held[0].heard();
        let newcomer = take(&places, "127.0.0.1").unwrap();
        assert_eq!(
            held.iter().map(|place| gave_way(place)).collect::<Vec<_>>(),
            [false, true, false]
        );
        // Its place is counted once, however late it goes.
        drop(held);
        let _more: Vec<_> = (0..2).map(|_| take(&places, "127.0.0.1").unwrap()).collect();
        assert!(!gave_way(&newcomer));
        let _one_too_many = take(&places, "127.0.0.1").unwrap();
        assert!(gave_way(&newcomer));
    }

    #[test]
    fn who_works_never_gives_way_and_only_then_is_a_newcomer_refused() {
        let places = places(2, 2);
        let (first, second) = (take(&places, "::1").unwrap(), take(&places, "::1").unwrap());
        let (one, two) = (first.work(), first.work());
        drop(one);
        let third = take(&places, "::1").unwrap();
        assert!(!gave_way(&first) && gave_way(&second));
        let _third_works = third.work();
        assert!(take(&places, "::1").is_none());
        drop(two);
        assert!(take(&places, "::1").is_some() && gave_way(&first));
    }

    #[test]
    fn an_address_displaces_its_own_and_loopback_is_not_counted() {
        let places = places(6, 2);
        let loopback: Vec<_> = (0..3).map(|_| take(&places, "::ffff:127.0.0.1").unwrap()).collect();
        let other = take(&places, "192.0.2.1").unwrap();
        // One network of IPv6 counts as one.
        let crowd = [
            take(&places, "2001:db8::1").unwrap(),
            take(&places, "2001:db8::2").unwrap(),
        ];
        let third = take(&places, "2001:db8::3").unwrap();
        assert!(gave_way(&crowd[0]) && !gave_way(&crowd[1]) && !gave_way(&third) && !gave_way(&other));
        assert!(!loopback.iter().any(|place| gave_way(place)));
        let _works = (crowd[1].work(), third.work());
        assert!(take(&places, "2001:db8::4").is_none() && take(&places, "2001:db8:0:1::4").is_some());
    }

    #[test]
    fn nothing_is_left_of_those_who_have_gone() {
        let places = places(2, 2);
        for _ in 0..3 {
            let held = [take(&places, "192.0.2.1").unwrap(), take(&places, "192.0.2.1").unwrap()];
            let _works = held[0].work();
            held[1].heard();
        }
        let held = places.0.lock();
        assert!(held.holders.is_empty() && held.silent.is_empty() && held.addresses.is_empty());
    }
}
