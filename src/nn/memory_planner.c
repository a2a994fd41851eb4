/* SPDX-License-Identifier: Apache-2.0 */
#include "nn/memory_planner.h"

#include "base/fail.h"

#include <stdlib.h>
#include <string.h>

struct gr_memory_planner {
    gr_memory_planner_span *spans;
    int count, max;
    unsigned char *block;
    size_t size_bytes;
};

gr_status gr_memory_planner_create(int max_buffers, gr_memory_planner **memory_out, gr_diag *diag)
{
    gr_memory_planner *memory = calloc(1, sizeof *memory);
    if (memory) {
        memory->spans = calloc((size_t)max_buffers, sizeof *memory->spans);
        memory->max = max_buffers;
    }
    if (!memory || !memory->spans) {
        free(memory);
        return gr_fail(diag, GR_E_NO_MEMORY, "no memory for the plan of %d buffers", max_buffers);
    }
    *memory_out = memory;
    return GR_OK;
}

void gr_memory_planner_destroy(gr_memory_planner *memory)
{
    if (memory) {
        free(memory->block);
        free(memory->spans);
        free(memory);
    }
}

int gr_memory_planner_add(gr_memory_planner *memory, size_t size_bytes, int time)
{
    if (size_bytes == 0) {
        return GR_NO_BUFFER;
    }
    GR_CHECK(memory->count < memory->max && !memory->block);
    size_t rounded = (size_bytes + GR_MEMORY_ALIGN - 1) / GR_MEMORY_ALIGN * GR_MEMORY_ALIGN;
    memory->spans[memory->count] =
        (gr_memory_planner_span){.offset = 0, .size_bytes = rounded, .first = time, .last = time};
    return memory->count++;
}

void gr_memory_planner_extend(gr_memory_planner *memory, int buffer, int time)
{
    if (buffer == GR_NO_BUFFER) {
        return;
    }
    gr_memory_planner_span *span = &memory->spans[buffer];
    span->first = time < span->first ? time : span->first;
    span->last = time > span->last ? time : span->last;
}

static bool spans_meet(const gr_memory_planner_span *a, const gr_memory_planner_span *b)
{
    return a->first <= b->last && b->first <= a->last;
}

/* The lowest place for `at` that no placed buffer of the same time touches. */
static size_t lowest_place(const gr_memory_planner *memory, const int *placed, int placed_count,
                           int at)
{
    const gr_memory_planner_span *span = &memory->spans[at];
    size_t offset = 0;
    bool moved = true;
    while (moved) {
        moved = false;
        for (int i = 0; i < placed_count; i++) {
            const gr_memory_planner_span *other = &memory->spans[placed[i]];
            if (spans_meet(span, other) && offset < other->offset + other->size_bytes &&
                other->offset < offset + span->size_bytes) {
                offset = other->offset + other->size_bytes;
                moved = true;
            }
        }
    }
    return offset;
}

gr_status gr_memory_planner_plan(gr_memory_planner *memory, gr_diag *diag)
{
    int *order = calloc((size_t)memory->count + 1, sizeof *order);
    if (!order) {
        return gr_fail(diag, GR_E_NO_MEMORY, "no memory for the plan of %d buffers", memory->count);
    }
    /* The largest first: small ones fit into the gaps. Insertion keeps equal ones in order. */
    for (int i = 0; i < memory->count; i++) {
        int at = i;
        while (at > 0 && memory->spans[order[at - 1]].size_bytes < memory->spans[i].size_bytes) {
            order[at] = order[at - 1];
            at--;
        }
        order[at] = i;
    }
    size_t total = 0;
    for (int i = 0; i < memory->count; i++) {
        gr_memory_planner_span *span = &memory->spans[order[i]];
        span->offset = lowest_place(memory, order, i, order[i]);
        total = span->offset + span->size_bytes > total ? span->offset + span->size_bytes : total;
    }
    free(order);
    memory->size_bytes = total;
    memory->block = aligned_alloc(GR_MEMORY_ALIGN, total ? total : GR_MEMORY_ALIGN);
    if (!memory->block) {
        return gr_fail(
            diag, GR_E_NO_MEMORY,
            "no memory for the model's activations (%zu MiB): use a smaller batch or more "
            "shards",
            total >> 20);
    }
    /* Touched now, so that no step pays for the pages. */
    memset(memory->block, 0, total);
    return GR_OK;
}

void *gr_memory_planner_at(const gr_memory_planner *memory, int buffer)
{
    return buffer == GR_NO_BUFFER ? NULL : memory->block + memory->spans[buffer].offset;
}

size_t gr_memory_planner_bytes(const gr_memory_planner *memory)
{
    return memory->size_bytes;
}

int gr_memory_planner_count(const gr_memory_planner *memory)
{
    return memory->count;
}

gr_memory_planner_span gr_memory_planner_span_of(const gr_memory_planner *memory, int buffer)
{
    return memory->spans[buffer];
}

void gr_memory_planner_fill(gr_memory_planner *memory, int byte)
{
    memset(memory->block, byte, memory->size_bytes);
}
