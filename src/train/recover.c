/* SPDX-License-Identifier: Apache-2.0 */
#include "train/recover.h"

#include "base/codec.h"
#include "base/fail.h"
#include "base/hash.h"

#include <stdlib.h>
#include <string.h>

/* ---- Progress as bytes ----------------------------------------------------------------------- */

enum { PROGRESS_VERSION = 3 };

#define PROGRESS(member)                                                                           \
    {                                                                                              \
        GR_WIRE(64, gr_training_progress, member)                                                  \
    }
#define METER(meter)                                                                               \
    PROGRESS(meter.loss), PROGRESS(meter.correct), PROGRESS(meter.steps), PROGRESS(meter.samples), \
        PROGRESS(meter.step_ns), PROGRESS(meter.wait_ns)

static const gr_wire_field fields[] = {PROGRESS(steps),
                                       PROGRESS(epochs),
                                       PROGRESS(first_step),
                                       PROGRESS(seconds_before),
                                       METER(epoch),
                                       METER(total),
                                       PROGRESS(last_loss),
                                       PROGRESS(best.value),
                                       PROGRESS(best.step),
                                       PROGRESS(best.wait),
                                       PROGRESS(run),
                                       PROGRESS(reported.epoch),
                                       PROGRESS(reported.epochs),
                                       PROGRESS(reported.step),
                                       PROGRESS(reported.total_steps),
                                       PROGRESS(reported.loss),
                                       PROGRESS(reported.accuracy),
                                       PROGRESS(reported.test_loss),
                                       PROGRESS(reported.test_accuracy),
                                       PROGRESS(reported.test_rmse),
                                       PROGRESS(reported.test_mae),
                                       PROGRESS(reported.test_r2),
                                       PROGRESS(reported.samples_per_s),
                                       PROGRESS(reported.comm_wait_share),
                                       PROGRESS(reported.learning_rate),
                                       {GR_WIRE(32, gr_training_progress, reported.late_rank)},
                                       PROGRESS(reported.late_us),
                                       PROGRESS(reported.staleness),
                                       {0}};

void gr_progress_put(const gr_training_progress *progress, uint8_t bytes_out[GR_PROGRESS_BYTES])
{
    gr_put_u16(bytes_out, PROGRESS_VERSION);
    (void)gr_wire_put(fields, progress, bytes_out + 2);
}

bool gr_progress_get(const uint8_t bytes[GR_PROGRESS_BYTES], gr_training_progress *progress_out)
{
    const uint8_t *end = bytes + GR_PROGRESS_BYTES;
    gr_training_progress progress = {0};
    if (gr_get_u16(bytes) != PROGRESS_VERSION ||
        gr_wire_get(fields, bytes + 2, end, &progress) != end) {
        return false;
    }
    *progress_out = progress;
    return true;
}

/* ---- Agreement ------------------------------------------------------------------------------- */

/* Larger for who has come farther. */
static int64_t position(const gr_training_progress *progress)
{
    return (int64_t)(2 * progress->steps + progress->epochs);
}

/* A run's number is chance, and never 0. */
static gr_status invent_run(int64_t *run_out, gr_diag *diag)
{
    gr_status status = gr_random_bytes(run_out, sizeof *run_out, diag);
    *run_out |= status == GR_OK;
    return status;
}

/* What a rank tells all others. */
typedef struct standing {
    int64_t position;
    int64_t run;      /* 0: it is new here */
    int64_t invented; /* the run, if all are new */
} standing;

/* The standings of all ranks; the caller's to free. */
static gr_status learn_standings(gr_comm *comm, const standing *own, standing **out)
{
    enum { WORDS = sizeof **out / sizeof(int64_t) };
    standing *all = calloc((size_t)gr_comm_size(comm), sizeof *all);
    if (all == NULL) {
        return GR_E_NO_MEMORY;
    }
    all[gr_comm_rank(comm)] = *own;
    *out = all;
    return gr_allgather(comm, all, WORDS, GR_I64);
}

/* That of those who have been in a generation; rank 0 says it first. */
static int64_t run_of(const standing *all, int count)
{
    for (int rank = 0; rank < count; rank++) {
        if (all[rank].run != 0) {
            return all[rank].run;
        }
    }
    return all[0].invented;
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

static gr_status send_state(gr_trainer *t, int to, const gr_training_progress *progress)
{
    size_t length = gr_model_values(t->model);
    uint8_t bytes[GR_PROGRESS_BYTES];
    gr_progress_put(progress, bytes);
    gr_status status = gr_send(t->gen.comm, bytes, sizeof bytes, GR_U8, to);
    for (int i = 0; i <= state_count(t) && status == GR_OK; i++) {
        status = gr_send(t->gen.comm, state_part(t, i), length, GR_F32, to);
    }
    return status;
}

/* As at the beginning of a training. */
static void reset_state(gr_trainer *t)
{
    size_t length = gr_model_values(t->model);
    for (int i = 0; i <= state_count(t); i++) {
        memset(state_part(t, i), 0, length * sizeof *t->values);
    }
    gr_model_init_weights(t->model, t->values);
}

/* Who is a step behind takes it into memory of its own first: if the sender dies meanwhile, the old
 * state is still whole. Who has done no step yet can make its own anew. A checkpoint of the old
 * state that is being copied is whole before the first value changes. */
static gr_status receive_state(gr_trainer *t, int from, gr_training_progress *progress)
{
    size_t length = gr_model_values(t->model);
    int states = state_count(t);
    bool fresh = progress->steps == 0;
    uint8_t bytes[GR_PROGRESS_BYTES];
    gr_training_progress theirs;
    float *room = fresh ? NULL : malloc((size_t)(states + 1) * length * sizeof *room);
    if (room == NULL && !fresh) {
        return GR_E_NO_MEMORY;
    }
    gr_status status = gr_recv(t->gen.comm, bytes, sizeof bytes, GR_U8, from);
    if (status == GR_OK && !gr_progress_get(bytes, &theirs)) {
        status = GR_E_PROTOCOL;
    }
    gr_saver_settle(t->saver);
    for (int i = 0; i <= states && status == GR_OK; i++) {
        float *to = fresh ? state_part(t, i) : room + (size_t)i * length;
        status = gr_recv(t->gen.comm, to, length, GR_F32, from);
    }
    for (int i = 0; i <= states && status == GR_OK && !fresh; i++) {
        memcpy(state_part(t, i), room + (size_t)i * length, length * sizeof *room);
    }
    free(room);
    if (status == GR_OK) {
        *progress = theirs;
    } else if (fresh) {
        reset_state(t);
    }
    return status;
}

/* The n-th of those that are not there yet takes from the n-th of those that are, and around again.
 * Everybody else has nothing to do. */
static gr_status bring_up_to_date(gr_trainer *t, const standing *all,
                                  gr_training_progress *progress)
{
    gr_status status = GR_OK;
    int64_t farthest = all[0].position;
    for (int rank = 1; rank < t->gen.world_size; rank++) {
        farthest = all[rank].position > farthest ? all[rank].position : farthest;
    }
    int sender = -1;
    for (int receiver = 0; receiver < t->gen.world_size && status == GR_OK; receiver++) {
        if (all[receiver].position == farthest) {
            continue;
        }
        do {
            sender = (sender + 1) % t->gen.world_size;
        } while (all[sender].position != farthest);
        if (t->gen.rank == receiver) {
            status = receive_state(t, sender, progress);
        } else if (t->gen.rank == sender) {
            status = send_state(t, receiver, progress);
        }
    }
    return status;
}

gr_status gr_recover_agree(gr_trainer *trainer, gr_training_progress *progress, gr_diag *diag)
{
    standing own = {.position = position(progress), .run = (int64_t)progress->run};
    gr_status status = invent_run(&own.invented, diag);
    if (status != GR_OK) {
        return status;
    }
    if (trainer->gen.world_size == 1) {
        progress->run = (uint64_t)run_of(&own, 1);
        return GR_OK;
    }
    standing *all = NULL;
    int64_t run = 0;
    status = learn_standings(trainer->gen.comm, &own, &all);
    if (status == GR_OK) {
        run = run_of(all, trainer->gen.world_size);
        status = bring_up_to_date(trainer, all, progress);
    }
    free(all);
    if (status == GR_OK) {
        progress->run = (uint64_t)run;
    }
    return gr_trainer_comm_status(trainer->gen.comm, status,
                                  "the workers could not agree on where to go on", diag);
}
