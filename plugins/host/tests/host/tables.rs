//! Tables of other sizes, and functions that are not there.

use std::mem::offset_of;

use mesh_plugin_abi::MeshPluginTable;
use mesh_plugin_host::{CallErrorKind, Callback, CandidateBuffer, Poll};

use crate::fixture::{ABORT, COMMIT, DISCARD, FINISH, Fixture, OUTCOME, QUERY, START, ignored};

const LIFECYCLE_ONLY: &str = "FX_CAPS=0x7";

fn wanted(fixture: &Fixture) -> Vec<Callback> {
    let library = fixture.load().unwrap();
    Callback::ALL
        .into_iter()
        .filter(|callback| library.wants(*callback))
        .collect()
}

fn cut_at(size: usize) -> String {
    format!("FX_CUT={size}")
}

#[test]
fn a_table_that_ends_behind_shutdown_has_no_other_function() {
    let cut = cut_at(offset_of!(MeshPluginTable, begin_generation));
    let (fixture, instance) = Fixture::active(&[&cut, LIFECYCLE_ONLY]);
    assert_eq!(wanted(&fixture), [Callback::Activate, Callback::Shutdown]);
    instance.begin(&START).unwrap();
    instance.finish(&FINISH).unwrap();
    instance.shutdown().unwrap();
    assert_eq!(fixture.log(), ["shutdown instance=1"]);
    assert_eq!(instance.library().description().table_size, 64);
}

#[test]
fn a_table_that_ends_before_last_error_has_all_but_that() {
    let cut = cut_at(offset_of!(MeshPluginTable, last_error));
    let (fixture, instance) = Fixture::active(&[&cut, "FX_STATUS=1"]);
    assert_eq!(wanted(&fixture), Callback::ALL);
    let error = instance.begin(&START).unwrap_err();
    assert_eq!(error.kind, CallErrorKind::Error);
    assert_eq!(error.message, "the plugin gave no reason");
}

#[test]
fn a_function_of_which_the_table_has_only_a_part_is_not_there() {
    let cut = cut_at(offset_of!(MeshPluginTable, begin_generation) + 5);
    let (fixture, instance) = Fixture::active(&[&cut, LIFECYCLE_ONLY]);
    assert_eq!(wanted(&fixture), [Callback::Activate, Callback::Shutdown]);
    instance.begin(&START).unwrap();
}

#[test]
fn of_a_larger_table_the_known_part_is_used() {
    let (fixture, instance) = Fixture::active(&["FX_LARGER"]);
    assert_eq!(wanted(&fixture), Callback::ALL);
    instance.begin(&START).unwrap();
    assert_eq!(fixture.log().len(), 1);
    let size = instance.library().description().table_size as usize;
    assert_eq!(size, size_of::<MeshPluginTable>() + 128);
}

#[test]
fn each_function_is_wanted_with_its_flag_only() {
    let without = |flags| {
        let wanted = wanted(&Fixture::build(&[flags]));
        let mut missing = Callback::ALL.to_vec();
        missing.retain(|callback| !wanted.contains(callback));
        missing
    };
    assert_eq!(without("FX_CAPS=0x1f"), []);
    assert_eq!(without("FX_CAPS=0xe"), [Callback::Commit]);
    assert_eq!(without("FX_CAPS=0xb"), [Callback::Report]);
    assert_eq!(
        without("FX_CAPS=0x7"),
        [Callback::Start, Callback::Poll, Callback::Cancel]
    );
    assert_eq!(without("FX_CAPS=0xd"), []);
}

#[test]
fn what_is_null_or_not_wanted_is_not_called() {
    for switches in [&["FX_NULLS=0xffc", "FX_CAPS=0"], &["FX_NULLS=0x434", "FX_CAPS=0"]] {
        let (fixture, instance) = Fixture::active(switches);
        instance.begin(&START).unwrap();
        instance.commit(&COMMIT).unwrap();
        assert_eq!(instance.start_proposal(&QUERY).unwrap(), 0);
        let mut output = CandidateBuffer::new();
        assert_eq!(instance.poll_proposal(0, &mut output).unwrap(), Poll::Abstain);
        instance.cancel_proposal(0).unwrap();
        instance.report(&OUTCOME).unwrap();
        instance.discard(&DISCARD).unwrap();
        instance.finish(&FINISH).unwrap();
        instance.abort(&ABORT).unwrap();
        assert!(fixture.log().is_empty());
    }
}

#[test]
fn an_instance_may_be_null() {
    let fixture = Fixture::build(&["FX_NULL_INSTANCE"]);
    let instance = fixture.activate(&fixture.load().unwrap(), ignored()).unwrap();
    instance.begin(&START).unwrap();
    instance.shutdown().unwrap();
    assert_eq!(fixture.log()[1], "shutdown instance=0");
}
