//! Wakes: from within calls, from other threads, too late.

use std::sync::{Arc, OnceLock, Weak};

use mesh_plugin_host::{CallErrorKind, Instance};

use crate::fixture::{ABORT, Fixture, QUERY, START, ignored, recorder};

#[test]
fn wakes_come_from_within_a_call_and_from_another_thread() {
    let fixture = Fixture::build(&["FX_WAKE_IN_START", "FX_WAKE_IN_ACTIVATE"]);
    let (wake, woken) = recorder();
    let instance = fixture.activate(&fixture.load().unwrap(), wake).unwrap();
    instance.start_proposal(&QUERY).unwrap();
    assert_eq!(*woken.lock().unwrap(), [41, 42, 43]);
}

#[test]
fn a_wake_may_call_back_into_the_instance() {
    let fixture = Fixture::build(&["FX_WAKE_IN_START"]);
    let instance: Arc<OnceLock<Weak<Instance>>> = Arc::default();
    let within = instance.clone();
    let wake = Arc::new(move |operation| {
        let instance = within.get().and_then(Weak::upgrade).unwrap();
        instance.cancel_proposal(operation).unwrap();
    });
    let active = Arc::new(fixture.activate(&fixture.load().unwrap(), wake).unwrap());
    instance.set(Arc::downgrade(&active)).unwrap();
    active.start_proposal(&QUERY).unwrap();
    let log = fixture.log();
    assert_eq!(
        log[1..],
        ["cancel instance=1 operation=42", "cancel instance=1 operation=43"]
    );
}

#[test]
fn a_wake_that_panics_does_not_reach_the_plugin() {
    let fixture = Fixture::build(&["FX_WAKE_IN_START"]);
    let wake = Arc::new(|operation| panic!("woken for {operation}"));
    let instance = fixture.activate(&fixture.load().unwrap(), wake).unwrap();
    assert!(instance.start_proposal(&QUERY).is_ok());
}

#[test]
fn wakes_in_and_after_shutdown_go_nowhere() {
    let fixture = Fixture::build(&["FX_WAKE_IN_SHUTDOWN", "FX_WAKE_IN_BEGIN"]);
    let library = fixture.load().unwrap();
    let (wake, woken) = recorder();
    let first = fixture.activate(&library, wake).unwrap();
    let second = fixture.activate(&library, ignored()).unwrap();
    second.begin(&START).unwrap();
    assert_eq!(*woken.lock().unwrap(), [60, 61]);
    first.shutdown().unwrap();
    second.begin(&START).unwrap();
    drop(first);
    second.begin(&START).unwrap();
    assert_eq!(*woken.lock().unwrap(), [60, 61]);
    assert_eq!(Arc::strong_count(&woken), 1, "the wake of the first instance is gone");
}

#[test]
fn wakes_of_an_instance_that_was_dropped_go_nowhere() {
    let fixture = Fixture::build(&["FX_WAKE_IN_BEGIN"]);
    let library = fixture.load().unwrap();
    let (wake, woken) = recorder();
    drop(fixture.activate(&library, wake).unwrap());
    assert_eq!(Arc::strong_count(&woken), 1, "the host kept the wake");
    // The plugin still has the pointers of the first one.
    let second = fixture.activate(&library, ignored()).unwrap();
    second.begin(&START).unwrap();
    assert!(woken.lock().unwrap().is_empty());
    assert_eq!(fixture.log().len(), 1, "the plugin heard of the drop");
}

#[test]
fn a_failed_activation_keeps_no_wake() {
    let fixture = Fixture::build(&["FX_ACTIVATE=1"]);
    let (wake, woken) = recorder();
    fixture.activate(&fixture.load().unwrap(), wake).unwrap_err();
    assert_eq!(Arc::strong_count(&woken), 1, "the host kept the wake");
}

#[test]
fn wakes_of_an_instance_that_was_given_up_go_nowhere() {
    let fixture = Fixture::build(&["FX_WAKE_IN_BEGIN"]);
    let (wake, woken) = recorder();
    let instance = fixture.activate(&fixture.load().unwrap(), wake).unwrap();
    instance.disconnect_wake();
    instance.begin(&START).unwrap();
    assert!(woken.lock().unwrap().is_empty());
}

#[test]
fn a_shutdown_while_a_call_runs_is_refused_and_can_be_repeated() {
    let fixture = Fixture::build(&["FX_WAKE_IN_START"]);
    let instance: Arc<OnceLock<Weak<Instance>>> = Arc::default();
    let within = instance.clone();
    // The wake comes from within the call, so the call still runs.
    let wake = Arc::new(move |_| {
        let instance = within.get().and_then(Weak::upgrade).unwrap();
        assert_eq!(instance.shutdown().unwrap_err().kind, CallErrorKind::Busy);
    });
    let active = Arc::new(fixture.activate(&fixture.load().unwrap(), wake).unwrap());
    instance.set(Arc::downgrade(&active)).unwrap();
    active.start_proposal(&QUERY).unwrap();
    active.abort(&ABORT).unwrap();
    active.shutdown().unwrap();
    let log = fixture.log();
    assert_eq!(log.len(), 3, "{log:?}");
    assert!(log[1].starts_with("abort"), "{}", log[1]);
    assert_eq!(log[2], "shutdown instance=1");
}
