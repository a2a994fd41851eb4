/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GR_BASE_NODE_H
#define GR_BASE_NODE_H

/* The words of error sentences about a value. */

#include "base/doc.h"

enum { GR_WHERE_BYTES = 256, GR_VALUE_BYTES = 96, GR_RANGE_BYTES = 96 };

/* "job.yaml:7: optimizer.learning_rate"; for the root "job.yaml:1". */
void gr_node_where(const gr_node *node, char text_out[GR_WHERE_BYTES]);

/* "\"fast\"", "a list", "a map", "nothing". */
void gr_node_describe(const gr_node *node, char text_out[GR_VALUE_BYTES]);

/* A text in quotes, cut if it is long. */
void gr_text_quote(const char *text, char text_out[GR_VALUE_BYTES]);

/* " from 1 to 4096", " of at least 1", " of at most 9" or nothing. */
void gr_range_int(int64_t min, int64_t max, char text_out[GR_RANGE_BYTES]);
void gr_range_double(double min, double max, char text_out[GR_RANGE_BYTES]);

/* The same from ready words; NULL is no bound. */
void gr_range_words(const char *min, const char *max, char text_out[GR_RANGE_BYTES]);

#endif
