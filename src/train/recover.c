/* SPDX-License-Identifier: Apache-2.0 */
#include "train/recover.h"

#include "base/codec.h"
#include "base/fail.h"
#include "base/hash.h"

#include <stdlib.h>
#include <string.h>

/* ---- Progress as bytes ----------------------------------------------------------------------- */

enum { PROGRESS_VERSION = 1 };

static void write_meter(gr_writer *w, const gr_meter *meter)
{
    gr_write_f64(w, meter->loss);
    gr_write_f64(w, meter->correct);
    gr_write_u64(w, (uint64_t)meter->steps);
    gr_write_u64(w, (uint64_t)meter->samples);
    gr_write_u64(w, (uint64_t)meter->step_ns);
    gr_write_u64(w, (uint64_t)meter->wait_ns);
}

static void read_meter(gr_reader *r, gr_meter *meter)
{
    meter->loss = gr_read_f64(r);
    meter->correct = gr_read_f64(r);
    meter->steps = (int64_t)gr_read_u64(r);
    meter->samples = (int64_t)gr_read_u64(r);
    meter->step_ns = (int64_t)gr_read_u64(r);
    meter->wait_ns = (int64_t)gr_read_u64(r);
}

static void write_epoch(gr_writer *w, const gr_epoch_record *told)
{
    gr_write_u64(w, told->epoch);
    gr_write_u64(w, told->epochs);
    gr_write_u64(w, told->step);
    gr_write_u64(w, told->total_steps);
    gr_write_f64(w, told->loss);
    gr_write_f64(w, told->accuracy);
    gr_write_f64(w, told->test_loss);
    gr_write_f64(w, told->test_accuracy);
    gr_write_f64(w, told->samples_per_s);
    gr_write_f64(w, told->comm_wait_share);
    gr_write_f64(w, told->learning_rate);
    gr_write_u32(w, (uint32_t)told->late_rank);
    gr_write_f64(w, told->late_us);
    gr_write_f64(w, told->staleness);
}

static void read_epoch(gr_reader *r, gr_epoch_record *told)
{
    told->epoch = gr_read_u64(r);
    told->epochs = gr_read_u64(r);
    told->step = gr_read_u64(r);
    told->total_steps = gr_read_u64(r);
    told->loss = gr_read_f64(r);
    told->accuracy = gr_read_f64(r);
    told->test_loss = gr_read_f64(r);
    told->test_accuracy = gr_read_f64(r);
    told->samples_per_s = gr_read_f64(r);
    told->comm_wait_share = gr_read_f64(r);
    told->learning_rate = gr_read_f64(r);
    told->late_rank = (int32_t)gr_read_u32(r);
    told->late_us = gr_read_f64(r);
    told->staleness = gr_read_f64(r);
}

void gr_progress_put(const gr_training_progress *progress, uint8_t bytes_out[GR_PROGRESS_BYTES])
{
    gr_writer w = gr_writer_over(bytes_out, GR_PROGRESS_BYTES);
    gr_write_u16(&w, PROGRESS_VERSION);
    gr_write_u64(&w, progress->steps);
    gr_write_u64(&w, progress->epochs);
    gr_write_u64(&w, progress->first_step);
    gr_write_f64(&w, progress->seconds_before);
    write_meter(&w, &progress->epoch);
    write_meter(&w, &progress->total);
    gr_write_f64(&w, progress->last_loss);
    gr_write_u64(&w, (uint64_t)progress->evaluation.samples);
    gr_write_u64(&w, (uint64_t)progress->evaluation.correct);
    gr_write_f64(&w, progress->evaluation.loss);
    gr_write_u64(&w, progress->evaluated_step);
    gr_write_u64(&w, progress->run);
    write_epoch(&w, &progress->told);
}

bool gr_progress_get(const uint8_t bytes[GR_PROGRESS_BYTES], gr_training_progress *progress_out)
{
    gr_training_progress progress = {0};
    gr_reader r = gr_reader_over(bytes, GR_PROGRESS_BYTES);
    uint16_t version = gr_read_u16(&r);
    progress.steps = gr_read_u64(&r);
    progress.epochs = gr_read_u64(&r);
    progress.first_step = gr_read_u64(&r);
    progress.seconds_before = gr_read_f64(&r);
    read_meter(&r, &progress.epoch);
    read_meter(&r, &progress.total);
    progress.last_loss = gr_read_f64(&r);
    progress.evaluation.samples = (int64_t)gr_read_u64(&r);
    progress.evaluation.correct = (int64_t)gr_read_u64(&r);
    progress.evaluation.loss = gr_read_f64(&r);
    progress.evaluated_step = gr_read_u64(&r);
    progress.run = gr_read_u64(&r);
    read_epoch(&r, &progress.told);
    if (version != PROGRESS_VERSION || !gr_reader_is_done(&r)) {
        return false;
    }
    *progress_out = progress;
    return true;
}

/* ---- Agreement ------------------------------------------------------------------------------- */

/* Larger for who has come farther. */
static int64_t position(const gr_training_progress *progress)
{
    bool evaluated = progress->evaluated_step == progress->steps;
    return (int64_t)(4 * progress->steps + 2 * progress->epochs + evaluated);
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

static gr_status give(gr_trainer *t, int to, const gr_training_progress *progress)
{
    size_t length = gr_model_values(t->model);
    uint8_t bytes[GR_PROGRESS_BYTES];
    gr_progress_put(progress, bytes);
    gr_status status = gr_send(t->comm, bytes, sizeof bytes, GR_U8, to);
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
    uint8_t bytes[GR_PROGRESS_BYTES];
    gr_training_progress theirs;
    float *room = fresh ? NULL : malloc((size_t)(states + 1) * length * sizeof *room);
    if (room == NULL && !fresh) {
        return GR_E_NO_MEMORY;
    }
    gr_status status = gr_recv(t->comm, bytes, sizeof bytes, GR_U8, from);
    if (status == GR_OK && !gr_progress_get(bytes, &theirs)) {
        status = GR_E_PROTOCOL;
    }
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
static gr_status pass_on(gr_trainer *t, const standing *all, gr_training_progress *progress)
{
    gr_status status = GR_OK;
    int64_t farthest = all[0].position;
    for (int rank = 1; rank < t->world_size; rank++) {
        farthest = all[rank].position > farthest ? all[rank].position : farthest;
    }
    int giver = -1;
    for (int taker = 0; taker < t->world_size && status == GR_OK; taker++) {
        if (all[taker].position == farthest) {
            continue;
        }
        do {
            giver = (giver + 1) % t->world_size;
        } while (all[giver].position != farthest);
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
    standing own = {.position = position(progress), .run = (int64_t)progress->run};
    gr_status status = invent_run(&own.invented, diag);
    if (status != GR_OK) {
        return status;
    }
    if (trainer->world_size == 1) {
        progress->run = (uint64_t)run_of(&own, 1);
        return GR_OK;
    }
    standing *all = NULL;
    int64_t run = 0;
    status = learn_standings(trainer->comm, &own, &all);
    if (status == GR_OK) {
        run = run_of(all, trainer->world_size);
        status = pass_on(trainer, all, progress);
    }
    free(all);
    if (status != GR_OK) {
        return gr_trainer_comm_failed(trainer->comm, status,
                                      "the workers could not agree on where to go on", diag);
    }
    progress->run = (uint64_t)run;
    return GR_OK;
}
