//! How many candidates are asked for.

/// Most candidates of a step. With the last token's row they are 25 rows of one call: past about that number a row
/// costs as much as it saves on CPUs, and in exact mode a call has at most 60.
const MOST: usize = 24;

/// Candidates of the first query.
const FIRST: usize = 8;

/// Grows while all candidates are right, shrinks to what was right when they are not: a wrong candidate costs the time
/// of a row on every stage.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DraftLength {
    wanted: usize,
}

impl Default for DraftLength {
    fn default() -> Self {
        Self { wanted: FIRST }
    }
}

impl DraftLength {
    /// Most tokens to ask for.
    pub fn wanted(self) -> u32 {
        self.wanted as u32
    }

    /// So many of the candidates were right.
    pub fn came_out(&mut self, proposed: usize, accepted: usize) {
        self.wanted = if accepted < proposed {
            accepted.max(1).next_power_of_two().min(self.wanted).max(2)
        } else {
            self.wanted.max(proposed * 2).min(MOST)
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_grows_on_text_that_repeats_and_shrinks_on_text_that_does_not() {
        let mut draft = DraftLength::default();
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
