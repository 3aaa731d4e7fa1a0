//! What is made of a plugin's errors.

use mesh_plugin_host::{CallError, CallErrorKind, Callback, CandidateBuffer, Instance, Poll};

use crate::fixture::{ABORT, COMMIT, DISCARD, FINISH, Fixture, OUTCOME, QUERY, START, ignored, recorder};

/// The error of each call but activation and shutdown.
fn all_errors(instance: &Instance) -> Vec<CallError> {
    let mut output = CandidateBuffer::new();
    vec![
        instance.begin(&START).unwrap_err(),
        instance.commit(&COMMIT).unwrap_err(),
        instance.finish(&FINISH).unwrap_err(),
        instance.abort(&ABORT).unwrap_err(),
        instance.start_proposal(&QUERY).unwrap_err(),
        instance.poll_proposal(1, &mut output).unwrap_err(),
        instance.cancel_proposal(1).unwrap_err(),
        instance.report(&OUTCOME).unwrap_err(),
        instance.discard(&DISCARD).unwrap_err(),
    ]
}

#[test]
fn an_error_of_each_function_comes_with_the_plugins_reason() {
    let (fixture, instance) = Fixture::active(&["FX_STATUS=1", "FX_POLL=1"]);
    let errors = all_errors(&instance);
    for (error, callback) in errors.iter().zip(&Callback::ALL[2..]) {
        assert_eq!(error.callback, *callback);
        assert_eq!(error.kind, CallErrorKind::Error);
        assert_eq!(error.message, "no luck");
    }
    let asked = fixture.log();
    let asked: Vec<&String> = asked.iter().skip(1).step_by(2).collect();
    assert_eq!(asked, vec!["last_error instance=1 capacity=1024"; 9]);
}

#[test]
fn a_panic_of_each_function_is_told_apart() {
    let (_fixture, instance) = Fixture::active(&["FX_STATUS=2", "FX_POLL=2"]);
    for error in all_errors(&instance) {
        assert_eq!(error.kind, CallErrorKind::Panicked);
        assert_eq!(error.message, "no luck");
    }
}

#[test]
fn a_status_that_a_function_does_not_list_is_unknown_and_asks_nothing_more() {
    for status in [3, 16, 17, 18, 19, -1, i32::MAX, i32::MIN] {
        // Poll lists more than the others, but not success.
        let poll = if (16..20).contains(&status) { 0 } else { status };
        let (fixture, instance) = Fixture::active(&[&format!("FX_STATUS={status}"), &format!("FX_POLL={poll}")]);
        for error in all_errors(&instance) {
            let expected = if error.callback == Callback::Poll { poll } else { status };
            assert_eq!(error.kind, CallErrorKind::Unknown(expected));
            assert!(error.to_string().contains(&format!("status {expected}")), "{error}");
        }
        assert!(!fixture.log().iter().any(|line| line.starts_with("last_error")));
    }
}

#[test]
fn a_failed_poll_says_why() {
    let (_fixture, instance) = Fixture::active(&["FX_POLL=MESH_FAILED"]);
    let mut output = CandidateBuffer::new();
    let poll = instance.poll_proposal(1, &mut output).unwrap();
    assert_eq!(poll, Poll::Failed("no luck".to_owned()));
}

#[test]
fn a_failed_activation_is_asked_about_without_an_instance() {
    for (status, kind) in [
        (1, CallErrorKind::Error),
        (2, CallErrorKind::Panicked),
        (77, CallErrorKind::Unknown(77)),
    ] {
        let fixture = Fixture::build(&[&format!("FX_ACTIVATE={status}"), "FX_WAKE_IN_ACTIVATE"]);
        let (wake, woken) = recorder();
        let error = fixture.activate(&fixture.load().unwrap(), wake).unwrap_err();
        assert_eq!(error.callback, Callback::Activate);
        assert_eq!(error.kind, kind);
        let asked = matches!(kind, CallErrorKind::Error | CallErrorKind::Panicked);
        let log = fixture.log();
        assert_eq!(log, vec!["last_error instance=0 capacity=1024"; usize::from(asked)]);
        assert_eq!(*woken.lock().unwrap(), [41]);
    }
}

#[test]
fn a_failed_shutdown_is_asked_about_without_an_instance_and_not_repeated() {
    let (fixture, instance) = Fixture::active(&["FX_SHUTDOWN=1"]);
    let error = instance.shutdown().unwrap_err();
    assert_eq!((error.callback, error.kind), (Callback::Shutdown, CallErrorKind::Error));
    assert_eq!(error.message, "no luck");
    instance.shutdown().unwrap();
    assert_eq!(
        fixture.log(),
        ["shutdown instance=1", "last_error instance=0 capacity=1024"]
    );
}

#[test]
fn an_error_without_a_reason_says_so() {
    for switch in ["FX_NULLS=0x800", "FX_ERROR=\"\"", "FX_ERROR=\" \\n\""] {
        let (_fixture, instance) = Fixture::active(&["FX_STATUS=1", switch]);
        assert_eq!(instance.begin(&START).unwrap_err().message, "the plugin gave no reason");
    }
}

#[test]
fn a_reason_that_is_no_text_is_made_printable() {
    let (_fixture, instance) = Fixture::active(&["FX_STATUS=1", r#"FX_ERROR="a\377b\033[2J\nc""#]);
    assert_eq!(instance.begin(&START).unwrap_err().message, "a\u{fffd}b\\u{1b}[2J\\nc");
}

#[test]
fn a_reason_that_claims_more_than_fits_is_cut() {
    let (_fixture, instance) = Fixture::active(&["FX_STATUS=1", "FX_ERROR_FILLS"]);
    assert_eq!(instance.begin(&START).unwrap_err().message, "x".repeat(1024));
}

#[test]
fn a_plugin_goes_on_after_an_error() {
    let fixture = Fixture::build(&["FX_STATUS=1"]);
    let instance = fixture.activate(&fixture.load().unwrap(), ignored()).unwrap();
    instance.begin(&START).unwrap_err();
    instance.abort(&ABORT).unwrap_err();
    instance.shutdown().unwrap();
}
