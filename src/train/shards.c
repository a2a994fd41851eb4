/* SPDX-License-Identifier: Apache-2.0 */
#include "train/shards.h"

#include "base/fail.h"
#include "nn/optimizer.h"

#include <gradus/shards.h>
#include <stdlib.h>

/* Several merges run over one piece before the next piece: 32 KiB stay in the nearest caches. */
enum { PIECE_VALUES = 8192 };

gr_status gr_shard_plan_init(gr_shard_plan *plan, int shards, int world_size, int rank,
                             bool collapse, gr_diag *diag)
{
    if (shards < 1 || world_size < 1 || rank < 0 || rank >= world_size) {
        return gr_fail(diag, GR_E_INVALID, "no shard plan for %d shards, rank %d of %d", shards,
                       rank, world_size);
    }
    gr_shard_plan made = {.slots = gr_shard_buffers(shards, world_size, rank),
                          .partials = collapse ? 1 : gr_shard_partials(shards, world_size, rank)};
    gr_shard_range(shards, world_size, rank, &made.first, &made.count);
    made.entries = calloc((size_t)made.count + 1, sizeof *made.entries);
    if (made.entries == NULL) {
        return gr_fail(diag, GR_E_NO_MEMORY, "no memory for the plan of %d shards", made.count);
    }
    for (int i = 0; i < made.count; i++) {
        gr_shard_entry *entry = &made.entries[i];
        entry->slot = gr_shard_slot(shards, world_size, rank, made.first + i, &entry->merges);
        if (collapse && i == made.count - 1) {
            entry->merges = entry->slot;
        }
    }
    *plan = made;
    return GR_OK;
}

void gr_shard_plan_fini(gr_shard_plan *plan)
{
    free(plan->entries);
    *plan = (gr_shard_plan){0};
}

void gr_shard_merge(const gr_shard_plan *plan, int shard_index, float *const *vectors, size_t begin,
                    size_t end, gr_shard_round *round, const void *round_arg)
{
    gr_shard_entry now = plan->entries[shard_index];
    if (now.merges == 0) {
        return;
    }
    for (size_t at = begin; at < end; at += PIECE_VALUES) {
        size_t count = end - at < PIECE_VALUES ? end - at : PIECE_VALUES;
        for (int m = 0; m < now.merges; m++) {
            float *left = vectors[now.slot - m - 1] + at;
            gr_add_f32(left, left, vectors[now.slot - m] + at, count);
            if (round != NULL) {
                round(round_arg, left, count);
            }
        }
    }
}
