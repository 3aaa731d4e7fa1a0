//! How many candidates are asked for, and how often.

/// Most candidates of a step. With the last token's row they are 25 rows of one call: past about that number a row
/// costs as much as it saves on CPUs, and in exact mode a call has at most 60.
pub const MAX_CANDIDATES: u32 = 24;

/// Candidates of all lanes in a batch. With these, a row for each lane and a chunk of a prompt, the activations of the
/// widest models fit in a frame, and lanes that do not speculate do not wait long for those that do.
const BATCH_CANDIDATES: u32 = 256;

/// Most candidates of a step where so many lanes share the stages.
pub fn candidates_for(lanes: u32) -> u32 {
    (BATCH_CANDIDATES / lanes.max(1)).clamp(1, MAX_CANDIDATES)
}

/// Candidates of the first query.
const FIRST: usize = 8;

/// Proposals in a row that are wholly wrong before fewer are asked for. Chance alone rarely does that to a proposer that
/// is right in half of the cases.
const PATIENCE: u32 = 4;

/// Longest rest, as a power of two of steps: a proposer that knows nothing costs a sixty-fourth of its time.
const LONGEST_REST: u32 = 6;

/// Grows while all candidates are right, shrinks to what was right when they are not: a wrong candidate costs the time
/// of a row on every stage. Proposers that are wholly wrong again and again are asked less and less often, since asking
/// costs the time that they take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DraftLength {
    wanted: usize,
    most: usize,
    /// Proposals in a row that were wholly wrong.
    wrong: u32,
    /// Steps that go without.
    rest: u32,
}

impl DraftLength {
    /// At most so many.
    pub fn new(most: u32) -> Self {
        let most = most.max(1) as usize;
        Self {
            wanted: FIRST.min(most),
            most,
            wrong: 0,
            rest: 0,
        }
    }

    /// Most tokens to ask for.
    pub fn wanted(self) -> u32 {
        self.wanted as u32
    }

    /// The next step goes without.
    pub fn rests(&mut self) -> bool {
        let rests = self.rest > 0;
        self.rest = self.rest.saturating_sub(1);
        rests
    }

    /// So many of the candidates were right.
    pub fn came_out(&mut self, proposed: usize, accepted: usize) {
        self.wrong = if accepted == 0 { self.wrong.saturating_add(1) } else { 0 };
        self.rest = match self.wrong.saturating_sub(PATIENCE) {
            0 => 0,
            more => 1 << more.min(LONGEST_REST),
        };
        self.wanted = if accepted < proposed {
            accepted
                .max(1)
                .next_power_of_two()
                .min(self.wanted)
                .max(2.min(self.most))
        } else {
            self.wanted.max(proposed * 2).min(self.most)
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_is_always_wrong_is_asked_less_and_less_until_it_is_right() {
        let mut draft = DraftLength::new(MAX_CANDIDATES);
        let mut asked = 0;
        for _ in 0..1000 {
            if !draft.rests() {
                asked += 1;
                draft.came_out(2, 0);
            }
        }
        assert!((15..30).contains(&asked), "{asked}");
        while draft.rests() {}
        draft.came_out(2, 1);
        assert!(!draft.rests(), "it was right");
    }

    #[test]
    fn lanes_share_the_candidates_of_a_batch() {
        assert_eq!([1, 4, 10, 16, 64, 1000].map(candidates_for), [24, 24, 24, 16, 4, 1]);
        let mut draft = DraftLength::new(candidates_for(1000));
        draft.came_out(1, 1);
        draft.came_out(1, 0);
        assert_eq!(draft.wanted(), 1);
    }

    #[test]
    fn it_grows_on_text_that_repeats_and_shrinks_on_text_that_does_not() {
        let mut draft = DraftLength::new(MAX_CANDIDATES);
        for _ in 0..4 {
            let proposed = draft.wanted() as usize;
            draft.came_out(proposed, proposed);
        }
        assert_eq!(draft.wanted(), 24);
        draft.came_out(24, 0);
        assert_eq!(draft.wanted(), 2);
        draft.came_out(2, 2);
        assert_eq!(draft.wanted(), 4);
        // A proposer that gives fewer than were asked for takes nothing away.
        draft.came_out(1, 1);
        assert_eq!(draft.wanted(), 4);
    }
}
