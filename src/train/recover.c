/* SPDX-License-Identifier: Apache-2.0 */
#include "train/recover.h"

#include "base/fail.h"

#include <stdlib.h>
#include <string.h>

/* Larger for who has come farther. */
static int64_t position(const gr_progress *progress)
{
    bool evaluated = progress->evaluated_step == progress->steps;
    return (int64_t)(4 * progress->steps + 2 * progress->epochs + evaluated);
}

/* The first rank that has come farthest; *alike_out: all have. */
static gr_status find_farthest(gr_comm *comm, const gr_progress *progress, int *rank_out,
                               bool *alike_out)
{
    int size = gr_comm_size(comm);
    int64_t *positions = calloc((size_t)size, sizeof *positions);
    if (positions == NULL) {
        return GR_E_NO_MEMORY;
    }
    positions[gr_comm_rank(comm)] = position(progress);
    gr_status status = gr_allgather(comm, positions, 1, GR_I64);
    *rank_out = 0;
    *alike_out = true;
    for (int rank = 1; rank < size; rank++) {
        *alike_out = *alike_out && positions[rank] == positions[0];
        *rank_out = positions[rank] > positions[*rank_out] ? rank : *rank_out;
    }
    free(positions);
    return status;
}

static int state_count(gr_optimizer *optimizer)
{
    const char *name;
    int count = 0;
    while (gr_optimizer_state(optimizer, count, &name) != NULL) {
        count++;
    }
    return count;
}

/* Into memory of its own first: if the giver dies meanwhile, the old state is still whole. */
static gr_status copy_from(gr_trainer *t, int giver, gr_progress *progress)
{
    size_t length = gr_model_values(t->model);
    int states = state_count(t->optimizer);
    bool gives = t->rank == giver;
    const char *name;
    gr_progress theirs = *progress;
    void *memory = NULL; /* gr_alloc: stays readable for others when a broadcast fails here */
    gr_status status =
        gives ? GR_OK : gr_alloc(t->comm, (size_t)(states + 1) * length * sizeof(float), &memory);
    if (status != GR_OK) {
        return status;
    }
    float *room = memory;
    status = gr_broadcast(t->comm, &theirs, sizeof theirs, GR_U8, giver);
    for (int i = 0; i <= states && status == GR_OK; i++) {
        float *own = i == 0 ? t->values : gr_optimizer_state(t->optimizer, i - 1, &name);
        status =
            gr_broadcast(t->comm, gives ? own : room + (size_t)i * length, length, GR_F32, giver);
    }
    for (int i = 0; i <= states && status == GR_OK && !gives; i++) {
        float *own = i == 0 ? t->values : gr_optimizer_state(t->optimizer, i - 1, &name);
        memcpy(own, room + (size_t)i * length, length * sizeof *own);
    }
    if (status == GR_OK) {
        *progress = theirs;
    }
    gr_free(t->comm, room);
    return status;
}

gr_status gr_recover_agree(gr_trainer *trainer, gr_progress *progress, gr_diag *diag)
{
    int giver = 0;
    bool alike = true;
    if (trainer->world_size == 1) {
        return GR_OK;
    }
    gr_status status = find_farthest(trainer->comm, progress, &giver, &alike);
    if (status == GR_OK && !alike) {
        status = copy_from(trainer, giver, progress);
    }
    return status == GR_OK
               ? GR_OK
               : gr_trainer_comm_failed(trainer->comm, status,
                                        "the workers could not agree on where to go on", diag);
}
