/* SPDX-License-Identifier: Apache-2.0 */
#include "doc/doc.h"

#include "base/fail.h"
#include "base/text.h"
#include "doc/doc_build.h"

#include <stdlib.h>
#include <string.h>

/* ---- The document ---------------------------------------------------------------------------- */

void gr_doc_destroy(gr_doc *doc)
{
    if (doc != NULL) {
        gr_arena_fini(&doc->arena);
        free(doc);
    }
}

const gr_node *gr_doc_root(const gr_doc *doc)
{
    return doc->root;
}

/* ---- The builder ----------------------------------------------------------------------------- */

gr_status gr_doc_fail(gr_doc_builder *builder, int line, gr_status status, const char *format, ...)
{
    char sentence[GR_DIAG_TEXT_BYTES];
    va_list arguments;
    va_start(arguments, format);
    gr_text_line(sentence, sizeof sentence, format, arguments);
    va_end(arguments);
    return gr_fail(builder->diag, status, "%s:%d: %s", builder->doc->file, line, sentence);
}

static gr_status fail_memory(gr_doc_builder *builder, int line)
{
    return gr_doc_fail(builder, line, GR_E_NO_MEMORY, "not enough memory to read the file");
}

gr_status gr_doc_builder_create(const char *name, size_t size_bytes, gr_doc_builder **builder_out,
                                gr_diag *diag)
{
    if (size_bytes > GR_DOC_BYTES_MAX) {
        return gr_fail(diag, GR_E_INVALID, "%s is larger than the limit of %d bytes", name,
                       (int)GR_DOC_BYTES_MAX);
    }
    gr_doc_builder *builder = calloc(1, sizeof *builder);
    if (builder == NULL) {
        goto no_memory;
    }
    builder->diag = diag;
    builder->doc = calloc(1, sizeof *builder->doc);
    if (builder->doc == NULL) {
        goto undo_builder;
    }
    gr_arena_init(&builder->doc->arena, GR_DOC_MEMORY_MAX);
    builder->doc->file = gr_arena_strdup(&builder->doc->arena, name);
    if (builder->doc->file == NULL) {
        goto undo_doc;
    }
    *builder_out = builder;
    return GR_OK;

undo_doc:
    gr_doc_destroy(builder->doc);
undo_builder:
    free(builder);
no_memory:
    return gr_fail(diag, GR_E_NO_MEMORY, "not enough memory to read %s", name);
}

gr_status gr_doc_builder_end(gr_doc_builder *builder, gr_status status, gr_doc **doc_out)
{
    if (status == GR_OK && builder->doc->root == NULL) {
        status = gr_doc_null(builder, NULL, 1); /* an empty file */
    }
    if (status == GR_OK) {
        *doc_out = builder->doc;
    } else {
        gr_doc_destroy(builder->doc);
    }
    free(builder);
    return status;
}

/* The innermost open list or map, NULL outside of the root. */
static gr_doc_frame *top_frame(gr_doc_builder *builder)
{
    return builder->depth > 0 ? &builder->frames[builder->depth - 1] : NULL;
}

bool gr_doc_wants_key(const gr_doc_builder *builder)
{
    if (builder->depth == 0) {
        return false;
    }
    const gr_doc_frame *top = &builder->frames[builder->depth - 1];
    return top->node->kind == GR_NODE_MAP && top->key == NULL;
}

static gr_status copy_text(gr_doc_builder *builder, const char *text, size_t size_bytes, int line,
                           const char **copy_out)
{
    if (memchr(text, '\0', size_bytes) != NULL) {
        return gr_doc_fail(builder, line, GR_E_INVALID,
                           "a zero character stands inside a text; remove it");
    }
    char *copy = gr_arena_alloc(&builder->doc->arena, size_bytes + 1);
    if (copy == NULL) {
        return fail_memory(builder, line);
    }
    memcpy(copy, text, size_bytes);
    *copy_out = copy;
    return GR_OK;
}

gr_status gr_doc_key(gr_doc_builder *builder, const char *text, size_t size_bytes, int line)
{
    gr_doc_frame *top = top_frame(builder);
    top->key_line = line;
    return copy_text(builder, text, size_bytes, line, &top->key);
}

static gr_status count_nodes(gr_doc_builder *builder, int count, int line)
{
    if (count > GR_DOC_NODES_MAX - builder->nodes) {
        return gr_doc_fail(builder, line, GR_E_INVALID,
                           "the file holds more than %d values (aliases written out)",
                           (int)GR_DOC_NODES_MAX);
    }
    builder->nodes += count;
    return GR_OK;
}

/* A node at the place where the next value stands. It is not counted. */
static gr_status add_node(gr_doc_builder *builder, gr_node_kind kind, int levels, int line,
                          gr_node **node_out)
{
    gr_node *node = gr_arena_alloc(&builder->doc->arena, sizeof *node);
    if (node == NULL) {
        return fail_memory(builder, line);
    }
    node->kind = kind;
    node->line = line;
    node->file = builder->doc->file;
    gr_doc_frame *top = top_frame(builder);
    if (top == NULL) {
        builder->doc->root = node;
    } else {
        node->parent = top->node;
        if (top->node->kind == GR_NODE_MAP) {
            node->key = top->key;
            node->line = top->key_line;
            top->key = NULL;
        }
        if (top->last == NULL) {
            top->node->child = node;
        } else {
            top->last->next = node;
        }
        top->last = node;
        top->node->count++;
        top->levels = levels > top->levels ? levels : top->levels;
    }
    *node_out = node;
    return GR_OK;
}

static gr_status add_anchor(gr_doc_builder *builder, const char *name, const gr_node *node,
                            int levels, int nodes, int *index_out)
{
    *index_out = -1;
    if (name == NULL) {
        return GR_OK;
    }
    if (builder->anchor_count == GR_DOC_ANCHORS_MAX) {
        return gr_doc_fail(builder, node->line, GR_E_INVALID, "the file holds more than %d anchors",
                           (int)GR_DOC_ANCHORS_MAX);
    }
    const char *copy = gr_arena_strdup(&builder->doc->arena, name);
    if (copy == NULL) {
        return fail_memory(builder, node->line);
    }
    builder->anchors[builder->anchor_count] =
        (gr_doc_anchor){.name = copy, .node = node, .levels = levels, .nodes = nodes};
    *index_out = builder->anchor_count++;
    return GR_OK;
}

static gr_status add_leaf(gr_doc_builder *builder, gr_node_kind kind, const char *anchor, int line,
                          gr_node **node_out)
{
    gr_status status = count_nodes(builder, 1, line);
    if (status == GR_OK) {
        status = add_node(builder, kind, 0, line, node_out);
    }
    int unused;
    return status == GR_OK ? add_anchor(builder, anchor, *node_out, 0, 1, &unused) : status;
}

gr_status gr_doc_null(gr_doc_builder *builder, const char *anchor, int line)
{
    gr_node *node = NULL;
    return add_leaf(builder, GR_NODE_NULL, anchor, line, &node);
}

gr_status gr_doc_scalar(gr_doc_builder *builder, const char *text, size_t size_bytes, bool quoted,
                        const char *anchor, int line)
{
    gr_node *node = NULL;
    gr_status status = add_leaf(builder, GR_NODE_SCALAR, anchor, line, &node);
    if (status != GR_OK) {
        return status;
    }
    node->quoted = quoted;
    return copy_text(builder, text, size_bytes, line, &node->text);
}

static gr_status fail_depth(gr_doc_builder *builder, int line)
{
    return gr_doc_fail(builder, line, GR_E_INVALID, "lists and maps are nested deeper than %d",
                       (int)GR_DOC_DEPTH_MAX);
}

gr_status gr_doc_open(gr_doc_builder *builder, gr_node_kind kind, const char *anchor, int line)
{
    if (builder->depth == GR_DOC_DEPTH_MAX) {
        return fail_depth(builder, line);
    }
    int nodes_before = builder->nodes;
    gr_status status = count_nodes(builder, 1, line);
    gr_node *node = NULL;
    if (status == GR_OK) {
        status = add_node(builder, kind, 1, line, &node);
    }
    int index = -1;
    if (status == GR_OK) {
        status = add_anchor(builder, anchor, node, 0, 0, &index);
    }
    if (status == GR_OK) {
        builder->frames[builder->depth++] =
            (gr_doc_frame){.node = node, .anchor = index, .nodes_before = nodes_before};
    }
    return status;
}

static int by_key(const void *a, const void *b)
{
    const gr_node *const *left = a;
    const gr_node *const *right = b;
    int order = strcmp((*left)->key, (*right)->key);
    return order != 0 ? order : ((*left)->line > (*right)->line) - ((*left)->line < (*right)->line);
}

static gr_status fail_twice(gr_doc_builder *builder, const gr_node *first, const gr_node *second)
{
    return gr_doc_fail(builder, second->line, GR_E_INVALID,
                       "the key \"%.80s\" stands twice, first on line %d; remove one of them",
                       first->key, first->line);
}

/* Small maps by looking at each pair; large ones, which only hostile input has, by sorting. */
static gr_status check_keys(gr_doc_builder *builder, const gr_node *map)
{
    enum { SMALL = 32 };
    if (map->count <= SMALL) {
        for (const gr_node *a = map->child; a != NULL; a = a->next) {
            for (const gr_node *b = a->next; b != NULL; b = b->next) {
                if (strcmp(a->key, b->key) == 0) {
                    return fail_twice(builder, a, b);
                }
            }
        }
        return GR_OK;
    }
    const gr_node **sorted = malloc((size_t)map->count * sizeof *sorted);
    if (sorted == NULL) {
        return fail_memory(builder, map->line);
    }
    int count = 0;
    for (const gr_node *child = map->child; child != NULL; child = child->next) {
        sorted[count++] = child;
    }
    qsort(sorted, (size_t)count, sizeof *sorted, by_key);
    gr_status status = GR_OK;
    for (int i = 1; status == GR_OK && i < count; i++) {
        if (strcmp(sorted[i - 1]->key, sorted[i]->key) == 0) {
            status = fail_twice(builder, sorted[i - 1], sorted[i]);
        }
    }
    free(sorted);
    return status;
}

gr_status gr_doc_close(gr_doc_builder *builder)
{
    gr_doc_frame closed = *top_frame(builder);
    builder->depth--;
    int levels = closed.levels + 1;
    gr_doc_frame *top = top_frame(builder);
    if (top != NULL && levels > top->levels) {
        top->levels = levels;
    }
    if (closed.anchor >= 0) {
        builder->anchors[closed.anchor].levels = levels;
        builder->anchors[closed.anchor].nodes = builder->nodes - closed.nodes_before;
    }
    return closed.node->kind == GR_NODE_MAP ? check_keys(builder, closed.node) : GR_OK;
}

gr_status gr_doc_alias(gr_doc_builder *builder, const char *anchor, int line)
{
    int at = builder->anchor_count - 1; /* a name may be given again: the latest counts */
    while (at >= 0 && strcmp(builder->anchors[at].name, anchor) != 0) {
        at--;
    }
    if (at < 0) {
        return gr_doc_fail(builder, line, GR_E_INVALID,
                           "the alias *%.80s has no anchor &%.80s before it", anchor, anchor);
    }
    const gr_doc_anchor *target = &builder->anchors[at];
    if (target->nodes == 0) {
        return gr_doc_fail(builder, line, GR_E_INVALID,
                           "the alias *%.80s stands inside of its own anchor, which never ends",
                           anchor);
    }
    if (builder->depth + target->levels > GR_DOC_DEPTH_MAX) {
        return fail_depth(builder, line);
    }
    gr_status status = count_nodes(builder, target->nodes, line);
    gr_node *node = NULL;
    if (status == GR_OK) {
        status = add_node(builder, target->node->kind, target->levels, line, &node);
    }
    if (status == GR_OK) {
        /* Children are shared: nodes do not change once their container is closed. */
        node->quoted = target->node->quoted;
        node->text = target->node->text;
        node->child = target->node->child;
        node->count = target->node->count;
    }
    return status;
}
