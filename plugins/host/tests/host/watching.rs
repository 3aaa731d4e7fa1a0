//! Which part of loading does not return.

use std::fs;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use mesh_plugin_host::{Library, LoadError};

use crate::fixture::{Fixture, until};

/// What is told while the plugin waits, with the result once it may go on.
fn while_it_waits(switch: &str) -> (bool, Result<Library, LoadError>, bool) {
    let fixture = Fixture::build(&[switch]);
    let opened = AtomicBool::new(false);
    thread::scope(|scope| {
        let loading = scope.spawn(|| Library::load_watched(&fixture.path, None, &opened));
        until(|| fixture.path.with_extension("so.waits").exists());
        let within = opened.load(Ordering::Acquire);
        fs::write(fixture.path.with_extension("so.go"), "").unwrap();
        let loaded = loading.join().unwrap();
        (within, loaded, opened.load(Ordering::Acquire))
    })
}

#[test]
fn an_initialiser_that_waits_does_so_within_the_systems_loader() {
    let (within, loaded, after) = while_it_waits("FX_INITIALISER_WAITS");
    assert!(loaded.is_ok());
    assert!(!within && after);
}

#[test]
fn an_entry_function_that_waits_does_so_behind_the_systems_loader() {
    let (within, loaded, after) = while_it_waits("FX_ENTRY_WAITS");
    assert!(loaded.is_ok());
    assert!(within && after);
}

#[test]
#[cfg(target_os = "linux")]
fn a_loader_that_fails_has_returned() {
    let fixture = Fixture::build(&["FX_UNRESOLVED"]);
    let opened = AtomicBool::new(false);
    let error = Library::load_watched(&fixture.path, None, &opened).unwrap_err();
    assert!(matches!(error, LoadError::System { .. }), "{error}");
    assert!(opened.into_inner());
}

#[test]
fn a_file_that_is_refused_unopened_is_not_opened() {
    let fixture = Fixture::build(&[]);
    let opened = AtomicBool::new(false);
    assert!(Library::load_watched(&fixture.path, Some([0; 32]), &opened).is_err());
    assert!(!opened.into_inner());
}
