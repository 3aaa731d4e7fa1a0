//! What is counted of a plugin. Written by its actor and its threads, read by anybody at any time.

use std::{
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use super::health::Health;

/// What came of a proposal; each is counted once.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ProposalOutcome {
    /// Candidates in time.
    Ready,
    /// None this time.
    Abstained,
    /// It found no place in the mailbox.
    QueueFull,
    /// Its deadline passed before the plugin was called, or a call before it had taken as long already.
    ExpiredBeforeDispatch,
    /// Its deadline passed while the plugin looked.
    ExpiredInPlugin,
    /// Candidates after the deadline.
    Late,
    /// It failed, or the candidates do not hold.
    Error,
    /// The request went away, or another proposer was first.
    Cancelled,
}

impl ProposalOutcome {
    /// All of them.
    pub const ALL: [Self; 8] = [
        Self::Ready,
        Self::Abstained,
        Self::QueueFull,
        Self::ExpiredBeforeDispatch,
        Self::ExpiredInPlugin,
        Self::Late,
        Self::Error,
        Self::Cancelled,
    ];

    /// As metrics and commands name it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Ready => "ready",
            Self::Abstained => "abstained",
            Self::QueueFull => "queue_full",
            Self::ExpiredBeforeDispatch => "expired_before_dispatch",
            Self::ExpiredInPlugin => "expired_in_plugin",
            Self::Late => "late",
            Self::Error => "error",
            Self::Cancelled => "cancelled",
        }
    }
}

/// Functions of a plugin.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Callback {
    /// A model is ready.
    Activate,
    /// The model is gone.
    Shutdown,
    /// A lane is held.
    Begin,
    /// Tokens became output.
    Commit,
    /// The normal end.
    Finish,
    /// The other end.
    Abort,
    /// Start looking for candidates.
    Start,
    /// How far is it?
    Poll,
    /// No longer wanted.
    Cancel,
    /// A decision was verified.
    Report,
    /// A decision was not used.
    Discard,
}

impl Callback {
    /// All of them.
    pub const ALL: [Self; 11] = [
        Self::Activate,
        Self::Shutdown,
        Self::Begin,
        Self::Commit,
        Self::Finish,
        Self::Abort,
        Self::Start,
        Self::Poll,
        Self::Cancel,
        Self::Report,
        Self::Discard,
    ];

    /// As metrics and commands name it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Activate => "activate",
            Self::Shutdown => "shutdown",
            Self::Begin => "begin_generation",
            Self::Commit => "commit_generation",
            Self::Finish => "finish_generation",
            Self::Abort => "abort_generation",
            Self::Start => "start_proposal",
            Self::Poll => "poll_proposal",
            Self::Cancel => "cancel_proposal",
            Self::Report => "report_proposal",
            Self::Discard => "discard_proposal",
        }
    }
}

/// What did not fit, or was lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Loss {
    /// A begin found no place: of the generation only its end is told.
    Begin,
    /// A commit found no place, or followed one that did not.
    Commit,
    /// An end found no place: the generation was closed with an abort or, if it had not begun, not told at all.
    End,
    /// Totals did not add up: the generation is told no further.
    Bookkeeping,
    /// A finish that calls before it held up for too long: it became an abort.
    Fence,
    /// A thread that was stuck in a call.
    Thread,
    /// A generation that the plugin never heard the end of, since it was stuck when the node stopped.
    Abandoned,
}

impl Loss {
    /// All of them.
    pub const ALL: [Self; 7] = [
        Self::Begin,
        Self::Commit,
        Self::End,
        Self::Bookkeeping,
        Self::Fence,
        Self::Thread,
        Self::Abandoned,
    ];

    /// As metrics and commands name it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Begin => "begin",
            Self::Commit => "commit",
            Self::End => "end",
            Self::Bookkeeping => "bookkeeping",
            Self::Fence => "fence",
            Self::Thread => "thread",
            Self::Abandoned => "abandoned",
        }
    }
}

/// Bounds of a latency's buckets, powers of two from one microsecond: the last holds all that is longer than 16 s.
const BUCKETS: usize = 26;

/// Times of one kind.
#[derive(Debug, Default)]
pub struct Times {
    buckets: [AtomicU64; BUCKETS],
    longest_us: AtomicU64,
}

/// A summary of times, microseconds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct TimesSummary {
    /// How many.
    pub count: u64,
    /// Half are below; the upper bound of a bucket, to a factor of two.
    pub p50_us: u64,
    /// 99 of 100 are below; likewise.
    pub p99_us: u64,
    /// The longest.
    pub longest_us: u64,
}

impl Times {
    /// Counts one.
    pub fn record(&self, time: Duration) {
        let us = u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
        let bucket = (u64::BITS - us.leading_zeros()) as usize;
        self.buckets[bucket.min(BUCKETS - 1)].fetch_add(1, Ordering::Relaxed);
        self.longest_us.fetch_max(us, Ordering::Relaxed);
    }

    /// All so far.
    pub fn summary(&self) -> TimesSummary {
        let counts: Vec<u64> = self.buckets.iter().map(|count| count.load(Ordering::Relaxed)).collect();
        let count: u64 = counts.iter().sum();
        let longest_us = self.longest_us.load(Ordering::Relaxed);
        let below = |part: u64| {
            let wanted = (count * part).div_ceil(100);
            let mut sum = 0;
            let reached = counts.iter().position(|bucket| {
                sum += bucket;
                sum >= wanted
            });
            reached.map_or(0, |bucket| (1u64 << bucket).min(longest_us))
        };
        TimesSummary {
            count,
            p50_us: if count == 0 { 0 } else { below(50) },
            p99_us: if count == 0 { 0 } else { below(99) },
            longest_us,
        }
    }
}

/// Everything that is counted of one plugin.
#[derive(Debug, Default)]
pub struct PluginLedger {
    proposals: [AtomicU64; ProposalOutcome::ALL.len()],
    losses: [AtomicU64; Loss::ALL.len()],
    calls: [Times; Callback::ALL.len()],
    errors: [AtomicU64; Callback::ALL.len()],
    queue_wait: Times,
    proposed_tokens: AtomicU64,
    accepted_tokens: AtomicU64,
    discarded: AtomicU64,
    followed: AtomicU64,
    spurious_wakes: AtomicU64,
    state: Mutex<State>,
}

#[derive(Debug, Clone, Default)]
struct State {
    health: Health,
    reason: String,
    last_error: String,
}

/// A reading of the ledger.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PluginFigures {
    /// Health.
    pub health: Health,
    /// Why it is not healthy.
    pub reason: String,
    /// Last error of any call, with the name of the call.
    pub last_error: String,
    /// Of proposals, in the order of [`ProposalOutcome::ALL`].
    pub proposals: Vec<(ProposalOutcome, u64)>,
    /// What was lost.
    pub losses: Vec<(Loss, u64)>,
    /// Of each function: times and errors.
    pub calls: Vec<(Callback, TimesSummary, u64)>,
    /// How long calls waited for a thread.
    pub queue_wait: TimesSummary,
    /// Candidates that were verified.
    pub proposed_tokens: u64,
    /// Those of them that the model produced too.
    pub accepted_tokens: u64,
    /// Decisions that were not used.
    pub discarded: u64,
    /// Generations that are followed now.
    pub followed: u64,
    /// Wakes for operations that were not open.
    pub spurious_wakes: u64,
}

fn place<T: PartialEq>(all: &[T], wanted: &T) -> usize {
    all.iter().position(|one| one == wanted).unwrap_or(0)
}

impl PluginLedger {
    /// A proposal came to this.
    pub fn proposal(&self, outcome: ProposalOutcome) {
        self.proposals[place(&ProposalOutcome::ALL, &outcome)].fetch_add(1, Ordering::Relaxed);
    }

    /// Something was lost.
    pub fn lost(&self, loss: Loss) {
        self.losses[place(&Loss::ALL, &loss)].fetch_add(1, Ordering::Relaxed);
    }

    /// A function was called.
    pub fn called(&self, callback: Callback, took: Duration) {
        self.calls[place(&Callback::ALL, &callback)].record(took);
    }

    /// A call failed.
    pub fn failed(&self, callback: Callback, message: &str) {
        self.errors[place(&Callback::ALL, &callback)].fetch_add(1, Ordering::Relaxed);
        self.lock().last_error = format!("{}: {message}", callback.name());
    }

    /// A call waited so long for a thread.
    pub fn waited(&self, time: Duration) {
        self.queue_wait.record(time);
    }

    /// Candidates were verified.
    pub fn verified(&self, proposed: u64, accepted: u64) {
        self.proposed_tokens.fetch_add(proposed, Ordering::Relaxed);
        self.accepted_tokens.fetch_add(accepted, Ordering::Relaxed);
    }

    /// A decision was not used.
    pub fn discarded(&self) {
        self.discarded.fetch_add(1, Ordering::Relaxed);
    }

    /// Generations that are followed.
    pub fn following(&self, generations: usize) {
        self.followed.store(generations as u64, Ordering::Relaxed);
    }

    /// A wake for nothing.
    pub fn spurious_wake(&self) {
        self.spurious_wakes.fetch_add(1, Ordering::Relaxed);
    }

    /// Health changed.
    pub fn health(&self, health: Health, reason: &str) {
        let mut state = self.lock();
        state.health = health;
        reason.clone_into(&mut state.reason);
    }

    /// Its actor has ended.
    pub fn ended(&self) {
        self.following(0);
        let mut state = self.lock();
        if state.health != Health::Stopped {
            state.health = Health::Stopped;
            "its actor has ended; see the node's log".clone_into(&mut state.reason);
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// All of it, now.
    pub fn figures(&self) -> PluginFigures {
        let State {
            health,
            reason,
            last_error,
        } = self.lock().clone();
        let read = |count: &AtomicU64| count.load(Ordering::Relaxed);
        PluginFigures {
            health,
            reason,
            last_error,
            proposals: ProposalOutcome::ALL
                .into_iter()
                .zip(self.proposals.iter().map(read))
                .collect(),
            losses: Loss::ALL.into_iter().zip(self.losses.iter().map(read)).collect(),
            calls: Callback::ALL
                .into_iter()
                .zip(self.calls.iter().zip(&self.errors))
                .map(|(callback, (times, errors))| (callback, times.summary(), read(errors)))
                .collect(),
            queue_wait: self.queue_wait.summary(),
            proposed_tokens: read(&self.proposed_tokens),
            accepted_tokens: read(&self.accepted_tokens),
            discarded: read(&self.discarded),
            followed: read(&self.followed),
            spurious_wakes: read(&self.spurious_wakes),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_summary_is_right_to_a_factor_of_two() {
        let times = Times::default();
        assert_eq!(times.summary(), TimesSummary::default());
        for us in 1..=1000 {
            times.record(Duration::from_micros(us));
        }
        let summary = times.summary();
        assert_eq!((summary.count, summary.longest_us), (1000, 1000));
        assert!((500..=1000).contains(&summary.p50_us), "{summary:?}");
        assert!((990..=1000).contains(&summary.p99_us), "{summary:?}");
        times.record(Duration::MAX);
        assert_eq!(times.summary().longest_us, u64::MAX);
    }
}
