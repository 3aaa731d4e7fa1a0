//! The rules, whatever comes.

use proptest::prelude::*;

use super::{
    model::{drawn, guess, outcome_of, run, stopped_by_string},
    world::{Step, World, step},
    *,
};

/// More with `PROPTEST_CASES`.
fn at_least(cases: u32) -> ProptestConfig {
    let asked = ProptestConfig::default();
    ProptestConfig {
        cases: asked.cases.max(cases),
        ..asked
    }
}

proptest! {
    #![proptest_config(at_least(2000))]

    /// Whatever comes, late, twice or of others: answered once, ended once, each lane given back once, nothing after.
    #[test]
    fn whatever_comes_a_request_is_answered_once_and_ends_once(
        max_tokens in proptest::option::of(1u32..30),
        speculates: bool,
        steps in proptest::collection::vec(step(), 0..60),
    ) {
        let mut machine = machine_of(RequestPlan { speculates, ..plan(max_tokens) });
        let mut world = World { max_tokens, ..World::default() };
        for step in steps {
            let foreign = matches!(step, Step::Foreign(_) | Step::Repeat | Step::OldCandidates(_));
            let Some(input) = world.input(step) else { continue };
            let effects = handle(&mut machine, input);
            prop_assert!(!foreign || effects.is_empty(), "{effects:?}");
            for effect in effects {
                world.see(effect)?;
            }
            prop_assert_eq!(machine.is_ended(), world.ended);
        }
        for effect in handle(&mut machine, Input::Cancel) {
            world.see(effect)?;
        }
        prop_assert!(world.ended && world.answered && world.owed.is_none());
        // A grant that was on its way when it ended goes straight back.
        if world.asked_lane && world.grants == 0 {
            let back = handle(&mut machine, Input::Granted { lane: LaneId(1), session: SessionId(7) });
            prop_assert_eq!(back, [Effect::Free { lane: LaneId(1), session: SessionId(7) }]);
        } else {
            prop_assert_eq!(world.freed.len() as u64, world.grants);
        }
        for late in [
            Input::Cancel,
            Input::Break(MeshError::internal("late")),
            returned(0, 1, vec![1]),
            candidates(world.queries, &[1]),
        ] {
            prop_assert_eq!(handle(&mut machine, late), []);
        }
    }

    /// Whoever proposes whatever: tokens, text and reason are those without, and each outcome says what happened.
    #[test]
    fn proposals_change_nothing_but_the_number_of_steps(
        seed: u64,
        prompt in 1usize..20,
        context in 21u32..90,
        max_tokens in proptest::option::of(1u32..60),
        stop in proptest::collection::vec("[abcé]{1,3}", 0..3),
        guesses in proptest::collection::vec(guess(), 1..12),
    ) {
        let plan = RequestPlan { stop, context, ..plan(max_tokens) };
        let prompt = vec![7; prompt];
        let (alone, decided) = run(seed, plan.clone(), &prompt, &[]);
        prop_assert!(alone.reason.is_some() && decided.is_empty());
        let (with, decided) = run(seed, RequestPlan { speculates: true, ..plan }, &prompt, &guesses);
        prop_assert_eq!(&with, &alone);
        let whole = [prompt.as_slice(), alone.tokens.as_slice()].concat();
        // The text may also have ended by a stop string: then the model was not asked what comes next.
        let ended_itself = alone.reason == Some(FinishReason::Stop) && !stopped_by_string(&alone);
        prop_assert!(!ended_itself || drawn(seed, &whole) == END);
        for (base, candidates, outcome) in decided {
            prop_assert_eq!(outcome, outcome_of(prompt.len(), base, &candidates, &alone, ended_itself));
        }
    }
}
