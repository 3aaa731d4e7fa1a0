//! The rules, after anything.

use proptest::prelude::*;

use super::{steps::step, *};

pub(super) fn check(world: &World) -> Result<(), TestCaseError> {
    prop_assert!(world.closed && world.gone);
    prop_assert_eq!(world.permits.taken(), 0, "places that were not given back");
    prop_assert_eq!(world.slots.taken(), 0);
    prop_assert_eq!(world.answered, world.asked, "each question is answered once");
    prop_assert_eq!(
        world.counted() + world.refused,
        world.asked,
        "each question is counted once"
    );
    let bookkeeping = world.ledger.figures().losses.contains(&(Loss::Bookkeeping, 0));
    prop_assert!(bookkeeping, "totals that do not add up");
    for (key, told) in &world.told {
        prop_assert!(!told.begun || told.ended, "{key:?} has no end: {told:?}");
        prop_assert!(told.decisions.is_empty(), "{key:?} is owed a word: {told:?}");
    }
    Ok(())
}

/// More with `PROPTEST_CASES`.
fn at_least(cases: u32) -> ProptestConfig {
    let asked = ProptestConfig::default();
    ProptestConfig {
        cases: asked.cases.max(cases),
        ..asked
    }
}

proptest! {
    #![proptest_config(at_least(1500))]

    #[test]
    fn whatever_a_plugin_and_requests_do_the_rules_hold(
        steps in proptest::collection::vec(step(), 1..160),
        queue in 2usize..40,
        threads in 1usize..4,
        serial: bool,
        faults in 1u32..40,
        wild in proptest::option::of((0usize..160, 0usize..2)),
        close in proptest::option::weighted(0.2, (0usize..160, 0u16..200)),
    ) {
        let limits = PluginLimits { queue, reserve: 3, generations: 6, threads, faults, ..PluginLimits::default() };
        let mut world = World::new(limits, PluginAbilities { serial, ..ALL });
        let wilds = [Return::Panicked, Return::Unknown];
        for (index, step) in steps.into_iter().enumerate() {
            match (wild, step) {
                (Some((at, how)), Step::Return(which, _)) if at <= index && !world.shut_out => {
                    world.step(Step::Return(which, wilds[how]));
                }
                _ => world.step(step),
            }
            if let Some((at, ms)) = close && at == index {
                world.step(Step::Close(ms));
            }
            prop_assert!(world.permits.taken() <= world.permits.capacity());
        }
        world.settle();
        check(&world)?;
    }
}
