/* SPDX-License-Identifier: Apache-2.0 */
#include "train/recover.h"

#include "base/fail.h"

#include <stdlib.h>
#include <string.h>

/* Larger for who has come farther. */
static int64_t position(const gr_training_progress *progress)
{
    bool evaluated = progress->evaluated_step == progress->steps;
    return (int64_t)(4 * progress->steps + 2 * progress->epochs + evaluated);
}

/* The positions of all ranks; the caller's to free. */
static gr_status learn_positions(gr_comm *comm, const gr_training_progress *progress, int64_t **out)
{
    int64_t *positions = calloc((size_t)gr_comm_size(comm), sizeof *positions);
    if (positions == NULL) {
        return GR_E_NO_MEMORY;
    }
    positions[gr_comm_rank(comm)] = position(progress);
    *out = positions;
    return gr_allgather(comm, positions, 1, GR_I64);
}

static int state_count(gr_trainer *t)
{
    const char *name;
    int count = 0;
    while (gr_trainer_state(t, count, &name) != NULL) {
        count++;
    }
    return count;
}

/* The i-th of what makes the state: the weights, then what belongs to them. */
static float *state_part(gr_trainer *t, int i)
{
    const char *name;
    return i == 0 ? t->values : gr_trainer_state(t, i - 1, &name);
}

static gr_status give(gr_trainer *t, int to, const gr_training_progress *progress)
{
    size_t length = gr_model_values(t->model);
    gr_status status = gr_send(t->comm, progress, sizeof *progress, GR_U8, to);
    for (int i = 0; i <= state_count(t) && status == GR_OK; i++) {
        status = gr_send(t->comm, state_part(t, i), length, GR_F32, to);
    }
    return status;
}

/* As at the beginning of a training. */
static void begin_anew(gr_trainer *t)
{
    size_t length = gr_model_values(t->model);
    for (int i = 0; i <= state_count(t); i++) {
        memset(state_part(t, i), 0, length * sizeof *t->values);
    }
    gr_model_init_weights(t->model, t->values);
}

/* Who is a step behind takes it into memory of its own first: if the giver dies meanwhile, the old
 * state is still whole. Who has done no step yet can make its own anew. */
static gr_status take(gr_trainer *t, int from, gr_training_progress *progress)
{
    size_t length = gr_model_values(t->model);
    int states = state_count(t);
    bool fresh = progress->steps == 0;
    gr_training_progress theirs = *progress;
    float *room = fresh ? NULL : malloc((size_t)(states + 1) * length * sizeof *room);
    if (room == NULL && !fresh) {
        return GR_E_NO_MEMORY;
    }
    gr_status status = gr_recv(t->comm, &theirs, sizeof theirs, GR_U8, from);
    for (int i = 0; i <= states && status == GR_OK; i++) {
        float *to = fresh ? state_part(t, i) : room + (size_t)i * length;
        status = gr_recv(t->comm, to, length, GR_F32, from);
    }
    for (int i = 0; i <= states && status == GR_OK && !fresh; i++) {
        memcpy(state_part(t, i), room + (size_t)i * length, length * sizeof *room);
    }
    free(room);
    if (status == GR_OK) {
        *progress = theirs;
    } else if (fresh) {
        begin_anew(t);
    }
    return status;
}

/* The n-th of those that are not there yet takes from the n-th of those that are, and around again.
 * Everybody else has nothing to do. */
static gr_status pass_on(gr_trainer *t, const int64_t *positions, gr_training_progress *progress)
{
    gr_status status = GR_OK;
    int64_t farthest = positions[0];
    for (int rank = 1; rank < t->world_size; rank++) {
        farthest = positions[rank] > farthest ? positions[rank] : farthest;
    }
    int giver = -1;
    for (int taker = 0; taker < t->world_size && status == GR_OK; taker++) {
        if (positions[taker] == farthest) {
            continue;
        }
        do {
            giver = (giver + 1) % t->world_size;
        } while (positions[giver] != farthest);
        if (t->rank == taker) {
            status = take(t, giver, progress);
        } else if (t->rank == giver) {
            status = give(t, taker, progress);
        }
    }
    return status;
}

gr_status gr_recover_agree(gr_trainer *trainer, gr_training_progress *progress, gr_diag *diag)
{
    int64_t *positions = NULL;
    if (trainer->world_size == 1) {
        return GR_OK;
    }
    gr_status status = learn_positions(trainer->comm, progress, &positions);
    if (status == GR_OK) {
        status = pass_on(trainer, positions, progress);
    }
    free(positions);
    return status == GR_OK
               ? GR_OK
               : gr_trainer_comm_failed(trainer->comm, status,
                                        "the workers could not agree on where to go on", diag);
}
