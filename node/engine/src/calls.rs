//! Cuts the rows of a batch into calls of llama.cpp. Pure.
//!
//! A call holds either rows of one lane, or one row each of adjacent lane ids in ascending order: anything else,
//! llama.cpp regroups, and the rows that come back are no longer those that went in.

/// Limits of one call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct CallLimits {
    /// Most rows, at least 2.
    pub rows: usize,
    /// Most rows with logits, at least 2.
    pub outputs: usize,
    /// A call of one row is computed with a second one, which costs a row.
    pub pads: bool,
}

/// How far one span has come.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SpanProgress {
    /// Lane.
    pub lane: u32,
    /// Rows computed.
    pub done: usize,
    /// Rows in all.
    pub rows: usize,
    /// First row whose logits are wanted; `rows` where none is.
    pub outputs_from: usize,
    /// False once the span failed or was cancelled.
    pub live: bool,
}

impl SpanProgress {
    fn remaining(&self) -> usize {
        if self.live { self.rows - self.done } else { 0 }
    }

    /// Rows of the next call, where the lane has it for itself.
    fn chunk(&self, limits: CallLimits) -> usize {
        let remaining = self.remaining();
        let quiet = self.outputs_from.saturating_sub(self.done);
        let rows = remaining.min(limits.rows).min(quiet.saturating_add(limits.outputs));
        // Leaving one row behind would cost a call of its own, with a second row.
        if limits.pads && remaining - rows == 1 && rows > 2 {
            rows - 1
        } else {
            rows
        }
    }
}

/// Rows of one span in a call: `rows` of them from `SpanProgress::done` on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Piece {
    /// Index of the span.
    pub span: usize,
    /// Number of rows.
    pub rows: usize,
}

/// The next call, or nothing when all live spans are done. `spans` ascend by lane.
pub(crate) fn next_call(spans: &[SpanProgress], limits: CallLimits) -> Vec<Piece> {
    if let Some(span) = spans.iter().position(|span| span.remaining() > 1) {
        return vec![Piece {
            span,
            rows: spans[span].chunk(limits),
        }];
    }
    let Some(first) = spans.iter().position(|span| span.remaining() == 1) else {
        return Vec::new();
    };
    let mut call = vec![Piece { span: first, rows: 1 }];
    let mut lane = spans[first].lane;
    for (index, span) in spans.iter().enumerate().skip(first + 1) {
        if span.remaining() == 0 {
            continue;
        }
        if call.len() == limits.rows.min(limits.outputs) || span.lane != lane + 1 {
            break;
        }
        lane = span.lane;
        call.push(Piece { span: index, rows: 1 });
    }
    call
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn span(lane: u32, rows: usize, sampled: usize) -> SpanProgress {
        SpanProgress {
            lane,
            done: 0,
            rows,
            outputs_from: rows - sampled,
            live: true,
        }
    }

    fn sizes(mut spans: Vec<SpanProgress>, limits: CallLimits) -> Vec<Vec<(u32, usize)>> {
        let mut calls = Vec::new();
        loop {
            let call = next_call(&spans, limits);
            if call.is_empty() {
                return calls;
            }
            calls.push(call.iter().map(|piece| (spans[piece.span].lane, piece.rows)).collect());
            for piece in call {
                spans[piece.span].done += piece.rows;
            }
        }
    }

    const LIMITS: CallLimits = CallLimits {
        rows: 60,
        outputs: 8,
        pads: true,
    };

    #[test]
    fn a_remainder_of_one_row_is_avoided() {
        assert_eq!(sizes(vec![span(3, 61, 1)], LIMITS), [[(3, 59)], [(3, 2)]]);
        assert_eq!(sizes(vec![span(3, 121, 1)], LIMITS), [[(3, 60)], [(3, 59)], [(3, 2)]]);
        assert_eq!(sizes(vec![span(0, 60, 1)], LIMITS), [[(0, 60)]]);
        let unpadded = CallLimits { pads: false, ..LIMITS };
        assert_eq!(sizes(vec![span(3, 61, 1)], unpadded), [[(3, 60)], [(3, 1)]]);
    }

    #[test]
    fn single_rows_of_adjacent_lanes_share_a_call() {
        let spans = vec![
            span(0, 1, 1),
            span(1, 1, 1),
            span(2, 5, 1),
            span(3, 1, 1),
            span(5, 1, 1),
        ];
        assert_eq!(
            sizes(spans, LIMITS),
            [vec![(2, 5)], vec![(0, 1), (1, 1)], vec![(3, 1)], vec![(5, 1)]]
        );
    }

    #[test]
    fn a_dead_span_parts_its_neighbours() {
        let mut spans = vec![span(0, 1, 1), span(1, 1, 1), span(2, 1, 1)];
        spans[1].live = false;
        assert_eq!(sizes(spans, LIMITS), [[(0, 1)], [(2, 1)]]);
    }

    #[test]
    fn sampled_rows_stay_below_the_output_limit() {
        assert_eq!(sizes(vec![span(0, 30, 20)], LIMITS), [[(0, 18)], [(0, 8)], [(0, 4)]]);
    }

    proptest! {
        #[test]
        fn every_row_comes_once_and_calls_keep_the_rules(
            lanes in proptest::collection::btree_map(0u32..40, (1usize..200, 0usize..80), 1..20),
            rows in 2usize..80,
            outputs in 2usize..40,
            pads in any::<bool>(),
        ) {
            let limits = CallLimits { rows, outputs, pads };
            let mut spans: Vec<_> =
                lanes.into_iter().map(|(lane, (rows, sampled))| span(lane, rows, sampled.min(rows))).collect();
            loop {
                let call = next_call(&spans, limits);
                if call.is_empty() { break; }
                prop_assert!(call.iter().map(|piece| piece.rows).sum::<usize>() <= rows);
                let mut flagged = 0;
                for piece in &call {
                    let span = &mut spans[piece.span];
                    flagged += (span.done..span.done + piece.rows).filter(|row| *row >= span.outputs_from).count();
                    span.done += piece.rows;
                }
                prop_assert!(flagged <= outputs);
                if call.len() > 1 {
                    prop_assert!(call.iter().all(|piece| piece.rows == 1));
                    prop_assert!(call.windows(2).all(|two| spans[two[0].span].lane + 1 == spans[two[1].span].lane));
                }
            }
            prop_assert!(spans.iter().all(|span| span.done == span.rows));
        }
    }
}
