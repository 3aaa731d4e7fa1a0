//! The rules of a plugin's calls, held by a plugin and requests that do anything at any time.

mod cases;
mod library;
mod outcomes;
mod rules;
mod steps;
mod world;

use std::time::{Duration, Instant};

use rules::check;
use steps::{Return, Step};
use world::World;

use super::*;
use crate::{
    events::{Receipt, ReceiptEnd},
    plugin::{
        call::{CallResult, Job, Place, WorkerKey},
        health::Health,
        ledger::{Loss, ProposalOutcome},
        permits::{Class, Permits},
    },
    ports::plugin::{
        AbortReason, CallFault, CallFaultKind, Candidates, DecisionId, DiscardReason, Discarded, Disposition,
        GenerationFinish, GenerationIds, GenerationStart, Outcome, Poll, ProposalQuery,
    },
};

const ALL: PluginAbilities = PluginAbilities {
    commits: true,
    token_ids: true,
    reports: true,
    proposes: true,
    serial: false,
};
