//! Which files are refused, and what is said about it.

use std::fs;
use std::path::Path;

use mesh_plugin_host::{Callback, Library, LoadError};

use crate::fixture::{Fixture, ignored};

fn refused(switches: &[&str]) -> LoadError {
    Fixture::build(switches).load().unwrap_err()
}

/// The message says what to do.
macro_rules! assert_refused {
    ($error:expr, $pattern:pat, $advice:expr) => {{
        let error = $error;
        assert!(matches!(&error, $pattern), "{error:?}");
        let said = error.to_string();
        assert!(said.contains($advice), "{said}");
        assert!(!said.ends_with('.'), "{said}");
    }};
}

#[test]
fn a_good_plugin_loads_and_describes_itself() {
    let fixture = Fixture::build(&[]);
    let library = fixture.load().unwrap();
    let description = library.description();
    assert_eq!(description.name, "fixture");
    assert_eq!(description.version, "1.2.3");
    assert_eq!(description.abi, (1, 0));
    assert_eq!(description.path, fixture.path);
    assert_eq!(
        description.table_size as usize,
        size_of::<mesh_plugin_abi::MeshPluginTable>()
    );
    let flags = description.capabilities;
    assert!(flags.wants_commits && flags.wants_token_ids && flags.wants_reports && flags.proposes);
    assert!(!flags.serial);
    let digest = blake3::hash(&fs::read(&fixture.path).unwrap());
    assert_eq!(description.digest, *digest.as_bytes());
    assert_eq!(description.digest_hex(), digest.to_hex().as_str());
}

#[test]
fn a_plugin_with_the_digest_that_was_asked_for_loads() {
    let fixture = Fixture::build(&[]);
    let digest = *blake3::hash(&fs::read(&fixture.path).unwrap()).as_bytes();
    assert!(Library::load(&fixture.path, Some(digest)).is_ok());
}

#[test]
fn another_digest_is_refused_before_any_code_runs() {
    // This one would fail in another way if it were loaded.
    let fixture = Fixture::build(&["FX_NO_ENTRY"]);
    let error = Library::load(&fixture.path, Some([0x11; 32])).unwrap_err();
    let found = blake3::hash(&fs::read(&fixture.path).unwrap()).to_hex();
    assert!(error.to_string().contains(found.as_str()), "{error}");
    assert!(error.to_string().contains(&"11".repeat(32)), "{error}");
    assert_refused!(error, LoadError::DigestMismatch { .. }, "correct the digest");
}

#[test]
fn a_relative_path_is_refused() {
    let error = Library::load(Path::new("plugin.so"), None).unwrap_err();
    assert_refused!(error, LoadError::RelativePath { .. }, "give the plugin's whole path");
}

#[test]
fn a_missing_file_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let error = Library::load(&directory.path().join("plugin.so"), None).unwrap_err();
    assert_refused!(error, LoadError::Missing { .. }, "check the path");
}

#[test]
fn a_directory_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let error = Library::load(directory.path(), None).unwrap_err();
    assert_refused!(error, LoadError::NotAFile { .. }, "library itself");
}

#[test]
fn a_path_that_the_system_does_not_take_is_refused() {
    let error = Library::load(Path::new("/plugin\0.so"), None).unwrap_err();
    assert_refused!(error, LoadError::Unreadable { .. }, "make the plugin readable");
}

#[test]
#[cfg(target_os = "linux")]
fn a_file_that_is_no_library_is_refused_in_words() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("plugin.so");
    for (content, reason) in [
        (&b""[..], "it is empty"),
        (b"#!/bin/sh\nexit 0\n", "it is no ELF file"),
        (b"\x7fELF\x02\x01\x01", "it ends within its header"),
    ] {
        fs::write(&path, content).unwrap();
        let error = Library::load(&path, None).unwrap_err();
        assert_refused!(error, LoadError::NotALibrary { .. }, reason);
    }
}

#[test]
#[cfg(target_os = "linux")]
fn a_library_that_is_cut_short_is_refused_before_the_system_maps_it() {
    let fixture = Fixture::build(&[]);
    let whole = fs::read(&fixture.path).unwrap();
    for length in [20, 63, 64, 200, 1000, 4000, 4096, 8192, 12_000] {
        assert!(length < whole.len(), "the fixture has {} bytes", whole.len());
        fs::write(&fixture.path, &whole[..length]).unwrap();
        assert_refused!(fixture.load().unwrap_err(), LoadError::CutShort { .. }, "copy it again");
    }
    fs::write(&fixture.path, whole).unwrap();
    assert!(fixture.load().is_ok());
}

#[test]
#[cfg(target_os = "linux")]
fn a_library_of_another_machine_type_is_refused_by_name() {
    let fixture = Fixture::build(&[]);
    let mut content = fs::read(&fixture.path).unwrap();
    // The machine type of S/390, which nobody runs this on.
    content[18..20].copy_from_slice(&22u16.to_le_bytes());
    fs::write(&fixture.path, content).unwrap();
    assert_refused!(
        fixture.load().unwrap_err(),
        LoadError::OtherMachine { .. },
        "is built for IBM Z"
    );
}

#[test]
fn a_library_that_the_system_cannot_load_is_refused() {
    let fixture = Fixture::build(&[]);
    let mut content = fs::read(&fixture.path).unwrap();
    if cfg!(target_os = "linux") {
        // It has no program headers.
        content[56..58].fill(0);
    } else {
        content.truncate(200);
    }
    fs::write(&fixture.path, content).unwrap();
    assert_refused!(fixture.load().unwrap_err(), LoadError::System { .. }, "build it again");
}

#[test]
#[cfg(target_os = "linux")]
fn a_library_that_needs_what_is_not_there_is_refused_when_it_loads() {
    let error = refused(&["FX_UNRESOLVED"]);
    assert_refused!(error, LoadError::System { .. }, "nobody_has_this_function");
}

#[test]
fn a_file_that_changes_while_it_is_loaded_is_refused() {
    let error = refused(&["FX_CHANGES_ITSELF"]);
    assert_refused!(error, LoadError::Changed { .. }, "restart the node");
}

#[test]
fn a_library_is_never_unloaded_even_if_it_is_refused() {
    for (switches, loads) in [
        (&["FX_TELLS_UNLOADING", "FX_NULL_TABLE"], false),
        (&["FX_TELLS_UNLOADING", "FX_NO_ENTRY"], false),
        (&["FX_TELLS_UNLOADING", "FX_CAPS=0"], true),
    ] {
        let fixture = Fixture::build(switches);
        let library = fixture.load();
        assert_eq!(library.is_ok(), loads);
        drop(library);
        assert!(!fixture.path.with_extension("so.unloaded").exists());
    }
}

#[test]
fn a_library_that_closes_itself_stays() {
    let fixture = Fixture::build(&["FX_TELLS_UNLOADING", "FX_CLOSES_ITSELF"]);
    let instance = fixture.activate(&fixture.load().unwrap(), ignored()).unwrap();
    instance.shutdown().unwrap();
    assert!(!fixture.path.with_extension("so.unloaded").exists());
}

#[test]
fn a_library_without_the_entry_function_is_refused() {
    assert_refused!(
        refused(&["FX_NO_ENTRY"]),
        LoadError::MissingEntry { .. },
        "against mesh_plugin.h"
    );
}

#[test]
fn no_table_is_refused() {
    assert_refused!(refused(&["FX_NULL_TABLE"]), LoadError::NullTable { .. }, "must return");
}

#[test]
fn a_misaligned_table_is_refused() {
    let error = refused(&["FX_MISALIGNED"]);
    assert_refused!(
        error,
        LoadError::MisalignedTable { alignment: 8, .. },
        "MeshPluginTable"
    );
}

#[test]
fn a_table_that_ends_before_shutdown_is_refused_and_not_read_further() {
    for size in [
        "FX_SIZE=0",
        "FX_CUT=4",
        "FX_CUT=8",
        "FX_CUT=40",
        "FX_CUT=56",
        "FX_CUT=63",
    ] {
        let error = refused(&[size]);
        assert_refused!(
            error,
            LoadError::TableTooSmall { least: 64, .. },
            "sizeof(MeshPluginTable)"
        );
    }
}

#[test]
fn another_major_version_is_refused() {
    let error = refused(&["FX_ABI=0x00020003"]);
    assert!(error.to_string().contains("version 2.3"), "{error}");
    assert_refused!(
        error,
        LoadError::OtherVersion {
            major: 2,
            minor: 3,
            supported: 1,
            ..
        },
        "build it against this node's mesh_plugin.h"
    );
    assert_refused!(refused(&["FX_ABI=0"]), LoadError::OtherVersion { .. }, "version 0.0");
}

#[test]
fn the_version_is_looked_at_before_the_size() {
    assert_refused!(
        refused(&["FX_ABI=0x00020000", "FX_CUT=8"]),
        LoadError::OtherVersion { .. },
        "2.0"
    );
}

#[test]
fn another_minor_version_loads() {
    let library = Fixture::build(&["FX_ABI=0x00010007"]).load().unwrap();
    assert_eq!(library.description().abi, (1, 7));
}

#[test]
fn a_plugin_without_activate_or_shutdown_is_refused() {
    for (nulls, function) in [("FX_NULLS=1", Callback::Activate), ("FX_NULLS=2", Callback::Shutdown)] {
        let error = refused(&[nulls]);
        assert!(
            matches!(&error, LoadError::MissingFunction { function: named, .. } if *named == function),
            "{error}"
        );
        assert!(error.to_string().contains(function.name()), "{error}");
    }
}

#[test]
fn a_plugin_that_proposes_without_the_functions_for_it_is_refused() {
    for (bit, function) in [(6, Callback::Start), (7, Callback::Poll), (8, Callback::Cancel)] {
        let nulls = format!("FX_NULLS={}", 1 << bit);
        let error = refused(&[&nulls]);
        assert!(
            matches!(&error, LoadError::CannotPropose { function: named, .. } if *named == function),
            "{error}"
        );
        assert!(error.to_string().contains("MESH_CAP_PROPOSES"), "{error}");
        assert!(Fixture::build(&[&nulls, "FX_CAPS=0x7"]).load().is_ok());
    }
}

#[test]
fn a_name_has_1_to_64_bytes() {
    assert_refused!(refused(&["FX_NAME=\"\""]), LoadError::NameEmpty { .. }, "1 to 64 bytes");
    assert_refused!(
        refused(&["FX_NAME_LENGTH=65"]),
        LoadError::NameTooLong { length: 65, .. },
        "1 to 64 bytes"
    );
    assert_refused!(
        refused(&["FX_NAME_LENGTH=~0ull"]),
        LoadError::NameTooLong { .. },
        "1 to 64 bytes"
    );
    assert_refused!(
        refused(&["FX_NAME_NULL"]),
        LoadError::NullText { field: "name", .. },
        "set its data"
    );
    let longest = format!("FX_NAME=\"{}\"", "n".repeat(64));
    assert_eq!(Fixture::build(&[&longest]).load().unwrap().description().name.len(), 64);
}

#[test]
fn a_name_that_is_no_text_is_refused_and_shown() {
    let error = refused(&[r#"FX_NAME="bad\377\nname""#]);
    assert_refused!(error, LoadError::NameNotUtf8 { .. }, "`bad\u{fffd}\\nname`");
}

#[test]
fn a_version_has_at_most_64_bytes_of_text() {
    assert_refused!(
        refused(&["FX_VERSION_LENGTH=65"]),
        LoadError::VersionTooLong { .. },
        "at most 64 bytes"
    );
    assert_refused!(
        refused(&["FX_VERSION_NULL"]),
        LoadError::NullText { field: "version", .. },
        "set its data"
    );
    assert_refused!(
        refused(&[r#"FX_VERSION="1\377""#]),
        LoadError::VersionNotUtf8 { .. },
        "`1\u{fffd}`"
    );
    assert_eq!(
        Fixture::build(&["FX_VERSION=\"\""])
            .load()
            .unwrap()
            .description()
            .version,
        ""
    );
}

#[test]
fn the_same_library_loads_twice() {
    let fixture = Fixture::build(&[]);
    let once = fixture.load().unwrap();
    let twice = fixture.load().unwrap();
    assert_eq!(once.description(), twice.description());
}
