//! Which questions the child has, and who is to blame when it ends: a machine without IO.
//!
//! A child that ended with one question under way was ended by it. With several, each of them is asked again alone, on a
//! new child, while the others wait: the one that did it does it again, and the innocent have their answer.

use std::collections::VecDeque;

/// Questions that wait for the child. Requests have bounds of their own, well below; what comes above waits outside.
pub(super) const WAITING_LIMIT: usize = 1024;

/// How often a question is asked at most: once, once more alone, and once more if another was overdue meanwhile.
const ATTEMPTS: u32 = 3;

/// Input of the machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Input {
    /// A new question; long ones are asked one at a time.
    Asked { id: u64, long: bool },
    /// Its asker has gone before the child had it.
    Gone(u64),
    /// The child answered.
    Answered(u64),
    /// The child had a question for too long.
    Overdue(u64),
    /// A child is ready.
    Up,
    /// The child has ended by itself, or was told to.
    Down,
    /// No child can be had for now.
    Unavailable,
}

/// What is to be done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Effect {
    /// Ask the child, if the asker still waits; otherwise it counts as answered.
    Ask(u64),
    /// Refuse a question.
    Refuse(u64, Blame),
    /// Kill the child.
    Kill,
}

/// Why a question has no answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Blame {
    /// It ended the child.
    Ended,
    /// It took too long.
    Overdue,
    /// Others ended the child too often, or none can be started.
    Unavailable,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Job {
    id: u64,
    long: bool,
    attempts: u32,
}

#[derive(Debug)]
pub(super) struct Machine {
    /// Most questions under way.
    places: usize,
    is_up: bool,
    waiting: VecDeque<Job>,
    /// Were under way with others when a child ended.
    suspects: VecDeque<Job>,
    running: Vec<Job>,
    /// The running one is a suspect.
    alone: bool,
}

impl Machine {
    /// For a child that is up.
    pub fn new(places: usize) -> Self {
        Self {
            places,
            is_up: true,
            waiting: VecDeque::new(),
            suspects: VecDeque::new(),
            running: Vec::new(),
            alone: false,
        }
    }

    /// More questions may come.
    pub fn has_room(&self) -> bool {
        self.waiting.len() < WAITING_LIMIT
    }

    pub fn handle(&mut self, input: Input, effects: &mut Vec<Effect>) {
        match input {
            Input::Asked { id, long } => self.waiting.push_back(Job { id, long, attempts: 0 }),
            Input::Gone(id) => {
                self.waiting.retain(|job| job.id != id);
                self.suspects.retain(|job| job.id != id);
            }
            Input::Answered(id) => self.running.retain(|job| job.id != id),
            Input::Overdue(id) => self.overdue(id, effects),
            Input::Up => self.is_up = true,
            Input::Down => self.down(effects),
            Input::Unavailable => {
                let all = self.suspects.drain(..).chain(self.waiting.drain(..));
                effects.extend(all.map(|job| Effect::Refuse(job.id, Blame::Unavailable)));
            }
        }
        self.ask(effects);
    }

    fn overdue(&mut self, id: u64, effects: &mut Vec<Effect>) {
        if !self.running.iter().any(|job| job.id == id) {
            return;
        }
        self.running.retain(|job| job.id != id);
        effects.extend([Effect::Refuse(id, Blame::Overdue), Effect::Kill]);
        self.is_up = false;
        // The others did nothing wrong.
        for job in std::mem::take(&mut self.running).into_iter().rev() {
            self.again(job, false, effects);
        }
    }

    fn down(&mut self, effects: &mut Vec<Effect>) {
        self.is_up = false;
        match std::mem::take(&mut self.running)[..] {
            [job] => effects.push(Effect::Refuse(job.id, Blame::Ended)),
            ref several => several.iter().for_each(|job| self.again(*job, true, effects)),
        }
    }

    fn again(&mut self, job: Job, suspect: bool, effects: &mut Vec<Effect>) {
        if job.attempts >= ATTEMPTS {
            effects.push(Effect::Refuse(job.id, Blame::Unavailable));
        } else if suspect || self.alone {
            self.suspects.push_back(job);
        } else {
            self.waiting.push_front(job);
        }
    }

    fn ask(&mut self, effects: &mut Vec<Effect>) {
        if self.running.is_empty() {
            self.alone = false;
        }
        while self.is_up
            && let Some(mut job) = self.next()
        {
            job.attempts += 1;
            self.running.push(job);
            effects.push(Effect::Ask(job.id));
        }
    }

    fn next(&mut self) -> Option<Job> {
        if self.alone {
            return None;
        }
        if !self.suspects.is_empty() {
            if !self.running.is_empty() {
                return None;
            }
            self.alone = true;
            return self.suspects.pop_front();
        }
        if self.running.len() >= self.places {
            return None;
        }
        let has_long = self.running.iter().any(|job| job.long);
        let at = self.waiting.iter().position(|job| !(job.long && has_long))?;
        self.waiting.remove(at)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn step(machine: &mut Machine, input: Input) -> Vec<Effect> {
        let mut effects = Vec::new();
        machine.handle(input, &mut effects);
        effects
    }

    fn ask(machine: &mut Machine, id: u64) -> Vec<Effect> {
        step(machine, Input::Asked { id, long: false })
    }

    #[test]
    fn the_only_one_under_way_is_to_blame() {
        let mut machine = Machine::new(2);
        assert_eq!(ask(&mut machine, 1), [Effect::Ask(1)]);
        assert_eq!(step(&mut machine, Input::Down), [Effect::Refuse(1, Blame::Ended)]);
        assert_eq!(ask(&mut machine, 2), []);
        assert_eq!(step(&mut machine, Input::Up), [Effect::Ask(2)]);
    }

    #[test]
    fn suspects_are_asked_again_alone_and_the_innocent_are_answered() {
        let mut machine = Machine::new(2);
        ask(&mut machine, 1);
        ask(&mut machine, 2);
        assert_eq!(ask(&mut machine, 3), []);
        assert_eq!(step(&mut machine, Input::Down), []);
        assert_eq!(step(&mut machine, Input::Up), [Effect::Ask(1)]);
        assert_eq!(step(&mut machine, Input::Answered(1)), [Effect::Ask(2)]);
        assert_eq!(step(&mut machine, Input::Down), [Effect::Refuse(2, Blame::Ended)]);
        assert_eq!(step(&mut machine, Input::Up), [Effect::Ask(3)]);
    }

    #[test]
    fn who_is_overdue_ends_the_child_and_the_others_are_asked_again() {
        let mut machine = Machine::new(2);
        ask(&mut machine, 1);
        ask(&mut machine, 2);
        let effects = step(&mut machine, Input::Overdue(1));
        assert_eq!(effects, [Effect::Refuse(1, Blame::Overdue), Effect::Kill]);
        assert_eq!(step(&mut machine, Input::Down), []);
        assert_eq!(step(&mut machine, Input::Up), [Effect::Ask(2)]);
        assert_eq!(ask(&mut machine, 3), [Effect::Ask(3)]);
    }

    #[test]
    fn long_ones_go_one_by_one_and_hold_nobody_up() {
        let mut machine = Machine::new(3);
        let long = |id| Input::Asked { id, long: true };
        assert_eq!(step(&mut machine, long(1)), [Effect::Ask(1)]);
        assert_eq!(step(&mut machine, long(2)), []);
        assert_eq!(ask(&mut machine, 3), [Effect::Ask(3)]);
        assert_eq!(step(&mut machine, Input::Answered(1)), [Effect::Ask(2)]);
    }

    proptest! {
        /// Whatever happens, every question has one end, and no more are under way than may be.
        #[test]
        fn every_question_ends_once(events in proptest::collection::vec((0..6_u8, 0..64_usize), 1..200)) {
            let mut machine = Machine::new(3);
            let (mut asked, mut running, mut ended) = (0_u64, Vec::new(), Vec::new());
            let mut up = true;
            let mut apply = |input, up: &mut bool, running: &mut Vec<u64>| {
                for effect in step(&mut machine, input) {
                    match effect {
                        Effect::Ask(id) => {
                            assert!(*up && !running.contains(&id));
                            running.push(id);
                        }
                        Effect::Refuse(id, _) => {
                            assert!(!ended.contains(&id));
                            running.retain(|other| *other != id);
                            ended.push(id);
                        }
                        Effect::Kill => {
                            *up = false;
                            running.clear();
                        }
                    }
                }
                if let Input::Answered(id) = input {
                    assert!(!ended.contains(&id));
                    ended.push(id);
                }
                assert!(running.len() <= 3);
            };
            let drain = std::iter::repeat_n((1, 0), 400);
            for (kind, index) in events.into_iter().chain([(5, 0)]).chain(drain) {
                let pick = |running: &[u64]| (!running.is_empty()).then(|| running[index % running.len()]);
                match kind {
                    0 => {
                        asked += 1;
                        apply(Input::Asked { id: asked, long: asked % 3 == 0 }, &mut up, &mut running);
                    }
                    1 | 2 => {
                        if let Some(id) = pick(&running) {
                            running.retain(|other| *other != id);
                            apply(Input::Answered(id), &mut up, &mut running);
                        }
                    }
                    3 => {
                        if let Some(id) = pick(&running) {
                            apply(Input::Overdue(id), &mut up, &mut running);
                        }
                    }
                    4 if up => {
                        up = false;
                        running.clear();
                        apply(Input::Down, &mut up, &mut running);
                    }
                    _ if !up => {
                        up = true;
                        apply(Input::Up, &mut up, &mut running);
                    }
                    _ => {}
                }
            }
            prop_assert_eq!(ended.len() as u64, asked);
        }
    }
}
