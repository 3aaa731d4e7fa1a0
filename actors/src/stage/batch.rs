//! How stage 0 forms batches over lanes: the rows of every lane that decodes, one or with candidates behind it, and a
//! bounded piece of a prompt.

use std::collections::{BTreeMap, VecDeque};

use mesh_proto::{LaneId, SessionId};

use crate::ports::{
    engine::{Batch, RowSpan},
    link::LaneOpen,
};

/// What stage 0 does next.
#[derive(Debug, Clone, PartialEq)]
pub enum HeadJob {
    /// Start a session.
    Open(LaneOpen),
    /// Compute rows.
    Forward(Batch),
    /// End a session.
    Free {
        /// Lane.
        lane: LaneId,
        /// Occupation.
        session: SessionId,
    },
}

/// Rows of one lane that wait.
#[derive(Debug)]
struct Pending {
    span: RowSpan,
    taken: usize,
}

impl Pending {
    fn remaining(&self) -> usize {
        self.span.rows() - self.taken
    }

    /// A step of decoding: every row that is left is sampled. Candidates are few, and waiting behind a prompt would cost
    /// more than they save.
    fn decodes(&self) -> bool {
        self.remaining() <= self.span.sampled_rows as usize
    }

    fn take(&mut self, rows: usize) -> RowSpan {
        let range = self.taken..self.taken + rows;
        self.taken = range.end;
        let left = self.remaining();
        RowSpan {
            lane: self.span.lane,
            session: self.span.session,
            pos_start: self.span.pos_start + range.start as u32,
            tokens: self.span.tokens[range].to_vec(),
            // The sampled rows are the last of the whole span.
            sampled_rows: (self.span.sampled_rows as usize).saturating_sub(left).min(rows) as u32,
        }
    }
}

/// Waiting work of all lanes. Bounded: at most one span per lane waits, since a request asks for its next rows only
/// when the last came back, and a lane has at most one `Free` and one `Open`: a session that is over before the engine
/// has heard of it leaves nothing behind, however often that happens while the engine is busy.
#[derive(Debug)]
pub struct BatchFormer {
    chunk: usize,
    control: VecDeque<HeadJob>,
    pending: BTreeMap<LaneId, Pending>,
    /// Lane whose prompt got the last chunk: the next one goes to a lane after it.
    last_prefill: LaneId,
}

impl BatchFormer {
    /// `chunk` is the most rows of prompts in one batch.
    pub fn new(chunk: usize) -> Self {
        Self {
            chunk: chunk.max(1),
            control: VecDeque::new(),
            pending: BTreeMap::new(),
            last_prefill: LaneId(0),
        }
    }

    /// A session starts.
    pub fn open(&mut self, open: LaneOpen) {
        self.control.push_back(HeadJob::Open(open));
    }

    /// Rows to compute.
    pub fn rows(&mut self, span: RowSpan) {
        if span.rows() > 0 {
            self.pending.insert(span.lane, Pending { span, taken: 0 });
        }
    }

    /// A session is over: its waiting rows are dropped.
    pub fn free(&mut self, lane: LaneId, session: SessionId) {
        if self
            .pending
            .get(&lane)
            .is_some_and(|pending| pending.span.session == session)
        {
            self.pending.remove(&lane);
        }
        let opens = |job: &HeadJob| matches!(job, HeadJob::Open(open) if open.session == session);
        match self.control.iter().position(opens) {
            Some(unheard) => drop(self.control.remove(unheard)),
            None => self.control.push_back(HeadJob::Free { lane, session }),
        }
    }

    /// The next job; `Open` and `Free` come before rows.
    pub fn next_job(&mut self) -> Option<HeadJob> {
        self.control.pop_front().or_else(|| self.form().map(HeadJob::Forward))
    }

    fn form(&mut self) -> Option<Batch> {
        let mut spans: Vec<RowSpan> = self
            .pending
            .values_mut()
            .filter(|pending| pending.decodes())
            .map(|pending| pending.take(pending.remaining()))
            .collect();
        let mut room = self.chunk;
        for lane in self.prefill_order() {
            let Some(pending) = self.pending.get_mut(&lane) else {
                continue;
            };
            let rows = pending.remaining().min(room);
            spans.push(pending.take(rows));
            self.last_prefill = lane;
            room -= rows;
            if room == 0 {
                break;
            }
        }
        self.pending.retain(|_, pending| pending.remaining() > 0);
        spans.sort_by_key(|span| span.lane);
        (!spans.is_empty()).then(|| Batch {
            spans,
            activations: Vec::new(),
        })
    }

    /// Lanes with rows of a prompt left, starting after the one served last.
    fn prefill_order(&self) -> Vec<LaneId> {
        let waiting = |(lane, pending): (&LaneId, &Pending)| (!pending.decodes()).then_some(*lane);
        let after = self
            .pending
            .range((std::ops::Bound::Excluded(self.last_prefill), std::ops::Bound::Unbounded));
        after
            .filter_map(waiting)
            .chain(self.pending.range(..=self.last_prefill).filter_map(waiting))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn span(lane: u32, pos: u32, rows: usize) -> RowSpan {
        let tokens = (0..rows as u32).map(|row| pos + row).collect();
        RowSpan {
            lane: LaneId(lane),
            session: SessionId(1),
            pos_start: pos,
            tokens,
            sampled_rows: 1,
        }
    }

    fn forward(former: &mut BatchFormer) -> Option<Vec<RowSpan>> {
        match former.next_job()? {
            HeadJob::Forward(batch) => Some(batch.spans),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn decode_rows_of_all_lanes_go_with_one_chunk_of_prompt() {
        let mut former = BatchFormer::new(8);
        former.rows(span(2, 40, 1));
        former.rows(span(0, 7, 1));
        former.rows(span(1, 0, 20));
        let spans = forward(&mut former).unwrap();
        let shape: Vec<_> = spans
            .iter()
            .map(|span| (span.lane.0, span.rows(), span.sampled_rows))
            .collect();
        assert_eq!(shape, [(0, 1, 1), (1, 8, 0), (2, 1, 1)]);
        let rest: Vec<_> = std::iter::from_fn(|| forward(&mut former)).flatten().collect();
        let shape: Vec<_> = rest
            .iter()
            .map(|span| (span.pos_start, span.rows(), span.sampled_rows))
            .collect();
        assert_eq!(shape, [(8, 8, 0), (16, 4, 1)]);
    }

    #[test]
    fn candidates_of_a_lane_that_decodes_do_not_wait_behind_a_prompt() {
        let mut former = BatchFormer::new(4);
        former.rows(span(1, 0, 12));
        former.rows(RowSpan {
            sampled_rows: 6,
            ..span(0, 9, 6)
        });
        let shape: Vec<_> = forward(&mut former)
            .unwrap()
            .iter()
            .map(|span| (span.lane.0, span.rows(), span.sampled_rows))
            .collect();
        assert_eq!(shape, [(0, 6, 6), (1, 4, 0)]);
    }

    #[test]
    fn prompts_take_turns() {
        let mut former = BatchFormer::new(4);
        former.rows(span(0, 0, 12));
        former.rows(span(3, 0, 12));
        let lanes: Vec<u32> = std::iter::from_fn(|| forward(&mut former))
            .flatten()
            .map(|span| span.lane.0)
            .collect();
        assert_eq!(lanes, [3, 0, 3, 0, 3, 0]);
    }

    #[test]
    fn freeing_drops_waiting_rows_of_that_session_only() {
        let mut former = BatchFormer::new(4);
        former.rows(span(0, 0, 12));
        former.free(LaneId(0), SessionId(1));
        assert!(matches!(former.next_job(), Some(HeadJob::Free { .. })));
        assert_eq!(former.next_job(), None);
        former.rows(RowSpan {
            session: SessionId(2),
            ..span(0, 0, 2)
        });
        former.free(LaneId(0), SessionId(1));
        assert!(matches!(former.next_job(), Some(HeadJob::Free { .. })));
        assert!(matches!(former.next_job(), Some(HeadJob::Forward(_))));
    }

    #[test]
    fn sessions_that_end_before_they_began_leave_nothing_behind() {
        let mut former = BatchFormer::new(4);
        let lane = LaneId(0);
        let open = |session| LaneOpen {
            lane,
            session: SessionId(session),
            sampling: Box::default(),
            trace: None,
        };
        former.open(open(1));
        assert!(matches!(former.next_job(), Some(HeadJob::Open(_))));
        for session in 1..1000 {
            former.free(lane, SessionId(session));
            former.open(open(session + 1));
            former.rows(RowSpan {
                session: SessionId(session + 1),
                ..span(0, 0, 3)
            });
            assert!(former.control.len() <= 2, "{}", former.control.len());
        }
        assert_eq!(
            former.next_job(),
            Some(HeadJob::Free {
                lane,
                session: SessionId(1)
            })
        );
        assert_eq!(former.next_job(), Some(HeadJob::Open(open(1000))));
        assert!(matches!(former.next_job(), Some(HeadJob::Forward(_))));
    }

    proptest! {
        /// Every row is computed once, in order, and the sampled ones are the last of what was asked.
        #[test]
        fn every_row_once_in_order(
            chunk in 1usize..70,
            spans in proptest::collection::vec((1usize..200, 1u32..4), 1..6),
        ) {
            let mut former = BatchFormer::new(chunk);
            for (lane, (rows, sampled)) in spans.iter().enumerate() {
                let sampled_rows = (*sampled).min(*rows as u32);
                former.rows(RowSpan { sampled_rows, ..span(lane as u32, 0, *rows) });
            }
            let mut seen: BTreeMap<LaneId, (Vec<u32>, Vec<u32>)> = BTreeMap::new();
            while let Some(batch) = forward(&mut former) {
                prop_assert!(batch.windows(2).all(|pair| pair[0].lane < pair[1].lane));
                let prompts = batch.iter().filter(|part| part.rows() > part.sampled_rows as usize);
                prop_assert!(prompts.map(RowSpan::rows).sum::<usize>() <= chunk);
                for part in batch {
                    let (rows, sampled) = seen.entry(part.lane).or_default();
                    prop_assert_eq!(part.pos_start as usize, rows.len());
                    rows.extend(&part.tokens);
                    sampled.extend(&part.tokens[part.rows() - part.sampled_rows as usize..]);
                }
            }
            for (lane, (rows, sampled)) in spans.iter().enumerate() {
                let (got, drawn) = &seen[&LaneId(lane as u32)];
                prop_assert_eq!(got.len(), *rows);
                let sampled = (*sampled as usize).min(*rows);
                prop_assert_eq!(&got[rows - sampled..], drawn.as_slice());
            }
        }
    }
}
