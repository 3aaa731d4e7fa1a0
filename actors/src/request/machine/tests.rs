//! The rules of a request, held whatever comes.

mod cases;
mod model;
mod rules;
mod world;

use std::sync::Arc;

use mesh_proto::{ErrorCode, LaneId, MeshError, SessionId, sampling::greedy_sampling, v1::FinishReason};

use super::{Effect, Input, RequestMachine, RequestPlan};
use crate::{
    ports::{
        engine::RowSpan,
        plugin::{DiscardReason, Disposition, Outcome, ProposalQuery},
    },
    scripted::{BYTES_VOCABULARY, END, ScriptedVocabulary},
};

const CONTEXT: u32 = 24;

fn plan(max_tokens: Option<u32>) -> RequestPlan {
    RequestPlan {
        sampling: greedy_sampling(),
        max_tokens,
        stop: Vec::new(),
        context: CONTEXT,
        speculates: false,
        max_candidates: 24,
    }
}

fn machine_of(plan: RequestPlan) -> RequestMachine {
    RequestMachine::new(plan, Arc::new(ScriptedVocabulary::default()))
}

fn machine(max_tokens: Option<u32>) -> RequestMachine {
    machine_of(plan(max_tokens))
}

fn handle(machine: &mut RequestMachine, input: Input) -> Vec<Effect> {
    let mut effects = Vec::new();
    machine.handle(input, &mut effects);
    effects
}

fn running(max_tokens: Option<u32>, prompt: usize) -> RequestMachine {
    running_of(plan(max_tokens), prompt)
}

fn running_of(plan: RequestPlan, prompt: usize) -> RequestMachine {
    let mut machine = machine_of(plan);
    handle(&mut machine, Input::Prepared(Ok(vec![1; prompt])));
    handle(
        &mut machine,
        Input::Granted {
            lane: LaneId(0),
            session: SessionId(1),
        },
    );
    machine
}

fn returned(pos_start: u32, rows: u32, tokens: Vec<u32>) -> Input {
    Input::Returned {
        session: SessionId(1),
        pos_start,
        rows,
        tokens,
    }
}

/// A machine that speculates, behind the first of its tokens.
fn asking(max_tokens: Option<u32>) -> (RequestMachine, Arc<ProposalQuery>) {
    let plan = RequestPlan {
        speculates: true,
        ..plan(max_tokens)
    };
    let mut machine = running_of(plan, 4);
    let query = asked(&handle(&mut machine, returned(0, 4, vec![5])));
    (machine, query)
}

fn asked(effects: &[Effect]) -> Arc<ProposalQuery> {
    match effects.last() {
        Some(Effect::Ask(query)) => query.clone(),
        _ => panic!("{effects:?}"),
    }
}

fn candidates(step: u64, tokens: &[u32]) -> Input {
    let tokens = tokens.to_vec();
    Input::Candidates { step, tokens }
}

fn rows(pos_start: u32, tokens: &[u32]) -> Effect {
    Effect::Rows(RowSpan {
        lane: LaneId(0),
        session: SessionId(1),
        pos_start,
        tokens: tokens.to_vec(),
        sampled_rows: tokens.len() as u32,
    })
}
