/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GR_DOC_NODE_H
#define GR_DOC_NODE_H

/* The words of error sentences about a node. */

#include "base/text.h"
#include "doc/doc.h"

enum { GR_WHERE_BYTES = 256 };

/* "job.yaml:7: optimizer.learning_rate"; for the root "job.yaml:1". */
void gr_node_where(const gr_node *node, char text_out[GR_WHERE_BYTES]);

/* "\"fast\"", "a list", "a map", "nothing". */
void gr_node_describe(const gr_node *node, char text_out[GR_VALUE_BYTES]);

#endif
