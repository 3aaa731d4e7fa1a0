//! Between stage frames on the wire and frames as actors know them. Everything from a peer is checked here.

use mesh_actors::ports::{
    engine::{Batch, RowSpan},
    link::{LaneOpen, LinkFrame, LinkHello},
};
use mesh_proto::{
    Epoch, ErrorCode, LaneId, MeshError, SessionId,
    frame::MAX_ROWS,
    sampling::{default_sampling, validate_sampling},
    wire::{self, StageHello, stage_header::Body},
};

use crate::error::protocol;

/// What a frame must be consistent with.
#[derive(Debug, Clone, Copy)]
pub struct LinkShape {
    /// Values per row of payload.
    pub n_embd: usize,
    /// A return link carries no payload.
    pub is_return: bool,
}

/// To the wire.
pub fn to_wire(frame: LinkFrame) -> (Body, Vec<f32>) {
    match frame {
        LinkFrame::Open(open) => (
            Body::Open(wire::LaneOpen {
                lane: open.lane.0,
                session: open.session.0,
                sampling: Some(*open.sampling),
                traceparent: open.trace.map(|trace| trace.to_string()).unwrap_or_default(),
            }),
            Vec::new(),
        ),
        LinkFrame::Forward { batch, engine_ns } => {
            let spans = batch.spans.into_iter().map(span_to_wire).collect();
            (Body::Forward(wire::Forward { spans, engine_ns }), batch.activations)
        }
        LinkFrame::Free { lane, session } => (
            Body::Free(wire::LaneFree {
                lane: lane.0,
                session: session.0,
            }),
            Vec::new(),
        ),
        LinkFrame::Failed { lane, session, error } => {
            let (code, message) = (error.code.name().to_owned(), error.message);
            (
                Body::Failed(wire::LaneFailed {
                    lane: lane.0,
                    session: session.0,
                    code,
                    message,
                }),
                Vec::new(),
            )
        }
        LinkFrame::Returned { spans, engine_ns } => {
            let spans = spans.into_iter().map(|(span, tokens)| wire::SampledSpan {
                lane: span.lane.0,
                session: span.session.0,
                pos_start: span.pos_start,
                rows: span.tokens.len() as u32,
                tokens,
            });
            (
                Body::Returned(wire::Returned {
                    spans: spans.collect(),
                    engine_ns,
                }),
                Vec::new(),
            )
        }
    }
}

fn span_to_wire(span: RowSpan) -> wire::RowSpan {
    wire::RowSpan {
        lane: span.lane.0,
        session: span.session.0,
        pos_start: span.pos_start,
        tokens: span.tokens,
        sampled_rows: span.sampled_rows,
    }
}

/// From the wire.
///
/// # Errors
///
/// The frame contradicts itself or the link.
pub fn from_wire(body: Body, payload: Vec<f32>, shape: LinkShape) -> Result<LinkFrame, MeshError> {
    let carries_rows = matches!(body, Body::Forward(_));
    if !carries_rows && !payload.is_empty() {
        return Err(protocol("a stage frame without rows carries activations"));
    }
    if matches!(body, Body::Returned(_)) != shape.is_return && !matches!(body, Body::Failed(_)) {
        return Err(protocol("a stage frame travels on a link where it does not belong"));
    }
    Ok(match body {
        Body::Open(open) => {
            let sampling = open.sampling.unwrap_or_else(default_sampling);
            validate_sampling(&sampling)?;
            LinkFrame::Open(LaneOpen {
                lane: LaneId(open.lane),
                session: SessionId(open.session),
                sampling: Box::new(sampling),
                // A trace that cannot be read is no reason to fail a request.
                trace: open.traceparent.parse().ok(),
            })
        }
        Body::Forward(forward) => {
            let spans: Vec<RowSpan> = forward
                .spans
                .into_iter()
                .map(span_from_wire)
                .collect::<Result<_, _>>()?;
            check_rows(&spans, payload.len(), shape.n_embd)?;
            LinkFrame::Forward {
                batch: Batch {
                    spans,
                    activations: payload,
                },
                engine_ns: forward.engine_ns,
            }
        }
        Body::Free(free) => LinkFrame::Free {
            lane: LaneId(free.lane),
            session: SessionId(free.session),
        },
        Body::Failed(failed) => LinkFrame::Failed {
            lane: LaneId(failed.lane),
            session: SessionId(failed.session),
            error: MeshError::new(ErrorCode::from_name(&failed.code), failed.message),
        },
        Body::Returned(returned) => LinkFrame::Returned {
            spans: check_returned(returned.spans)?
                .into_iter()
                .map(sampled_from_wire)
                .collect::<Result<_, _>>()?,
            engine_ns: returned.engine_ns,
        },
        Body::Hello(_) | Body::Welcome(_) | Body::Credit(_) => {
            return Err(protocol(
                "a stage link sent a handshake or credit where a frame was due",
            ));
        }
    })
}

fn span_from_wire(span: wire::RowSpan) -> Result<RowSpan, MeshError> {
    let rows = span.tokens.len();
    if rows == 0 || rows > MAX_ROWS || span.sampled_rows as usize > rows {
        return Err(protocol(format!(
            "a span has {rows} rows of which {} are sampled",
            span.sampled_rows
        )));
    }
    if span.pos_start.checked_add(rows as u32).is_none() {
        return Err(protocol(format!("a span starts at position {}", span.pos_start)));
    }
    Ok(RowSpan {
        lane: LaneId(span.lane),
        session: SessionId(span.session),
        pos_start: span.pos_start,
        tokens: span.tokens,
        sampled_rows: span.sampled_rows,
    })
}

fn check_rows(spans: &[RowSpan], values: usize, n_embd: usize) -> Result<(), MeshError> {
    let rows: usize = spans.iter().map(RowSpan::rows).sum();
    if rows == 0 || rows > MAX_ROWS {
        return Err(protocol(format!(
            "a stage frame has {rows} rows; 1 to {MAX_ROWS} are allowed"
        )));
    }
    if spans.windows(2).any(|pair| pair[0].lane >= pair[1].lane) {
        return Err(protocol("the lanes of a stage frame do not ascend"));
    }
    if rows * n_embd != values {
        return Err(protocol(format!(
            "a stage frame has {rows} rows of {n_embd} values, but {values} values"
        )));
    }
    Ok(())
}

/// Rows of all spans together are bounded, as they are on the way out.
fn check_returned(spans: Vec<wire::SampledSpan>) -> Result<Vec<wire::SampledSpan>, MeshError> {
    let rows = spans
        .iter()
        .fold(0usize, |sum, span| sum.saturating_add(span.rows as usize));
    if rows > MAX_ROWS {
        return Err(protocol(format!(
            "a returned frame has {rows} rows; {MAX_ROWS} are allowed"
        )));
    }
    Ok(spans)
}

/// The rows' own tokens do not travel back; only their number counts at the head.
fn sampled_from_wire(span: wire::SampledSpan) -> Result<(RowSpan, Vec<u32>), MeshError> {
    let rows = span.rows as usize;
    if rows > MAX_ROWS || span.tokens.len() > rows || span.pos_start.checked_add(span.rows).is_none() {
        return Err(protocol(format!(
            "a returned span has {rows} rows and {} tokens",
            span.tokens.len()
        )));
    }
    let own = RowSpan {
        lane: LaneId(span.lane),
        session: SessionId(span.session),
        pos_start: span.pos_start,
        tokens: vec![0; rows],
        sampled_rows: span.tokens.len() as u32,
    };
    Ok((own, span.tokens))
}

/// To the wire.
pub fn hello_to_wire(hello: LinkHello) -> StageHello {
    StageHello {
        deployment: hello.deployment,
        epoch: hello.epoch.0,
        from_stage: hello.from_stage,
        to_stage: hello.to_stage,
        n_embd: hello.n_embd,
        source_id: hello.source_id,
        layer: hello.layer,
    }
}

/// From the wire.
pub fn hello_from_wire(hello: StageHello) -> LinkHello {
    LinkHello {
        deployment: hello.deployment,
        epoch: Epoch(hello.epoch),
        from_stage: hello.from_stage,
        to_stage: hello.to_stage,
        n_embd: hello.n_embd,
        source_id: hello.source_id,
        layer: hello.layer,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHAPE: LinkShape = LinkShape {
        n_embd: 2,
        is_return: false,
    };

    fn span(lane: u32, rows: usize) -> wire::RowSpan {
        wire::RowSpan {
            lane,
            session: 1,
            pos_start: 0,
            tokens: vec![9; rows],
            sampled_rows: 1,
        }
    }

    fn forward(spans: Vec<wire::RowSpan>, values: usize) -> Result<LinkFrame, MeshError> {
        let body = Body::Forward(wire::Forward {
            spans,
            engine_ns: Vec::new(),
        });
        from_wire(body, vec![0.0; values], SHAPE)
    }

    #[test]
    fn frames_survive_the_wire() {
        let batch = Batch {
            spans: vec![RowSpan {
                lane: LaneId(1),
                session: SessionId(5),
                pos_start: 7,
                tokens: vec![1, 2],
                sampled_rows: 1,
            }],
            activations: vec![0.5; 4],
        };
        let frame = LinkFrame::Forward {
            batch,
            engine_ns: vec![3],
        };
        let (body, payload) = to_wire(frame.clone());
        assert_eq!(from_wire(body, payload, SHAPE), Ok(frame));
    }

    #[test]
    fn contradictory_frames_are_refused() {
        assert!(forward(vec![span(0, 2), span(1, 1)], 6).is_ok());
        for (spans, values) in [
            (vec![], 0),
            (vec![span(0, 0)], 0),
            (vec![span(0, 2)], 3),
            (vec![span(1, 1), span(0, 1)], 4),
            (vec![span(1, 1), span(1, 1)], 4),
            (
                vec![wire::RowSpan {
                    sampled_rows: 3,
                    ..span(0, 2)
                }],
                4,
            ),
            (
                vec![wire::RowSpan {
                    pos_start: u32::MAX,
                    ..span(0, 2)
                }],
                4,
            ),
            (vec![span(0, MAX_ROWS + 1)], 2 * (MAX_ROWS + 1)),
        ] {
            assert!(forward(spans, values).is_err());
        }
        let many = wire::SampledSpan {
            rows: MAX_ROWS as u32,
            ..Default::default()
        };
        let flood = Body::Returned(wire::Returned {
            spans: vec![many; 2],
            engine_ns: Vec::new(),
        });
        assert!(
            from_wire(
                flood,
                Vec::new(),
                LinkShape {
                    is_return: true,
                    ..SHAPE
                }
            )
            .is_err()
        );
        let returned = Body::Returned(wire::Returned::default());
        assert!(from_wire(returned.clone(), Vec::new(), SHAPE).is_err());
        assert!(
            from_wire(
                returned,
                Vec::new(),
                LinkShape {
                    is_return: true,
                    ..SHAPE
                }
            )
            .is_ok()
        );
        assert!(from_wire(Body::Credit(wire::Credit { frames: 1 }), Vec::new(), SHAPE).is_err());
    }
}
