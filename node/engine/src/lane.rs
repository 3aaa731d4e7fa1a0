//! What a stage knows about one lane.

use mesh_actors::ports::engine::EngineError;
use mesh_proto::{LaneId, SessionId};

use crate::sampling::Sampler;

/// One KV stream and who holds it.
#[derive(Default)]
pub(crate) struct Lane {
    /// Occupation, where the lane is held.
    pub session: Option<SessionId>,
    /// Positions whose keys and values are in the cache: `0..length`.
    pub length: u32,
    /// Tokens at these positions, at the output stage.
    pub history: Vec<u32>,
    /// Sampling of the session, at the output stage.
    pub sampler: Option<Sampler>,
}

impl Lane {
    /// Forgets positions from `position` on. The cache is the caller's business.
    pub(crate) fn truncate(&mut self, position: u32) {
        self.length = self.length.min(position);
        self.history.truncate(position as usize);
    }

    /// Positions `0..start` are there, the session is the one that holds the lane, and `rows` more fit in `context`.
    pub(crate) fn check(
        &self,
        lane: LaneId,
        session: SessionId,
        start: u32,
        rows: usize,
        context: u32,
    ) -> Result<(), EngineError> {
        let refused = |position: u32, reason: String| Err(EngineError::Position { lane, position, reason });
        match self.session {
            Some(held) if held == session => {}
            Some(held) => {
                return refused(
                    start,
                    format!("session {held} holds the lane, not {session}; open it first"),
                );
            }
            None => return refused(start, "no session holds the lane; open it first".to_owned()),
        }
        if start > self.length {
            let length = self.length;
            return refused(
                start,
                format!("the lane has only {length} positions; send the rows from there on"),
            );
        }
        let end = u32::try_from(rows).ok().and_then(|rows| start.checked_add(rows));
        match end {
            Some(end) if end <= context => Ok(()),
            _ => refused(
                context,
                format!("the context has {context} positions; send fewer rows, or serve with a longer --context"),
            ),
        }
    }
}
