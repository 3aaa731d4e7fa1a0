/*
 * mesh_plugin.h: the interface between a Mesh node and a native serving plugin, version 1.
 *
 * A PLUGIN RUNS INSIDE THE NODE'S PROCESS. It can be slow, wrong or stuck without harm to inference, but a crash
 * (a signal, abort(), exit(), pthread_exit()) ends the node, and memory that it overwrites is the node's memory. Load
 * only what you trust. Stdout is the node's: write to stderr or to a file. A library that was loaded is never unloaded.
 *
 * A plugin is a shared library that exports one function, `mesh_plugin_v1`, which returns a table of functions. A
 * plugin may follow generations, propose tokens, or both. It follows those whose head (the node of stage 0) it runs on.
 *
 *     mesh_plugin_v1 -> table
 *     activate -> instance                                         once for each model that this node is the head of
 *       begin_generation
 *         start_proposal -> operation, poll_proposal ... | cancel_proposal     at most one operation at a time
 *         report_proposal | discard_proposal                                   once for each decision
 *         commit_generation                                                    any number
 *       finish_generation | abort_generation
 *     shutdown
 *
 * Rules for both sides
 *
 *  1. A struct that begins with `struct_size` may grow at its end. Its writer sets `struct_size` to what it wrote; its
 *     reader looks at no more than that and takes the rest as zero. A new field is compatible; anything else is a new
 *     version with another entry symbol, and a node goes on loading the version before.
 *  2. What is passed in is borrowed for the call, unless said otherwise: copy what you keep. Output goes into buffers
 *     of the caller. No ownership, no exception and no unwinding crosses.
 *  3. Functions that are null are not wanted. `activate` and `shutdown` must be there; with MESH_CAP_PROPOSES also
 *     `start_proposal`, `poll_proposal` and `cancel_proposal`.
 *  4. Codes are fixed-width integers. A code that the reader does not know is possible; what it means then is said
 *     where the code is defined.
 *  5. Bytes are never terminated by zero: a length goes with every pointer. A pointer may be null if its length is 0.
 *
 * Threads
 *
 *  [activation]  one of the plugin's threads; none of the instance's other calls runs
 *  [generation]  one of the plugin's threads. Calls of one generation never overlap and keep their order; calls of
 *                different generations run side by side, unless the plugin has MESH_CAP_SERIAL: then no two calls
 *                into the plugin ever overlap, activation and shutdown included
 *  [any]         any thread of the plugin's or the node's, at any time, also from within a call
 */
#ifndef MESH_PLUGIN_H
#define MESH_PLUGIN_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- version ---------------------------------------------------------------------------------------------------- */

/* Major version in the upper 16 bits, minor in the lower. A node takes a plugin of its own major version, whatever the
 * minor one. */
#define MESH_PLUGIN_ABI_VERSION UINT32_C(0x00010000)

/* Name of the entry symbol of this major version. */
#define MESH_PLUGIN_ENTRY "mesh_plugin_v1"

#if defined(_WIN32)
#define MESH_PLUGIN_EXPORT __declspec(dllexport)
#else
#define MESH_PLUGIN_EXPORT __attribute__((visibility("default")))
#endif

/* ---- codes ------------------------------------------------------------------------------------------------------ */

/* What a call came to. A node that gets a code it does not know, or one that the function does not list, calls the
 * plugin no more, except to end what has begun. */
typedef int32_t MeshStatus;
#define MESH_OK INT32_C(0)
/* It failed; the node asks `last_error`, counts it and goes on. */
#define MESH_ERROR INT32_C(1)
/* It unwound: set by wrappers that catch exceptions or panics. The plugin is quarantined. */
#define MESH_PANICKED INT32_C(2)
/* Of `poll_proposal` only: */
/* Nothing yet. Call `wake` when that changes. */
#define MESH_PENDING INT32_C(16)
/* Candidates are in the output. The operation is over; the decision is open. */
#define MESH_READY INT32_C(17)
/* No candidates this time. The operation is over. */
#define MESH_ABSTAIN INT32_C(18)
/* The operation failed. `cancel_proposal` follows, and this generation asks no more. */
#define MESH_FAILED INT32_C(19)

/* What a plugin wants and can: bits of `MeshPluginTable.capabilities`. Unknown bits are ignored. */
#define MESH_CAP_WANTS_COMMITS (UINT64_C(1) << 0)   /* call `commit_generation` */
#define MESH_CAP_WANTS_TOKEN_IDS (UINT64_C(1) << 1) /* give token ids with begin, commit, finish, queries and reports */
#define MESH_CAP_WANTS_REPORTS (UINT64_C(1) << 2)   /* call `report_proposal` */
#define MESH_CAP_PROPOSES (UINT64_C(1) << 3)        /* call `start_proposal` */
#define MESH_CAP_SERIAL (UINT64_C(1) << 4)          /* never two calls at once */

/* Why a generation finished. Take an unknown one as MESH_FINISH_UNKNOWN. */
#define MESH_FINISH_UNKNOWN INT32_C(0)
#define MESH_FINISH_STOP INT32_C(1)   /* end of generation, or a stop string */
#define MESH_FINISH_LENGTH INT32_C(2) /* the client's limit, or the end of the context */

/* Why a generation was aborted. Take an unknown one as MESH_ABORT_FAILED. */
#define MESH_ABORT_FAILED INT32_C(0)
#define MESH_ABORT_CANCELLED INT32_C(1)     /* by the client or an operator */
#define MESH_ABORT_STAGE_LOST INT32_C(2)    /* a node of the model went away, or the model was stopped */
#define MESH_ABORT_SHUTDOWN INT32_C(3)      /* this node stops */
#define MESH_ABORT_FENCE_TIMEOUT INT32_C(4) /* it finished, but earlier calls did not return in time */
#define MESH_ABORT_FINISH_FAILED INT32_C(5) /* `finish_generation` returned an error */
#define MESH_ABORT_OVERLOADED INT32_C(6)    /* it ended, but the end found no place in the plugin's queue */

/* Flags of finish and abort. Unknown bits are ignored. */
/* Begin or a commit was dropped since the plugin's queue was full: begin and commits do not add up to the receipt. If
 * begin was dropped, only the end of the generation is told. */
#define MESH_END_INCOMPLETE (UINT32_C(1) << 0)
/* Abort only: `finish_generation` was called before and returned an error. */
#define MESH_END_AFTER_FAILED_FINISH (UINT32_C(1) << 1)

/* How a verified decision came out. Take an unknown one as MESH_DISPOSITION_FIRST_MISMATCH. */
#define MESH_DISPOSITION_FIRST_MISMATCH INT32_C(0) /* candidate `accepted_count` was not what the model produced */
#define MESH_DISPOSITION_FULL_ACCEPT INT32_C(1)    /* the model produced all candidates, and one more token */
#define MESH_DISPOSITION_STOPPED INT32_C(2)        /* generation ended within the accepted candidates */

/* Why a decision was not used. Take an unknown one as MESH_DISCARD_CANCELLED. */
#define MESH_DISCARD_CANCELLED INT32_C(0)           /* the request has gone, or another plugin was first */
#define MESH_DISCARD_DEADLINE_EXCEEDED INT32_C(1)   /* it came after the deadline */
#define MESH_DISCARD_INVALID_TOKEN_COUNT INT32_C(2) /* no tokens, more than wanted, or more than the buffer holds */
#define MESH_DISCARD_INVALID_TOKEN_ID INT32_C(3)    /* a token is not in the vocabulary */
#define MESH_DISCARD_POSITION_MISMATCH INT32_C(4)   /* it is not for the position that was asked about */
#define MESH_DISCARD_EXECUTION_FAILED INT32_C(5)    /* the model could not verify it */

/* Sizes. */
#define MESH_DECISION_ID_BYTES 64    /* a decision id has 1 to 64 bytes, chosen by the plugin, unique in its generation */
#define MESH_MAX_CANDIDATES 4096     /* capacity of the output of `poll_proposal`, tokens */
#define MESH_MAX_TAIL 1024           /* most tokens of a query's `tail` */
#define MESH_MAX_ERROR_BYTES 1024    /* capacity of the buffer of `last_error`, bytes */
#define MESH_MAX_ENCODE_BYTES 1048576 /* longest text that `MeshTokenizer.encode` takes, bytes */

/* ---- what passes ------------------------------------------------------------------------------------------------ */

/* Bytes; text is UTF-8. */
typedef struct MeshBytes {
    const uint8_t *data;
    uint64_t length;
} MeshBytes;

/* Token ids. `data` is null where the plugin did not ask for ids; `count` is right even then. */
typedef struct MeshTokens {
    const int32_t *data;
    uint64_t count;
} MeshTokens;

/* Names of a generation. */
typedef struct MeshIds {
    MeshBytes request_id;       /* a UUID as text, unique on the node; the key of a generation */
    MeshBytes session_id;       /* the occupation of a lane */
    MeshBytes agent_session_id; /* from the client's side; may be empty */
} MeshIds;

/* The model's tokenizer. Valid until `activate` returns; copy what you need. Later calls return MESH_ERROR. */
typedef struct MeshTokenizer {
    uint32_t struct_size;
    uint32_t token_count; /* ids are 0 to token_count - 1 */
    void *context;        /* first argument of the functions */
    /* Bytes of a token: writes up to `capacity` of them, and their number to `length`. They may end inside a UTF-8
     * character. MESH_ERROR if there is no such token, or if it does not fit; then `length` is the capacity needed. */
    MeshStatus (*piece)(void *context, int32_t token, uint8_t *buffer, uint64_t capacity, uint64_t *length);
    /* Token ids of a text, without beginning-of-text and without looking for special tokens; joined, their pieces are
     * the text (SentencePiece models may put a space before it). MESH_ERROR if the text is no UTF-8, too long or cannot
     * be given back without loss, or if the ids do not fit; then `count` is the capacity needed. */
    MeshStatus (*encode)(void *context, MeshBytes text, int32_t *tokens, uint64_t capacity, uint64_t *count);
} MeshTokenizer;

/* A model is ready. Pointers are valid during `activate`, but `host`, `now_ns` and `wake` as long as the process. */
typedef struct MeshActivation {
    uint32_t struct_size;
    uint32_t reserved;              /* 0 */
    MeshBytes model_id;             /* what clients call it */
    uint8_t model_digest[32];       /* BLAKE3 of the model's metadata and weights */
    MeshBytes tokenizer_id;         /* equal for equal vocabularies */
    const MeshTokenizer *tokenizer; /* null if there is none */
    MeshBytes config_path;          /* absolute; empty if none was given */
    MeshBytes state_dir;            /* absolute, exists, the plugin's own; empty if none was given */
    uint64_t proposal_budget_ns;    /* from a query to its deadline */
    uint32_t context_length;        /* most positions of a generation */
    uint32_t max_candidates;        /* most tokens that a query will ask for */
    void *host;                     /* first argument of the functions below */
    /* [any] The monotonic clock of deadlines, nanoseconds. */
    uint64_t (*now_ns)(void *host);
    /* [any] A pending operation of this instance changed state: the node polls it soon. Cheap; unknown operations are
     * ignored, also after `shutdown`. */
    void (*wake)(void *host, uint64_t operation);
} MeshActivation;

/* A lane is held and work starts. */
typedef struct MeshGenerationStart {
    uint32_t struct_size;
    uint32_t attempt; /* from 1; grows when a request is carried over to other nodes */
    MeshIds ids;
    MeshTokens prompt;
} MeshGenerationStart;

/* Tokens became part of the output. */
typedef struct MeshGenerationCommit {
    uint32_t struct_size;
    uint32_t reserved; /* 0 */
    MeshIds ids;
    MeshTokens tokens; /* the new ones, one or more */
    uint64_t total;    /* generated so far, these included */
} MeshGenerationCommit;

/* The receipt of a generation that ended normally. */
typedef struct MeshGenerationFinish {
    uint32_t struct_size;
    uint32_t flags; /* MESH_END_* */
    MeshIds ids;
    int32_t reason; /* MESH_FINISH_* */
    uint32_t attempt;
    uint64_t prompt_count;
    uint8_t prompt_digest[32]; /* BLAKE3 of the prompt's ids as little-endian 32-bit integers */
    MeshTokens generated;      /* all of them */
    uint64_t final_position;   /* prompt_count + generated.count */
    uint64_t queued_ns;        /* from arrival to the lane */
    uint64_t first_token_ns;   /* from the lane to the first token */
    uint64_t generation_ns;    /* from the lane to the end */
    const uint64_t *token_ns;  /* for each token, from arrival until it was committed; null without WANTS_TOKEN_IDS */
    uint64_t token_ns_count;
} MeshGenerationFinish;

/* It ended in any other way. */
typedef struct MeshGenerationAbort {
    uint32_t struct_size;
    uint32_t flags; /* MESH_END_* */
    MeshIds ids;
    int32_t reason; /* MESH_ABORT_* */
    uint32_t attempt;
    uint64_t committed_count; /* tokens generated by then */
} MeshGenerationAbort;

/* The node wants candidates for what comes next. */
typedef struct MeshProposalQuery {
    uint32_t struct_size;
    uint32_t max_tokens; /* most that it takes, at least 1 */
    MeshIds ids;
    uint64_t prompt_count;
    uint64_t committed_count; /* tokens generated; the candidates come after them */
    uint64_t step;            /* grows with every query of the generation */
    uint64_t deadline_ns;     /* on the clock of `now_ns`; an answer at or after it is late */
    MeshTokens tail;          /* the end of prompt and output together, at most MESH_MAX_TAIL tokens */
} MeshProposalQuery;

/* Where `poll_proposal` puts candidates. Set by the node, but for the last four fields. */
typedef struct MeshProposalOutput {
    uint32_t struct_size;
    uint32_t token_capacity;     /* tokens that `tokens` holds */
    int32_t *tokens;
    uint8_t *decision_id;        /* MESH_DECISION_ID_BYTES bytes */
    uint32_t token_count;        /* set by the plugin: candidates, 1 to the query's max_tokens */
    uint32_t decision_id_length; /* set by the plugin: 1 to MESH_DECISION_ID_BYTES */
    uint64_t base_position;      /* set by the plugin: the query's prompt_count + committed_count */
    uint64_t reserved;           /* 0 */
} MeshProposalOutput;

/* A decision was verified. Positions count from the beginning of the prompt. */
typedef struct MeshProposalOutcome {
    uint32_t struct_size;
    int32_t disposition; /* MESH_DISPOSITION_* */
    MeshIds ids;
    MeshBytes decision_id;
    uint64_t step;
    uint64_t proposed_count;
    uint64_t accepted_count;     /* candidates that the model produced too */
    MeshTokens committed;        /* what became output: the accepted ones and one more, unless generation ended */
    MeshTokens predictions;      /* what the model produced from `base_position` to the decision, it included */
    uint64_t base_position;      /* of the first candidate */
    uint64_t verified_position;  /* behind the last candidate that was computed */
    uint64_t canonical_position; /* behind the last token that became output */
} MeshProposalOutcome;

/* A decision was not used. */
typedef struct MeshProposalDiscard {
    uint32_t struct_size;
    int32_t reason; /* MESH_DISCARD_* */
    MeshIds ids;
    MeshBytes decision_id;
    uint64_t step;
    uint64_t proposed_count;
    uint64_t base_position;
} MeshProposalDiscard;

/* ---- the table -------------------------------------------------------------------------------------------------- */

/* Lives, with all that it points to, as long as the library. */
typedef struct MeshPluginTable {
    uint32_t struct_size;
    uint32_t abi_version;  /* MESH_PLUGIN_ABI_VERSION */
    MeshBytes name;        /* UTF-8, 1 to 64 bytes */
    MeshBytes version;     /* UTF-8, at most 64 bytes */
    uint64_t capabilities; /* MESH_CAP_* */

    /* [activation] A model is ready on this node. May block briefly: after 5 s the node goes on without the plugin. Sets
     * `instance`, which is passed to all other calls of this model. MESH_OK, MESH_ERROR (then `last_error` is called
     * with a null instance and nothing else), MESH_PANICKED. */
    MeshStatus (*activate)(const MeshActivation *activation, void **instance);
    /* [activation] The model is gone; after the last call of the instance, once. May block briefly. MESH_OK,
     * MESH_ERROR, MESH_PANICKED. */
    MeshStatus (*shutdown)(void *instance);
    /* [generation] First call of a generation. `start` and all in it: during the call. Must not block. MESH_OK,
     * MESH_ERROR, MESH_PANICKED; the generation goes on whatever it returns. */
    MeshStatus (*begin_generation)(void *instance, const MeshGenerationStart *start);
    /* [generation] Between begin and the end, with MESH_CAP_WANTS_COMMITS; totals grow without gaps. `commit` and all
     * in it: during the call. Must not block. MESH_OK, MESH_ERROR, MESH_PANICKED. */
    MeshStatus (*commit_generation)(void *instance, const MeshGenerationCommit *commit);
    /* [generation] The normal end, behind all reports and discards. Last call of a generation, unless it returns an
     * error: then one abort follows. `finish` and all in it: during the call. Must not block. MESH_OK, MESH_ERROR,
     * MESH_PANICKED. */
    MeshStatus (*finish_generation)(void *instance, const MeshGenerationFinish *finish);
    /* [generation] The other end. Last call of a generation. `abort` and all in it: during the call. Must not block.
     * MESH_OK, MESH_ERROR, MESH_PANICKED. */
    MeshStatus (*abort_generation)(void *instance, const MeshGenerationAbort *abort);
    /* [generation] Start looking for candidates, and return; sets `operation`, a number of the plugin's choice that no
     * other open operation of the instance has. `query` and all in it: during the call. Only while no operation of the
     * generation is open. Must not block. MESH_OK, MESH_ERROR (no operation is open then), MESH_PANICKED. */
    MeshStatus (*start_proposal)(void *instance, const MeshProposalQuery *query, uint64_t *operation);
    /* [generation] How far an open operation is. Called once after its start, then after each wake; one that wakes again
     * and again and stays pending is left alone until its deadline. `output`: during the call. Must not block.
     * MESH_PENDING; MESH_READY, MESH_ABSTAIN (the operation is over); MESH_FAILED, MESH_ERROR, MESH_PANICKED
     * (`cancel_proposal` follows, as it does after candidates that do not hold). */
    MeshStatus (*poll_proposal)(void *instance, uint64_t operation, MeshProposalOutput *output);
    /* [generation] The node has lost interest in an operation: it is over. Must not block. MESH_OK, MESH_ERROR,
     * MESH_PANICKED. */
    MeshStatus (*cancel_proposal)(void *instance, uint64_t operation);
    /* [generation] A decision was verified, with MESH_CAP_WANTS_REPORTS. `outcome` and all in it: during the call. Must
     * not block. MESH_OK, MESH_ERROR, MESH_PANICKED. */
    MeshStatus (*report_proposal)(void *instance, const MeshProposalOutcome *outcome);
    /* [generation] A decision was not used. `discard` and all in it: during the call. Must not block. MESH_OK,
     * MESH_ERROR, MESH_PANICKED. */
    MeshStatus (*discard_proposal)(void *instance, const MeshProposalDiscard *discard);
    /* [the thread of the call that failed, before any other call on it] Why the last call on this thread failed: writes
     * up to `capacity` bytes of UTF-8 and returns their number. `instance` is null after a failed `activate` and after
     * `shutdown`. */
    uint64_t (*last_error)(void *instance, uint8_t *buffer, uint64_t capacity);
} MeshPluginTable;

/* Type of the entry function. It is called once, may be called again, and must not block. */
typedef const MeshPluginTable *(*MeshPluginEntry)(void);

#ifdef __cplusplus
}
#endif

#endif /* MESH_PLUGIN_H */
