//! The table of functions of a plugin. The only place that is called through the C interface.

use std::ffi::c_void;
use std::mem::size_of;
use std::ptr;

use mesh_plugin_abi::{
    MESH_ABSTAIN, MESH_DECISION_ID_BYTES, MESH_FAILED, MESH_OK, MESH_PANICKED, MESH_PENDING, MESH_PLUGIN_ABI_VERSION,
    MESH_READY, MeshActivation, MeshBytes, MeshGenerationAbort, MeshGenerationCommit, MeshGenerationFinish,
    MeshGenerationStart, MeshPluginTable, MeshProposalDiscard, MeshProposalOutcome, MeshProposalOutput,
    MeshProposalQuery, MeshStatus,
};

use crate::borrow::{View, read, view};
use crate::guard::guard;
use crate::{Candidates, Capabilities, Error, Operation, Plugin, Poll, last_error};

/// Exports a plugin's table under the entry symbol of this version of the interface. Once for each library.
#[macro_export]
macro_rules! export_plugin {
    ($plugin:ty) => {
        const _: () = {
            static TABLE: $crate::abi::MeshPluginTable = $crate::table::<$plugin>();

            #[unsafe(no_mangle)]
            extern "C" fn mesh_plugin_v1() -> *const $crate::abi::MeshPluginTable {
                &TABLE
            }
        };
    };
}

/// The table of a plugin; [`export_plugin!`] exports it. Functions that its capabilities do not want are null.
pub const fn table<P: Plugin>() -> MeshPluginTable {
    const {
        assert!(
            !P::NAME.is_empty() && P::NAME.len() <= 64,
            "a plugin's name has 1 to 64 bytes"
        );
        assert!(P::VERSION.len() <= 64, "a plugin's version has at most 64 bytes");
    }
    let proposes = P::CAPABILITIES.contains(Capabilities::PROPOSES);
    let reports = P::CAPABILITIES.contains(Capabilities::WANTS_REPORTS);
    let commits = P::CAPABILITIES.contains(Capabilities::WANTS_COMMITS);
    MeshPluginTable {
        struct_size: size_of::<MeshPluginTable>() as u32,
        abi_version: MESH_PLUGIN_ABI_VERSION,
        name: constant(P::NAME),
        version: constant(P::VERSION),
        capabilities: P::CAPABILITIES.bits(),
        activate: Some(activate::<P>),
        shutdown: Some(shutdown::<P>),
        begin_generation: Some(begin::<P>),
        commit_generation: if commits { Some(commit::<P>) } else { None },
        finish_generation: Some(finish::<P>),
        abort_generation: Some(abort::<P>),
        start_proposal: if proposes { Some(start_proposal::<P>) } else { None },
        poll_proposal: if proposes { Some(poll_proposal::<P>) } else { None },
        cancel_proposal: if proposes { Some(cancel_proposal::<P>) } else { None },
        report_proposal: if reports { Some(report::<P>) } else { None },
        discard_proposal: if proposes { Some(discard::<P>) } else { None },
        last_error: Some(copy_last_error),
    }
}

const fn constant(text: &'static str) -> MeshBytes {
    MeshBytes {
        data: text.as_ptr(),
        length: text.len() as u64,
    }
}

unsafe extern "C" fn activate<P: Plugin>(activation: *const MeshActivation, instance: *mut *mut c_void) -> MeshStatus {
    guard(|| {
        // SAFETY: the node lends the activation for this call.
        let activation = unsafe { view(activation)? };
        let place = not_null(instance)?;
        let plugin = Box::new(P::activate(&activation)?);
        // SAFETY: not null, and the node's place for one pointer.
        unsafe { place.write(Box::into_raw(plugin).cast()) };
        Ok(MESH_OK)
    })
}

unsafe extern "C" fn shutdown<P: Plugin>(instance: *mut c_void) -> MeshStatus {
    // SAFETY: the node passes the instance that it was given, and this is the last call.
    let said = guard(|| unsafe { plugin::<P>(instance) }?.shutdown().map(|()| MESH_OK));
    // Apart from the call, so that a drop which panics does not meet a panic that is under way: two at once abort.
    let dropped = guard(|| {
        // SAFETY: `activate` made the box, and nothing uses the instance from here on.
        drop(unsafe { Box::from_raw(not_null(instance.cast::<P>())?) });
        Ok(MESH_OK)
    });
    match (said, dropped) {
        (MESH_PANICKED, _) | (_, MESH_PANICKED) => MESH_PANICKED,
        (MESH_OK, dropped) => dropped,
        (said, _) => said,
    }
}

unsafe extern "C" fn begin<P: Plugin>(instance: *mut c_void, start: *const MeshGenerationStart) -> MeshStatus {
    // SAFETY: the node passes the instance that it was given, and lends the rest for this call.
    unsafe { call(instance, start, |plugin: &P, start| P::begin(plugin, &start)) }
}

unsafe extern "C" fn commit<P: Plugin>(instance: *mut c_void, commit: *const MeshGenerationCommit) -> MeshStatus {
    // SAFETY: as in `begin`.
    unsafe { call(instance, commit, |plugin: &P, commit| P::commit(plugin, &commit)) }
}

unsafe extern "C" fn finish<P: Plugin>(instance: *mut c_void, finish: *const MeshGenerationFinish) -> MeshStatus {
    // SAFETY: as in `begin`.
    unsafe { call(instance, finish, |plugin: &P, finish| P::finish(plugin, &finish)) }
}

unsafe extern "C" fn abort<P: Plugin>(instance: *mut c_void, abort: *const MeshGenerationAbort) -> MeshStatus {
    // SAFETY: as in `begin`.
    unsafe { call(instance, abort, |plugin: &P, abort| P::abort(plugin, &abort)) }
}

unsafe extern "C" fn report<P: Plugin>(instance: *mut c_void, outcome: *const MeshProposalOutcome) -> MeshStatus {
    // SAFETY: as in `begin`.
    unsafe { call(instance, outcome, |plugin: &P, outcome| P::report(plugin, &outcome)) }
}

unsafe extern "C" fn discard<P: Plugin>(instance: *mut c_void, discard: *const MeshProposalDiscard) -> MeshStatus {
    // SAFETY: as in `begin`.
    unsafe { call(instance, discard, |plugin: &P, discard| P::discard(plugin, &discard)) }
}

unsafe extern "C" fn start_proposal<P: Plugin>(
    instance: *mut c_void,
    query: *const MeshProposalQuery,
    operation: *mut u64,
) -> MeshStatus {
    guard(|| {
        // SAFETY: the node passes the instance that it was given, and lends the query for this call.
        let (plugin, query) = unsafe { (plugin::<P>(instance)?, view(query)?) };
        let place = not_null(operation)?;
        let started = plugin.start_proposal(&query)?;
        // SAFETY: not null, and the node's place for one number.
        unsafe { place.write(started.0) };
        Ok(MESH_OK)
    })
}

unsafe extern "C" fn poll_proposal<P: Plugin>(
    instance: *mut c_void,
    operation: u64,
    output: *mut MeshProposalOutput,
) -> MeshStatus {
    guard(|| {
        // SAFETY: the node passes the instance that it was given, and lends the output for this call.
        let (plugin, place) = unsafe { (plugin::<P>(instance)?, Place::of(output)?) };
        match plugin.poll_proposal(Operation(operation)) {
            Poll::Pending => Ok(MESH_PENDING),
            Poll::Abstain => Ok(MESH_ABSTAIN),
            Poll::Failed(error) => {
                last_error::set(error.message());
                Ok(MESH_FAILED)
            }
            Poll::Ready(candidates) => {
                place.put(&candidates);
                Ok(MESH_READY)
            }
        }
    })
}

unsafe extern "C" fn cancel_proposal<P: Plugin>(instance: *mut c_void, operation: u64) -> MeshStatus {
    guard(|| {
        // SAFETY: the node passes the instance that it was given.
        unsafe { plugin::<P>(instance)? }.cancel_proposal(Operation(operation))?;
        Ok(MESH_OK)
    })
}

unsafe extern "C" fn copy_last_error(_instance: *mut c_void, buffer: *mut u8, capacity: u64) -> u64 {
    let capacity = usize::try_from(capacity).unwrap_or(0);
    if buffer.is_null() || capacity == 0 {
        return 0;
    }
    // SAFETY: not null, and the node's place for `capacity` bytes.
    let buffer = unsafe { std::slice::from_raw_parts_mut(buffer, capacity) };
    last_error::copy(buffer) as u64
}

/// A call with one struct.
///
/// # Safety
/// `instance` is one of `P`; `argument` and all in it can be read during the call.
unsafe fn call<'a, P: Plugin, V: View<'a>>(
    instance: *mut c_void,
    argument: *const V::Raw,
    method: impl FnOnce(&P, V) -> Result<(), Error>,
) -> MeshStatus {
    guard(|| {
        // SAFETY: as required of the caller.
        let (plugin, view) = unsafe { (plugin::<P>(instance)?, view(argument)?) };
        method(plugin, view).map(|()| MESH_OK)
    })
}

/// # Safety
/// `instance` is null or what `activate` of the same plugin gave, and it was not shut down.
unsafe fn plugin<'a, P: Plugin>(instance: *mut c_void) -> Result<&'a P, Error> {
    let instance = not_null(instance.cast::<P>())?;
    // SAFETY: `activate` made it of a box of `P`, and nothing has it exclusively before shutdown.
    Ok(unsafe { &*instance })
}

fn not_null<T>(pointer: *mut T) -> Result<*mut T, Error> {
    if pointer.is_null() {
        return Err(Error::new("the node passed a null pointer"));
    }
    Ok(pointer)
}

/// The node's place for candidates.
struct Place {
    raw: MeshProposalOutput,
    target: *mut MeshProposalOutput,
}

impl Place {
    /// # Safety
    /// `output` is null or lent for the call.
    unsafe fn of(output: *mut MeshProposalOutput) -> Result<Self, Error> {
        // SAFETY: as required of the caller.
        let raw = unsafe { read(output.cast_const())? };
        let last = std::mem::offset_of!(MeshProposalOutput, base_position) + size_of::<u64>();
        if (raw.struct_size as usize) < last || raw.tokens.is_null() || raw.decision_id.is_null() {
            return Err(Error::new("the node's output has no place for candidates"));
        }
        Ok(Self { raw, target: output })
    }

    /// Writes what fits. The count is the true one: the node discards a decision that is too long, so that the plugin
    /// hears of it.
    fn put(&self, candidates: &Candidates) {
        let tokens = &candidates.tokens;
        let decision = candidates.decision.as_bytes();
        let fits = tokens.len().min(self.raw.token_capacity as usize);
        debug_assert!(decision.len() <= MESH_DECISION_ID_BYTES);
        // SAFETY: `of` found all places; the node lends `token_capacity` tokens, 64 bytes, and the fields below.
        unsafe {
            ptr::copy_nonoverlapping(tokens.as_ptr(), self.raw.tokens, fits);
            ptr::copy_nonoverlapping(decision.as_ptr(), self.raw.decision_id, decision.len());
            (&raw mut (*self.target).token_count).write(u32::try_from(tokens.len()).unwrap_or(u32::MAX));
            (&raw mut (*self.target).decision_id_length).write(decision.len() as u32);
            (&raw mut (*self.target).base_position).write(candidates.base_position);
        }
    }
}
