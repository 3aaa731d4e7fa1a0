//! Borrowed data as the header's structs. They hold pointers into what they were made of: make them for one call, and
//! let the data outlive it.

use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::ptr::null;

use mesh_plugin_abi::{
    MESH_END_AFTER_FAILED_FINISH, MESH_END_INCOMPLETE, MESH_MAX_TAIL, MeshBytes, MeshGenerationAbort,
    MeshGenerationCommit, MeshGenerationFinish, MeshGenerationStart, MeshIds, MeshProposalDiscard, MeshProposalOutcome,
    MeshProposalQuery, MeshTokens,
};

use crate::clock::nanoseconds;
use crate::{
    GenerationAbort, GenerationCommit, GenerationFinish, GenerationStart, Ids, ProposalDiscard, ProposalOutcome,
    ProposalQuery,
};

/// Bytes of a struct, as its first field says them.
pub(super) const fn struct_size<T>() -> u32 {
    // The largest struct has a few hundred bytes.
    size_of::<T>() as u32
}

/// Null if there are none, which a C compiler likes better than a dangling pointer.
pub(super) fn bytes(data: &[u8]) -> MeshBytes {
    MeshBytes {
        data: if data.is_empty() { null() } else { data.as_ptr() },
        length: data.len() as u64,
    }
}

/// The bytes of a path, which on these systems need not be UTF-8.
pub(super) fn path(path: Option<&Path>) -> MeshBytes {
    bytes(path.map_or(&[], |path| path.as_os_str().as_bytes()))
}

/// Token ids, or only their number. The ids of a vocabulary are below 2^31, so that the cast keeps them.
fn tokens(ids: &[u32], shown: bool) -> MeshTokens {
    debug_assert!(ids.iter().all(|id| i32::try_from(*id).is_ok()));
    let data = if shown && !ids.is_empty() { ids.as_ptr() } else { null() };
    MeshTokens {
        data: data.cast(),
        count: ids.len() as u64,
    }
}

fn ids(ids: &Ids<'_>) -> MeshIds {
    MeshIds {
        request_id: bytes(ids.request.as_bytes()),
        session_id: bytes(ids.session.as_bytes()),
        agent_session_id: bytes(ids.agent_session.as_bytes()),
    }
}

fn flag(set: bool, flag: u32) -> u32 {
    if set { flag } else { 0 }
}

pub(super) fn start(start: &GenerationStart<'_>, token_ids: bool) -> MeshGenerationStart {
    MeshGenerationStart {
        struct_size: struct_size::<MeshGenerationStart>(),
        attempt: start.attempt,
        ids: ids(&start.ids),
        prompt: tokens(start.prompt, token_ids),
    }
}

pub(super) fn commit(commit: &GenerationCommit<'_>, token_ids: bool) -> MeshGenerationCommit {
    MeshGenerationCommit {
        struct_size: struct_size::<MeshGenerationCommit>(),
        reserved: 0,
        ids: ids(&commit.ids),
        tokens: tokens(commit.tokens, token_ids),
        total: commit.total,
    }
}

pub(super) fn finish(finish: &GenerationFinish<'_>, token_ids: bool) -> MeshGenerationFinish {
    // Without ids there are no times, and their number is 0: a null pointer goes with no length but that of tokens.
    let times = if token_ids { finish.token_ns } else { &[] };
    MeshGenerationFinish {
        struct_size: struct_size::<MeshGenerationFinish>(),
        flags: flag(finish.incomplete, MESH_END_INCOMPLETE),
        ids: ids(&finish.ids),
        reason: finish.reason.code(),
        attempt: finish.attempt,
        prompt_count: finish.prompt_count,
        prompt_digest: finish.prompt_digest,
        generated: tokens(finish.generated, token_ids),
        final_position: finish.prompt_count.saturating_add(finish.generated.len() as u64),
        queued_ns: nanoseconds(finish.queued),
        first_token_ns: nanoseconds(finish.first_token),
        generation_ns: nanoseconds(finish.generation),
        token_ns: if times.is_empty() { null() } else { times.as_ptr() },
        token_ns_count: times.len() as u64,
    }
}

pub(super) fn abort(abort: &GenerationAbort<'_>) -> MeshGenerationAbort {
    MeshGenerationAbort {
        struct_size: struct_size::<MeshGenerationAbort>(),
        flags: flag(abort.incomplete, MESH_END_INCOMPLETE)
            | flag(abort.after_failed_finish, MESH_END_AFTER_FAILED_FINISH),
        ids: ids(&abort.ids),
        reason: abort.reason.code(),
        attempt: abort.attempt,
        committed_count: abort.committed_count,
    }
}

pub(super) fn query(query: &ProposalQuery<'_>, token_ids: bool) -> MeshProposalQuery {
    let tail = &query.tail[query.tail.len().saturating_sub(MESH_MAX_TAIL)..];
    MeshProposalQuery {
        struct_size: struct_size::<MeshProposalQuery>(),
        max_tokens: query.max_tokens,
        ids: ids(&query.ids),
        prompt_count: query.prompt_count,
        committed_count: query.committed_count,
        step: query.step,
        deadline_ns: query.deadline_ns,
        tail: tokens(tail, token_ids),
    }
}

pub(super) fn outcome(outcome: &ProposalOutcome<'_>, token_ids: bool) -> MeshProposalOutcome {
    MeshProposalOutcome {
        struct_size: struct_size::<MeshProposalOutcome>(),
        disposition: outcome.disposition.code(),
        ids: ids(&outcome.ids),
        decision_id: bytes(outcome.decision_id),
        step: outcome.step,
        proposed_count: outcome.proposed_count,
        accepted_count: outcome.accepted_count,
        committed: tokens(outcome.committed, token_ids),
        predictions: tokens(outcome.predictions, token_ids),
        base_position: outcome.base_position,
        verified_position: outcome.verified_position,
        canonical_position: outcome.canonical_position,
    }
}

pub(super) fn discard(discard: &ProposalDiscard<'_>) -> MeshProposalDiscard {
    MeshProposalDiscard {
        struct_size: struct_size::<MeshProposalDiscard>(),
        reason: discard.reason.code(),
        ids: ids(&discard.ids),
        decision_id: bytes(discard.decision_id),
        step: discard.step,
        proposed_count: discard.proposed_count,
        base_position: discard.base_position,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_empty_is_null() {
        assert!(bytes(&[]).data.is_null());
        assert!(tokens(&[], true).data.is_null());
        assert!(path(None).data.is_null());
    }

    #[test]
    fn withheld_ids_keep_their_count() {
        let withheld = tokens(&[1, 2, 3], false);
        assert!(withheld.data.is_null());
        assert_eq!(withheld.count, 3);
    }

    #[test]
    fn a_tail_that_is_too_long_passes_its_end() {
        let tail: Vec<u32> = (0..2000).collect();
        let asked = ProposalQuery {
            ids: Ids {
                request: "r",
                session: "s",
                agent_session: "",
            },
            max_tokens: 1,
            prompt_count: 2000,
            committed_count: 0,
            step: 0,
            deadline_ns: 0,
            tail: &tail,
        };
        let passed = query(&asked, true).tail;
        assert_eq!(passed.count, 1024);
        assert_eq!(passed.data, tail[976..].as_ptr().cast());
    }
}
