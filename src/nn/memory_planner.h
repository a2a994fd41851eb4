/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GR_NN_MEMORY_PLANNER_H
#define GR_NN_MEMORY_PLANNER_H

/* One block of memory for all activations, gradients of activations and scratch space of a model.
 * Buffers are declared with the span of time in which they hold something; those whose spans do not
 * meet may share a place. */

#include <gradus/status.h>

enum { GR_NO_BUFFER = -1, GR_MEMORY_ALIGN = 64 };

typedef struct gr_memory_planner gr_memory_planner;

typedef struct gr_memory_planner_span {
    size_t offset, size_bytes;
    int first, last; /* both included */
} gr_memory_planner_span;

gr_status gr_memory_planner_create(int max_buffers, gr_memory_planner **memory_out,
                                   gr_diag *diag) GR_MUST_CHECK;
void gr_memory_planner_destroy(gr_memory_planner *memory);
/* A buffer that lives at `time`; GR_NO_BUFFER for size 0. */
int gr_memory_planner_add(gr_memory_planner *memory, size_t size_bytes, int time);
/* It also lives at `time`, and at all times between. */
void gr_memory_planner_extend(gr_memory_planner *memory, int buffer, int time);
/* Places all buffers and allocates the block. Nothing can be added afterwards. */
gr_status gr_memory_planner_plan(gr_memory_planner *memory, gr_diag *diag) GR_MUST_CHECK;
void *gr_memory_planner_at(const gr_memory_planner *memory, int buffer); /* NULL for GR_NO_BUFFER */
size_t gr_memory_planner_bytes(const gr_memory_planner *memory);
/* For tests: how many buffers there are, and where one lies. */
int gr_memory_planner_count(const gr_memory_planner *memory);
gr_memory_planner_span gr_memory_planner_span_of(const gr_memory_planner *memory, int buffer);
/* Fills the block with one byte: for tests that results do not depend on what lay there. */
void gr_memory_planner_fill(gr_memory_planner *memory, int byte);

#endif
