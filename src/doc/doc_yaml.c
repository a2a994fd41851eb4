/* SPDX-License-Identifier: Apache-2.0 */
#include "doc/doc.h"

#include "base/fail.h"
#include "base/file.h"
#include "doc/doc_build.h"

#include <stdlib.h>
#include <string.h>
#include <yaml.h>

static int line_of(yaml_mark_t mark)
{
    return (int)mark.line + 1; /* documents have at most GR_DOC_BYTES_MAX lines */
}

static bool is_indented_by_tab(const char *text, size_t size_bytes, int line)
{
    size_t at = 0;
    for (int i = 1; i < line; i++) {
        const char *end = at < size_bytes ? memchr(text + at, '\n', size_bytes - at) : NULL;
        if (end == NULL) {
            return false;
        }
        at = (size_t)(end - text) + 1;
    }
    while (at < size_bytes && text[at] == ' ') {
        at++;
    }
    return at < size_bytes && text[at] == '\t';
}

/* libyaml counts the end of the file as a line of its own; people do not. */
static int within_file(const char *text, size_t size_bytes, int line)
{
    int last = size_bytes == 0 || text[size_bytes - 1] != '\n';
    for (size_t i = 0; i < size_bytes; i++) {
        last += text[i] == '\n';
    }
    return line > last ? last : line;
}

static gr_status fail_syntax(gr_doc_builder *builder, const yaml_parser_t *parser, const char *text,
                             size_t size_bytes)
{
    if (parser->error == YAML_MEMORY_ERROR) {
        return gr_doc_fail(builder, line_of(parser->mark), GR_E_NO_MEMORY,
                           "not enough memory to read the file");
    }
    const char *problem = parser->problem != NULL ? parser->problem : "unknown problem";
    if (parser->error == YAML_READER_ERROR) {
        /* The reader knows a position in bytes only. */
        int line = 1;
        for (size_t i = 0; i < parser->problem_offset && i < size_bytes; i++) {
            line += text[i] == '\n';
        }
        return gr_doc_fail(builder, line, GR_E_INVALID,
                           "not a text file: %s (byte %zu of the file)", problem,
                           parser->problem_offset + 1);
    }
    int line = within_file(text, size_bytes, line_of(parser->problem_mark));
    if (is_indented_by_tab(text, size_bytes, line)) {
        return gr_doc_fail(builder, line, GR_E_INVALID,
                           "not valid YAML: the line begins with a tab; indent with spaces");
    }
    if (parser->context != NULL && line_of(parser->context_mark) != line) {
        return gr_doc_fail(builder, line, GR_E_INVALID, "not valid YAML: %s (%s from line %d)",
                           problem, parser->context, line_of(parser->context_mark));
    }
    return gr_doc_fail(builder, line, GR_E_INVALID,
                       "not valid YAML: %s; check indentation, colons and quotes", problem);
}

static bool is_null_word(const char *text)
{
    return text[0] == '\0' || strcmp(text, "~") == 0 || strcmp(text, "null") == 0 ||
           strcmp(text, "Null") == 0 || strcmp(text, "NULL") == 0;
}

/* What an explicit tag makes of a scalar. Only the tags of YAML's own types are known. */
typedef enum tag_kind { TAG_NONE, TAG_TEXT, TAG_PLAIN, TAG_NULL, TAG_UNKNOWN } tag_kind;

static tag_kind kind_of_tag(const yaml_char_t *tag)
{
    static const struct {
        const char *tag;
        tag_kind kind;
    } known[] = {{"!", TAG_TEXT},
                 {YAML_STR_TAG, TAG_TEXT},
                 {YAML_INT_TAG, TAG_PLAIN},
                 {YAML_FLOAT_TAG, TAG_PLAIN},
                 {YAML_BOOL_TAG, TAG_PLAIN},
                 {YAML_NULL_TAG, TAG_NULL}};
    if (tag == NULL) {
        return TAG_NONE;
    }
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++) {
        if (strcmp((const char *)tag, known[i].tag) == 0) {
            return known[i].kind;
        }
    }
    return TAG_UNKNOWN;
}

static gr_status fail_tag(gr_doc_builder *builder, const yaml_char_t *tag, int line)
{
    return gr_doc_fail(builder, line, GR_E_INVALID, "unknown tag %.80s; remove it",
                       (const char *)tag);
}

static gr_status add_scalar(gr_doc_builder *builder, const yaml_event_t *event, bool takes_merges)
{
    const char *text = (const char *)event->data.scalar.value;
    size_t size_bytes = event->data.scalar.length;
    const char *anchor = (const char *)event->data.scalar.anchor;
    bool plain = event->data.scalar.style == YAML_PLAIN_SCALAR_STYLE;
    int line = line_of(event->start_mark);
    if (gr_doc_wants_key(builder)) {
        if (plain && strcmp(text, "<<") == 0 && !takes_merges) {
            return gr_doc_fail(builder, line, GR_E_INVALID,
                               "merge keys (<<) are not supported; write the keys out");
        }
        if (plain && text[0] == '\0') {
            return gr_doc_fail(builder, line, GR_E_INVALID, "a key is missing before the colon");
        }
        if (anchor != NULL) {
            return gr_doc_fail(builder, line, GR_E_INVALID,
                               "a key has the anchor &%.80s; only values may", anchor);
        }
        return gr_doc_key(builder, text, size_bytes, line);
    }
    tag_kind tag = kind_of_tag(event->data.scalar.tag);
    if (tag == TAG_UNKNOWN) {
        return fail_tag(builder, event->data.scalar.tag, line);
    }
    if (tag == TAG_NULL || (tag == TAG_NONE && plain && is_null_word(text))) {
        return gr_doc_null(builder, anchor, line);
    }
    bool quoted = tag == TAG_TEXT || (tag == TAG_NONE && !plain);
    return gr_doc_scalar(builder, text, size_bytes, quoted, anchor, line);
}

static gr_status add_container(gr_doc_builder *builder, gr_node_kind kind, const yaml_char_t *tag,
                               const yaml_char_t *anchor, int line)
{
    if (gr_doc_wants_key(builder)) {
        return gr_doc_fail(builder, line, GR_E_INVALID, "a key must be a word, not a %s",
                           kind == GR_NODE_MAP ? "map" : "list");
    }
    const char *expected = kind == GR_NODE_MAP ? YAML_MAP_TAG : YAML_SEQ_TAG;
    if (tag != NULL && strcmp((const char *)tag, expected) != 0) {
        return fail_tag(builder, tag, line);
    }
    return gr_doc_open(builder, kind, (const char *)anchor, line);
}

static gr_status add_event(gr_doc_builder *builder, const yaml_event_t *event, bool takes_merges,
                           int *documents)
{
    int line = line_of(event->start_mark);
    switch (event->type) {
    case YAML_DOCUMENT_START_EVENT:
        if (++*documents > 1) {
            return gr_doc_fail(builder, line, GR_E_INVALID,
                               "a second document begins; a file holds one, split it");
        }
        return GR_OK;
    case YAML_SCALAR_EVENT:
        return add_scalar(builder, event, takes_merges);
    case YAML_SEQUENCE_START_EVENT:
        return add_container(builder, GR_NODE_LIST, event->data.sequence_start.tag,
                             event->data.sequence_start.anchor, line);
    case YAML_MAPPING_START_EVENT:
        return add_container(builder, GR_NODE_MAP, event->data.mapping_start.tag,
                             event->data.mapping_start.anchor, line);
    case YAML_SEQUENCE_END_EVENT:
    case YAML_MAPPING_END_EVENT:
        return gr_doc_close(builder);
    case YAML_ALIAS_EVENT:
        if (gr_doc_wants_key(builder)) {
            return gr_doc_fail(builder, line, GR_E_INVALID, "a key must be a word, not an alias");
        }
        return gr_doc_alias(builder, (const char *)event->data.alias.anchor, line);
    default:
        return GR_OK;
    }
}

static gr_status parse(const char *name, const char *text, size_t size_bytes, bool takes_merges,
                       gr_doc **doc_out, gr_diag *diag)
{
    gr_doc_builder *builder = NULL;
    gr_status status = gr_doc_builder_create(name, size_bytes, &builder, diag);
    if (status != GR_OK) {
        return status;
    }
    yaml_parser_t parser;
    if (yaml_parser_initialize(&parser) == 0) {
        status = gr_doc_fail(builder, 1, GR_E_NO_MEMORY, "not enough memory to read the file");
        return gr_doc_builder_end(builder, status, doc_out);
    }
    yaml_parser_set_input_string(&parser, (const unsigned char *)text, size_bytes);
    int documents = 0;
    bool done = false;
    while (status == GR_OK && !done) {
        yaml_event_t event;
        if (yaml_parser_parse(&parser, &event) == 0) {
            status = fail_syntax(builder, &parser, text, size_bytes);
            break;
        }
        done = event.type == YAML_STREAM_END_EVENT;
        status = add_event(builder, &event, takes_merges, &documents);
        yaml_event_delete(&event);
    }
    yaml_parser_delete(&parser);
    return gr_doc_builder_end(builder, status, doc_out);
}

gr_status gr_doc_parse_yaml(const char *name, const char *text, size_t size_bytes, gr_doc **doc_out,
                            gr_diag *diag)
{
    return parse(name, text, size_bytes, false, doc_out, diag);
}

gr_status gr_doc_parse_yaml_with_merges(const char *name, const char *text, size_t size_bytes,
                                        gr_doc **doc_out, gr_diag *diag)
{
    return parse(name, text, size_bytes, true, doc_out, diag);
}

gr_status gr_doc_read_yaml(const char *path, gr_doc **doc_out, gr_diag *diag)
{
    char *text = NULL;
    size_t size_bytes = 0;
    gr_status status = gr_file_read(path, GR_DOC_BYTES_MAX, &text, &size_bytes, diag);
    if (status == GR_OK) {
        status = gr_doc_parse_yaml(path, text, size_bytes, doc_out, diag);
    }
    free(text);
    return status;
}
