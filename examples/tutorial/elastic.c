/* SPDX-License-Identifier: Apache-2.0 */
/* docs/tutorial.md, step 3: workers may die, leave and join. "./elastic die" kills one of them. */
#include "model.h"

#include <gradus/gradus.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>

enum { BATCH = 64, STEPS = 40, SHARDS = 8, LOSS = WEIGHTS, WANTED = WEIGHTS + 1, VALUES };

typedef struct state {
    int64_t step; /* finished steps */
    float w[WEIGHTS], loss;
} state;

/* The sums over a whole batch: gradients, the loss, and how many workers want a change. */
static gr_status batch_sums(gr_comm *comm, const float *w, int step, float *sums)
{
    float buffers[GR_SHARD_PARTIALS_MAX][VALUES] = {{0}};
    void *partials[GR_SHARD_PARTIALS_MAX];
    int rank = gr_comm_rank(comm), size = gr_comm_size(comm), first, count;
    gr_shard_range(SHARDS, size, rank, &first, &count);
    for (int shard = first; shard < first + count; shard++) {
        int merges, slot = gr_shard_slot(SHARDS, size, rank, shard, &merges);
        int samples = BATCH / SHARDS;
        buffers[slot][LOSS] = gradient(w, step * BATCH + shard * samples, samples, buffers[slot]);
        buffers[slot][WANTED] = 0.0f;
        for (; merges > 0; merges--, slot--) {
            for (int v = 0; v < VALUES; v++) {
                buffers[slot - 1][v] += buffers[slot][v];
            }
        }
    }
    buffers[0][WANTED] += (float)gr_comm_change_wanted(comm);
    for (int p = 0; p < GR_SHARD_PARTIALS_MAX; p++) {
        partials[p] = buffers[p];
    }
    gr_status status = gr_allreduce_shards(comm, partials, SHARDS, VALUES, GR_F32, GR_SUM);
    memcpy(sums, buffers[0], VALUES * sizeof *sums);
    return status;
}

/* Gives every rank the state of the one that has done most: a joining worker has done nothing, and
 * a survivor may have missed the last sum. */
static gr_status agree(gr_comm *comm, state *own)
{
    int64_t most = own->step;
    gr_status status = gr_allreduce(comm, &most, 1, GR_I64, GR_MAX);
    int64_t giver = own->step == most ? gr_comm_rank(comm) : -1;
    if (status == GR_OK) {
        status = gr_allreduce(comm, &giver, 1, GR_I64, GR_MAX);
    }
    if (status == GR_OK) {
        status = gr_broadcast(comm, own, sizeof *own, GR_U8, (int)giver);
    }
    return status;
}

/* Trains until the end, a failure, or a step after which workers join or leave. */
static gr_status train(gr_comm *comm, state *own, int dies)
{
    float sums[VALUES] = {0};
    gr_status status = agree(comm, own);
    while (status == GR_OK && own->step < STEPS && sums[WANTED] == 0.0f) {
        if (dies && own->step == STEPS / 2) {
            raise(SIGKILL);
        }
        status = batch_sums(comm, own->w, (int)own->step, sums);
        if (status == GR_OK) { /* only a step whose sums have come changes the state */
            for (int i = 0; i < WEIGHTS; i++) {
                own->w[i] -= 0.3f * sums[i] / BATCH;
            }
            own->loss = sums[LOSS] / BATCH;
            own->step++;
        }
    }
    return status;
}

static int may_go_on(gr_status status)
{
    return status == GR_OK || status == GR_E_COMM_BROKEN ||
           gr_status_scope(status) == GR_SCOPE_PEER;
}

int main(int argc, char **argv)
{
    (void)argv;
    gr_comm *comm = NULL;
    gr_diag diag = {0};
    state own = {0};
    gr_status status = gr_comm_create(NULL, &comm, &diag);
    int dies = argc > 1 && status == GR_OK && gr_comm_rank(comm) == 2;
    while (status == GR_OK && own.step < STEPS) {
        status = train(comm, &own, dies);
        if (own.step < STEPS && may_go_on(status)) {
            status = gr_comm_renew(&comm, &diag);
        }
    }
    if (status == GR_E_CANCELLED) {
        return 0; /* this rank is not needed any more */
    }
    if (status != GR_OK) {
        fprintf(stderr, "%s\n", comm != NULL ? gr_comm_diag(comm)->text : diag.text);
        return 1;
    }
    if (gr_comm_rank(comm) == 0) {
        printf("%d workers: loss %.5f, first weight %a\n", gr_comm_size(comm), own.loss, own.w[0]);
    }
    gr_comm_destroy(comm);
    return 0;
}
