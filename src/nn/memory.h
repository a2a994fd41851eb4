/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GR_NN_MEMORY_H
#define GR_NN_MEMORY_H

/* One block of memory for all activations, gradients of activations and scratch space of a model.
 * Buffers are declared with the span of time in which they hold something; those whose spans do not
 * meet may share a place. */

#include <gradus/status.h>
#include <stdbool.h>

enum { GR_NO_BUFFER = -1, GR_MEMORY_ALIGN = 64 };

typedef struct gr_memory gr_memory;

typedef struct gr_memory_span {
    size_t offset, size_bytes;
    int first, last; /* both included */
} gr_memory_span;

gr_status gr_memory_create(int max_buffers, gr_memory **memory_out, gr_diag *diag) GR_MUST_CHECK;
void gr_memory_destroy(gr_memory *memory);
/* A buffer that lives at `time`; GR_NO_BUFFER for size 0. */
int gr_memory_add(gr_memory *memory, size_t size_bytes, int time);
/* It also lives at `time`, and at all times between. */
void gr_memory_extend(gr_memory *memory, int buffer, int time);
/* Places all buffers and allocates the block. Nothing can be added afterwards. */
gr_status gr_memory_plan(gr_memory *memory, gr_diag *diag) GR_MUST_CHECK;
void *gr_memory_at(const gr_memory *memory, int buffer); /* NULL for GR_NO_BUFFER */
size_t gr_memory_bytes(const gr_memory *memory);
int gr_memory_count(const gr_memory *memory);
gr_memory_span gr_memory_span_of(const gr_memory *memory, int buffer);
/* Fills the block with one byte: for tests that results do not depend on what lay there. */
void gr_memory_fill(gr_memory *memory, int byte);

#endif
