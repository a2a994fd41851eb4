/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GR_DOC_DOC_BUILD_H
#define GR_DOC_DOC_BUILD_H

/* How doc_yaml.c and doc_json.c make a tree: they report what they read in order, the builder keeps
 * the stack, the limits and the rule that a key stands once. */

#include "base/arena.h"
#include "doc/doc.h"

enum {
    GR_DOC_MEMORY_MAX = 256 << 20, /* of the tree */
    GR_DOC_ANCHORS_MAX = 1024
};

struct gr_doc {
    gr_arena arena;
    const char *file;
    gr_node *root;
};

typedef struct gr_doc_frame { /* a list or map that is not yet closed */
    gr_node *node;
    gr_node *last;   /* child */
    const char *key; /* read, its value not yet; maps only */
    int key_line;
    int levels;       /* of lists and maps inside, so far */
    int anchor;       /* index, -1: none */
    int nodes_before; /* count of nodes when it was opened */
} gr_doc_frame;

typedef struct gr_doc_anchor {
    const char *name;
    const gr_node *node;
    int levels; /* of lists and maps, 0 for a scalar */
    int nodes;  /* in all, aliases inside written out; 0: not yet closed */
} gr_doc_anchor;

typedef struct gr_doc_builder {
    gr_doc *doc;
    gr_diag *diag;
    gr_doc_frame frames[GR_DOC_DEPTH_MAX];
    int depth;
    int nodes; /* as if every alias were written out: a walk over the tree takes no more steps */
    gr_doc_anchor anchors[GR_DOC_ANCHORS_MAX];
    int anchor_count;
} gr_doc_builder;

gr_status gr_doc_builder_create(const char *name, size_t size_bytes, gr_doc_builder **builder_out,
                                gr_diag *diag) GR_MUST_CHECK;
/* Frees the builder. With GR_OK the document goes to *doc_out, else it is destroyed; returns
 * `status`, or what the end of the document says. */
gr_status gr_doc_builder_end(gr_doc_builder *builder, gr_status status,
                             gr_doc **doc_out) GR_MUST_CHECK;

/* "file:line: <sentence>" */
gr_status gr_doc_fail(gr_doc_builder *builder, int line, gr_status status, const char *format, ...)
    GR_PRINTF(4, 5);

/* The next thing is the key of a map: the innermost container is a map that waits for one. */
bool gr_doc_wants_key(const gr_doc_builder *builder);
gr_status gr_doc_key(gr_doc_builder *builder, const char *text, size_t size_bytes,
                     int line) GR_MUST_CHECK;

/* Text is copied. `anchor` is the anchor's name or NULL. */
gr_status gr_doc_null(gr_doc_builder *builder, const char *anchor, int line) GR_MUST_CHECK;
gr_status gr_doc_scalar(gr_doc_builder *builder, const char *text, size_t size_bytes, bool quoted,
                        const char *anchor, int line) GR_MUST_CHECK;
gr_status gr_doc_open(gr_doc_builder *builder, gr_node_kind kind, const char *anchor,
                      int line) GR_MUST_CHECK;
gr_status gr_doc_close(gr_doc_builder *builder) GR_MUST_CHECK;
gr_status gr_doc_alias(gr_doc_builder *builder, const char *anchor, int line) GR_MUST_CHECK;

#endif
