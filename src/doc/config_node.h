/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GR_DOC_CONFIG_NODE_H
#define GR_DOC_CONFIG_NODE_H

/* The file layer of a settings table (base/config.h): values come from a map of a document. */

#include "base/config.h"
#include "doc/doc.h"

/* Sets the fields of `config` that `map` holds. An unknown key is an error that names the nearest
 * known one. NULL and an empty value (GR_NODE_NULL) count as an empty map. Texts go into `arena`. A
 * GR_CONFIG_NODE field points into the document. After a failure the contents of `config` are
 * undefined. GR_E_INVALID, GR_E_NO_MEMORY, with "file:line: key" in diag. */
gr_status gr_config_from_node(const gr_config_table *table, void *config, const gr_node *map,
                              gr_arena *arena, gr_diag *diag) GR_MUST_CHECK;

/* Sets one field: the value that `node` is. As above. */
gr_status gr_config_set_node(const gr_config_field *field, void *config, const gr_node *node,
                             gr_arena *arena, gr_diag *diag) GR_MUST_CHECK;

/* Behind gr_config_from_node with `map`, for the choice `key` of which each has fields of its own:
 * refuses those of others, which would change nothing, and sets those of the struct's choice again,
 * since the fields of several may share a place in the struct. */
gr_status gr_config_settle(const gr_config_table *table, const char *key, void *config,
                           const gr_node *map, gr_arena *arena, gr_diag *diag) GR_MUST_CHECK;

#endif
