/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GR_DOC_NODE_JSON_H
#define GR_DOC_NODE_JSON_H

/* Trees of documents as JSON values. */

#include "doc/doc.h"

#include <jansson.h>

/* `node` with all below it, each scalar as `scalar` makes it. NULL: no memory, or no UTF-8. */
json_t *gr_node_json(const gr_node *node, json_t *(*scalar)(const gr_node *node));

#endif
