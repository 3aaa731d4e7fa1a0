//! What is made of a plugin's candidates.

use mesh_plugin_host::{CandidateBuffer, Invalid, Poll, check};

use crate::fixture::Fixture;

fn polled(switches: &[&str]) -> (Poll, CandidateBuffer) {
    let (_fixture, instance) = Fixture::active(switches);
    let mut output = CandidateBuffer::new();
    let poll = instance.poll_proposal(1, &mut output).unwrap();
    (poll, output)
}

fn checked(switches: &[&str]) -> Result<Vec<u32>, Invalid> {
    let (poll, output) = polled(switches);
    assert_eq!(poll, Poll::Ready);
    check(&output, 4, 6, 30)
}

#[test]
fn candidates_arrive_as_the_plugin_wrote_them() {
    let (poll, output) = polled(&[]);
    assert_eq!(poll, Poll::Ready);
    assert_eq!(output.tokens(), Some(&[5, 5][..]));
    assert_eq!(output.token_count(), 2);
    assert_eq!(output.decision_id(), Some(&b"ddd"[..]));
    assert_eq!(output.base_position(), 30);
    assert_eq!(check(&output, 4, 6, 30), Ok(vec![5, 5]));
}

#[test]
fn without_ready_there_is_nothing_in_the_buffer() {
    for (status, expected) in [("MESH_PENDING", Poll::Pending), ("MESH_ABSTAIN", Poll::Abstain)] {
        let (poll, output) = polled(&[&format!("FX_POLL={status}")]);
        assert_eq!(poll, expected);
        assert_eq!((output.tokens(), output.decision_id()), (None, None));
        assert_eq!((output.token_count(), output.base_position()), (0, 0));
    }
}

#[test]
fn a_wrong_number_of_candidates_is_refused() {
    for count in ["0", "5", "4096", "4097", "0xffffffffu"] {
        assert_eq!(checked(&[&format!("FX_COUNT={count}")]), Err(Invalid::TokenCount));
    }
    let (_, output) = polled(&["FX_COUNT=4097"]);
    assert_eq!((output.tokens(), output.token_count()), (None, 4097));
}

#[test]
fn candidates_outside_the_vocabulary_are_refused() {
    for token in ["-1", "6", "INT32_MAX", "INT32_MIN"] {
        assert_eq!(checked(&[&format!("FX_TOKEN={token}")]), Err(Invalid::TokenId));
    }
}

#[test]
fn candidates_that_were_counted_but_not_written_are_refused() {
    assert_eq!(checked(&["FX_UNWRITTEN"]), Err(Invalid::TokenId));
}

#[test]
fn candidates_for_another_position_are_refused() {
    let (_, output) = polled(&[]);
    assert_eq!(check(&output, 4, 6, 31), Err(Invalid::Position));
}

#[test]
fn an_empty_or_overlong_decision_id_is_refused() {
    for length in ["0", "65", "0xffffffffu"] {
        assert_eq!(
            checked(&[&format!("FX_DECISION_LENGTH={length}")]),
            Err(Invalid::DecisionId)
        );
    }
    assert!(checked(&["FX_DECISION_LENGTH=64"]).is_ok());
}

#[test]
fn what_the_plugin_does_to_the_hosts_fields_changes_nothing() {
    assert_eq!(checked(&["FX_SCRIBBLE"]), Ok(vec![5, 5]));
}

#[test]
fn a_buffer_is_used_again() {
    let (_fixture, ready) = Fixture::active(&["FX_COUNT=4"]);
    let (_other, pending) = Fixture::active(&["FX_POLL=MESH_PENDING"]);
    let mut output = CandidateBuffer::new();
    for _ in 0..3 {
        assert_eq!(ready.poll_proposal(1, &mut output).unwrap(), Poll::Ready);
        assert_eq!(check(&output, 4, 6, 30), Ok(vec![5; 4]));
        assert_eq!(pending.poll_proposal(1, &mut output).unwrap(), Poll::Pending);
        assert_eq!(check(&output, 4, 6, 30), Err(Invalid::TokenCount));
    }
}
