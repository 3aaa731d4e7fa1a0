//! Which part of loading does not return.

use std::fs;
use std::thread;

use mesh_plugin_host::{Library, LoadError, LoadPhase, LoadWatch};

use crate::fixture::{Fixture, until};

/// What is told while the plugin waits, with the result once it may go on.
fn while_it_waits(switch: &str) -> (LoadPhase, Result<Library, LoadError>, LoadPhase) {
    let fixture = Fixture::build(&[switch]);
    let watch = LoadWatch::default();
    thread::scope(|scope| {
        let loading = scope.spawn(|| Library::load_watched(&fixture.path, None, &watch));
        until(|| fixture.path.with_extension("so.waits").exists());
        let within = watch.phase();
        fs::write(fixture.path.with_extension("so.go"), "").unwrap();
        let loaded = loading.join().unwrap();
        (within, loaded, watch.phase())
    })
}

#[test]
fn an_initialiser_that_waits_does_so_within_the_systems_loader() {
    let (within, loaded, after) = while_it_waits("FX_INITIALISER_WAITS");
    assert!(loaded.is_ok());
    assert_eq!((within, after), (LoadPhase::Opening, LoadPhase::Opened));
}

#[test]
fn an_entry_function_that_waits_does_so_behind_the_systems_loader() {
    let (within, loaded, after) = while_it_waits("FX_ENTRY_WAITS");
    assert!(loaded.is_ok());
    assert_eq!((within, after), (LoadPhase::Opened, LoadPhase::Opened));
}

#[test]
#[cfg(target_os = "linux")]
fn a_loader_that_fails_has_returned() {
    let fixture = Fixture::build(&["FX_UNRESOLVED"]);
    let watch = LoadWatch::default();
    let error = Library::load_watched(&fixture.path, None, &watch).unwrap_err();
    assert!(matches!(error, LoadError::System { .. }), "{error}");
    assert_eq!(watch.phase(), LoadPhase::Opened);
}

#[test]
fn a_file_that_is_refused_unopened_is_not_opened() {
    let fixture = Fixture::build(&[]);
    let watch = LoadWatch::default();
    assert!(Library::load_watched(&fixture.path, Some([0; 32]), &watch).is_err());
    assert_eq!(watch.phase(), LoadPhase::Reading);
}
