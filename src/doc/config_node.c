/* SPDX-License-Identifier: Apache-2.0 */
#include "doc/config_node.h"

#include "base/config_text.h"
#include "doc/node.h"

#include <stdio.h>
#include <string.h>

enum { OWN_BYTES = 256 };

static const gr_config_field *field_of_key(const gr_config_table *table, const char *key)
{
    for (const gr_config_field *field = NULL; (field = gr_config_next(table, field)) != NULL;) {
        if (field->key != NULL && strcmp(field->key, key) == 0) {
            return field;
        }
    }
    return NULL;
}

/* Reports an unknown key of `map`; the caller has found one. */
static gr_status fail_unknown_key(const gr_config_table *table, const gr_node *map, gr_arena *arena,
                                  gr_diag *diag)
{
    size_t fields = 0;
    for (const gr_config_field *field = NULL; (field = gr_config_next(table, field)) != NULL;) {
        fields++;
    }
    const char **known = gr_arena_alloc(arena, (fields + 1) * sizeof *known);
    if (known == NULL) {
        return gr_node_fail(map, diag, GR_E_NO_MEMORY, "an unknown key, and not enough memory");
    }
    size_t count = 0;
    for (const gr_config_field *field = NULL; (field = gr_config_next(table, field)) != NULL;) {
        if (field->key != NULL) {
            known[count++] = field->key;
        }
    }
    return gr_node_only(map, known, diag);
}

gr_status gr_config_set_node(const gr_config_field *field, void *config, const gr_node *node,
                             gr_arena *arena, gr_diag *diag)
{
    if (field->type == GR_CONFIG_NODE) {
        memcpy((char *)config + field->offset, &node, sizeof node);
        return GR_OK;
    }
    if (node->kind == GR_NODE_NULL) {
        return gr_node_fail(node, diag, GR_E_INVALID, "has no value; write one or remove the line");
    }
    if (node->kind != GR_NODE_SCALAR) {
        char value[GR_VALUE_BYTES];
        gr_node_describe(node, value);
        return gr_node_fail(node, diag, GR_E_INVALID, "must be a single value, not %s", value);
    }
    char where[GR_WHERE_BYTES];
    gr_node_where(node, where);
    gr_status status = gr_config_set(field, config, node->text, where, arena, diag);
    bool word = field->type == GR_CONFIG_BOOL || field->type == GR_CONFIG_INT ||
                field->type == GR_CONFIG_DOUBLE;
    if (status == GR_OK && node->quoted && word) {
        char value[GR_VALUE_BYTES];
        gr_node_describe(node, value);
        return gr_node_fail(node, diag, GR_E_INVALID, "must be a %s, not the text %s; %s",
                            field->type == GR_CONFIG_BOOL ? "truth value" : "number", value,
                            "remove the quotes");
    }
    return status;
}

gr_status gr_config_from_node(const gr_config_table *table, void *config, const gr_node *map,
                              gr_arena *arena, gr_diag *diag)
{
    if (map == NULL || map->kind == GR_NODE_NULL) {
        return GR_OK;
    }
    if (map->kind != GR_NODE_MAP) {
        char value[GR_VALUE_BYTES];
        gr_node_describe(map, value);
        return gr_node_fail(map, diag, GR_E_INVALID, "must be a map of keys and values, not %s",
                            value);
    }
    for (const gr_node *child = map->child; child != NULL; child = child->next) {
        const gr_config_field *field = field_of_key(table, child->key);
        gr_status status = field != NULL ? gr_config_set_node(field, config, child, arena, diag)
                                         : fail_unknown_key(table, map, arena, diag);
        if (status != GR_OK) {
            return status;
        }
    }
    return GR_OK;
}

/* ": its own are a, b and c"; cut if there are many. */
static void describe_own(const gr_config_field *own, char text_out[OWN_BYTES])
{
    size_t used = 0;
    text_out[0] = '\0';
    for (const gr_config_field *at = own; at != NULL && !gr_config_is_end(at) && used < OWN_BYTES;
         at++) {
        const char *between = at == own                  ? "; its own are "
                              : gr_config_is_end(at + 1) ? " and "
                                                         : ", ";
        int wrote = snprintf(text_out + used, OWN_BYTES - used, "%s%s", between, at->key);
        used += wrote > 0 ? (size_t)wrote : OWN_BYTES;
    }
}

static gr_status refuse_others(const gr_config_field *choice, int chosen, const gr_node *map,
                               gr_diag *diag)
{
    const gr_config_field *own = choice->choice_fields(chosen);
    for (int i = 0; gr_config_choice(choice, i) != NULL; i++) {
        for (const gr_config_field *at = choice->choice_fields(i);
             at != NULL && at->key != NULL && !gr_config_is_among(own, at); at++) {
            const gr_node *node = gr_node_get(map, at->key);
            if (node != NULL) {
                char text[OWN_BYTES];
                describe_own(own, text);
                return gr_node_fail(node, diag, GR_E_INVALID,
                                    "%s has no such setting%s; remove the line, or take %s: %s",
                                    gr_config_choice(choice, chosen), text, choice->key,
                                    gr_config_choice(choice, i));
            }
        }
    }
    return GR_OK;
}

gr_status gr_config_settle(const gr_config_table *table, const char *key, void *config,
                           const gr_node *map, gr_arena *arena, gr_diag *diag)
{
    const gr_config_field *choice = field_of_key(table, key);
    int chosen;
    memcpy(&chosen, (const char *)config + choice->offset, sizeof chosen);
    gr_status status = refuse_others(choice, chosen, map, diag);
    for (const gr_config_field *at = choice->choice_fields(chosen);
         at != NULL && !gr_config_is_end(at) && status == GR_OK; at++) {
        const gr_node *node = gr_node_get(map, at->key);
        if (node != NULL) {
            status = gr_config_set_node(at, config, node, arena, diag);
        } else if (at->default_text != NULL) {
            status = gr_config_set(at, config, at->default_text, at->key, arena, diag);
        }
    }
    return status;
}
