//! The header and its Rust mirror say the same: a C compiler prints sizes, offsets and codes, and so does this test.

#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

use std::collections::BTreeSet;
use std::mem::{align_of, offset_of, size_of};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use mesh_plugin_abi::*;

const HEADER: &str = "mesh_plugin.h";

/// A struct as one side sees it.
#[derive(Debug)]
struct Layout {
    name: &'static str,
    size: usize,
    align: usize,
    fields: Vec<Field>,
}

#[derive(Debug)]
struct Field {
    name: &'static str,
    offset: usize,
    size: usize,
    align: usize,
}

/// Size and alignment of a field, found through its accessor without reading it.
fn extent<S, F>(_accessor: fn(&S) -> &F) -> (usize, usize) {
    (size_of::<F>(), align_of::<F>())
}

macro_rules! layouts {
    ($($name:ident { $($field:ident),* $(,)? })*) => {
        vec![$(Layout {
            name: stringify!($name),
            size: size_of::<$name>(),
            align: align_of::<$name>(),
            fields: vec![$({
                let (size, align) = extent(|whole: &$name| &whole.$field);
                Field { name: stringify!($field), offset: offset_of!($name, $field), size, align }
            }),*],
        }),*]
    };
}

fn layouts() -> Vec<Layout> {
    layouts! {
        MeshBytes { data, length }
        MeshTokens { data, count }
        MeshIds { request_id, session_id, agent_session_id }
        MeshTokenizer { struct_size, token_count, context, piece, encode }
        MeshActivation {
            struct_size, reserved, model_id, model_digest, tokenizer_id, tokenizer, config_path, state_dir,
            proposal_budget_ns, context_length, max_candidates, host, now_ns, wake,
        }
        MeshGenerationStart { struct_size, attempt, ids, prompt }
        MeshGenerationCommit { struct_size, reserved, ids, tokens, total }
        MeshGenerationFinish {
            struct_size, flags, ids, reason, attempt, prompt_count, prompt_digest, generated, final_position,
            queued_ns, first_token_ns, generation_ns, token_ns, token_ns_count,
        }
        MeshGenerationAbort { struct_size, flags, ids, reason, attempt, committed_count }
        MeshProposalQuery {
            struct_size, max_tokens, ids, prompt_count, committed_count, step, deadline_ns, tail,
        }
        MeshProposalOutput {
            struct_size, token_capacity, tokens, decision_id, token_count, decision_id_length, base_position,
            reserved,
        }
        MeshProposalOutcome {
            struct_size, disposition, ids, decision_id, step, proposed_count, accepted_count, committed, predictions,
            base_position, verified_position, canonical_position,
        }
        MeshProposalDiscard { struct_size, reason, ids, decision_id, step, proposed_count, base_position }
        MeshPluginTable {
            struct_size, abi_version, name, version, capabilities, activate, shutdown, begin_generation,
            commit_generation, finish_generation, abort_generation, start_proposal, poll_proposal, cancel_proposal,
            report_proposal, discard_proposal, last_error,
        }
    }
}

macro_rules! codes {
    ($($name:ident)*) => { vec![$((stringify!($name), i128::from($name as i64), size_of_val(&$name))),*] };
}

/// Codes and flags: their types are part of the interface.
fn codes() -> Vec<(&'static str, i128, usize)> {
    codes! {
        MESH_PLUGIN_ABI_VERSION
        MESH_OK MESH_ERROR MESH_PANICKED MESH_PENDING MESH_READY MESH_ABSTAIN MESH_FAILED
        MESH_CAP_WANTS_COMMITS MESH_CAP_WANTS_TOKEN_IDS MESH_CAP_WANTS_REPORTS MESH_CAP_PROPOSES MESH_CAP_SERIAL
        MESH_FINISH_UNKNOWN MESH_FINISH_STOP MESH_FINISH_LENGTH
        MESH_ABORT_FAILED MESH_ABORT_CANCELLED MESH_ABORT_STAGE_LOST MESH_ABORT_SHUTDOWN MESH_ABORT_FENCE_TIMEOUT
        MESH_ABORT_FINISH_FAILED MESH_ABORT_OVERLOADED
        MESH_END_INCOMPLETE MESH_END_AFTER_FAILED_FINISH
        MESH_DISPOSITION_FIRST_MISMATCH MESH_DISPOSITION_FULL_ACCEPT MESH_DISPOSITION_STOPPED
        MESH_DISCARD_CANCELLED MESH_DISCARD_DEADLINE_EXCEEDED MESH_DISCARD_INVALID_TOKEN_COUNT
        MESH_DISCARD_INVALID_TOKEN_ID MESH_DISCARD_POSITION_MISMATCH MESH_DISCARD_EXECUTION_FAILED
    }
}

/// Bounds: plain numbers in C, `usize` here.
fn bounds() -> Vec<(&'static str, usize)> {
    vec![
        ("MESH_DECISION_ID_BYTES", MESH_DECISION_ID_BYTES),
        ("MESH_MAX_CANDIDATES", MESH_MAX_CANDIDATES),
        ("MESH_MAX_TAIL", MESH_MAX_TAIL),
        ("MESH_MAX_ERROR_BYTES", MESH_MAX_ERROR_BYTES),
        ("MESH_MAX_ENCODE_BYTES", MESH_MAX_ENCODE_BYTES),
    ]
}

/// What the mirror says, in the words of the C program.
fn mirror() -> String {
    let mut lines = Vec::new();
    for layout in layouts() {
        lines.push(format!("{} size {}", layout.name, layout.size));
        for field in layout.fields {
            let Field { name, offset, size, .. } = field;
            lines.push(format!("  {name} offset {offset} size {size}"));
        }
    }
    for (name, value, size) in codes() {
        lines.push(format!("{name} = {value} size {size}"));
    }
    for (name, value) in bounds() {
        lines.push(format!("{name} = {value}"));
    }
    let entry = std::str::from_utf8(MESH_PLUGIN_ENTRY).unwrap().trim_end_matches('\0');
    lines.push(format!("MESH_PLUGIN_ENTRY = {entry}"));
    lines.join("\n") + "\n"
}

/// A C program that prints the same lines from the header.
fn program() -> String {
    let mut body = String::new();
    for layout in layouts() {
        let whole = layout.name;
        body += &format!("    printf(\"{whole} size %zu\\n\", sizeof({whole}));\n");
        for Field { name, .. } in layout.fields {
            body += &format!(
                "    printf(\"  {name} offset %zu size %zu\\n\", offsetof({whole}, {name}), sizeof((({whole} *)0)->{name}));\n"
            );
        }
    }
    for (name, ..) in codes() {
        body += &format!("    printf(\"{name} = %lld size %zu\\n\", (long long)({name}), sizeof({name}));\n");
    }
    for (name, _) in bounds() {
        body += &format!("    printf(\"{name} = %lld\\n\", (long long)({name}));\n");
    }
    body += "    printf(\"MESH_PLUGIN_ENTRY = %s\\n\", MESH_PLUGIN_ENTRY);\n";
    format!(
        "#include <stddef.h>\n#include <stdio.h>\n#include \"{HEADER}\"\nint main(void) {{\n{body}    return 0;\n}}\n"
    )
}

fn include() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("include")
}

fn compiler(variable: &str, default: &str) -> Command {
    let mut command = Command::new(std::env::var(variable).unwrap_or_else(|_| default.to_owned()));
    command.arg("-I").arg(include());
    command
}

fn succeed(command: &mut Command) -> Output {
    let output = command
        .output()
        .unwrap_or_else(|error| panic!("{command:?} does not start: {error}"));
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?} failed:\n{errors}");
    output
}

fn stdout(command: &mut Command) -> String {
    String::from_utf8(succeed(command).stdout).unwrap()
}

#[test]
fn the_mirror_has_the_layout_and_the_codes_of_the_header() {
    let directory = tempfile::tempdir().unwrap();
    let source = directory.path().join("layout.c");
    let binary = directory.path().join("layout");
    std::fs::write(&source, program()).unwrap();
    succeed(
        compiler("CC", "cc")
            .args(["-std=c11", "-Wall", "-Wextra", "-Wpedantic", "-Werror", "-o"])
            .args([&binary, &source]),
    );
    let header = stdout(&mut Command::new(&binary));
    // Line by line, so that a failure shows the one that differs.
    let mirror = mirror();
    for (mirrored, told) in mirror.lines().zip(header.lines()) {
        assert_eq!(mirrored, told);
    }
    assert_eq!(mirror.lines().count(), header.lines().count());
    // The reviewed layout of a 64-bit target. A change of anything but the end of a struct is a new major version.
    if size_of::<usize>() == 8 {
        insta::assert_snapshot!(header);
    }
}

#[test]
fn no_field_is_missing_from_the_comparison() {
    for layout in layouts() {
        let mut end = 0_usize;
        for field in &layout.fields {
            let expected = end.next_multiple_of(field.align);
            assert_eq!(field.offset, expected, "a gap before {}.{}", layout.name, field.name);
            end = field.offset + field.size;
        }
        assert_eq!(
            layout.size,
            end.next_multiple_of(layout.align),
            "a gap at the end of {}",
            layout.name
        );
    }
}

#[test]
fn no_code_is_missing_from_the_comparison() {
    let directory = tempfile::tempdir().unwrap();
    let source = directory.path().join("macros.c");
    std::fs::write(&source, format!("#include \"{HEADER}\"\n")).unwrap();
    let macros = stdout(compiler("CC", "cc").args(["-std=c11", "-dM", "-E"]).arg(&source));
    let defined: BTreeSet<_> = macros
        .lines()
        .filter_map(|line| line.strip_prefix("#define ")?.split_whitespace().next())
        .filter(|name| name.starts_with("MESH_"))
        .collect();
    // What has no value to compare, and the name of the entry, which is compared as text.
    let mut compared = BTreeSet::from(["MESH_PLUGIN_H", "MESH_PLUGIN_EXPORT", "MESH_PLUGIN_ENTRY"]);
    compared.extend(codes().iter().map(|(name, ..)| *name));
    compared.extend(bounds().iter().map(|(name, _)| *name));
    assert_eq!(defined, compared);
}

const STRICT: [&str; 6] = [
    "-Wall",
    "-Wextra",
    "-Wpedantic",
    "-Wconversion",
    "-Werror",
    "-fsyntax-only",
];

#[test]
fn the_header_is_strict_c11() {
    let directory = tempfile::tempdir().unwrap();
    let source = directory.path().join("header.c");
    std::fs::write(
        &source,
        format!("#include \"{HEADER}\"\nconst MeshPluginTable *mesh_plugin_v1(void);\n"),
    )
    .unwrap();
    succeed(compiler("CC", "cc").arg("-std=c11").args(STRICT).arg(&source));
}

#[test]
fn the_header_is_strict_cpp17() {
    let directory = tempfile::tempdir().unwrap();
    let source = directory.path().join("header.cpp");
    let text = format!(
        "#include \"{HEADER}\"\nstatic_assert(MESH_CAP_SERIAL == 16, \"\");\nextern \"C\" const MeshPluginTable *mesh_plugin_v1(void);\n"
    );
    std::fs::write(&source, text).unwrap();
    succeed(compiler("CXX", "c++").arg("-std=c++17").args(STRICT).arg(&source));
}
