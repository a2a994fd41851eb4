/* SPDX-License-Identifier: Apache-2.0 */
#include "doc/doc.h"

#include "base/fail.h"
#include "doc/doc_build.h"
#include "doc/node_json.h"

#include <jansson.h>
#include <string.h>

/* jansson decides whether a text is JSON, but keeps neither the line of a value nor the digits of a
 * number. So a second pass over the text, which is known to be valid by then, makes the tree: it
 * only has to find where tokens end. Strings with escapes are decoded by jansson again. */

typedef struct json_cursor {
    const char *at;
    const char *end;
    int line;
} json_cursor;

static gr_status validate(gr_doc_builder *builder, const char *text, size_t size_bytes)
{
    json_error_t error;
    /* Numbers are only checked here: as reals they do not fail for having many digits. */
    json_t *json =
        json_loadb(text, size_bytes,
                   JSON_DECODE_ANY | JSON_DECODE_INT_AS_REAL | JSON_REJECT_DUPLICATES, &error);
    if (json != NULL) {
        json_decref(json);
        return GR_OK;
    }
    int line = error.line > 0 ? error.line : 1;
    /* Where jansson runs out of memory it mostly just returns, without a code. */
    enum json_error_code code = json_error_code(&error);
    if (code == json_error_out_of_memory || error.text[0] == '\0') {
        return gr_doc_fail(builder, line, GR_E_NO_MEMORY, "not enough memory to read the file");
    }
    return gr_doc_fail(builder, line, GR_E_INVALID, "not valid JSON: %s", error.text);
}

static bool is_one_of(char c, const char *set)
{
    return c != '\0' && strchr(set, c) != NULL;
}

static bool is_blank(const char *text, size_t size_bytes)
{
    for (size_t i = 0; i < size_bytes; i++) {
        if (!is_one_of(text[i], " \t\r\n")) {
            return false;
        }
    }
    return true;
}

/* Past white space and the marks between values. */
static void skip_between(json_cursor *cursor)
{
    while (cursor->at < cursor->end && is_one_of(*cursor->at, " \t\r\n,:")) {
        cursor->line += *cursor->at == '\n';
        cursor->at++;
    }
}

/* The string at the cursor with its quotes; a valid one has no line break inside. */
static size_t string_bytes(const json_cursor *cursor)
{
    const char *at = cursor->at + 1;
    while (at < cursor->end && *at != '"') {
        at += *at == '\\' ? 2 : 1;
    }
    return (size_t)(at - cursor->at) + 1;
}

static gr_status add_text(gr_doc_builder *builder, const char *text, size_t size_bytes, int line)
{
    return gr_doc_wants_key(builder) ? gr_doc_key(builder, text, size_bytes, line)
                                     : gr_doc_scalar(builder, text, size_bytes, true, NULL, line);
}

static gr_status add_string(gr_doc_builder *builder, json_cursor *cursor)
{
    const char *start = cursor->at;
    size_t size_bytes = string_bytes(cursor);
    cursor->at += size_bytes;
    if (memchr(start, '\\', size_bytes) == NULL) {
        return add_text(builder, start + 1, size_bytes - 2, cursor->line);
    }
    json_t *json = json_loadb(start, size_bytes, JSON_DECODE_ANY, NULL);
    if (json == NULL) { /* it was valid a moment ago */
        return gr_doc_fail(builder, cursor->line, GR_E_NO_MEMORY,
                           "not enough memory to read the file");
    }
    gr_status status =
        add_text(builder, json_string_value(json), json_string_length(json), cursor->line);
    json_decref(json);
    return status;
}

static gr_status add_word(gr_doc_builder *builder, json_cursor *cursor)
{
    const char *start = cursor->at;
    while (cursor->at < cursor->end && !is_one_of(*cursor->at, " \t\r\n,:]}")) {
        cursor->at++;
    }
    size_t size_bytes = (size_t)(cursor->at - start);
    if (size_bytes == 4 && memcmp(start, "null", 4) == 0) {
        return gr_doc_null(builder, NULL, cursor->line);
    }
    return gr_doc_scalar(builder, start, size_bytes, false, NULL, cursor->line);
}

static gr_status add_next(gr_doc_builder *builder, json_cursor *cursor)
{
    switch (*cursor->at) {
    case '{':
        cursor->at++;
        return gr_doc_open(builder, GR_NODE_MAP, NULL, cursor->line);
    case '[':
        cursor->at++;
        return gr_doc_open(builder, GR_NODE_LIST, NULL, cursor->line);
    case '}':
    case ']':
        cursor->at++;
        return gr_doc_close(builder);
    case '"':
        return add_string(builder, cursor);
    default:
        return add_word(builder, cursor);
    }
}

gr_status gr_doc_parse_json(const char *name, const char *text, size_t size_bytes, gr_doc **doc_out,
                            gr_diag *diag)
{
    gr_doc_builder *builder = NULL;
    gr_status status = gr_doc_builder_create(name, size_bytes, &builder, diag);
    if (status != GR_OK) {
        return status;
    }
    if (is_blank(text, size_bytes)) {
        return gr_doc_builder_end(builder, GR_OK, doc_out); /* an empty file, as in YAML */
    }
    status = validate(builder, text, size_bytes);
    json_cursor cursor = {.at = text, .end = text + size_bytes, .line = 1};
    skip_between(&cursor);
    while (status == GR_OK && cursor.at < cursor.end) {
        status = add_next(builder, &cursor);
        skip_between(&cursor);
    }
    return gr_doc_builder_end(builder, status, doc_out);
}

json_t *gr_node_json(const gr_node *node, json_t *(*scalar)(const gr_node *node))
{
    if (node->kind == GR_NODE_NULL) {
        return json_null();
    }
    if (node->kind == GR_NODE_SCALAR) {
        return scalar(node);
    }
    bool map = node->kind == GR_NODE_MAP;
    json_t *all = map ? json_object() : json_array();
    int failed = all == NULL;
    for (const gr_node *child = node->child; child != NULL && !failed; child = child->next) {
        json_t *value = gr_node_json(child, scalar);
        failed =
            map ? json_object_set_new(all, child->key, value) : json_array_append_new(all, value);
    }
    if (failed) {
        json_decref(all);
        return NULL;
    }
    return all;
}
