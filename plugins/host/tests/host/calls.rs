//! What the plugin gets is what was passed.

use std::time::{Duration, Instant};

use mesh_plugin_host::{
    AbortReason, CandidateBuffer, DiscardReason, Disposition, FinishReason, GenerationAbort, GenerationCommit,
    GenerationFinish, GenerationStart, Ids, ProposalDiscard, ProposalOutcome, ProposalQuery, clock,
};

use crate::fixture::{ABORT, COMMIT, DISCARD, FINISH, Fixture, IDS, OUTCOME, QUERY, START};

#[test]
fn activation_tells_about_the_model() {
    let (fixture, _instance) = Fixture::active(&[]);
    let digest = "ab".repeat(32);
    assert_eq!(
        fixture.whole_log(),
        [format!(
            "activate whole model=model tokenizer=vocabulary config=/etc/plugin.toml budget=1500000 context=8192 \
             candidates=16 reserved=0 digest={digest}"
        )]
    );
}

#[test]
fn a_generation_is_told_as_it_happened() {
    let (fixture, instance) = Fixture::active(&[]);
    instance.begin(&START).unwrap();
    instance
        .begin(&GenerationStart {
            ids: Ids {
                agent_session: "",
                ..IDS
            },
            attempt: 2,
            prompt: &[i32::MAX.cast_unsigned()],
        })
        .unwrap();
    instance.commit(&COMMIT).unwrap();
    instance
        .commit(&GenerationCommit {
            tokens: &[],
            total: u64::MAX,
            ..COMMIT
        })
        .unwrap();
    instance.finish(&FINISH).unwrap();
    instance
        .finish(&GenerationFinish {
            attempt: 3,
            reason: FinishReason::Length,
            incomplete: true,
            prompt_count: u64::MAX,
            queued: Duration::MAX,
            token_ns: &[],
            ..FINISH
        })
        .unwrap();
    let digest = "cd".repeat(32);
    assert_eq!(
        fixture.log(),
        [
            "begin instance=1 whole request/session/agent attempt=1 prompt=3:1,2,3".to_owned(),
            "begin instance=1 whole request/session/- attempt=2 prompt=1:2147483647".to_owned(),
            "commit instance=1 whole request/session/agent tokens=2:4,5 total=2 reserved=0".to_owned(),
            "commit instance=1 whole request/session/agent tokens=0:null total=18446744073709551615 reserved=0"
                .to_owned(),
            format!(
                "finish instance=1 whole request/session/agent flags=0 reason=1 attempt=1 prompt=3 generated=2:4,5 \
                 position=5 queued=10 first=20 generation=30 times=2:31,32 digest={digest}"
            ),
            format!(
                "finish instance=1 whole request/session/agent flags=1 reason=2 attempt=3 prompt=18446744073709551615 \
                 generated=2:4,5 position=18446744073709551615 queued=18446744073709551615 first=20 generation=30 \
                 times=0:null digest={digest}"
            ),
        ]
    );
}

#[test]
fn an_abort_says_why_and_what_came_before() {
    let (fixture, instance) = Fixture::active(&[]);
    instance.abort(&ABORT).unwrap();
    let both = GenerationAbort {
        reason: AbortReason::FinishFailed,
        incomplete: true,
        after_failed_finish: true,
        ..ABORT
    };
    instance.abort(&both).unwrap();
    instance
        .abort(&GenerationAbort {
            incomplete: false,
            ..both
        })
        .unwrap();
    assert_eq!(
        fixture.log(),
        [
            "abort instance=1 whole request/session/agent flags=0 reason=0 attempt=1 committed=2",
            "abort instance=1 whole request/session/agent flags=3 reason=5 attempt=1 committed=2",
            "abort instance=1 whole request/session/agent flags=2 reason=5 attempt=1 committed=2",
        ]
    );
}

#[test]
fn a_proposal_is_asked_for_polled_and_cancelled() {
    let (fixture, instance) = Fixture::active(&[]);
    let operation = instance.start_proposal(&QUERY).unwrap();
    assert_eq!(operation, u64::MAX - 1);
    let mut output = CandidateBuffer::new();
    instance.poll_proposal(operation, &mut output).unwrap();
    instance.poll_proposal(operation, &mut output).unwrap();
    instance.cancel_proposal(operation).unwrap();
    let poll = "poll instance=1 whole operation=18446744073709551614 capacity=4096 count=0 decision=0 base=0";
    assert_eq!(
        fixture.log(),
        [
            "start instance=1 whole request/session/agent most=4 prompt=10 committed=20 step=6 \
             deadline=18446744073709551615 tail=2:8,9 now=before",
            poll,
            poll,
            "cancel instance=1 operation=18446744073709551614",
        ]
    );
}

#[test]
fn the_plugin_reads_the_clock_of_its_deadlines() {
    let (fixture, instance) = Fixture::active(&[]);
    let now = Instant::now();
    let soon = clock::ns_of(now + Duration::from_secs(60));
    instance
        .start_proposal(&ProposalQuery {
            deadline_ns: soon,
            ..QUERY
        })
        .unwrap();
    let past = clock::now_ns();
    instance
        .start_proposal(&ProposalQuery {
            deadline_ns: past,
            ..QUERY
        })
        .unwrap();
    let log = fixture.log();
    assert!(log[0].ends_with("now=before"), "{}", log[0]);
    assert!(log[1].ends_with("now=after"), "{}", log[1]);
}

#[test]
fn the_clock_runs_as_soon_as_a_plugin_is_loaded() {
    let _library = Fixture::build(&[]).load().unwrap();
    assert!(clock::ns_of(Instant::now()) > 0);
}

#[test]
fn what_became_of_a_decision_is_told() {
    let (fixture, instance) = Fixture::active(&[]);
    instance.report(&OUTCOME).unwrap();
    instance
        .report(&ProposalOutcome {
            disposition: Disposition::Stopped,
            accepted_count: 1,
            ..OUTCOME
        })
        .unwrap();
    instance.discard(&DISCARD).unwrap();
    instance
        .discard(&ProposalDiscard {
            reason: DiscardReason::ExecutionFailed,
            decision_id: b"",
            ..DISCARD
        })
        .unwrap();
    assert_eq!(
        fixture.log(),
        [
            "report instance=1 whole request/session/agent decision=decision disposition=1 step=6 proposed=2 accepted=2 \
             committed=3:5,5,7 predictions=2:5,5 base=30 verified=32 canonical=33",
            "report instance=1 whole request/session/agent decision=decision disposition=2 step=6 proposed=2 accepted=1 \
             committed=3:5,5,7 predictions=2:5,5 base=30 verified=32 canonical=33",
            "discard instance=1 whole request/session/agent decision=decision reason=0 step=6 proposed=2 base=30",
            "discard instance=1 whole request/session/agent decision=- reason=5 step=6 proposed=2 base=30",
        ]
    );
}

#[test]
fn token_ids_are_withheld_from_a_plugin_that_does_not_want_them() {
    let (fixture, instance) = Fixture::active(&["FX_CAPS=0xd"]);
    instance.begin(&START).unwrap();
    instance.commit(&COMMIT).unwrap();
    instance.start_proposal(&QUERY).unwrap();
    instance.report(&OUTCOME).unwrap();
    instance.finish(&FINISH).unwrap();
    let log = fixture.log();
    assert!(log[0].contains("prompt=3:null"), "{}", log[0]);
    assert!(log[1].contains("tokens=2:null"), "{}", log[1]);
    assert!(log[2].contains("tail=2:null"), "{}", log[2]);
    assert!(log[3].contains("committed=3:null predictions=2:null"), "{}", log[3]);
    assert!(log[4].contains("generated=2:null position=5"), "{}", log[4]);
    assert!(log[4].contains("times=0:null"), "{}", log[4]);
}

#[test]
fn shutdown_is_called_once_and_nothing_after_it() {
    let (fixture, instance) = Fixture::active(&[]);
    instance.shutdown().unwrap();
    instance.shutdown().unwrap();
    instance.begin(&START).unwrap();
    instance.abort(&ABORT).unwrap();
    instance.discard(&DISCARD).unwrap();
    assert_eq!(fixture.log(), ["shutdown instance=1"]);
}

#[test]
fn instances_of_one_library_are_told_apart() {
    let (fixture, one) = Fixture::active(&[]);
    let two = fixture.activate(one.library(), crate::fixture::ignored()).unwrap();
    two.abort(&ABORT).unwrap();
    one.abort(&ABORT).unwrap();
    let log = fixture.log();
    assert!(log[0].starts_with("abort instance=2"), "{}", log[0]);
    assert!(log[1].starts_with("abort instance=1"), "{}", log[1]);
}

#[test]
fn libraries_and_instances_go_to_other_threads() {
    fn travels<T: Send + Sync>() {}
    travels::<mesh_plugin_host::Library>();
    travels::<mesh_plugin_host::Instance>();
    travels::<CandidateBuffer>();
}
