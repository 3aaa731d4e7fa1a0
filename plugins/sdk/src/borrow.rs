//! Safe views of what the node passes. The only place that reads its pointers.
//!
//! A struct that may grow is read as the header says: no more than its writer wrote, the rest as zero.

use std::marker::PhantomData;
use std::mem::{MaybeUninit, align_of, size_of};
use std::path::Path;
use std::time::Duration;
use std::{ptr, slice, str};

use mesh_plugin_abi as abi;

use crate::{
    Abort, AbortReason, Activation, Clock, Commit, Discard, DiscardReason, Disposition, Error, Finish, FinishReason,
    Ids, Outcome, Query, Start, Tokenizer, Tokens, Waker,
};

/// How long the node lends something.
pub(crate) type Borrowed<'a> = PhantomData<&'a ()>;

/// A struct of the header that starts with `struct_size`.
///
/// # Safety
/// `repr(C)`, the first field is `struct_size: u32`, and all bytes zero is a valid value.
pub(crate) unsafe trait Grows: Copy {}

macro_rules! grows {
    ($($name:ident)*) => { $(
        // SAFETY: the struct mirrors one of the header that starts with `struct_size`; it has only integers, pointers,
        // arrays of integers and optional functions, for which zero is a value.
        unsafe impl Grows for abi::$name {}
    )* };
}

grows! {
    MeshTokenizer MeshActivation MeshGenerationStart MeshGenerationCommit MeshGenerationFinish MeshGenerationAbort
    MeshProposalQuery MeshProposalOutput MeshProposalOutcome MeshProposalDiscard
}

/// Copies as much of a struct as its writer wrote and this SDK knows; the rest is zero.
///
/// # Safety
/// `source` is null or points to a struct of which `struct_size` bytes can be read.
pub(crate) unsafe fn read<T: Grows>(source: *const T) -> Result<T, Error> {
    if source.is_null() {
        return Err(Error::new("the node passed a null pointer"));
    }
    // SAFETY: a struct that grows begins with its size, and its writer wrote at least that.
    let written = unsafe { source.cast::<u32>().read() } as usize;
    // The end of a field of any writer is a multiple of the alignment: half a pointer is no pointer.
    let known = written.min(size_of::<T>()) / align_of::<T>() * align_of::<T>();
    let mut value = MaybeUninit::<T>::zeroed();
    // SAFETY: the writer wrote `written` bytes at least, and `value` holds `size_of::<T>()`. All zero with some bytes of
    // the writer's is a value of `T`, as `Grows` promises and the writer's own layout does.
    unsafe {
        ptr::copy_nonoverlapping(source.cast::<u8>(), value.as_mut_ptr().cast::<u8>(), known);
        Ok(value.assume_init())
    }
}

/// # Safety
/// `data` is null or points to `count` values that nobody changes during `'a`.
unsafe fn borrow<'a, T>(data: *const T, count: u64) -> &'a [T] {
    match usize::try_from(count) {
        // SAFETY: as required of the caller; the length is not zero and the pointer not null.
        Ok(count) if count > 0 && !data.is_null() => unsafe { slice::from_raw_parts(data, count) },
        _ => &[],
    }
}

/// # Safety
/// As of [`borrow`].
unsafe fn bytes<'a>(raw: abi::MeshBytes) -> &'a [u8] {
    // SAFETY: as required of the caller.
    unsafe { borrow(raw.data, raw.length) }
}

/// # Safety
/// As of [`borrow`].
unsafe fn text<'a>(raw: abi::MeshBytes) -> &'a str {
    // SAFETY: as required of the caller.
    str::from_utf8(unsafe { bytes(raw) }).unwrap_or_default()
}

/// # Safety
/// As of [`borrow`].
unsafe fn path<'a>(raw: abi::MeshBytes) -> Option<&'a Path> {
    // SAFETY: as required of the caller.
    Some(unsafe { text(raw) })
        .filter(|text| !text.is_empty())
        .map(Path::new)
}

/// # Safety
/// As of [`borrow`].
unsafe fn tokens<'a>(raw: abi::MeshTokens) -> Tokens<'a> {
    Tokens {
        // SAFETY: as required of the caller.
        ids: unsafe { borrow(raw.data, raw.count) },
        count: raw.count,
    }
}

/// # Safety
/// As of [`borrow`].
unsafe fn ids<'a>(raw: abi::MeshIds) -> Ids<'a> {
    // SAFETY: as required of the caller, for each of them.
    unsafe {
        Ids {
            request: text(raw.request_id),
            session: text(raw.session_id),
            agent_session: text(raw.agent_session_id),
        }
    }
}

/// Something that the node passes to a call, as safe Rust.
pub(crate) trait View<'a>: Sized {
    /// As the header has it.
    type Raw: Grows;

    /// # Safety
    /// What `raw` points to can be read, and does not change during `'a`.
    unsafe fn of(raw: Self::Raw) -> Result<Self, Error>;
}

/// The view of a pointer that the node passed.
///
/// # Safety
/// As of [`read`], and what the struct points to does not change during `'a`.
pub(crate) unsafe fn view<'a, V: View<'a>>(source: *const V::Raw) -> Result<V, Error> {
    // SAFETY: as required of the caller.
    unsafe { V::of(read(source)?) }
}

impl<'a> View<'a> for Activation<'a> {
    type Raw = abi::MeshActivation;

    unsafe fn of(raw: Self::Raw) -> Result<Self, Error> {
        let tokenizer = if raw.tokenizer.is_null() {
            None
        } else {
            // SAFETY: not null, and lent for the activation as the whole struct is.
            Some(Tokenizer::new(unsafe { read(raw.tokenizer)? }, PhantomData))
        };
        // SAFETY: as required of the caller, for each pointer.
        unsafe {
            Ok(Self {
                model_id: text(raw.model_id),
                model_digest: raw.model_digest,
                tokenizer_id: text(raw.tokenizer_id),
                tokenizer,
                config_path: path(raw.config_path),
                state_dir: path(raw.state_dir),
                proposal_budget: Duration::from_nanos(raw.proposal_budget_ns),
                context_length: raw.context_length,
                max_candidates: raw.max_candidates,
                clock: Clock::new(&raw),
                waker: Waker::new(&raw),
            })
        }
    }
}

impl<'a> View<'a> for Start<'a> {
    type Raw = abi::MeshGenerationStart;

    unsafe fn of(raw: Self::Raw) -> Result<Self, Error> {
        // SAFETY: as required of the caller, for each pointer.
        unsafe {
            Ok(Self {
                ids: ids(raw.ids),
                attempt: raw.attempt,
                prompt: tokens(raw.prompt),
            })
        }
    }
}

impl<'a> View<'a> for Commit<'a> {
    type Raw = abi::MeshGenerationCommit;

    unsafe fn of(raw: Self::Raw) -> Result<Self, Error> {
        // SAFETY: as required of the caller, for each pointer.
        unsafe {
            Ok(Self {
                ids: ids(raw.ids),
                tokens: tokens(raw.tokens),
                total: raw.total,
            })
        }
    }
}

impl<'a> View<'a> for Finish<'a> {
    type Raw = abi::MeshGenerationFinish;

    unsafe fn of(raw: Self::Raw) -> Result<Self, Error> {
        // SAFETY: as required of the caller, for each pointer.
        unsafe {
            Ok(Self {
                ids: ids(raw.ids),
                incomplete: raw.flags & abi::MESH_END_INCOMPLETE != 0,
                reason: FinishReason::from_code(raw.reason),
                attempt: raw.attempt,
                prompt_count: raw.prompt_count,
                prompt_digest: raw.prompt_digest,
                generated: tokens(raw.generated),
                final_position: raw.final_position,
                queued: Duration::from_nanos(raw.queued_ns),
                first_token: Duration::from_nanos(raw.first_token_ns),
                generation: Duration::from_nanos(raw.generation_ns),
                token_ns: borrow(raw.token_ns, raw.token_ns_count),
            })
        }
    }
}

impl<'a> View<'a> for Abort<'a> {
    type Raw = abi::MeshGenerationAbort;

    unsafe fn of(raw: Self::Raw) -> Result<Self, Error> {
        Ok(Self {
            // SAFETY: as required of the caller.
            ids: unsafe { ids(raw.ids) },
            incomplete: raw.flags & abi::MESH_END_INCOMPLETE != 0,
            after_failed_finish: raw.flags & abi::MESH_END_AFTER_FAILED_FINISH != 0,
            reason: AbortReason::from_code(raw.reason),
            attempt: raw.attempt,
            committed_count: raw.committed_count,
        })
    }
}

impl<'a> View<'a> for Query<'a> {
    type Raw = abi::MeshProposalQuery;

    unsafe fn of(raw: Self::Raw) -> Result<Self, Error> {
        // SAFETY: as required of the caller, for each pointer.
        unsafe {
            Ok(Self {
                ids: ids(raw.ids),
                max_tokens: raw.max_tokens,
                prompt_count: raw.prompt_count,
                committed_count: raw.committed_count,
                step: raw.step,
                deadline: Duration::from_nanos(raw.deadline_ns),
                tail: tokens(raw.tail),
            })
        }
    }
}

impl<'a> View<'a> for Outcome<'a> {
    type Raw = abi::MeshProposalOutcome;

    unsafe fn of(raw: Self::Raw) -> Result<Self, Error> {
        // SAFETY: as required of the caller, for each pointer.
        unsafe {
            Ok(Self {
                ids: ids(raw.ids),
                disposition: Disposition::from_code(raw.disposition),
                decision: bytes(raw.decision_id),
                step: raw.step,
                proposed_count: raw.proposed_count,
                accepted_count: raw.accepted_count,
                committed: tokens(raw.committed),
                predictions: tokens(raw.predictions),
                base_position: raw.base_position,
                verified_position: raw.verified_position,
                canonical_position: raw.canonical_position,
            })
        }
    }
}

impl<'a> View<'a> for Discard<'a> {
    type Raw = abi::MeshProposalDiscard;

    unsafe fn of(raw: Self::Raw) -> Result<Self, Error> {
        // SAFETY: as required of the caller, for each pointer.
        unsafe {
            Ok(Self {
                ids: ids(raw.ids),
                reason: DiscardReason::from_code(raw.reason),
                decision: bytes(raw.decision_id),
                step: raw.step,
                proposed_count: raw.proposed_count,
                base_position: raw.base_position,
            })
        }
    }
}
