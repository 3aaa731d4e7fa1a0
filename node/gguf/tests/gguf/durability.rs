use std::fs::{self, File};
use std::ops::ControlFlow;

use mesh_gguf::{GgufError, StageCut, StageManifest, remove_leftovers, support};
use tempfile::tempdir;

use crate::fixture::{Model, cut, go_on, names};

#[test]
fn the_same_source_and_range_are_reused() {
    let dir = tempdir().unwrap();
    let source = Model::new("llama", 4).open(dir.path());
    let first = cut(&source, 1, 3, dir.path());
    assert!(!first.reused);
    let again = cut(&source, 1, 3, dir.path());
    assert!(again.reused);
    assert_eq!((again.path, again.manifest), (first.path, first.manifest));
    assert!(!cut(&source, 1, 4, dir.path()).reused);
}

#[test]
fn files_are_named_by_source_and_range() {
    let dir = tempdir().unwrap();
    let source = Model::new("llama", 4).open(dir.path());
    let artifact = cut(&source, 1, 3, dir.path());
    let short = &source.source_id()[..16];
    assert_eq!(
        artifact.path.file_name().unwrap().to_str().unwrap(),
        format!("{short}-1-3.gguf")
    );
    let json = fs::read(dir.path().join(format!("{short}-1-3.manifest.json"))).unwrap();
    assert_eq!(
        serde_json::from_slice::<StageManifest>(&json).unwrap(),
        artifact.manifest
    );
}

#[test]
fn a_stage_of_the_wrong_size_or_without_manifest_is_cut_again() {
    let dir = tempdir().unwrap();
    let source = Model::new("llama", 4).open(dir.path());
    let artifact = cut(&source, 1, 3, dir.path());
    let whole = fs::read(&artifact.path).unwrap();
    fs::write(&artifact.path, &whole[..100]).unwrap();
    assert!(!cut(&source, 1, 3, dir.path()).reused);
    assert_eq!(fs::read(&artifact.path).unwrap(), whole);
    fs::write(artifact.path.with_extension("manifest.json"), b"{").unwrap();
    assert!(!cut(&source, 1, 3, dir.path()).reused);
}

#[test]
fn a_manifest_of_another_version_is_not_reused() {
    let dir = tempdir().unwrap();
    let source = Model::new("llama", 4).open(dir.path());
    let artifact = cut(&source, 1, 3, dir.path());
    let older = StageManifest {
        version: 0,
        ..artifact.manifest
    };
    fs::write(
        artifact.path.with_extension("manifest.json"),
        serde_json::to_vec(&older).unwrap(),
    )
    .unwrap();
    assert!(!cut(&source, 1, 3, dir.path()).reused);
}

#[test]
fn other_content_under_the_same_name_has_another_identity() {
    let dir = tempdir().unwrap();
    let mut model = Model::new("llama", 4);
    let before = model.open(dir.path()).source_id();
    model.set("general.name", mesh_gguf::Value::string("tinz"));
    assert_ne!(model.open(dir.path()).source_id(), before);
}

#[test]
fn a_cancelled_cut_leaves_nothing() {
    let source_dir = tempdir().unwrap();
    let source = Model::new("llama", 4).open(source_dir.path());
    let architecture = support(&source).unwrap();
    let plan = StageCut::plan(&source, &architecture, 0..4).unwrap();
    for stop_after in [0, 1, 5] {
        let dir = tempdir().unwrap();
        let mut calls = 0;
        let result = plan.write(dir.path(), &mut |_| {
            calls += 1;
            if calls > stop_after {
                ControlFlow::Break(())
            } else {
                ControlFlow::Continue(())
            }
        });
        assert!(matches!(result, Err(GgufError::Cancelled)));
        assert!(names(dir.path()).is_empty(), "{:?}", names(dir.path()));
    }
}

#[test]
fn a_panic_in_progress_leaves_nothing() {
    let source_dir = tempdir().unwrap();
    let source = Model::new("llama", 4).open(source_dir.path());
    let architecture = support(&source).unwrap();
    let plan = StageCut::plan(&source, &architecture, 0..4).unwrap();
    let dir = tempdir().unwrap();
    let outcome = std::panic::catch_unwind(|| plan.write(dir.path(), &mut |_| panic!("stop")));
    assert!(outcome.is_err());
    assert!(names(dir.path()).is_empty());
}

#[test]
fn a_source_changed_after_opening_is_refused_and_leaves_nothing() {
    let source_dir = tempdir().unwrap();
    let model = Model::new("llama", 4);
    let source = model.open(source_dir.path());
    let architecture = support(&source).unwrap();
    let plan = StageCut::plan(&source, &architecture, 0..4).unwrap();
    let dir = tempdir().unwrap();
    let path = source.path().to_owned();
    let result = plan.write(dir.path(), &mut |progress| {
        File::options().write(true).open(&path).unwrap().set_len(1000).unwrap();
        go_on(progress)
    });
    assert!(matches!(result, Err(GgufError::SourceChanged { .. })), "{result:?}");
    assert!(names(dir.path()).is_empty());
    assert!(matches!(
        plan.write(dir.path(), &mut go_on),
        Err(GgufError::SourceChanged { .. })
    ));
}

#[test]
fn a_missing_directory_is_made() {
    let dir = tempdir().unwrap();
    let source = Model::new("llama", 4).open(dir.path());
    let deep = dir.path().join("a b/ü/cache");
    assert!(cut(&source, 0, 2, &deep).path.starts_with(&deep));
}

#[test]
fn a_directory_that_cannot_be_one_is_a_clear_error() {
    let dir = tempdir().unwrap();
    let source = Model::new("llama", 4).open(dir.path());
    let architecture = support(&source).unwrap();
    let plan = StageCut::plan(&source, &architecture, 0..2).unwrap();
    let error = plan
        .write(&dir.path().join("model.gguf/cache"), &mut go_on)
        .unwrap_err();
    assert!(matches!(error, GgufError::NotWritable { .. }), "{error:?}");
    assert!(error.to_string().contains("set MESH_HOME"), "{error}");
}

#[test]
fn leftovers_of_crashes_are_removed_and_files_in_use_are_not() {
    let dir = tempdir().unwrap();
    assert_eq!(remove_leftovers(&dir.path().join("absent")).unwrap(), 0);
    fs::write(dir.path().join(".mesh-cut-1-2-3.tmp"), b"x").unwrap();
    fs::write(dir.path().join("other.tmp"), b"x").unwrap();
    let in_use = dir.path().join(".mesh-cut-4-5-6.tmp");
    let held = File::create(&in_use).unwrap();
    held.lock().unwrap();
    assert_eq!(remove_leftovers(dir.path()).unwrap(), 1);
    assert_eq!(names(dir.path()), [".mesh-cut-4-5-6.tmp", "other.tmp"]);
    drop(held);
    assert_eq!(remove_leftovers(dir.path()).unwrap(), 1);
}

#[test]
fn cleaning_up_during_a_cut_does_not_disturb_it() {
    let dir = tempdir().unwrap();
    let source = Model::new("llama", 4).open(dir.path());
    let architecture = support(&source).unwrap();
    let plan = StageCut::plan(&source, &architecture, 0..4).unwrap();
    let artifact = plan.write(dir.path(), &mut |progress| {
        assert_eq!(remove_leftovers(dir.path()).unwrap(), 0);
        go_on(progress)
    });
    mesh_gguf::verify(&artifact.as_ref().unwrap().path, &artifact.as_ref().unwrap().manifest).unwrap();
}
