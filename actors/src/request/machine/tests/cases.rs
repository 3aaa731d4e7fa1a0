//! One case each.

use super::*;

#[test]
fn prompts_at_the_limit_of_the_context() {
    let fits = handle(&mut machine(None), Input::Prepared(Ok(vec![1; CONTEXT as usize - 1])));
    assert_eq!(
        fits,
        [
            Effect::Admit {
                prompt_tokens: CONTEXT - 1
            },
            Effect::AskLane
        ]
    );
    for tokens in [CONTEXT as usize, CONTEXT as usize + 1] {
        let effects = handle(&mut machine(None), Input::Prepared(Ok(vec![1; tokens])));
        let [Effect::Refuse(error)] = effects.as_slice() else {
            panic!("{effects:?}")
        };
        assert_eq!(error.code, ErrorCode::ContextLengthExceeded);
        assert!(
            error.message.contains(&tokens.to_string()) && error.message.contains("24"),
            "{error}"
        );
    }
}

#[test]
fn the_last_place_of_the_context_holds_no_row_that_is_computed() {
    let mut machine = running(None, CONTEXT as usize - 1);
    let effects = handle(&mut machine, returned(0, CONTEXT - 1, vec![5]));
    assert!(
        matches!(
            effects.as_slice(),
            [.., Effect::Finish(FinishReason::Length), Effect::Free { .. }]
        ),
        "{effects:?}"
    );
    assert!(!effects.iter().any(|effect| matches!(effect, Effect::Rows(_))));
}

#[test]
fn the_last_row_without_a_token_is_an_error_and_not_silence() {
    for (tokens, words) in [
        (vec![], "0 tokens"),
        (vec![1, 2], "2 tokens"),
        (vec![BYTES_VOCABULARY], "vocabulary"),
    ] {
        let mut machine = running(None, 4);
        assert_eq!(handle(&mut machine, returned(0, 2, vec![])), [], "a chunk");
        let effects = handle(&mut machine, returned(2, 2, tokens));
        let [Effect::Fail(error), Effect::Free { .. }] = effects.as_slice() else {
            panic!("{effects:?}")
        };
        assert!(
            error.code == ErrorCode::Protocol && error.message.contains(words),
            "{error}"
        );
    }
}

#[test]
fn positions_that_overflow_are_ignored() {
    let mut machine = running(None, 4);
    assert_eq!(handle(&mut machine, returned(u32::MAX, 5, vec![3])), []);
}

#[test]
fn candidates_are_computed_behind_the_last_token_and_every_row_is_sampled() {
    let (mut machine, query) = asking(None);
    assert_eq!((query.step, query.base_position(), query.prompt_count), (1, 5, 4));
    assert_eq!(*query.tail, [1, 1, 1, 1, 5]);
    let effects = handle(&mut machine, candidates(1, &[6, 7]));
    assert_eq!(effects, [rows(4, &[5, 6, 7])]);
    let effects = handle(&mut machine, returned(4, 3, vec![6, 9, 3]));
    let outcome = Outcome {
        disposition: Disposition::FirstMismatch,
        accepted: 1,
        predictions: vec![6, 9],
        committed: 2,
        verified_position: 7,
        canonical_position: 7,
    };
    assert_eq!(effects[0], Effect::Verified(outcome));
    let query = asked(&effects);
    assert_eq!((query.step, query.base_position()), (2, 7));
    // The rows behind the wrong candidate are computed again from where they begin.
    assert_eq!(handle(&mut machine, candidates(2, &[])), [rows(6, &[9])]);
}

#[test]
fn more_candidates_than_were_asked_for_or_none_that_are_tokens_are_not_computed() {
    for (tokens, reason) in [
        (vec![6; 9], DiscardReason::InvalidTokenCount),
        (vec![6, BYTES_VOCABULARY], DiscardReason::InvalidTokenId),
    ] {
        let (mut machine, query) = asking(None);
        assert_eq!(query.max_tokens, 8);
        let effects = handle(&mut machine, candidates(1, &tokens));
        assert_eq!(effects, [Effect::Unverified(reason), rows(4, &[5])]);
    }
}

#[test]
fn candidates_of_another_step_or_a_second_time_are_ignored() {
    let (mut machine, _) = asking(None);
    assert_eq!(handle(&mut machine, candidates(0, &[6])), []);
    assert_eq!(handle(&mut machine, candidates(2, &[6])), []);
    assert_eq!(handle(&mut machine, candidates(1, &[6])), [rows(4, &[5, 6])]);
    assert_eq!(handle(&mut machine, candidates(1, &[6])), []);
}

#[test]
fn a_repeated_answer_is_ignored_though_the_rows_under_way_end_where_it_did() {
    let (mut machine, _) = asking(None);
    handle(&mut machine, candidates(1, &[6]));
    handle(&mut machine, returned(4, 2, vec![9, 3]));
    assert_eq!(handle(&mut machine, candidates(2, &[])), [rows(5, &[9])]);
    assert_eq!(handle(&mut machine, returned(4, 2, vec![9, 3])), []);
    assert!(!handle(&mut machine, returned(5, 1, vec![4])).is_empty());
}

#[test]
fn the_last_token_of_the_budget_is_not_asked_about() {
    let (mut machine, query) = asking(Some(3));
    assert_eq!(query.max_tokens, 1);
    handle(&mut machine, candidates(1, &[]));
    let effects = handle(&mut machine, returned(4, 1, vec![6]));
    assert_eq!(effects.last(), Some(&rows(5, &[6])));
}

#[test]
fn candidates_under_way_at_an_abort_are_told_before_the_lane_is_free() {
    for (error, reason) in [
        (Input::Cancel, DiscardReason::Cancelled),
        (
            Input::Break(MeshError::new(ErrorCode::StageLost, "lost")),
            DiscardReason::ExecutionFailed,
        ),
        // One row short.
        (returned(4, 2, vec![6]), DiscardReason::ExecutionFailed),
    ] {
        let (mut machine, _) = asking(None);
        handle(&mut machine, candidates(1, &[6]));
        let effects = handle(&mut machine, error);
        assert!(
            matches!(effects.as_slice(), [Effect::Unverified(told), Effect::Fail(_), Effect::Free { .. }] if *told == reason),
            "{effects:?}"
        );
    }
    let (mut machine, _) = asking(None);
    let effects = handle(&mut machine, Input::Cancel);
    assert!(
        matches!(effects.as_slice(), [Effect::Fail(_), Effect::Free { .. }]),
        "nothing was under way: {effects:?}"
    );
}
