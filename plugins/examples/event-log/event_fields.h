/*
 * event_fields.h: what the node passes to a plugin, as fields of a JSON line.
 *
 * Codes are written twice: as the word that the header's fallback rule gives, and as the number.
 */
#ifndef EVENT_FIELDS_H
#define EVENT_FIELDS_H

#include "json_line.h"
#include "mesh_plugin.h"

/* A copy of a struct of the node: what an older node did not write is zero, what a newer one adds is left out. */
#define TAKE(type, name, passed)                                                                                       \
    type name;                                                                                                         \
    memset(&name, 0, sizeof name);                                                                                     \
    memcpy(&name, passed, (passed)->struct_size < sizeof name ? (passed)->struct_size : sizeof name)

static inline const char *finish_reason(int32_t code) {
    switch (code) {
    case MESH_FINISH_STOP:
        return "stop";
    case MESH_FINISH_LENGTH:
        return "length";
    default:
        return "unknown";
    }
}

static inline const char *abort_reason(int32_t code) {
    switch (code) {
    case MESH_ABORT_CANCELLED:
        return "cancelled";
    case MESH_ABORT_STAGE_LOST:
        return "stage_lost";
    case MESH_ABORT_SHUTDOWN:
        return "shutdown";
    case MESH_ABORT_FENCE_TIMEOUT:
        return "fence_timeout";
    case MESH_ABORT_FINISH_FAILED:
        return "finish_failed";
    case MESH_ABORT_OVERLOADED:
        return "overloaded";
    default:
        return "failed";
    }
}

static inline const char *disposition(int32_t code) {
    switch (code) {
    case MESH_DISPOSITION_FULL_ACCEPT:
        return "full_accept";
    case MESH_DISPOSITION_STOPPED:
        return "stopped";
    default:
        return "first_mismatch";
    }
}

static inline const char *discard_reason(int32_t code) {
    switch (code) {
    case MESH_DISCARD_DEADLINE_EXCEEDED:
        return "deadline_exceeded";
    case MESH_DISCARD_INVALID_TOKEN_COUNT:
        return "invalid_token_count";
    case MESH_DISCARD_INVALID_TOKEN_ID:
        return "invalid_token_id";
    case MESH_DISCARD_POSITION_MISMATCH:
        return "position_mismatch";
    case MESH_DISCARD_EXECUTION_FAILED:
        return "execution_failed";
    default:
        return "cancelled";
    }
}

static inline void fields_of_ids(Line *line, const MeshIds *ids) {
    field_bytes(line, "request", ids->request_id.data, ids->request_id.length);
    field_bytes(line, "session", ids->session_id.data, ids->session_id.length);
    field_bytes(line, "agent_session", ids->agent_session_id.data, ids->agent_session_id.length);
}

static inline void fields_of_activation(Line *line, const MeshActivation *activation) {
    field_bytes(line, "model", activation->model_id.data, activation->model_id.length);
    field_hex(line, "model_digest", activation->model_digest, sizeof activation->model_digest);
    field_bytes(line, "tokenizer", activation->tokenizer_id.data, activation->tokenizer_id.length);
    field_unsigned(line, "proposal_budget_ns", activation->proposal_budget_ns);
    field_unsigned(line, "context_length", activation->context_length);
    field_unsigned(line, "max_candidates", activation->max_candidates);
}

static inline void fields_of_start(Line *line, const MeshGenerationStart *start) {
    fields_of_ids(line, &start->ids);
    field_unsigned(line, "attempt", start->attempt);
    field_unsigned(line, "prompt_count", start->prompt.count);
    field_tokens(line, "prompt", start->prompt.data, start->prompt.count);
}

static inline void fields_of_commit(Line *line, const MeshGenerationCommit *commit) {
    fields_of_ids(line, &commit->ids);
    field_unsigned(line, "count", commit->tokens.count);
    field_tokens(line, "tokens", commit->tokens.data, commit->tokens.count);
    field_unsigned(line, "total", commit->total);
}

static inline void fields_of_finish(Line *line, const MeshGenerationFinish *finish) {
    fields_of_ids(line, &finish->ids);
    field_text(line, "reason", finish_reason(finish->reason));
    field_signed(line, "reason_code", finish->reason);
    field_unsigned(line, "flags", finish->flags);
    field_unsigned(line, "attempt", finish->attempt);
    field_unsigned(line, "prompt_count", finish->prompt_count);
    field_hex(line, "prompt_digest", finish->prompt_digest, sizeof finish->prompt_digest);
    field_unsigned(line, "generated_count", finish->generated.count);
    field_tokens(line, "generated", finish->generated.data, finish->generated.count);
    field_unsigned(line, "final_position", finish->final_position);
    field_unsigned(line, "queued_ns", finish->queued_ns);
    field_unsigned(line, "first_token_ns", finish->first_token_ns);
    field_unsigned(line, "generation_ns", finish->generation_ns);
    field_counts(line, "token_ns", finish->token_ns, finish->token_ns_count);
}

static inline void fields_of_abort(Line *line, const MeshGenerationAbort *abort) {
    fields_of_ids(line, &abort->ids);
    field_text(line, "reason", abort_reason(abort->reason));
    field_signed(line, "reason_code", abort->reason);
    field_unsigned(line, "flags", abort->flags);
    field_unsigned(line, "attempt", abort->attempt);
    field_unsigned(line, "committed_count", abort->committed_count);
}

static inline void fields_of_query(Line *line, const MeshProposalQuery *query) {
    fields_of_ids(line, &query->ids);
    field_unsigned(line, "max_tokens", query->max_tokens);
    field_unsigned(line, "prompt_count", query->prompt_count);
    field_unsigned(line, "committed_count", query->committed_count);
    field_unsigned(line, "step", query->step);
    field_unsigned(line, "deadline_ns", query->deadline_ns);
    field_tokens(line, "tail", query->tail.data, query->tail.count);
}

static inline void fields_of_outcome(Line *line, const MeshProposalOutcome *outcome) {
    fields_of_ids(line, &outcome->ids);
    field_bytes(line, "decision", outcome->decision_id.data, outcome->decision_id.length);
    field_text(line, "disposition", disposition(outcome->disposition));
    field_signed(line, "disposition_code", outcome->disposition);
    field_unsigned(line, "step", outcome->step);
    field_unsigned(line, "proposed_count", outcome->proposed_count);
    field_unsigned(line, "accepted_count", outcome->accepted_count);
    field_tokens(line, "committed", outcome->committed.data, outcome->committed.count);
    field_tokens(line, "predictions", outcome->predictions.data, outcome->predictions.count);
    field_unsigned(line, "base_position", outcome->base_position);
    field_unsigned(line, "verified_position", outcome->verified_position);
    field_unsigned(line, "canonical_position", outcome->canonical_position);
}

static inline void fields_of_discard(Line *line, const MeshProposalDiscard *discard) {
    fields_of_ids(line, &discard->ids);
    field_bytes(line, "decision", discard->decision_id.data, discard->decision_id.length);
    field_text(line, "reason", discard_reason(discard->reason));
    field_signed(line, "reason_code", discard->reason);
    field_unsigned(line, "step", discard->step);
    field_unsigned(line, "proposed_count", discard->proposed_count);
    field_unsigned(line, "base_position", discard->base_position);
}

#endif /* EVENT_FIELDS_H */
