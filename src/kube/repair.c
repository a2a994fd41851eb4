/* SPDX-License-Identifier: Apache-2.0 */
#include "kube/repair.h"

#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Of an integer; a longer one does not fit anyway. */
enum { DIGITS_MAX = 32 };

/* The end of the string that begins at the mark `at`: its other mark, or the end of the text. */
static size_t string_end(const char *text, size_t size_bytes, size_t at)
{
    for (at++; at < size_bytes && text[at] != '"'; at++) {
        at += text[at] == '\\';
    }
    return at < size_bytes ? at : size_bytes;
}

static size_t skip_space(const char *text, size_t size_bytes, size_t at)
{
    while (at < size_bytes && memchr(" \t\r\n", text[at], 4) != NULL) {
        at++;
    }
    return at;
}

/* Returns true if a string that ends at `end` is the key of a value. */
static bool is_key(const char *text, size_t size_bytes, size_t end)
{
    size_t at = end < size_bytes ? skip_space(text, size_bytes, end + 1) : size_bytes;
    return at < size_bytes && text[at] == ':';
}

static void repair_key(char *text, size_t end, size_t at)
{
    while (at < end) {
        if (text[at] == '\\' && end - at >= 6 && memcmp(text + at + 1, "u0000", 5) == 0) {
            memcpy(text + at + 2, "fffd", 4);
        }
        at += text[at] == '\\' ? 2 : 1;
    }
}

static bool is_in_number(char c)
{
    return (c >= '0' && c <= '9') || c == '+' || c == '-' || c == '.' || c == 'e' || c == 'E';
}

/* The integer from `at` to `end`: its last two digits become an exponent. A double does not hold
 * them. */
static void repair_integer(char *text, size_t at, size_t end)
{
    char digits[DIGITS_MAX + 1];
    size_t size_bytes = end - at;
    for (size_t i = at + (text[at] == '-'); i < end; i++) {
        if (text[i] < '0' || text[i] > '9') {
            return; /* jansson takes it for a real */
        }
    }
    if (size_bytes <= DIGITS_MAX) {
        memcpy(digits, text + at, size_bytes);
        digits[size_bytes] = '\0';
        errno = 0;
        (void)strtoll(digits, NULL, 10);
        if (errno != ERANGE) {
            return;
        }
    }
    memcpy(text + end - 2, "e2", 2);
}

void gr_kube_repair(char *text, size_t size_bytes)
{
    for (size_t at = 0; at < size_bytes; at++) {
        if (text[at] == '"') {
            size_t end = string_end(text, size_bytes, at);
            if (is_key(text, size_bytes, end)) {
                repair_key(text, end, at + 1);
            }
            at = end;
        } else if (is_in_number(text[at])) {
            size_t begin = at;
            while (at + 1 < size_bytes && is_in_number(text[at + 1])) {
                at++;
            }
            repair_integer(text, begin, at + 1);
        }
    }
}

/* ---- Names ----------------------------------------------------------------------------------- */
typedef struct part {
    const char *text; /* NULL: not found yet */
    size_t size_bytes;
} part;

static bool is_text(const char *text, size_t size_bytes, const char *word)
{
    return size_bytes == strlen(word) && memcmp(text, word, size_bytes) == 0;
}

/* The string behind a key that ends at `end`. */
static void take_part(const char *text, size_t size_bytes, size_t end, part *part_out)
{
    size_t at = skip_space(text, size_bytes, end + 1);
    at = skip_space(text, size_bytes, at + 1);
    if (part_out->text == NULL && at < size_bytes && text[at] == '"') {
        size_t behind = string_end(text, size_bytes, at);
        *part_out = (part){.text = text + at + 1, .size_bytes = behind - at - (behind > at)};
    }
}

static int shown_bytes(const part *p)
{
    enum { SHOWN_MAX = GR_KUBE_NAME_BYTES / 2 - 2 };
    return (int)(p->size_bytes < SHOWN_MAX ? p->size_bytes : SHOWN_MAX);
}

void gr_kube_find_name(const char *text, size_t size_bytes, char name_out[GR_KUBE_NAME_BYTES])
{
    part name = {0}, space = {0};
    int depth = 0, metadata_depth = -1; /* -1: not within */
    for (size_t at = 0; at < size_bytes; at++) {
        if (text[at] == '"') {
            size_t begin = at + 1, end = string_end(text, size_bytes, at);
            bool is_one = is_key(text, size_bytes, end);
            if (is_one && depth <= 2 && is_text(text + begin, end - begin, "metadata")) {
                metadata_depth = depth + 1;
            } else if (is_one && depth == metadata_depth) {
                if (is_text(text + begin, end - begin, "name")) {
                    take_part(text, size_bytes, end, &name);
                } else if (is_text(text + begin, end - begin, "namespace")) {
                    take_part(text, size_bytes, end, &space);
                }
            }
            at = end;
        } else if (text[at] == '{' || text[at] == '[') {
            depth++;
        } else if (text[at] == '}' || text[at] == ']') {
            depth--;
            metadata_depth = depth < metadata_depth ? -1 : metadata_depth;
        }
    }
    snprintf(name_out, GR_KUBE_NAME_BYTES, "%.*s%s%.*s", shown_bytes(&space),
             space.text != NULL ? space.text : "", space.text != NULL ? "/" : "",
             shown_bytes(&name), name.text != NULL ? name.text : "");
}
