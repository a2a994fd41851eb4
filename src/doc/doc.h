/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GR_DOC_DOC_H
#define GR_DOC_DOC_H

/* One tree for YAML (libyaml) and JSON (jansson), which remembers file and line of each value, so
 * that whoever reads a value can say where it stands. Values stay text until somebody asks for a
 * type. Nodes live as long as their document. */

#include <gradus/status.h>
#include <stdbool.h>

typedef enum gr_node_kind { GR_NODE_NULL, GR_NODE_SCALAR, GR_NODE_LIST, GR_NODE_MAP } gr_node_kind;

typedef struct gr_node gr_node;
struct gr_node {
    gr_node_kind kind;
    bool quoted;          /* a scalar that was written as a string, not as a number or word */
    int line;             /* 1-based; of the key for the value of a map; 0: of gr_doc_set */
    const char *file;     /* as the user named it */
    const char *key;      /* in a map; else NULL */
    const char *text;     /* of a scalar */
    const gr_node *child; /* first of a list or map */
    const gr_node *next;  /* sibling */
    int count;            /* children */
    /* The list or map around it, NULL for the root; below an alias, that of the anchor. */
    const gr_node *parent;
};

typedef struct gr_doc gr_doc;

enum { GR_DOC_BYTES_MAX = 16 << 20, GR_DOC_DEPTH_MAX = 64, GR_DOC_NODES_MAX = 1 << 20 };

/* Limits above; duplicate keys, anchors' cycles and several documents in one file are errors.
 * Errors read "job.yaml:12: ...". */
gr_status gr_doc_read_yaml(const char *path, gr_doc **doc_out, gr_diag *diag) GR_MUST_CHECK;
gr_status gr_doc_parse_yaml(const char *name, const char *text, size_t size_bytes, gr_doc **doc_out,
                            gr_diag *diag) GR_MUST_CHECK;
/* Likewise, but a merge key (<<) is a key like others, for who merges what stands there. */
gr_status gr_doc_parse_yaml_with_merges(const char *name, const char *text, size_t size_bytes,
                                        gr_doc **doc_out, gr_diag *diag) GR_MUST_CHECK;
gr_status gr_doc_parse_json(const char *name, const char *text, size_t size_bytes, gr_doc **doc_out,
                            gr_diag *diag) GR_MUST_CHECK;
/* "optimizer.learning_rate=0.01": from now on that is what stands there, and errors about it begin
 * with "<flag> <text>". The value is YAML. Maps on the way are made; elements of lists cannot be
 * named. The root must be a map. GR_E_INVALID, GR_E_NO_MEMORY. */
gr_status gr_doc_set(gr_doc *doc, const char *flag, const char *text, gr_diag *diag) GR_MUST_CHECK;
void gr_doc_destroy(gr_doc *doc);
const gr_node *gr_doc_root(const gr_doc *doc); /* GR_NODE_NULL for an empty file */

/* The value of `key` in a map, NULL if absent or `map` is no map. */
const gr_node *gr_node_get(const gr_node *map, const char *key);
/* Where a key of `map` stands, or at least the map; NULL if neither is in the file. */
const gr_node *gr_node_setting(const gr_node *map, const char *key);

/* Typed reads: GR_E_INVALID with "file:line: path: what it must be, what it is" in diag; the path
 * is that of keys and indices from the root, "optimizer.learning_rate" or "layers[2].units". A
 * number or truth value in quotes is text, and an error here; min and max at the ends of their
 * type (for double: infinite) are no bounds. */
gr_status gr_node_int(const gr_node *node, int64_t min, int64_t max, int64_t *value_out,
                      gr_diag *diag) GR_MUST_CHECK;
gr_status gr_node_double(const gr_node *node, double min, double max, double *value_out,
                         gr_diag *diag) GR_MUST_CHECK;
gr_status gr_node_bool(const gr_node *node, bool *value_out, gr_diag *diag) GR_MUST_CHECK;
gr_status gr_node_text(const gr_node *node, const char **value_out, gr_diag *diag) GR_MUST_CHECK;

/* A failure about this node: "file:line: path: <sentence>". node may be NULL. */
gr_status gr_node_fail(const gr_node *node, gr_diag *diag, gr_status status, const char *format,
                       ...) GR_PRINTF(4, 5);

/* The root of a document that gradus made itself, whose version is the value of `key`: at most
 * `version`. `name` is the document's, `made_by` says how one is made. */
gr_status gr_node_version(const gr_node *root, const char *name, const char *key, int version,
                          const char *made_by, gr_diag *diag) GR_MUST_CHECK;
/* Every key of `map` must be one of `known` (NULL-terminated); else the error names the nearest. */
gr_status gr_node_only(const gr_node *map, const char *const *known, gr_diag *diag) GR_MUST_CHECK;

#endif
