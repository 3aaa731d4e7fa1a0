/*
 * event_log.c: a plugin that writes one JSON line for each call.
 *
 * Where to: the line `log = /abs/path` of the configuration file, else `events.jsonl` in the state directory. Each line
 * has the instance's own sequence number from 1, and is flushed before the call returns. This is an example and an aid
 * for debugging: a file on a slow disk makes a slow plugin.
 */
#define _POSIX_C_SOURCE 200809L

#include <pthread.h>
#include <stdarg.h>

#include "event_fields.h"

typedef struct EventLog {
    pthread_mutex_t lock; /* of all below */
    FILE *file;
    uint64_t sequence;
} EventLog;

/* ---- errors ----------------------------------------------------------------------------------------------------- */

/* Why the last call of this thread failed. */
static _Thread_local char last_error_text[MESH_MAX_ERROR_BYTES];

static MeshStatus fail(const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(last_error_text, sizeof last_error_text, format, arguments);
    va_end(arguments);
    return MESH_ERROR;
}

static uint64_t last_error(void *instance, uint8_t *buffer, uint64_t capacity) {
    (void)instance;
    uint64_t length = strlen(last_error_text);
    if (length > capacity) {
        length = capacity;
    }
    memcpy(buffer, last_error_text, length);
    return length;
}

/* ---- lines ------------------------------------------------------------------------------------------------------ */

/* Takes the lock, which `end` gives back: lines are written in the order of their numbers. */
static Line begin(EventLog *log, const char *event) {
    Line line = {0};
    pthread_mutex_lock(&log->lock);
    log->sequence += 1;
    line_open(&line);
    field_unsigned(&line, "seq", log->sequence);
    field_text(&line, "event", event);
    return line;
}

static MeshStatus end(EventLog *log, Line *line) {
    bool written = line_write(line, log->file);
    pthread_mutex_unlock(&log->lock);
    return written ? MESH_OK : fail("cannot write to the event log: make space on its disk");
}

/* ---- where the log is ------------------------------------------------------------------------------------------- */

/* The value of the line `key = value`, without the space around it; false if there is none. */
static bool configured(FILE *file, const char *key, char *value, size_t capacity) {
    char line[4096];
    while (fgets(line, sizeof line, file) != NULL) {
        const char *at = line + strspn(line, " \t");
        if (strncmp(at, key, strlen(key)) != 0) {
            continue;
        }
        at += strlen(key);
        at += strspn(at, " \t");
        if (*at != '=') {
            continue;
        }
        at += 1;
        at += strspn(at, " \t");
        size_t length = strcspn(at, "\r\n");
        while (length > 0 && (at[length - 1] == ' ' || at[length - 1] == '\t')) {
            length -= 1;
        }
        if (length == 0 || length >= capacity) {
            return false;
        }
        memcpy(value, at, length);
        value[length] = '\0';
        return true;
    }
    return false;
}

/* Copies a path of the node, which has no zero at its end. */
static bool path_of(MeshBytes bytes, const char *name, char *path, size_t capacity) {
    int length = snprintf(path, capacity, "%.*s%s", (int)(bytes.length < 4096 ? bytes.length : 4096),
                          (const char *)bytes.data, name);
    return length > 0 && (size_t)length < capacity;
}

static MeshStatus locate(const MeshActivation *activation, char *path, size_t capacity) {
    char config[4096];
    if (activation->config_path.length == 0) {
        if (activation->state_dir.length == 0) {
            return fail("nowhere to log to: give --plugin-state, or --plugin-config with a line `log = /abs/path`");
        }
        return path_of(activation->state_dir, "/events.jsonl", path, capacity) ? MESH_OK : fail("the path is too long");
    }
    if (!path_of(activation->config_path, "", config, sizeof config)) {
        return fail("the path of the configuration is too long");
    }
    FILE *file = fopen(config, "r");
    if (file == NULL) {
        return fail("cannot read %.900s: check --plugin-config", config);
    }
    bool found = configured(file, "log", path, capacity);
    fclose(file);
    return found && path[0] == '/' ? MESH_OK : fail("add a line `log = /abs/path` to %.900s", config);
}

/* ---- calls ------------------------------------------------------------------------------------------------------ */

static MeshStatus activate(const MeshActivation *passed, void **instance) {
    TAKE(MeshActivation, activation, passed);
    char path[4096];
    MeshStatus status = locate(&activation, path, sizeof path);
    if (status != MESH_OK) {
        return status;
    }
    EventLog *log = calloc(1, sizeof *log);
    if (log == NULL) {
        return fail("out of memory");
    }
    log->file = fopen(path, "a");
    if (log->file == NULL || pthread_mutex_init(&log->lock, NULL) != 0) {
        if (log->file != NULL) {
            fclose(log->file);
        }
        free(log);
        return fail("cannot append to %.900s: create its directory, or log elsewhere", path);
    }
    Line line = begin(log, "activate");
    fields_of_activation(&line, &activation);
    status = end(log, &line);
    if (status != MESH_OK) {
        pthread_mutex_destroy(&log->lock);
        fclose(log->file);
        free(log);
        return status;
    }
    *instance = log;
    return MESH_OK;
}

static MeshStatus shut_down(void *instance) {
    EventLog *log = instance;
    Line line = begin(log, "shutdown");
    MeshStatus status = end(log, &line);
    if (fclose(log->file) != 0) {
        status = fail("cannot close the event log: make space on its disk");
    }
    pthread_mutex_destroy(&log->lock);
    free(log);
    return status;
}

static MeshStatus begin_generation(void *instance, const MeshGenerationStart *passed) {
    TAKE(MeshGenerationStart, start, passed);
    Line line = begin(instance, "begin");
    fields_of_start(&line, &start);
    return end(instance, &line);
}

static MeshStatus commit_generation(void *instance, const MeshGenerationCommit *passed) {
    TAKE(MeshGenerationCommit, commit, passed);
    Line line = begin(instance, "commit");
    fields_of_commit(&line, &commit);
    return end(instance, &line);
}

static MeshStatus finish_generation(void *instance, const MeshGenerationFinish *passed) {
    TAKE(MeshGenerationFinish, finish, passed);
    Line line = begin(instance, "finish");
    fields_of_finish(&line, &finish);
    return end(instance, &line);
}

static MeshStatus abort_generation(void *instance, const MeshGenerationAbort *passed) {
    TAKE(MeshGenerationAbort, abort, passed);
    Line line = begin(instance, "abort");
    fields_of_abort(&line, &abort);
    return end(instance, &line);
}

static MeshStatus report_proposal(void *instance, const MeshProposalOutcome *passed) {
    TAKE(MeshProposalOutcome, outcome, passed);
    Line line = begin(instance, "report");
    fields_of_outcome(&line, &outcome);
    return end(instance, &line);
}

static MeshStatus discard_proposal(void *instance, const MeshProposalDiscard *passed) {
    TAKE(MeshProposalDiscard, discard, passed);
    Line line = begin(instance, "discard");
    fields_of_discard(&line, &discard);
    return end(instance, &line);
}

/* ---- the table -------------------------------------------------------------------------------------------------- */

#define TEXT(literal) {(const uint8_t *)(literal), sizeof(literal) - 1}

static const MeshPluginTable table = {
    .struct_size = sizeof(MeshPluginTable),
    .abi_version = MESH_PLUGIN_ABI_VERSION,
    .name = TEXT("event-log"),
    .version = TEXT("1.0.0"),
    .capabilities = MESH_CAP_WANTS_COMMITS | MESH_CAP_WANTS_TOKEN_IDS | MESH_CAP_WANTS_REPORTS,
    .activate = activate,
    .shutdown = shut_down,
    .begin_generation = begin_generation,
    .commit_generation = commit_generation,
    .finish_generation = finish_generation,
    .abort_generation = abort_generation,
    .report_proposal = report_proposal,
    .discard_proposal = discard_proposal,
    .last_error = last_error,
};

MESH_PLUGIN_EXPORT const MeshPluginTable *mesh_plugin_v1(void);

const MeshPluginTable *mesh_plugin_v1(void) {
    return &table;
}
