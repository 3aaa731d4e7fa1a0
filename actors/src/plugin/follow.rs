//! Plugins follow a request: its lifecycle, in the words of their actors, and their answers as proposals.

use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use mesh_proto::ErrorCode;

use super::{
    call::GenerationKey,
    handle::Seat,
    ledger::Loss,
    machine::{Answer, End, Ending, Reply, Resolution},
};
use crate::{
    events::Receipt,
    ports::{
        plugin::{AbortReason, Candidates, GenerationFinish, GenerationIds, GenerationStart, ProposalQuery},
        proposer::{OnAnswer, Proposal, ProposalAnswer, Proposer, Resolved},
    },
};

/// The plugins that follow one model. Cheap to clone; the last clone ends their instances.
#[derive(Debug, Clone, Default)]
pub struct ModelPlugins {
    seats: Arc<[Arc<Seat>]>,
}

impl ModelPlugins {
    /// Those that took the model.
    pub fn new(seats: Vec<Seat>) -> Self {
        Self {
            seats: seats.into_iter().map(Arc::new).collect(),
        }
    }

    /// Nobody follows.
    pub fn is_empty(&self) -> bool {
        self.seats.is_empty()
    }

    /// One of them may propose.
    pub fn propose(&self) -> bool {
        self.seats.iter().any(|seat| seat.handle.facts().abilities.proposes)
    }
}

/// One request that plugins follow. Dropping it without an end tells none: its owner does.
#[derive(Debug)]
pub struct Followers {
    ids: Arc<GenerationIds>,
    attempt: u32,
    followers: Vec<Follower>,
}

#[derive(Debug)]
struct Follower {
    seat: Arc<Seat>,
    /// `None` if begin found no place.
    key: Option<GenerationKey>,
    /// Something was lost: only the end is told.
    incomplete: bool,
    /// It is not asked any more: it said so, or something was lost.
    off: Arc<AtomicBool>,
}

impl Followers {
    /// A lane is held: each plugin hears of it.
    pub fn begin(plugins: &ModelPlugins, start: &Arc<GenerationStart>) -> Self {
        let follow = |seat: &Arc<Seat>| {
            let key = seat.handle.begin(seat.instance, start.clone());
            Follower {
                seat: seat.clone(),
                incomplete: key.is_none(),
                key,
                off: Arc::default(),
            }
        };
        Self {
            ids: Arc::new(start.ids.clone()),
            attempt: start.attempt,
            followers: plugins.seats.iter().map(follow).collect(),
        }
    }

    /// Those that propose, for the request to ask.
    pub fn proposers(&self) -> Vec<Box<dyn Proposer>> {
        self.followers
            .iter()
            .filter(|follower| follower.seat.handle.facts().abilities.proposes)
            .filter_map(|follower| {
                let proposer = PluginProposer {
                    name: follower.seat.handle.facts().name.clone(),
                    seat: follower.seat.clone(),
                    key: follower.key?,
                    off: follower.off.clone(),
                };
                Some(Box::new(proposer) as Box<dyn Proposer>)
            })
            .collect()
    }

    /// Tokens became output.
    pub fn committed(&mut self, tokens: &[u32], total: u64) {
        if tokens.is_empty() {
            return;
        }
        for follower in &mut self.followers {
            let handle = &follower.seat.handle;
            if !handle.facts().abilities.commits && !handle.facts().abilities.proposes {
                continue;
            }
            let fits = !follower.incomplete && follower.key.is_some_and(|key| handle.commit(key, tokens, total));
            if !fits {
                follower.incomplete = true;
                follower.off.store(true, Ordering::Relaxed);
                handle.lost(Loss::Commit);
            }
        }
    }

    /// The normal end.
    pub fn finished(self, receipt: &Arc<Receipt>) {
        self.end(|ids, incomplete| {
            End::Finish(Box::new(GenerationFinish {
                ids: ids.clone(),
                receipt: receipt.clone(),
                incomplete,
            }))
        });
    }

    /// The other end.
    pub fn aborted(self, code: ErrorCode, committed: u64) {
        let reason = match code {
            ErrorCode::Cancelled => AbortReason::Cancelled,
            ErrorCode::StageLost => AbortReason::StageLost,
            ErrorCode::Draining => AbortReason::Shutdown,
            _ => AbortReason::Failed,
        };
        self.end(|_, _| End::Abort { reason, committed });
    }

    fn end(self, end: impl Fn(&GenerationIds, bool) -> End) {
        for Follower {
            seat, key, incomplete, ..
        } in self.followers
        {
            let ending = Ending {
                instance: seat.instance,
                ids: self.ids.clone(),
                attempt: self.attempt,
                begun: key.is_some(),
                incomplete,
                end: end(&self.ids, incomplete),
            };
            seat.handle.end(key, ending);
        }
    }
}

/// A plugin as a proposer of one request.
struct PluginProposer {
    name: Arc<str>,
    seat: Arc<Seat>,
    key: GenerationKey,
    /// It is not asked any more.
    off: Arc<AtomicBool>,
}

impl Proposer for PluginProposer {
    fn name(&self) -> &Arc<str> {
        &self.name
    }

    fn is_off(&self) -> bool {
        self.off.load(Ordering::Relaxed)
    }

    fn propose(&mut self, query: Arc<ProposalQuery>, on_answer: OnAnswer) {
        let mut promise = Promise(Some(on_answer));
        let (seat, key, name, off) = (self.seat.clone(), self.key, self.name.clone(), self.off.clone());
        let reply = Reply(Box::new(move |answer| {
            promise.keep(match answer {
                Answer::Abstain => ProposalAnswer::Abstain,
                Answer::Off => {
                    off.store(true, Ordering::Relaxed);
                    ProposalAnswer::Abstain
                }
                Answer::Candidates(candidates, place) => {
                    let resolve = move |candidates: Candidates, resolved| {
                        let resolution = match resolved {
                            Resolved::Verified(outcome) => Resolution::Report(Box::new((candidates, outcome))),
                            Resolved::Discarded(reason) => Resolution::Discard(Box::new(candidates.discarded(reason))),
                        };
                        seat.handle.resolve(key, resolution, place);
                    };
                    ProposalAnswer::Candidates(Proposal::new(name, candidates, Box::new(resolve)))
                }
            });
        }));
        self.seat.handle.ask(self.key, query, reply);
    }

    fn withdraw(&mut self, step: u64) {
        self.seat.handle.withdraw(self.key, step);
    }
}

/// An answer that is owed: dropped, it abstains, so that no request waits for an actor that has gone.
struct Promise(Option<OnAnswer>);

impl Promise {
    fn keep(&mut self, answer: ProposalAnswer) {
        if let Some(on_answer) = self.0.take() {
            on_answer(answer);
        }
    }
}

impl Drop for Promise {
    fn drop(&mut self) {
        self.keep(ProposalAnswer::Abstain);
    }
}

impl fmt::Debug for PluginProposer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("PluginProposer").field(&self.name).finish()
    }
}
