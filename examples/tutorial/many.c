/* SPDX-License-Identifier: Apache-2.0 */
/* docs/tutorial.md, step 2: the same loop on any number of workers. */
#include "model.h"

#include <gradus/gradus.h>
#include <stdio.h>

enum { BATCH = 64, STEPS = 40, SHARDS = 8, VALUES = WEIGHTS + 1 };

/* The sums over a whole batch: WEIGHTS gradients, and the loss behind them. */
static gr_status batch_sums(gr_comm *comm, const float *w, int step, float *sums)
{
    float buffers[GR_SHARD_PARTIALS_MAX][VALUES] = {{0}};
    void *partials[GR_SHARD_PARTIALS_MAX];
    int rank = gr_comm_rank(comm), size = gr_comm_size(comm), first, count;
    gr_shard_range(SHARDS, size, rank, &first, &count);
    for (int shard = first; shard < first + count; shard++) {
        int merges, slot = gr_shard_slot(SHARDS, size, rank, shard, &merges);
        int samples = BATCH / SHARDS;
        buffers[slot][WEIGHTS] =
            gradient(w, step * BATCH + shard * samples, samples, buffers[slot]);
        for (; merges > 0; merges--, slot--) {
            for (int v = 0; v < VALUES; v++) {
                buffers[slot - 1][v] += buffers[slot][v];
            }
        }
    }
    for (int p = 0; p < GR_SHARD_PARTIALS_MAX; p++) {
        partials[p] = buffers[p];
    }
    gr_status status = gr_allreduce_shards(comm, partials, SHARDS, VALUES, GR_F32, GR_SUM);
    memcpy(sums, buffers[0], VALUES * sizeof *sums);
    return status;
}

int main(void)
{
    gr_comm *comm;
    gr_diag diag;
    if (gr_comm_create(NULL, &comm, &diag) != GR_OK) {
        fprintf(stderr, "%s\n", diag.text);
        return 1;
    }
    float w[WEIGHTS] = {0}, sums[VALUES] = {0};
    for (int step = 0; step < STEPS; step++) {
        if (batch_sums(comm, w, step, sums) != GR_OK) {
            fprintf(stderr, "%s\n", gr_comm_diag(comm)->text);
            return 1;
        }
        for (int i = 0; i < WEIGHTS; i++) {
            w[i] -= 0.3f * sums[i] / BATCH;
        }
    }
    if (gr_comm_rank(comm) == 0) {
        printf("loss %.5f, first weight %a\n", sums[WEIGHTS] / BATCH, w[0]);
    }
    gr_comm_destroy(comm);
    return 0;
}
