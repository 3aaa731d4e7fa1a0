//! What a proposal comes to is counted under its name, once.

use super::*;

fn one_thread() -> PluginLimits {
    PluginLimits {
        threads: 1,
        ..PluginLimits::default()
    }
}

fn count(world: &World, wanted: ProposalOutcome) -> u64 {
    let figures = world.ledger.figures();
    let mut all = figures.proposals.iter();
    all.find(|(outcome, _)| *outcome == wanted)
        .map_or(0, |(_, count)| *count)
}

/// A thread looks for candidates.
fn asked() -> World {
    let mut world = World::new(one_thread(), ALL);
    world.begin();
    world.finish_call(WorkerKey(0), Return::Ok);
    world.step(Step::Ask(0));
    world
}

fn asked_then(how: Return) -> World {
    let mut world = asked();
    world.finish_call(WorkerKey(0), how);
    world
}

/// It returns behind the deadline.
fn late(how: Return) -> World {
    let mut world = asked();
    world.step(Step::Advance(8));
    world.finish_call(WorkerKey(0), how);
    world
}

#[test]
fn in_time_it_is_what_the_plugin_says() {
    for (how, outcome) in [
        (Return::Ready, ProposalOutcome::Ready),
        (Return::Abstain, ProposalOutcome::Abstained),
        (Return::Failed, ProposalOutcome::Error),
    ] {
        assert_eq!(count(&asked_then(how), outcome), 1, "{how:?}");
    }
}

#[test]
fn candidates_at_the_deadline_or_behind_it_are_late_and_discarded() {
    // Before the alarm: one reading of the clock decides.
    let mut at_the_deadline = asked();
    at_the_deadline.now += Duration::from_millis(8);
    at_the_deadline.finish_call(WorkerKey(0), Return::Ready);
    for world in [at_the_deadline, late(Return::Ready)] {
        assert_eq!((count(&world, ProposalOutcome::Late), world.answered), (1, 1));
        let Call::Discard(discarded) = &world.jobs[&WorkerKey(0)].call else {
            panic!("{:?}", world.jobs)
        };
        assert_eq!(discarded.reason, DiscardReason::DeadlineExceeded);
    }
}

#[test]
fn an_operation_that_is_open_at_the_deadline_expires_and_is_cancelled() {
    let mut parked = asked_then(Return::Pending);
    parked.step(Step::Advance(8));
    for world in [parked, late(Return::Pending)] {
        assert_eq!(count(&world, ProposalOutcome::ExpiredInPlugin), 1);
        assert!(matches!(world.jobs[&WorkerKey(0)].call, Call::Cancel { .. }));
    }
}

#[test]
fn what_was_withdrawn_is_cancelled_whatever_it_comes_to() {
    let mut world = asked();
    world.step(Step::Withdraw(0));
    world.finish_call(WorkerKey(0), Return::Ready);
    assert_eq!(count(&world, ProposalOutcome::Cancelled), 1);
}

#[test]
fn a_question_behind_a_slow_call_expires_before_it_is_dispatched() {
    let mut world = World::new(one_thread(), ALL);
    world.begin();
    world.step(Step::Ask(0));
    assert_eq!(world.answered, 0, "begin may return in time");
    world.step(Step::Advance(8));
    assert_eq!(count(&world, ProposalOutcome::ExpiredBeforeDispatch), 1);
    world.step(Step::Ask(0));
    assert_eq!(world.answered, 2, "begin has taken as long as a question may: at once");
    assert_eq!(count(&world, ProposalOutcome::ExpiredBeforeDispatch), 2);
    let none = asked_then(Return::Abstain);
    assert_eq!(count(&none, ProposalOutcome::ExpiredBeforeDispatch), 0);
}

#[test]
fn a_question_in_a_call_that_hangs_is_counted_when_the_thread_is_given_up() {
    let mut hung = asked();
    hung.step(Step::Advance(5_000));
    assert_eq!(count(&hung, ProposalOutcome::ExpiredInPlugin), 1);
    hung.finish_call(WorkerKey(0), Return::Ready);
    assert_eq!(count(&hung, ProposalOutcome::Late), 0, "once");
}
