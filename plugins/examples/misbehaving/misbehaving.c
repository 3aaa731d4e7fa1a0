/*
 * misbehaving.c: a plugin that does wrong on purpose, for the tests of the node. README.md lists what it can do.
 *
 * How it behaves is in its configuration file, `behave = NAME` for each fault; how its table is wrong is decided when
 * it is compiled. Without a fault it follows everything and abstains. Each call is logged when it comes, before
 * anything goes wrong.
 */
#define _POSIX_C_SOURCE 200809L

#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <time.h>
#include <unistd.h>

#include "event_fields.h"

#define MOST_BEHAVIOURS 16
#define LONGEST_NAME 64
#define LONGEST_PATH 4096
#define UNKNOWN_STATUS INT32_C(77)
#define ONE_MILLISECOND 1
#define STORM_PAUSE_EVERY 1024

/* A query that waits for its answer. */
typedef struct Operation {
    struct Operation *next;
    uint64_t number;
    uint64_t ready_ns; /* of late_ready */
    uint64_t position;
    uint32_t max_tokens;
    int32_t last_token;
    bool polled;
    char request[LONGEST_NAME];
} Operation;

typedef struct Plugin {
    void *host;
    uint64_t (*now_ns)(void *host);
    void (*wake)(void *host, uint64_t operation);
    char behaviours[MOST_BEHAVIOURS][LONGEST_NAME];
    size_t behaviour_count;
    uint64_t millis;
    char release[LONGEST_PATH];
    pthread_mutex_t lock; /* of all below */
    FILE *log;
    uint64_t sequence;
    Operation *operations; /* the latest first */
    bool storming;
    pthread_t storm;
    atomic_bool stopping;
} Plugin;

/* What a thread needs that outlives the instance. The node's functions are valid as long as the process. */
typedef struct Later {
    void *host;
    void (*wake)(void *host, uint64_t operation);
    uint64_t operation;
    uint64_t millis;
} Later;

static atomic_uint_fast64_t operations_started;
static atomic_uint_fast64_t decisions_made;
static atomic_uint_fast64_t threads_seen;

static void pause_for(uint64_t millis) {
    struct timespec left = {.tv_sec = (time_t)(millis / 1000), .tv_nsec = (long)(millis % 1000) * 1000000};
    while (nanosleep(&left, &left) != 0) {
    }
}

/* ---- errors ----------------------------------------------------------------------------------------------------- */

/* How the last error of this thread is told. `last_error` must not touch an instance, which may be gone. */
typedef enum ErrorStyle { PLAIN, NON_UTF8, ENDLESS } ErrorStyle;

static _Thread_local char error_text[MESH_MAX_ERROR_BYTES];
static _Thread_local ErrorStyle error_style;

static MeshStatus fail(const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(error_text, sizeof error_text, format, arguments);
    va_end(arguments);
    return MESH_ERROR;
}

static uint64_t last_error(void *instance, uint8_t *buffer, uint64_t capacity) {
    (void)instance;
    if (error_style == ENDLESS) {
        memset(buffer, 'e', capacity);
        return UINT64_MAX;
    }
    uint64_t length = strlen(error_text);
    length = length < capacity ? length : capacity;
    memcpy(buffer, error_text, length);
    if (error_style == NON_UTF8 && capacity >= 2) {
        buffer[0] = 0xff;
        buffer[1] = 0xfe;
        return length < 2 ? 2 : length;
    }
    return length;
}

/* ---- configuration ---------------------------------------------------------------------------------------------- */

static bool behaves(const Plugin *plugin, const char *name) {
    for (size_t i = 0; i < plugin->behaviour_count; i++) {
        if (strcmp(plugin->behaviours[i], name) == 0) {
            return true;
        }
    }
    return false;
}

/* Whether `KIND_CALL` is among the behaviours. */
static bool behaves_in(const Plugin *plugin, const char *kind, const char *call) {
    char name[LONGEST_NAME];
    snprintf(name, sizeof name, "%s_%s", kind, call);
    return behaves(plugin, name);
}

/* Cuts a line in two at `=`, without the space around both. */
static bool split(char *line, char **key, char **value) {
    char *equals = strchr(line, '=');
    if (equals == NULL) {
        return false;
    }
    *equals = '\0';
    *key = line + strspn(line, " \t");
    (*key)[strcspn(*key, " \t")] = '\0';
    *value = equals + 1 + strspn(equals + 1, " \t");
    size_t length = strcspn(*value, "\r\n");
    while (length > 0 && ((*value)[length - 1] == ' ' || (*value)[length - 1] == '\t')) {
        length -= 1;
    }
    (*value)[length] = '\0';
    return true;
}

static MeshStatus configure(Plugin *plugin, const char *key, const char *value) {
    if (strcmp(key, "behave") == 0) {
        if (plugin->behaviour_count == MOST_BEHAVIOURS || strlen(value) >= LONGEST_NAME) {
            return fail("too many behaviours, or too long a name: %.100s", value);
        }
        strcpy(plugin->behaviours[plugin->behaviour_count++], value);
    } else if (strcmp(key, "millis") == 0) {
        plugin->millis = strtoull(value, NULL, 10);
    } else if (strcmp(key, "release") == 0 && strlen(value) < LONGEST_PATH) {
        strcpy(plugin->release, value);
    } else if (strcmp(key, "log") == 0 && plugin->log == NULL) {
        plugin->log = fopen(value, "a");
        if (plugin->log == NULL) {
            return fail("cannot append to %.900s", value);
        }
    } else {
        return fail("unknown setting %.100s", key);
    }
    return MESH_OK;
}

static MeshStatus read_configuration(Plugin *plugin, MeshBytes path) {
    char text[LONGEST_PATH + 64];
    if (path.length == 0) {
        return MESH_OK;
    }
    snprintf(text, sizeof text, "%.*s", (int)(path.length < LONGEST_PATH ? path.length : LONGEST_PATH),
             (const char *)path.data);
    FILE *file = fopen(text, "r");
    if (file == NULL) {
        return fail("cannot read %.900s", text);
    }
    MeshStatus status = MESH_OK;
    while (status == MESH_OK && fgets(text, sizeof text, file) != NULL) {
        char *key;
        char *value;
        if (text[0] != '#' && split(text, &key, &value)) {
            status = configure(plugin, key, value);
        }
    }
    fclose(file);
    return status;
}

/* ---- the log ---------------------------------------------------------------------------------------------------- */

static uint64_t thread_number(void) {
    static _Thread_local uint64_t number;
    if (number == 0) {
        number = atomic_fetch_add(&threads_seen, 1) + 1;
    }
    return number;
}

static Line line_of(const char *event) {
    Line line = {0};
    line_open(&line);
    field_text(&line, "event", event);
    field_unsigned(&line, "thread", thread_number());
    return line;
}

/* Writes a line with its number, which comes last since it is known only now. Lines without a log are dropped. */
static void logged(Plugin *plugin, Line line) {
    pthread_mutex_lock(&plugin->lock);
    plugin->sequence += 1;
    field_unsigned(&line, "seq", plugin->sequence);
    if (plugin->log != NULL) {
        line_write(&line, plugin->log);
    } else {
        free(line.bytes);
    }
    pthread_mutex_unlock(&plugin->lock);
}

static void logged_about(Plugin *plugin, const char *event, const char *call) {
    Line line = line_of(event);
    field_text(&line, "call", call);
    logged(plugin, line);
}

/* ---- what all calls can do -------------------------------------------------------------------------------------- */

static void hang(Plugin *plugin, const char *call) {
    logged_about(plugin, "hang", call);
    while (plugin->release[0] == '\0' || access(plugin->release, F_OK) != 0) {
        if (!behaves(plugin, "spin")) {
            pause_for(ONE_MILLISECOND);
        }
    }
    logged_about(plugin, "released", call);
}

/* Hangs, is slow, or says what to return. */
static MeshStatus misbehave(Plugin *plugin, const char *call) {
    error_style = behaves(plugin, "non_utf8_error") ? NON_UTF8 : behaves(plugin, "endless_error") ? ENDLESS : PLAIN;
    if (behaves_in(plugin, "hang", call)) {
        hang(plugin, call);
    }
    if (behaves_in(plugin, "slow", call)) {
        pause_for(plugin->millis);
    }
    if (behaves_in(plugin, "error", call)) {
        return fail("%s fails on purpose", call);
    }
    return behaves_in(plugin, "unknown", call) ? UNKNOWN_STATUS : MESH_OK;
}

static MeshStatus called(Plugin *plugin, const char *call, Line line) {
    logged(plugin, line);
    return misbehave(plugin, call);
}

/* ---- wakes ------------------------------------------------------------------------------------------------------ */

static void *wake_all_the_time(void *argument) {
    Plugin *plugin = argument;
    for (uint64_t i = 0; !atomic_load(&plugin->stopping); i++) {
        plugin->wake(plugin->host, UINT64_MAX - i % 7);
        if (i % STORM_PAUSE_EVERY == 0) {
            /* Lets other threads run on a machine with few cores. */
            pause_for(ONE_MILLISECOND);
        }
    }
    return NULL;
}

static void *wake_once_later(void *argument) {
    Later *later = argument;
    pause_for(later->millis);
    later->wake(later->host, later->operation);
    free(later);
    return NULL;
}

static void *wake_for_a_while(void *argument) {
    Later *later = argument;
    for (uint64_t i = 0; i < later->millis; i++) {
        later->wake(later->host, i);
        pause_for(ONE_MILLISECOND);
    }
    free(later);
    return NULL;
}

/* A thread that nobody waits for and that touches no instance. */
static void detach(Plugin *plugin, void *(*run)(void *), uint64_t operation) {
    Later *later = malloc(sizeof *later);
    pthread_t thread;
    if (later == NULL) {
        return;
    }
    *later = (Later){plugin->host, plugin->wake, operation, plugin->millis};
    if (pthread_create(&thread, NULL, run, later) != 0) {
        free(later);
        return;
    }
    pthread_detach(thread);
}

static void wake_from_within(Plugin *plugin, uint64_t operation) {
    if (behaves(plugin, "reentrant_wake")) {
        plugin->wake(plugin->host, operation);
        plugin->wake(plugin->host, 0);
        plugin->wake(plugin->host, UINT64_MAX);
    }
}

/* ---- life ------------------------------------------------------------------------------------------------------- */

static void destroy(Plugin *plugin) {
    while (plugin->operations != NULL) {
        Operation *next = plugin->operations->next;
        free(plugin->operations);
        plugin->operations = next;
    }
    if (plugin->log != NULL) {
        fclose(plugin->log);
    }
    pthread_mutex_destroy(&plugin->lock);
    free(plugin);
}

static MeshStatus activate(const MeshActivation *passed, void **instance) {
    TAKE(MeshActivation, activation, passed);
    error_style = PLAIN;
    Plugin *plugin = calloc(1, sizeof *plugin);
    if (plugin == NULL) {
        return fail("out of memory");
    }
    pthread_mutex_init(&plugin->lock, NULL);
    plugin->host = activation.host;
    plugin->now_ns = activation.now_ns;
    plugin->wake = activation.wake;
    plugin->millis = 50;
    MeshStatus status = read_configuration(plugin, activation.config_path);
    if (status == MESH_OK) {
        Line line = line_of("activate");
        fields_of_activation(&line, &activation);
        status = called(plugin, "activate", line);
    }
    if (status == MESH_OK && behaves(plugin, "wake_storm")) {
        plugin->storming = pthread_create(&plugin->storm, NULL, wake_all_the_time, plugin) == 0;
    }
    if (status != MESH_OK) {
        destroy(plugin);
        return status;
    }
    *instance = plugin;
    return MESH_OK;
}

static MeshStatus shut_down(void *instance) {
    Plugin *plugin = instance;
    MeshStatus status = called(plugin, "shutdown", line_of("shutdown"));
    if (plugin->storming) {
        atomic_store(&plugin->stopping, true);
        pthread_join(plugin->storm, NULL);
    }
    if (behaves(plugin, "wake_after_shutdown")) {
        detach(plugin, wake_for_a_while, 0);
    }
    destroy(plugin);
    return status;
}

/* ---- generations ------------------------------------------------------------------------------------------------ */

static MeshStatus begin_generation(void *instance, const MeshGenerationStart *passed) {
    TAKE(MeshGenerationStart, start, passed);
    Line line = line_of("begin");
    fields_of_start(&line, &start);
    return called(instance, "begin", line);
}

static MeshStatus commit_generation(void *instance, const MeshGenerationCommit *passed) {
    TAKE(MeshGenerationCommit, commit, passed);
    Line line = line_of("commit");
    fields_of_commit(&line, &commit);
    return called(instance, "commit", line);
}

static MeshStatus finish_generation(void *instance, const MeshGenerationFinish *passed) {
    TAKE(MeshGenerationFinish, finish, passed);
    Line line = line_of("finish");
    fields_of_finish(&line, &finish);
    return called(instance, "finish", line);
}

static MeshStatus abort_generation(void *instance, const MeshGenerationAbort *passed) {
    TAKE(MeshGenerationAbort, abort, passed);
    Line line = line_of("abort");
    fields_of_abort(&line, &abort);
    return called(instance, "abort", line);
}

/* ---- proposals -------------------------------------------------------------------------------------------------- */

/* Faults that need candidates. */
static const char *const proposing[] = {
    "good",          "late_ready",   "late_in_poll",   "too_many_tokens", "more_than_capacity", "negative_id",
    "huge_id",       "no_tokens",    "empty_decision", "long_decision",   "wrong_position",
};

static bool proposes(const Plugin *plugin) {
    for (size_t i = 0; i < sizeof proposing / sizeof proposing[0]; i++) {
        if (behaves(plugin, proposing[i])) {
            return true;
        }
    }
    return false;
}

static Operation *operation_of(Plugin *plugin, const MeshProposalQuery *query) {
    Operation *operation = calloc(1, sizeof *operation);
    if (operation == NULL) {
        return NULL;
    }
    uint64_t length = query->ids.request_id.length;
    length = length < LONGEST_NAME - 1 ? length : LONGEST_NAME - 1;
    if (length > 0) {
        memcpy(operation->request, query->ids.request_id.data, length);
    }
    uint64_t started = atomic_fetch_add(&operations_started, 1) + 1;
    operation->number = behaves(plugin, "duplicate_operation") ? 7 : 100 + started;
    operation->ready_ns = plugin->now_ns(plugin->host) + plugin->millis * 1000000;
    operation->position = query->prompt_count + query->committed_count;
    operation->max_tokens = query->max_tokens;
    if (query->tail.data != NULL && query->tail.count > 0) {
        operation->last_token = query->tail.data[query->tail.count - 1];
    }
    return operation;
}

/* A copy of the latest operation with this number; forgets it if told to. */
static bool find(Plugin *plugin, uint64_t number, bool forget, Operation *found) {
    pthread_mutex_lock(&plugin->lock);
    Operation **link = &plugin->operations;
    while (*link != NULL && (*link)->number != number) {
        link = &(*link)->next;
    }
    Operation *operation = *link;
    if (operation != NULL) {
        *found = *operation;
        operation->polled = true;
        if (forget) {
            *link = operation->next;
            free(operation);
        }
    }
    pthread_mutex_unlock(&plugin->lock);
    return operation != NULL;
}

static MeshStatus start_proposal(void *instance, const MeshProposalQuery *passed, uint64_t *number) {
    TAKE(MeshProposalQuery, query, passed);
    Plugin *plugin = instance;
    Operation *operation = operation_of(plugin, &query);
    if (operation == NULL) {
        return fail("out of memory");
    }
    uint64_t chosen = operation->number;
    Line line = line_of("start");
    fields_of_query(&line, &query);
    field_unsigned(&line, "operation", chosen);
    MeshStatus status = called(plugin, "start", line);
    if (status == MESH_ERROR) {
        free(operation);
        return status;
    }
    pthread_mutex_lock(&plugin->lock);
    operation->next = plugin->operations;
    plugin->operations = operation;
    pthread_mutex_unlock(&plugin->lock);
    *number = chosen;
    wake_from_within(plugin, chosen);
    if (behaves(plugin, "late_ready")) {
        detach(plugin, wake_once_later, chosen);
    }
    return status;
}

/* Candidates: the last token again and again, made wrong as told. */
static MeshStatus answer(Plugin *plugin, const Operation *operation, MeshProposalOutput *output) {
    uint32_t count = operation->max_tokens < 3 ? operation->max_tokens : 3;
    count = behaves(plugin, "too_many_tokens") ? operation->max_tokens + 1 : count;
    count = behaves(plugin, "more_than_capacity") ? output->token_capacity + 1 : count;
    count = behaves(plugin, "no_tokens") ? 0 : count;
    for (uint32_t i = 0; i < count && i < output->token_capacity; i++) {
        output->tokens[i] = operation->last_token;
    }
    if (behaves(plugin, "negative_id")) {
        output->tokens[0] = -1;
    }
    if (behaves(plugin, "huge_id")) {
        output->tokens[0] = INT32_MAX;
    }
    char decision[MESH_DECISION_ID_BYTES];
    memset(decision, 'x', sizeof decision);
    int length = snprintf(decision, sizeof decision, "m%" PRIu64, (uint64_t)atomic_fetch_add(&decisions_made, 1) + 1);
    if (behaves(plugin, "long_decision")) {
        memset(decision, 'x', sizeof decision);
        length = MESH_DECISION_ID_BYTES + 1;
    }
    length = behaves(plugin, "empty_decision") ? 0 : length;
    size_t written = (size_t)length < sizeof decision ? (size_t)length : sizeof decision;
    memcpy(output->decision_id, decision, written);
    output->token_count = count;
    output->decision_id_length = (uint32_t)length;
    output->base_position = operation->position + (behaves(plugin, "wrong_position") ? 1 : 0);

    Line line = line_of("ready");
    field_text(&line, "request", operation->request);
    field_unsigned(&line, "operation", operation->number);
    field_bytes(&line, "decision", (const uint8_t *)decision, written);
    field_unsigned(&line, "decision_length", (uint64_t)length);
    field_unsigned(&line, "token_count", count);
    field_tokens(&line, "tokens", output->tokens, count < output->token_capacity ? count : output->token_capacity);
    field_unsigned(&line, "base_position", output->base_position);
    logged(plugin, line);
    return MESH_READY;
}

static MeshStatus poll_proposal(void *instance, uint64_t number, MeshProposalOutput *output) {
    Plugin *plugin = instance;
    Line line = line_of("poll");
    field_unsigned(&line, "operation", number);
    MeshStatus status = called(plugin, "poll", line);
    if (status != MESH_OK) {
        return status;
    }
    if (behaves(plugin, "failed_poll")) {
        fail("poll fails on purpose");
        return MESH_FAILED;
    }
    Operation operation;
    if (!find(plugin, number, false, &operation)) {
        return fail("no operation %" PRIu64, number);
    }
    wake_from_within(plugin, number);
    if (behaves(plugin, "spin_pending")) {
        plugin->wake(plugin->host, number);
        return MESH_PENDING;
    }
    if (behaves(plugin, "always_pending") || (behaves(plugin, "reentrant_wake") && !operation.polled)) {
        return MESH_PENDING;
    }
    if (behaves(plugin, "late_ready") && plugin->now_ns(plugin->host) < operation.ready_ns) {
        return MESH_PENDING;
    }
    if (behaves(plugin, "late_in_poll")) {
        pause_for(plugin->millis);
    }
    find(plugin, number, true, &operation);
    if (behaves(plugin, "always_abstain") || !proposes(plugin)) {
        return MESH_ABSTAIN;
    }
    return answer(plugin, &operation, output);
}

static MeshStatus cancel_proposal(void *instance, uint64_t number) {
    Plugin *plugin = instance;
    Operation operation;
    Line line = line_of("cancel");
    field_unsigned(&line, "operation", number);
    MeshStatus status = called(plugin, "cancel", line);
    find(plugin, number, true, &operation);
    return status;
}

static MeshStatus report_proposal(void *instance, const MeshProposalOutcome *passed) {
    TAKE(MeshProposalOutcome, outcome, passed);
    Line line = line_of("report");
    fields_of_outcome(&line, &outcome);
    return called(instance, "report", line);
}

static MeshStatus discard_proposal(void *instance, const MeshProposalDiscard *passed) {
    TAKE(MeshProposalDiscard, discard, passed);
    Line line = line_of("discard");
    fields_of_discard(&line, &discard);
    return called(instance, "discard", line);
}

/* ---- the table -------------------------------------------------------------------------------------------------- */

#define TEXT(literal) {(const uint8_t *)(literal), sizeof(literal) - 1}

#if defined(WRONG_VERSION)
#define VERSION UINT32_C(0x00020000)
#elif defined(NEWER_MINOR)
#define VERSION UINT32_C(0x0001ffff)
#else
#define VERSION MESH_PLUGIN_ABI_VERSION
#endif

#if defined(NON_UTF8_NAME)
#define NAME "\xff\xfe"
#elif defined(EMPTY_NAME)
#define NAME ""
#elif defined(LONG_NAME)
#define NAME "0123456789012345678901234567890123456789012345678901234567890123x"
#else
#define NAME "misbehaving"
#endif

#if defined(CAPABILITIES)
#define CAPABLE (CAPABILITIES)
#elif defined(NULL_FUNCTIONS)
#define CAPABLE (MESH_CAP_WANTS_COMMITS | MESH_CAP_WANTS_TOKEN_IDS | MESH_CAP_WANTS_REPORTS)
#else
#define CAPABLE (MESH_CAP_WANTS_COMMITS | MESH_CAP_WANTS_TOKEN_IDS | MESH_CAP_WANTS_REPORTS | MESH_CAP_PROPOSES)
#endif

#if defined(SERIAL)
#define SERIALLY MESH_CAP_SERIAL
#else
#define SERIALLY 0
#endif

/* How much of the table there is. What follows it in memory is no zero, as it would not be behind a real one. */
#define JUNK 0xaa
#define JUNK_BYTES 256
#if defined(SMALL_TABLE)
#define TABLE_BYTES (offsetof(MeshPluginTable, activate) + (SMALL_TABLE) * sizeof(void *))
#elif defined(TINY_TABLE)
#define TABLE_BYTES 8
#elif defined(LARGE_TABLE)
#define TABLE_BYTES (sizeof(MeshPluginTable) + 64)
#else
#define TABLE_BYTES sizeof(MeshPluginTable)
#endif

static union {
    MeshPluginTable table;
    unsigned char bytes[sizeof(MeshPluginTable) + JUNK_BYTES];
} exported;

static pthread_once_t built = PTHREAD_ONCE_INIT;

static void build(void) {
    MeshPluginTable table = {
        .struct_size = (uint32_t)(TABLE_BYTES),
        .abi_version = VERSION,
        .name = TEXT(NAME),
        .version = TEXT("0.0.1"),
        .capabilities = CAPABLE | SERIALLY,
        .activate = activate,
        .shutdown = shut_down,
        .begin_generation = begin_generation,
        .commit_generation = commit_generation,
        .finish_generation = finish_generation,
        .abort_generation = abort_generation,
        .start_proposal = start_proposal,
        .poll_proposal = poll_proposal,
        .cancel_proposal = cancel_proposal,
        .report_proposal = report_proposal,
        .discard_proposal = discard_proposal,
        .last_error = last_error,
    };
#if defined(NULL_FUNCTIONS)
    table.begin_generation = NULL;
    table.commit_generation = NULL;
    table.finish_generation = NULL;
    table.abort_generation = NULL;
    table.start_proposal = NULL;
    table.poll_proposal = NULL;
    table.cancel_proposal = NULL;
    table.report_proposal = NULL;
    table.discard_proposal = NULL;
    table.last_error = NULL;
#endif
#if defined(NULL_POLL)
    table.poll_proposal = NULL;
#endif
#if defined(NULL_ACTIVATE)
    table.activate = NULL;
#endif
    size_t size = TABLE_BYTES;
    memset(exported.bytes, JUNK, sizeof exported.bytes);
    memcpy(exported.bytes, &table, size < sizeof table ? size : sizeof table);
}

#if defined(NO_ENTRY)
#define ENTRY mesh_plugin_v0
#else
#define ENTRY mesh_plugin_v1
#endif

MESH_PLUGIN_EXPORT const MeshPluginTable *ENTRY(void);

#if defined(HANG_CONSTRUCTOR)
__attribute__((constructor)) static void hang_constructor(void) {
    for (;;) {
        pause();
    }
}
#endif

const MeshPluginTable *ENTRY(void) {
#if defined(HANG_ENTRY)
    for (;;) {
        pause();
    }
#endif
    pthread_once(&built, build);
#if defined(NULL_TABLE)
    return NULL;
#else
    return &exported.table;
#endif
}
