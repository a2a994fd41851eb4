/* SPDX-License-Identifier: Apache-2.0 */

/* A value of a document in place of another one, or of none, as a flag says it. */

#include "doc/doc.h"

#include "base/fail.h"
#include "doc/doc_build.h"

#include <stdio.h>
#include <string.h>

enum { KEY_BYTES_MAX = 64 };

/* The whole value, in memory of `doc`, as if it stood there. NULL: no memory. */
static gr_node *copy(gr_doc *doc, const gr_node *from, const gr_node *parent, const char *where)
{
    gr_node *node = gr_arena_alloc(&doc->arena, sizeof *node);
    if (node == NULL) {
        return NULL;
    }
    *node = *from;
    node->file = where;
    node->line = 0;
    node->parent = parent;
    node->child = node->next = NULL;
    node->text = from->text != NULL ? gr_arena_strdup(&doc->arena, from->text) : NULL;
    node->key = from->key != NULL ? gr_arena_strdup(&doc->arena, from->key) : NULL;
    if ((from->text != NULL && node->text == NULL) || (from->key != NULL && node->key == NULL)) {
        return NULL;
    }
    const gr_node **end = &node->child;
    for (const gr_node *child = from->child; child != NULL; child = child->next) {
        gr_node *copied = copy(doc, child, node, where);
        if (copied == NULL) {
            return NULL;
        }
        *end = copied;
        end = &copied->next;
    }
    return node;
}

/* `node` becomes the value of `key` in `map`, in place of the one that is there. */
static void put(gr_node *map, gr_node *node)
{
    const gr_node **at = &map->child;
    while (*at != NULL && strcmp((*at)->key, node->key) != 0) {
        at = (const gr_node **)(uintptr_t) & (*at)->next;
    }
    node->parent = map;
    node->next = *at != NULL ? (*at)->next : NULL;
    map->count += *at == NULL;
    *at = node;
}

/* The map that is the value of `key`; a new one where there is none. */
static gr_status enter(gr_doc *doc, gr_node *map, const char *key, const char *where,
                       gr_node **map_out, gr_diag *diag)
{
    const gr_node *found = gr_node_get(map, key);
    if (found != NULL && (found->kind == GR_NODE_SCALAR || found->kind == GR_NODE_LIST)) {
        return gr_fail(diag, GR_E_INVALID, "%s: \"%s\" holds a value, and no keys", where, key);
    }
    /* The same map may stand in several places, by an alias: it is changed in this one alone. */
    const gr_node empty = {.kind = GR_NODE_MAP, .key = key};
    gr_node *own = gr_arena_alloc(&doc->arena, sizeof *own);
    char *name = gr_arena_strdup(&doc->arena, key);
    if (own == NULL || name == NULL) {
        return gr_fail(diag, GR_E_NO_MEMORY, "%s: no memory for the value", where);
    }
    *own = found != NULL && found->kind == GR_NODE_MAP ? *found : empty;
    own->key = name;
    own->file = found != NULL ? found->file : where;
    own->line = found != NULL ? found->line : 0;
    const gr_node **end = &own->child;
    for (const gr_node *child = own->child; child != NULL; child = child->next) {
        gr_node *mine = gr_arena_alloc(&doc->arena, sizeof *mine);
        if (mine == NULL) {
            return gr_fail(diag, GR_E_NO_MEMORY, "%s: no memory for the value", where);
        }
        *mine = *child;
        mine->parent = own;
        *end = mine;
        end = &mine->next;
    }
    put(map, own);
    *map_out = own;
    return GR_OK;
}

static gr_status set_value(gr_doc *doc, gr_node *map, const char *key, const char *value,
                           const char *where, gr_diag *diag)
{
    gr_doc *parsed = NULL;
    gr_status status = gr_doc_parse_yaml(where, value, strlen(value), &parsed, diag);
    if (status != GR_OK) {
        return status;
    }
    gr_node *node = copy(doc, gr_doc_root(parsed), map, where);
    char *name = gr_arena_strdup(&doc->arena, key);
    gr_doc_destroy(parsed);
    if (node == NULL || name == NULL) {
        return gr_fail(diag, GR_E_NO_MEMORY, "%s: no memory for the value", where);
    }
    node->key = name;
    put(map, node);
    return GR_OK;
}

gr_status gr_doc_set(gr_doc *doc, const char *flag, const char *text, gr_diag *diag)
{
    const char *where = gr_arena_printf(&doc->arena, "%s %s", flag, text);
    const char *equals = strchr(text, '=');
    gr_node *map = doc->root;
    if (where == NULL) {
        return gr_fail(diag, GR_E_NO_MEMORY, "%s: no memory for the value", flag);
    }
    if (equals == NULL || map->kind != GR_NODE_MAP) {
        return gr_fail(diag, GR_E_INVALID,
                       "%s: must read key=value, like optimizer.learning_rate=0.01", where);
    }
    for (const char *at = text;;) {
        char key[KEY_BYTES_MAX];
        size_t size = strcspn(at, ".=");
        if (size == 0 || size >= sizeof key) {
            return gr_fail(diag, GR_E_INVALID,
                           "%s: must read key=value, like optimizer.learning_rate=0.01", where);
        }
        snprintf(key, sizeof key, "%.*s", (int)size, at);
        at += size + 1;
        if (at > equals) {
            return set_value(doc, map, key, equals + 1, where, diag);
        }
        gr_status status = enter(doc, map, key, where, &map, diag);
        if (status != GR_OK) {
            return status;
        }
    }
}
