//! The proposals of one request: all proposers are asked, the first to have candidates is taken.

use std::sync::Arc;

use crate::ports::{
    plugin::ProposalQuery,
    proposer::{OnAnswer, Proposal, ProposalAnswer, Proposer},
};

/// Who is asked, and what is being verified.
#[derive(Debug, Default)]
pub struct Proposals {
    proposers: Vec<Box<dyn Proposer>>,
    step: u64,
    /// Proposers that have not answered this step.
    waiting: Vec<usize>,
    /// Candidates that are computed.
    chosen: Option<Proposal>,
}

impl Proposals {
    /// These are asked.
    pub fn new(proposers: Vec<Box<dyn Proposer>>) -> Self {
        Self {
            proposers,
            ..Self::default()
        }
    }

    /// Asks all of them; false if there is nobody to ask. `on_answer` makes the way back for one of them.
    pub fn ask(&mut self, query: &Arc<ProposalQuery>, on_answer: impl Fn(usize) -> OnAnswer) -> bool {
        self.step = query.step;
        self.waiting = (0..self.proposers.len())
            .filter(|index| !self.proposers[*index].is_off())
            .collect();
        for index in self.waiting.clone() {
            self.proposers[index].propose(query.clone(), on_answer(index));
        }
        !self.waiting.is_empty()
    }

    /// One of them answered. Gives the candidates as soon as they are known, none if nobody has any. What comes too late
    /// is dropped, which discards it.
    pub fn answered(&mut self, index: usize, step: u64, answer: ProposalAnswer) -> Option<Vec<u32>> {
        if step != self.step || !self.waiting.contains(&index) {
            return None;
        }
        self.waiting.retain(|waiting| *waiting != index);
        match answer {
            ProposalAnswer::Abstain => self.waiting.is_empty().then(Vec::new),
            ProposalAnswer::Candidates(proposal) => {
                for other in std::mem::take(&mut self.waiting) {
                    self.proposers[other].withdraw(step);
                }
                let tokens = proposal.candidates()?.tokens.clone();
                self.chosen = Some(proposal);
                Some(tokens)
            }
        }
    }

    /// What is being verified.
    pub fn chosen(&self) -> Option<&Proposal> {
        self.chosen.as_ref()
    }

    /// What was verified, or will not be.
    pub fn take(&mut self) -> Option<Proposal> {
        self.chosen.take()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;
    use crate::ports::{
        plugin::{Candidates, DecisionId},
        proposer::Resolved,
    };

    type Log = Arc<Mutex<Vec<String>>>;

    #[derive(Debug)]
    struct Scripted {
        name: Arc<str>,
        log: Log,
    }

    impl Proposer for Scripted {
        fn name(&self) -> &Arc<str> {
            &self.name
        }

        fn is_off(&self) -> bool {
            &*self.name == "off"
        }

        fn propose(&mut self, query: Arc<ProposalQuery>, _: OnAnswer) {
            self.log.lock().unwrap().push(format!("{} {}", self.name, query.step));
        }

        fn withdraw(&mut self, step: u64) {
            self.log.lock().unwrap().push(format!("{} withdrawn {step}", self.name));
        }
    }

    fn query(step: u64) -> Arc<ProposalQuery> {
        Arc::new(ProposalQuery {
            prompt_count: 1,
            committed_count: 1,
            step,
            max_tokens: 4,
            vocabulary: 8,
            tail: [0].into(),
        })
    }

    fn proposal(name: &str, step: u64, log: &Log) -> ProposalAnswer {
        let candidates = Candidates {
            decision: DecisionId::new(name.as_bytes()).unwrap(),
            step,
            tokens: vec![step as u32],
            base_position: 2,
        };
        let log = log.clone();
        let resolve = move |candidates: Candidates, resolved| {
            let word = match resolved {
                Resolved::Verified(_) => "verified",
                Resolved::Discarded(reason) => reason.name(),
            };
            log.lock().unwrap().push(format!("{} {word}", candidates.decision));
        };
        ProposalAnswer::Candidates(Proposal::new(name.into(), candidates, Box::new(resolve)))
    }

    fn proposals(names: &[&str], log: &Log) -> Proposals {
        let scripted = |name: &&str| {
            let (name, log) = (Arc::from(*name), log.clone());
            Box::new(Scripted { name, log }) as Box<dyn Proposer>
        };
        Proposals::new(names.iter().map(scripted).collect())
    }

    #[test]
    fn the_first_to_have_candidates_proposes_and_all_hear_of_their_own() {
        let log = Log::default();
        let mut three = proposals(&["a", "off", "b", "c"], &log);
        assert!(three.ask(&query(1), |_| Box::new(|_| {})));
        assert_eq!(three.answered(0, 1, ProposalAnswer::Abstain), None);
        assert_eq!(three.answered(2, 1, proposal("b", 1, &log)), Some(vec![1]));
        assert_eq!(three.answered(3, 1, proposal("c", 1, &log)), None);
        drop(three.take());
        assert_eq!(
            *log.lock().unwrap(),
            ["a 1", "b 1", "c 1", "c withdrawn 1", "c cancelled", "b cancelled"]
        );
    }

    #[test]
    fn when_all_abstain_there_are_no_candidates() {
        let log = Log::default();
        let mut two = proposals(&["a", "b"], &log);
        two.ask(&query(1), |_| Box::new(|_| {}));
        assert_eq!(two.answered(0, 1, ProposalAnswer::Abstain), None);
        assert_eq!(two.answered(0, 1, ProposalAnswer::Abstain), None, "once each");
        assert_eq!(two.answered(1, 1, ProposalAnswer::Abstain), Some(vec![]));
        two.ask(&query(2), |_| Box::new(|_| {}));
        assert_eq!(two.answered(1, 1, proposal("late", 1, &log)), None);
        assert!(log.lock().unwrap().contains(&"late cancelled".to_owned()));
        assert!(!proposals(&["off"], &log).ask(&query(1), |_| Box::new(|_| {})));
    }
}
