//! Who holds which lane, and who is next.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use mesh_proto::{LaneId, RequestId, SessionId};

/// A lane for a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Grant {
    /// To whom.
    pub request: RequestId,
    /// Lane.
    pub lane: LaneId,
    /// This occupation.
    pub session: SessionId,
}

/// Lanes `0..lanes`, first come, first served. The lowest free lane is taken first, since rows of adjacent lanes share
/// calls of the engine.
#[derive(Debug)]
pub struct HeadMachine {
    free: BTreeSet<LaneId>,
    held: BTreeMap<LaneId, Grant>,
    waiting: VecDeque<RequestId>,
    sessions: u64,
}

impl HeadMachine {
    /// All lanes are free.
    pub fn new(lanes: u32) -> Self {
        Self {
            free: (0..lanes).map(LaneId).collect(),
            held: BTreeMap::new(),
            waiting: VecDeque::new(),
            sessions: 0,
        }
    }

    /// A request wants a lane.
    pub fn ask(&mut self, request: RequestId) -> Option<Grant> {
        self.waiting.push_back(request);
        self.grant()
    }

    /// A request no longer wants one.
    pub fn withdraw(&mut self, request: RequestId) {
        self.waiting.retain(|waiting| *waiting != request);
    }

    /// An occupation is over; the lane goes to the next. A late or repeated release changes nothing.
    pub fn release(&mut self, lane: LaneId, session: SessionId) -> Option<Grant> {
        if self.holder(lane, session).is_some() {
            self.held.remove(&lane);
            self.free.insert(lane);
        }
        self.grant()
    }

    /// The request of an occupation, if it still holds the lane.
    pub fn holder(&self, lane: LaneId, session: SessionId) -> Option<RequestId> {
        self.held
            .get(&lane)
            .filter(|grant| grant.session == session)
            .map(|grant| grant.request)
    }

    /// What a request holds.
    pub fn held_by(&self, request: RequestId) -> Option<Grant> {
        self.held.values().find(|grant| grant.request == request).copied()
    }

    /// Lanes in use.
    pub fn used(&self) -> usize {
        self.held.len()
    }

    /// Requests that wait.
    pub fn waiting(&self) -> usize {
        self.waiting.len()
    }

    fn grant(&mut self) -> Option<Grant> {
        if self.waiting.is_empty() {
            return None;
        }
        let lane = self.free.pop_first()?;
        let request = self.waiting.pop_front()?;
        self.sessions += 1;
        let grant = Grant {
            request,
            lane,
            session: SessionId(self.sessions),
        };
        self.held.insert(lane, grant);
        Some(grant)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[derive(Debug, Clone)]
    enum Step {
        Ask,
        Withdraw(usize),
        Release(usize),
        StaleRelease(usize),
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            3 => Just(Step::Ask),
            1 => any::<usize>().prop_map(Step::Withdraw),
            3 => any::<usize>().prop_map(Step::Release),
            1 => any::<usize>().prop_map(Step::StaleRelease),
        ]
    }

    proptest! {
        /// No lane is held twice, none is lost, none idles while somebody waits, and sessions are never reused.
        #[test]
        fn lanes_are_neither_lost_nor_doubled(lanes in 1u32..5, steps in proptest::collection::vec(step(), 1..200)) {
            let mut machine = HeadMachine::new(lanes);
            let (mut held, mut asked, mut old) = (Vec::<Grant>::new(), Vec::new(), Vec::<Grant>::new());
            for step in steps {
                let granted = match step {
                    Step::Ask => {
                        let request = RequestId::random();
                        asked.push(request);
                        machine.ask(request)
                    }
                    Step::Withdraw(at) if !asked.is_empty() => {
                        let request = asked[at % asked.len()];
                        if held.iter().all(|grant| grant.request != request) {
                            machine.withdraw(request);
                        }
                        None
                    }
                    Step::Release(at) if !held.is_empty() => {
                        let grant = held.swap_remove(at % held.len());
                        old.push(grant);
                        machine.release(grant.lane, grant.session)
                    }
                    Step::StaleRelease(at) if !old.is_empty() => {
                        let grant = old[at % old.len()];
                        machine.release(grant.lane, grant.session)
                    }
                    _ => None,
                };
                if let Some(grant) = granted {
                    prop_assert!(held.iter().all(|other| other.lane != grant.lane));
                    prop_assert!(old.iter().chain(&held).all(|other| other.session != grant.session));
                    held.push(grant);
                }
                prop_assert_eq!(machine.used(), held.len());
                prop_assert!(machine.waiting() == 0 || machine.used() == lanes as usize);
            }
        }
    }
}
