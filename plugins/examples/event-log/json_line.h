/*
 * json_line.h: one JSON object, built field by field and written as one line.
 *
 * A line that does not fit into memory is marked as failed and never written in part. Text that is no UTF-8 gets the
 * replacement character for each byte that does not belong.
 */
#ifndef JSON_LINE_H
#define JSON_LINE_H

#include <inttypes.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct Line {
    char *bytes;
    size_t length;
    size_t capacity;
    bool failed;
} Line;

static inline void line_put(Line *line, const char *bytes, size_t length) {
    if (line->failed || length == 0) {
        return;
    }
    if (length > line->capacity - line->length) {
        size_t wanted = (line->length + length) * 2;
        char *grown = wanted > line->length ? realloc(line->bytes, wanted) : NULL;
        if (grown == NULL) {
            line->failed = true;
            return;
        }
        line->bytes = grown;
        line->capacity = wanted;
    }
    memcpy(line->bytes + line->length, bytes, length);
    line->length += length;
}

static inline void line_text(Line *line, const char *text) {
    line_put(line, text, strlen(text));
}

/* Bytes of the UTF-8 character at the start of `bytes`, 0 if there is none. */
static inline size_t line_character(const uint8_t *bytes, size_t length) {
    uint8_t first = bytes[0];
    size_t wanted = first < 0x80 ? 1 : first >= 0xc2 && first <= 0xdf ? 2 : first >= 0xe0 && first <= 0xef ? 3 : 4;
    if (first > 0xf4 || (first >= 0x80 && first < 0xc2) || wanted > length) {
        return 0;
    }
    for (size_t i = 1; i < wanted; i++) {
        if ((bytes[i] & 0xc0) != 0x80) {
            return 0;
        }
    }
    /* Overlong forms, surrogates, and what is beyond the last character. */
    if ((first == 0xe0 && bytes[1] < 0xa0) || (first == 0xed && bytes[1] > 0x9f) ||
        (first == 0xf0 && bytes[1] < 0x90) || (first == 0xf4 && bytes[1] > 0x8f)) {
        return 0;
    }
    return wanted;
}

static inline void line_string(Line *line, const uint8_t *bytes, uint64_t length) {
    line_text(line, "\"");
    for (uint64_t i = 0; i < length;) {
        size_t width = line_character(bytes + i, (size_t)(length - i));
        if (width == 0) {
            line_text(line, "\\ufffd");
            i += 1;
        } else if (bytes[i] < 0x20 || bytes[i] == 0x7f) {
            char escaped[8];
            snprintf(escaped, sizeof escaped, "\\u%04x", (unsigned)bytes[i]);
            line_text(line, escaped);
            i += 1;
        } else {
            if (bytes[i] == '"' || bytes[i] == '\\') {
                line_text(line, "\\");
            }
            line_put(line, (const char *)bytes + i, width);
            i += width;
        }
    }
    line_text(line, "\"");
}

static inline void line_name(Line *line, const char *name) {
    line_text(line, line->length > 1 ? ",\"" : "\"");
    line_text(line, name);
    line_text(line, "\":");
}

static inline void line_open(Line *line) {
    line_text(line, "{");
}

static inline void field_bytes(Line *line, const char *name, const uint8_t *bytes, uint64_t length) {
    line_name(line, name);
    line_string(line, bytes, length);
}

static inline void field_text(Line *line, const char *name, const char *text) {
    field_bytes(line, name, (const uint8_t *)text, strlen(text));
}

static inline void line_unsigned(Line *line, uint64_t value) {
    char digits[24];
    snprintf(digits, sizeof digits, "%" PRIu64, value);
    line_text(line, digits);
}

static inline void field_unsigned(Line *line, const char *name, uint64_t value) {
    line_name(line, name);
    line_unsigned(line, value);
}

static inline void field_signed(Line *line, const char *name, int64_t value) {
    char digits[24];
    snprintf(digits, sizeof digits, "%" PRId64, value);
    line_name(line, name);
    line_text(line, digits);
}

static inline void field_hex(Line *line, const char *name, const uint8_t *bytes, size_t length) {
    static const char digits[] = "0123456789abcdef";
    line_name(line, name);
    line_text(line, "\"");
    for (size_t i = 0; i < length; i++) {
        const char pair[2] = {digits[bytes[i] >> 4], digits[bytes[i] & 15]};
        line_put(line, pair, sizeof pair);
    }
    line_text(line, "\"");
}

/* Null if there are numbers, but they were not told. */
static inline void field_tokens(Line *line, const char *name, const int32_t *tokens, uint64_t count) {
    line_name(line, name);
    if (tokens == NULL && count > 0) {
        line_text(line, "null");
        return;
    }
    line_text(line, "[");
    for (uint64_t i = 0; i < count; i++) {
        char digits[16];
        snprintf(digits, sizeof digits, i == 0 ? "%" PRId32 : ",%" PRId32, tokens[i]);
        line_text(line, digits);
    }
    line_text(line, "]");
}

static inline void field_counts(Line *line, const char *name, const uint64_t *values, uint64_t count) {
    line_name(line, name);
    if (values == NULL) {
        line_text(line, "null");
        return;
    }
    line_text(line, "[");
    for (uint64_t i = 0; i < count; i++) {
        line_text(line, i == 0 ? "" : ",");
        line_unsigned(line, values[i]);
    }
    line_text(line, "]");
}

/* Writes the line and frees it. False if it could not be written. */
static inline bool line_write(Line *line, FILE *file) {
    line_text(line, "}\n");
    bool written = !line->failed && fwrite(line->bytes, 1, line->length, file) == line->length && fflush(file) == 0;
    free(line->bytes);
    memset(line, 0, sizeof *line);
    return written;
}

#endif /* JSON_LINE_H */
