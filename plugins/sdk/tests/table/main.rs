//! The table of a plugin, called as the node calls it: through the C interface.

#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

mod node;
mod recorder;

use std::ffi::c_void;
use std::mem::{offset_of, size_of};
use std::ptr;
use std::sync::atomic::Ordering;

use mesh_plugin_sdk::abi::*;
use mesh_plugin_sdk::{Activation, Capabilities, Error, Plugin, export_plugin};
use node::{Instance, Node, Output, empty, sized, text, zeroed};
use recorder::Recorder;

export_plugin!(Recorder);

unsafe extern "C" {
    fn mesh_plugin_v1() -> *const MeshPluginTable;
}

fn exported() -> &'static MeshPluginTable {
    // SAFETY: the macro above exports it, and it is a constant.
    unsafe { &*mesh_plugin_v1() }
}

/// Follows ends only.
struct Follower;

impl Plugin for Follower {
    const NAME: &'static str = "follower";
    const VERSION: &'static str = "";
    const CAPABILITIES: Capabilities = Capabilities::NONE;

    fn activate(_: &Activation<'_>) -> Result<Self, Error> {
        Ok(Self)
    }
}

#[test]
fn the_exported_table_says_what_the_plugin_is() {
    let table = exported();
    assert_eq!(table.struct_size as usize, size_of::<MeshPluginTable>());
    assert_eq!(table.abi_version, MESH_PLUGIN_ABI_VERSION);
    assert_eq!(text(table.name), "recorder");
    assert_eq!(text(table.version), "1.2.3");
    let all = MESH_CAP_WANTS_COMMITS | MESH_CAP_WANTS_TOKEN_IDS | MESH_CAP_WANTS_REPORTS | MESH_CAP_PROPOSES;
    assert_eq!(table.capabilities, all);
}

#[test]
fn what_a_plugin_does_not_want_is_null() {
    let table = mesh_plugin_sdk::table::<Follower>();
    assert!(table.commit_generation.is_none() && table.report_proposal.is_none());
    assert!(table.start_proposal.is_none() && table.poll_proposal.is_none() && table.cancel_proposal.is_none());
    assert!(table.discard_proposal.is_none());
    assert!(table.begin_generation.is_some() && table.finish_generation.is_some() && table.abort_generation.is_some());
}

#[test]
fn a_generation_passes_with_all_that_the_node_says() {
    let node = Node::new();
    let instance = Instance::of(exported(), &node, "");
    assert_eq!(instance.begin(), MESH_OK);
    assert_eq!(instance.commit(), MESH_OK);
    let (status, operation) = instance.start();
    assert_eq!((status, operation), (MESH_OK, 41));
    assert_eq!(node.woken.load(Ordering::SeqCst), 41);
    let mut output = Output::new();
    assert_eq!(instance.poll(40, &mut output), MESH_PENDING);
    assert_eq!(instance.poll(operation, &mut output), MESH_READY);
    assert_eq!(output.candidates(), [7, 8]);
    assert_eq!(output.decision(), b"5");
    assert_eq!(output.raw.base_position, 5);
    assert_eq!(instance.report(), MESH_OK);
    assert_eq!(instance.discard(), MESH_OK);
    assert_eq!(instance.cancel(operation), MESH_OK);
    assert_eq!(instance.finish(), MESH_OK);
    assert_eq!(instance.abort(), MESH_OK);
    assert_eq!(
        instance.recorded(),
        [
            "activate model=m tokenizer=t budget=8ms context=4096 candidates=16 now=9ns pieces=2 \"a\" [1, 1]",
            "begin r/s/a attempt=1 prompt=[1, 2, 3] of 3",
            "commit r/s/a [4, 5] of 2 total=2",
            "start r/s/a position=5 most=4 step=1 deadline=100ns tail=[4, 5]",
            "poll 40",
            "poll 41",
            "report r/s/a FullAccept \"5\" step=1 2 of 2 committed=[7, 8, 9] predictions=[7, 8, 9] at 5, 8, 8",
            "discard r/s/a DeadlineExceeded \"5\" step=1 of 2 at 5",
            "cancel 41",
            "finish r/s/a Length incomplete=true attempt=1 3+[4, 5]=5 digest=9 queued=1ns first=2ns all=3ns [1, 2]",
            "abort r/s/a FinishFailed incomplete=false after_finish=true attempt=1 committed=2",
        ]
    );
    assert_eq!(instance.shutdown(), MESH_OK);
}

#[test]
fn an_error_of_each_call_is_told_on_its_thread() {
    let node = Node::new();
    for name in [
        "begin", "commit", "finish", "abort", "start", "cancel", "report", "discard",
    ] {
        let instance = Instance::of(exported(), &node, &format!("error {name}"));
        assert_eq!(instance.call(name), MESH_ERROR, "{name}");
        assert_eq!(instance.last_error(), format!("{name} fails"));
        assert_eq!(instance.shutdown(), MESH_OK);
    }
    let instance = Instance::of(exported(), &node, "error poll");
    assert_eq!(instance.call("poll"), MESH_FAILED);
    assert_eq!(instance.last_error(), "poll fails");
    assert_eq!(instance.shutdown(), MESH_OK);
    let instance = Instance::of(exported(), &node, "error shutdown");
    assert_eq!(instance.shutdown(), MESH_ERROR);
    // Nothing is left of the instance: the node asks without it.
    let gone = Instance {
        table: exported(),
        pointer: ptr::null_mut(),
    };
    assert_eq!(gone.last_error(), "shutdown fails");
}

#[test]
fn a_panic_in_each_call_becomes_a_status() {
    let node = Node::new();
    for name in [
        "begin", "commit", "finish", "abort", "start", "poll", "cancel", "report", "discard",
    ] {
        let instance = Instance::of(exported(), &node, &format!("panic {name}"));
        assert_eq!(instance.call(name), MESH_PANICKED, "{name}");
        assert_eq!(instance.last_error(), format!("panicked: {name} panics"));
        assert_eq!(instance.shutdown(), MESH_OK);
    }
}

#[test]
fn panics_at_the_beginning_and_at_the_end_do_not_cross() {
    let node = Node::new();
    for fault in ["panic activate", "error activate"] {
        let (status, instance) = node.activate(exported(), fault);
        assert_eq!(
            status,
            if fault.starts_with("panic") {
                MESH_PANICKED
            } else {
                MESH_ERROR
            }
        );
        assert!(instance.is_null());
    }
    for fault in ["panic shutdown", "panic drop", "panic shutdown and drop"] {
        let instance = Instance::of(exported(), &node, fault);
        assert_eq!(instance.shutdown(), MESH_PANICKED, "{fault}");
    }
}

#[test]
fn null_instead_of_a_pointer_is_an_error() {
    let table = exported();
    let null = ptr::null_mut::<c_void>();
    let mut operation = 0;
    let mut output = Output::new();
    // SAFETY: the plugin must not follow null pointers; the others are valid.
    unsafe {
        assert_eq!(table.activate.unwrap()(ptr::null(), &mut ptr::null_mut()), MESH_ERROR);
        assert_eq!(table.begin_generation.unwrap()(null, &zeroed()), MESH_ERROR);
        assert_eq!(
            table.start_proposal.unwrap()(null, &zeroed(), &mut operation),
            MESH_ERROR
        );
        assert_eq!(table.poll_proposal.unwrap()(null, 1, &mut output.raw), MESH_ERROR);
        assert_eq!(table.shutdown.unwrap()(null), MESH_ERROR);
        assert_eq!(table.last_error.unwrap()(null, ptr::null_mut(), 8), 0);
    }
    let node = Node::new();
    let instance = Instance::of(table, &node, "");
    // SAFETY: as above.
    unsafe {
        assert_eq!(
            table.finish_generation.unwrap()(instance.pointer, ptr::null()),
            MESH_ERROR
        );
        assert_eq!(
            table.start_proposal.unwrap()(instance.pointer, &zeroed(), ptr::null_mut()),
            MESH_ERROR
        );
    }
    assert_eq!(instance.last_error(), "the node passed a null pointer");
    assert_eq!(instance.shutdown(), MESH_OK);
}

#[test]
fn what_an_older_node_does_not_write_reads_as_zero() {
    let node = Node::new();
    let instance = Instance::of(exported(), &node, "");
    instance.recorded();
    // Ends before `total`, and before all but the size. What follows in memory must not be looked at.
    let commit = sized(instance.a_commit(), offset_of!(MeshGenerationCommit, total));
    // SAFETY: the plugin reads no more than `struct_size` says, which is all there is.
    unsafe {
        assert_eq!(
            exported().commit_generation.unwrap()(instance.pointer, commit.as_ptr()),
            MESH_OK
        );
        let nothing = sized(zeroed::<MeshGenerationStart>(), size_of::<u64>());
        assert_eq!(
            exported().begin_generation.unwrap()(instance.pointer, nothing.as_ptr()),
            MESH_OK
        );
    }
    assert_eq!(
        instance.recorded(),
        ["commit r/s/a [4, 5] of 2 total=0", "begin // attempt=0 prompt=[] of 0"]
    );
    assert_eq!(instance.shutdown(), MESH_OK);
}

#[test]
fn half_a_pointer_reads_as_null() {
    let node = Node::new();
    let instance = Instance::of(exported(), &node, "");
    instance.recorded();
    let half = offset_of!(MeshGenerationCommit, tokens) + 4;
    let commit = sized(instance.a_commit(), half);
    // SAFETY: as above.
    unsafe {
        assert_eq!(
            exported().commit_generation.unwrap()(instance.pointer, commit.as_ptr()),
            MESH_OK
        )
    };
    assert_eq!(instance.recorded(), ["commit r/s/a [] of 0 total=0"]);
    assert_eq!(instance.shutdown(), MESH_OK);
}

#[test]
fn what_a_newer_node_writes_behind_the_known_is_ignored() {
    let node = Node::new();
    let instance = Instance::of(exported(), &node, "");
    instance.recorded();
    let commit = sized(instance.a_commit(), size_of::<MeshGenerationCommit>() + 64);
    // SAFETY: as above.
    unsafe {
        assert_eq!(
            exported().commit_generation.unwrap()(instance.pointer, commit.as_ptr()),
            MESH_OK
        )
    };
    assert_eq!(instance.recorded(), ["commit r/s/a [4, 5] of 2 total=2"]);
    assert_eq!(instance.shutdown(), MESH_OK);
}

#[test]
fn a_small_activation_has_neither_clock_nor_tokenizer() {
    let node = Node::new();
    let activation = sized(node.activation(""), offset_of!(MeshActivation, tokenizer));
    let mut pointer = ptr::null_mut();
    // SAFETY: as above.
    unsafe { assert_eq!(exported().activate.unwrap()(activation.as_ptr(), &mut pointer), MESH_OK) };
    let instance = Instance {
        table: exported(),
        pointer,
    };
    assert_eq!(
        instance.recorded(),
        ["activate model=m tokenizer=t budget=0ns context=0 candidates=0 now=0ns pieces=0"]
    );
    assert_eq!(instance.start().0, MESH_OK);
    assert_eq!(node.woken.load(Ordering::SeqCst), 0);
    assert_eq!(instance.shutdown(), MESH_OK);
}

#[test]
fn an_output_without_place_for_candidates_is_an_error() {
    let node = Node::new();
    let instance = Instance::of(exported(), &node, "");
    let (_, operation) = instance.start();
    let mut output = Output::new();
    output.raw.struct_size = offset_of!(MeshProposalOutput, base_position) as u32;
    assert_eq!(instance.poll(operation, &mut output), MESH_ERROR);
    assert_eq!(output.raw.token_count, 0);
    assert_eq!(instance.shutdown(), MESH_OK);
}

#[test]
fn more_candidates_than_fit_are_counted_and_not_written() {
    let node = Node::new();
    let instance = Instance::of(exported(), &node, "");
    let (_, operation) = instance.start();
    let mut output = Output::new();
    output.raw.token_capacity = 1;
    assert_eq!(instance.poll(operation, &mut output), MESH_READY);
    assert_eq!(output.raw.token_count, 2);
    assert_eq!(output.tokens[..2], [7, empty()]);
    assert_eq!(instance.shutdown(), MESH_OK);
}

#[test]
fn a_name_that_is_no_utf8_reads_as_empty() {
    let node = Node::new();
    let instance = Instance::of(exported(), &node, "");
    instance.recorded();
    let mut commit = instance.a_commit();
    commit.ids.session_id.data = [0xff_u8].as_ptr();
    // SAFETY: the struct and all in it are valid.
    unsafe {
        assert_eq!(
            exported().commit_generation.unwrap()(instance.pointer, &commit),
            MESH_OK
        )
    };
    assert_eq!(instance.recorded(), ["commit r//a [4, 5] of 2 total=2"]);
    assert_eq!(instance.shutdown(), MESH_OK);
}
