//! One case each.

use super::*;

#[test]
fn a_stuck_thread_is_given_up_and_the_end_comes_when_its_call_returns() {
    let mut world = World::new(
        PluginLimits {
            threads: 1,
            ..PluginLimits::default()
        },
        ALL,
    );
    world.begin();
    world.step(Step::Advance(4_999));
    assert!(!world.shut_out);
    world.step(Step::Advance(1));
    assert!(world.shut_out);
    world.step(Step::Finish(0));
    assert_eq!(world.jobs.len(), 1, "the thread is in begin");
    world.finish_call(WorkerKey(0), Return::Ok);
    assert!(matches!(world.jobs[&WorkerKey(0)].call, Call::Finish(_)));
    world.settle();
    check(&world).unwrap();
}

#[test]
fn a_finish_whose_fence_times_out_becomes_an_abort() {
    let mut world = World::new(PluginLimits::default(), ALL);
    world.begin();
    world.step(Step::Ask(0));
    world.finish_call(WorkerKey(0), Return::Ok);
    world.finish_call(WorkerKey(0), Return::Ready);
    world.step(Step::Resolve(0, false));
    world.step(Step::Finish(0));
    assert!(matches!(world.jobs[&WorkerKey(0)].call, Call::Discard(_)), "it is slow");
    world.step(Step::Advance(5_000));
    world.finish_call(WorkerKey(0), Return::Ok);
    let Call::Abort(abort) = &world.jobs[&WorkerKey(0)].call else {
        panic!("{:?}", world.jobs)
    };
    assert_eq!(abort.reason, AbortReason::FenceTimeout);
    assert!(world.ledger.figures().losses.contains(&(Loss::Fence, 1)));
    world.settle();
    check(&world).unwrap();
}

#[test]
fn a_failed_finish_is_followed_by_one_abort_that_says_so() {
    let mut world = World::new(PluginLimits::default(), ALL);
    world.begin();
    world.finish_call(WorkerKey(0), Return::Ok);
    world.step(Step::Finish(0));
    world.finish_call(WorkerKey(0), Return::Error);
    let Call::Abort(abort) = &world.jobs[&WorkerKey(0)].call else {
        panic!("{:?}", world.jobs)
    };
    assert!(abort.after_failed_finish && abort.reason == AbortReason::FinishFailed);
    world.settle();
    check(&world).unwrap();
}

#[test]
fn an_error_ends_the_questions_of_its_request_only() {
    let mut world = World::new(PluginLimits::default(), ALL);
    world.begin();
    world.begin();
    world.return_all();
    world.step(Step::Ask(0));
    world.finish_call(WorkerKey(0), Return::Invalid { named: true });
    let calls: Vec<&'static str> = std::iter::from_fn(|| {
        let job = world.jobs.get(&WorkerKey(0))?;
        let name = job.call.callback().name();
        world.finish_call(WorkerKey(0), Return::Ok);
        Some(name)
    })
    .collect();
    assert_eq!(calls, ["cancel_proposal", "discard_proposal"]);
    world.step(Step::Ask(0));
    assert!(world.jobs.is_empty(), "it is asked no more");
    world.step(Step::Ask(1));
    assert_eq!(world.jobs.len(), 1);
    world.settle();
    check(&world).unwrap();
}

#[test]
fn the_fence_takes_the_last_place_and_ends_without_one_become_aborts() {
    let limits = PluginLimits {
        threads: 1,
        queue: 4,
        reserve: 2,
        ..PluginLimits::default()
    };
    let mut world = World::new(limits, ALL);
    for _ in 0..4 {
        world.begin();
    }
    world.begin();
    assert!(world.asking[&GenerationKey(4)].incomplete, "begin found no place");
    world.end(GenerationKey(0), false);
    world.end(GenerationKey(1), false);
    world.end(GenerationKey(2), true);
    world.end(GenerationKey(3), true);
    assert_eq!(world.permits.taken(), 6);
    assert!(world.ledger.figures().losses.contains(&(Loss::End, 2)));
    world.settle();
    check(&world).unwrap();
}

#[test]
fn an_end_that_is_being_told_is_over_before_shutdown() {
    let limits = PluginLimits {
        threads: 2,
        queue: 2,
        ..PluginLimits::default()
    };
    let mut world = World::new(limits, ALL);
    for _ in 0..3 {
        world.begin();
    }
    assert!(world.asking[&GenerationKey(2)].incomplete, "begin found no place");
    world.return_all();
    world.end(GenerationKey(2), false);
    assert!(matches!(world.jobs[&WorkerKey(0)].call, Call::Abort(_)));
    world.step(Step::Commit(0));
    world.finish_call(WorkerKey(1), Return::Panicked);
    for key in [0, 1] {
        world.end(GenerationKey(key), false);
        world.finish_call(WorkerKey(1), Return::Ok);
    }
    world.step(Step::Detach);
    assert_eq!(world.jobs.len(), 1, "the instance still has a call: {:?}", world.jobs);
    world.finish_call(WorkerKey(0), Return::Ok);
    assert!(matches!(world.jobs[&WorkerKey(0)].call, Call::Shutdown));
    world.settle();
    check(&world).unwrap();
}

#[test]
fn a_plugin_is_not_blamed_for_questions_that_were_withdrawn() {
    let limits = PluginLimits {
        threads: 1,
        faults: 2,
        ..PluginLimits::default()
    };
    let mut world = World::new(limits, ALL);
    world.begin();
    world.return_all();
    for _ in 0..9 {
        // Another proposer is first each time, and the next question comes while the plugin still looks.
        world.step(Step::Ask(0));
        world.step(Step::Withdraw(0));
        world.step(Step::Ask(0));
        world.return_all();
    }
    assert_eq!(world.machine.health.health(), Health::Healthy);
    // Past its deadline it is slow, which is said; the question behind it cost nothing.
    for _ in 0..9 {
        world.step(Step::Ask(0));
        world.step(Step::Withdraw(0));
        world.step(Step::Advance(8));
        world.step(Step::Ask(0));
    }
    assert_eq!(world.machine.health.health(), Health::Degraded);
    world.settle();
    check(&world).unwrap();
}

#[test]
fn tokens_that_were_not_committed_are_told_before_finish() {
    let mut world = World::new(PluginLimits::default(), ALL);
    world.begin();
    world.begin();
    world.return_all();
    world.end(GenerationKey(1), true);
    let Call::Commit { tokens, total } = &world.jobs[&WorkerKey(0)].call else {
        panic!("{:?}", world.jobs)
    };
    assert_eq!((tokens.as_slice(), *total), ([0].as_slice(), 1));
    world.finish_call(WorkerKey(0), Return::Ok);
    assert!(matches!(world.jobs[&WorkerKey(0)].call, Call::Finish(_)));
    world.settle();
    check(&world).unwrap();
}

#[test]
fn totals_with_a_gap_end_what_is_told_of_a_generation_but_not_the_generation() {
    let mut world = World::new(PluginLimits::default(), ALL);
    world.begin();
    world.return_all();
    for _ in 0..3 {
        let place = world.permits.try_acquire(Class::Ordinary).unwrap();
        let key = GenerationKey(0);
        let (tokens, total) = (vec![1], 7);
        world.input(Input::Commit {
            key,
            tokens,
            total,
            place,
        });
    }
    assert!(world.jobs.is_empty(), "{:?}", world.jobs);
    assert!(
        world.ledger.figures().losses.contains(&(Loss::Bookkeeping, 1)),
        "counted once"
    );
    world.step(Step::Ask(0));
    assert!(world.jobs.is_empty(), "it is not asked either");
    world.end(GenerationKey(0), true);
    let Call::Finish(finish) = &world.jobs[&WorkerKey(0)].call else {
        panic!("{:?}", world.jobs)
    };
    assert!(finish.incomplete);
}

#[test]
fn an_activation_that_is_refused_leaves_nothing_behind() {
    let refused = |world: &mut World, reason: &str| {
        let late = InstanceKey(9);
        let mut effects = Vec::new();
        world.machine.handle(Input::Activate(late), world.now, &mut effects);
        let [Effect::Activated(told, Err(said)), Effect::Gone(gone)] = effects.as_slice() else {
            panic!("{effects:?}")
        };
        assert!((*told, *gone) == (late, late) && said.contains(reason), "{said}");
    };
    let mut world = World::new(PluginLimits::default(), ALL);
    world.begin();
    world.finish_call(WorkerKey(0), Return::Panicked);
    refused(&mut world, "unwound");
    let mut world = World::new(PluginLimits::default(), ALL);
    world.begin();
    world.step(Step::Close(100));
    refused(&mut world, "the node stops");
}
