use std::collections::VecDeque;

use mesh_proto::{ErrorCode, MeshError};
use proptest::prelude::*;

use super::*;
use crate::ports::engine::EngineError;

fn lane_open(lane: LaneId, session: SessionId) -> LaneOpen {
    LaneOpen {
        lane,
        session,
        sampling: Box::default(),
        trace: None,
    }
}

/// A frame by a number: what goes in is told from what comes out by session.
fn frame(kind: u8, number: u64) -> LinkFrame {
    let (lane, session) = (LaneId(0), SessionId(number));
    match kind {
        0 => LinkFrame::Open(lane_open(lane, session)),
        1 => LinkFrame::Free { lane, session },
        2 => LinkFrame::Failed {
            lane,
            session,
            error: MeshError::new(ErrorCode::EngineFailed, "earlier"),
        },
        _ => {
            let span = RowSpan {
                lane,
                session,
                pos_start: 0,
                tokens: vec![1],
                sampled_rows: 1,
            };
            LinkFrame::Forward {
                batch: Batch {
                    spans: vec![span],
                    activations: vec![0.5],
                },
                engine_ns: vec![1],
            }
        }
    }
}

fn number(frame: &LinkFrame) -> u64 {
    match frame {
        LinkFrame::Open(open) => open.session.0,
        LinkFrame::Free { session, .. } | LinkFrame::Failed { session, .. } => session.0,
        LinkFrame::Forward { batch, .. } => batch.spans[0].session.0,
        LinkFrame::Returned { spans, .. } => spans[0].0.session.0,
    }
}

fn done(job: EngineJob, fails: bool) -> EngineDone {
    match job {
        EngineJob::Open(open) if fails => EngineDone::Failed {
            lane: open.lane,
            session: open.session,
            error: MeshError::internal("refused"),
        },
        EngineJob::Open(open) => EngineDone::Opened(open),
        EngineJob::Free { lane, session } => EngineDone::Freed { lane, session },
        EngineJob::Forward { batch, engine_ns } => {
            let mut output = BatchOutput {
                activations: batch.activations,
                ..BatchOutput::default()
            };
            for span in batch.spans {
                if fails {
                    output.failed.push((span, EngineError::Cancelled));
                } else {
                    output.spans.push((span, vec![9]));
                }
            }
            EngineDone::Computed { output, engine_ns }
        }
    }
}

/// The engine and the neighbours of a stage.
#[derive(Default)]
struct World {
    jobs: VecDeque<EngineJob>,
    granted: u32,
    credits: u32,
    sent: Vec<LinkFrame>,
    most_jobs: usize,
}

impl World {
    fn see(&mut self, effects: Vec<Effect>) -> Result<(), TestCaseError> {
        for effect in effects {
            match effect {
                Effect::Run(job) => self.jobs.push_back(job),
                Effect::Grant(frames) => self.granted += frames,
                Effect::Send(frame) => {
                    prop_assert!(self.credits > 0, "sent without a credit");
                    self.credits -= 1;
                    self.sent.push(frame);
                }
            }
        }
        self.most_jobs = self.most_jobs.max(self.jobs.len());
        Ok(())
    }
}

#[derive(Debug, Clone)]
enum Step {
    Frame(u8),
    Done { fails: bool },
    Credit(u32),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (0u8..8).prop_map(Step::Frame),
        3 => proptest::bool::weighted(0.2).prop_map(|fails| Step::Done { fails }),
        2 => (1u32..4).prop_map(Step::Credit),
    ]
}

proptest! {
    /// Frames go through in order, none is lost or doubled, none is sent without a credit, each is granted back once
    /// when it is taken, and what cannot be sent is not computed.
    #[test]
    fn a_stage_keeps_order_and_credits(last in any::<bool>(), steps in proptest::collection::vec(step(), 0..200)) {
        let mut machine = StageMachine::link(last);
        let (mut world, mut arrived) = (World::default(), Vec::new());
        let finish = std::iter::repeat_n([Step::Credit(2), Step::Done { fails: false }], 400).flatten();
        for step in steps.into_iter().chain(finish) {
            let mut effects = Vec::new();
            match step {
                Step::Frame(kind) => {
                    let new = frame(kind, arrived.len() as u64);
                    arrived.push(new.clone());
                    machine.frame(new, &mut effects);
                }
                Step::Done { fails } => {
                    let Some(job) = world.jobs.pop_front() else { continue };
                    machine.done(done(job, fails), &mut effects);
                }
                Step::Credit(frames) => {
                    world.credits += frames;
                    machine.credit(frames, &mut effects);
                }
            }
            world.see(effects)?;
            prop_assert_eq!(world.granted as usize, arrived.len() - machine.waiting(), "grants are frames taken");
            prop_assert!(machine.outbox.len() <= ENGINE_DEPTH + 1, "{} frames wait to be sent", machine.outbox.len());
        }
        prop_assert!(world.most_jobs <= ENGINE_DEPTH);
        prop_assert_eq!(machine.waiting(), 0);
        // The output stage ends sessions silently; what failed passes as it is; the rest is one for one.
        let silent = |frame: &LinkFrame| last && matches!(frame, LinkFrame::Open(_) | LinkFrame::Free { .. });
        let passed = |frames: &[LinkFrame], failed: bool| -> Vec<u64> {
            frames.iter().filter(|frame| matches!(frame, LinkFrame::Failed { .. }) == failed).map(number).collect()
        };
        let (sent, in_order) = (passed(&world.sent, false), passed(&arrived, false));
        prop_assert!(sent.windows(2).all(|pair| pair[0] < pair[1]), "out of order: {sent:?}");
        let mut all: Vec<u64> = world.sent.iter().map(number).collect();
        all.sort_unstable();
        // Opens that fail at the output stage are told, so they may be there.
        let told: Vec<u64> = arrived.iter().filter(|frame| !silent(frame) || all.contains(&number(frame))).map(number).collect();
        prop_assert_eq!(all, told);
        prop_assert!(in_order.len() >= sent.len());
    }

    /// Stage 0 has one job at a time; every row that is not freed meanwhile is computed once, behind its open.
    #[test]
    fn stage_0_computes_every_row_once(steps in proptest::collection::vec((0u32..3, 0u8..4, 1usize..9), 0..80)) {
        let mut machine = StageMachine::head(4, false);
        let mut world = World::default();
        let mut sessions: [Option<u64>; 3] = [None; 3];
        let (mut next, mut asked, mut computed) = (1u64, 0usize, 0usize);
        let finish = std::iter::repeat_n((0, 3, 1), 400);
        for (lane, kind, rows) in steps.into_iter().chain(finish) {
            let mut effects = Vec::new();
            match (kind, sessions[lane as usize]) {
                (0, None) => {
                    sessions[lane as usize] = Some(next);
                    machine.open(lane_open(LaneId(lane), SessionId(next)), &mut effects);
                    let tokens = vec![1; rows];
                    let span = RowSpan { lane: LaneId(lane), session: SessionId(next), pos_start: 0, tokens, sampled_rows: 1 };
                    machine.rows(span, &mut effects);
                    (next, asked) = (next + 1, asked + rows);
                }
                (1, Some(session)) => {
                    sessions[lane as usize] = None;
                    machine.free(LaneId(lane), SessionId(session), &mut effects);
                }
                _ => {
                    machine.credit(1, &mut effects);
                    world.credits += 1;
                    if let Some(job) = world.jobs.pop_front() {
                        machine.done(done(job, false), &mut effects);
                    }
                }
            }
            world.see(effects)?;
            prop_assert!(world.jobs.len() <= 1);
        }
        let (mut open, mut at) = ([0u64; 3], [0usize; 3]);
        for frame in &world.sent {
            match frame {
                LinkFrame::Open(opened) => {
                    let lane = opened.lane.0 as usize;
                    prop_assert_eq!(open[lane], 0, "opened and not free");
                    (open[lane], at[lane]) = (opened.session.0, 0);
                }
                LinkFrame::Free { lane, session } => {
                    prop_assert_eq!(open[lane.0 as usize], session.0);
                    open[lane.0 as usize] = 0;
                }
                LinkFrame::Forward { batch, .. } => {
                    for span in &batch.spans {
                        let lane = span.lane.0 as usize;
                        prop_assert_eq!((open[lane], at[lane]), (span.session.0, span.pos_start as usize));
                        at[lane] += span.rows();
                        computed += span.rows();
                    }
                }
                other => prop_assert!(false, "{other:?}"),
            }
        }
        prop_assert!(computed <= asked);
        prop_assert_eq!(open, sessions.map(|session| session.unwrap_or(0)), "what is open in the end");
    }
}
