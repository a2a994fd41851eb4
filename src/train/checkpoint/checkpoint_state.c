/* SPDX-License-Identifier: Apache-2.0 */
#include "train/checkpoint/checkpoint_state.h"

#include "base/codec.h"
#include "base/fail.h"
#include "train/checkpoint/checkpoint.h"
#include "train/strategy/strategy.h"
#include "train/weights.h"

#include <stdlib.h>
#include <string.h>

/* ---- What shards keep ------------------------------------------------------------------------ */

static float *kept(gr_trainer *t, int shard, int part, size_t *count_out)
{
    *count_out = 0;
    return t->strategy->kept != NULL ? t->strategy->kept(t, shard, part, count_out) : NULL;
}

/* Of one shard, in all parts. */
static size_t kept_count(gr_trainer *t)
{
    size_t all = 0, count = 0;
    for (int part = 0; kept(t, 0, part, &count) != NULL; part++) {
        all += count;
    }
    return all;
}

/* Of a shard of `rank`, which is this one or sends to this one; `there` is rank 0's. */
static gr_status move_shard(gr_trainer *t, int rank, int shard, float *there, bool gather)
{
    gr_status status = GR_OK;
    size_t count = 0;
    float *own;
    for (int part = 0; (own = kept(t, shard, part, &count)) != NULL && status == GR_OK; part++) {
        if (t->gen.rank != 0) {
            status = gather ? gr_send(t->gen.comm, own, count, GR_F32, 0)
                            : gr_recv(t->gen.comm, own, count, GR_F32, 0);
            continue;
        }
        if (rank == 0) {
            memcpy(gather ? there : own, gather ? own : there, count * sizeof *own);
        } else {
            status = gather ? gr_recv(t->gen.comm, there, count, GR_F32, rank)
                            : gr_send(t->gen.comm, there, count, GR_F32, rank);
        }
        there += count;
    }
    return status;
}

/* Shard by shard, towards rank 0 or away from it; `all` is rank 0's, of all shards. */
static gr_status move_kept(gr_trainer *t, float *all, bool gather)
{
    gr_status status = GR_OK;
    size_t each = kept_count(t);
    for (int rank = 0; rank < t->gen.world_size; rank++) {
        int first = 0, shards = 0;
        gr_shard_range(t->job->shards, t->gen.world_size, rank, &first, &shards);
        bool takes_part = t->gen.rank == 0 || t->gen.rank == rank;
        for (int i = 0; i < shards && takes_part && status == GR_OK; i++) {
            float *there = t->gen.rank == 0 ? all + (size_t)(first + i) * each : NULL;
            status = move_shard(t, rank, t->gen.rank == rank ? i : 0, there, gather);
        }
    }
    return status;
}

static gr_status make_room(gr_trainer *t, float **all, gr_diag *diag)
{
    size_t count = (size_t)t->job->shards * kept_count(t);
    if (t->gen.rank == 0 && *all == NULL) {
        *all = calloc(count + 1, sizeof **all);
        if (*all == NULL) {
            return gr_fail(
                diag, GR_E_NO_MEMORY,
                "no memory for what each of %d shards keeps to itself, %zu values, which "
                "a checkpoint must hold",
                t->job->shards, count);
        }
    }
    return GR_OK;
}

gr_status gr_state_gather(gr_trainer *trainer, uint64_t step, bool wanted, float **all,
                          gr_diag *diag)
{
    const gr_strategy *strategy = trainer->strategy;
    gr_status theirs =
        wanted && strategy->gather != NULL ? strategy->gather(trainer, step, diag) : GR_OK;
    if ((theirs != GR_OK && theirs != GR_E_NOT_FOUND) || kept_count(trainer) == 0) {
        return theirs;
    }
    gr_status status = make_room(trainer, all, diag);
    if (status == GR_OK) {
        status = gr_trainer_comm_status(trainer->gen.comm, move_kept(trainer, *all, true),
                                        "the checkpoint could not be collected", diag);
    }
    return status == GR_OK ? theirs : status;
}

gr_checkpoint_tensors gr_state_tensors(gr_trainer *trainer)
{
    gr_checkpoint_tensors tensors = {
        .model = trainer->model, .values = trainer->values, .shards = trainer->job->shards};
    tensors.residual_count = kept_count(trainer);
    while (tensors.states < GR_CHECKPOINT_STATES_MAX) {
        int i = tensors.states;
        tensors.state[i] = gr_trainer_state(trainer, i, &tensors.state_name[i]);
        if (tensors.state[i] == NULL) {
            break;
        }
        tensors.states++;
    }
    return tensors;
}

/* ---- Going on -------------------------------------------------------------------------------- */

static gr_status fill(const gr_safetensors *file, const char *name, float *values, size_t count,
                      gr_diag *diag)
{
    const gr_safetensors_entry *entry = gr_safetensors_find(file, name);
    if (entry == NULL || entry->count != count || strcmp(entry->dtype, "F32") != 0) {
        return gr_fail(diag, GR_E_INVALID,
                       "the checkpoint has no tensor \"%s\" of %zu values: it is of another model "
                       "or optimizer",
                       name, count);
    }
    memcpy(values, entry->data, entry->bytes);
    return GR_OK;
}

static gr_status fill_optimizer(gr_trainer *t, const gr_safetensors *file, gr_diag *diag)
{
    const char *state = NULL;
    float *values;
    for (int s = 0; (values = gr_trainer_state(t, s, &state)) != NULL; s++) {
        for (int i = 0; i < gr_model_tensors(t->model); i++) {
            char name[GR_SAFETENSORS_NAME_BYTES];
            const gr_tensor_info *tensor = gr_model_tensor(t->model, i);
            snprintf(name, sizeof name, "%s.%s", state, tensor->name);
            gr_status status = tensor->statistic
                                   ? GR_OK
                                   : fill(file, name, values + tensor->offset, tensor->count, diag);
            if (status != GR_OK) {
                return status;
            }
        }
    }
    return GR_OK;
}

/* Rank 0: fills its own memory, and `all` with what shards keep: zeros if the job was one in which
 * they kept nothing. */
static gr_status load(gr_trainer *t, const gr_checkpoint *checkpoint, float *all, gr_diag *diag)
{
    gr_safetensors *file = NULL;
    gr_status status = gr_checkpoint_fits(t->job, checkpoint, diag);
    if (status == GR_OK) {
        status = gr_checkpoint_read(checkpoint, GR_CHECKPOINT_MODEL, &file, diag);
    }
    if (status == GR_OK) {
        status = gr_weights_fill(t->model, file, GR_CHECKPOINT_MODEL, t->values, diag);
    }
    gr_safetensors_close(file);
    file = NULL;
    if (status == GR_OK) {
        status = gr_checkpoint_read(checkpoint, GR_CHECKPOINT_OPTIMIZER, &file, diag);
    }
    if (status == GR_OK) {
        status = fill_optimizer(t, file, diag);
    }
    gr_safetensors_close(file);
    file = NULL;
    bool kept = all != NULL && gr_checkpoint_has(checkpoint, GR_CHECKPOINT_RESIDUALS);
    if (status == GR_OK && kept) {
        status = gr_checkpoint_read(checkpoint, GR_CHECKPOINT_RESIDUALS, &file, diag);
    }
    if (status == GR_OK && kept) {
        status = fill(file, "residuals", all, (size_t)t->job->shards * kept_count(t), diag);
    }
    gr_safetensors_close(file);
    return status;
}

#define INFO(member)                                                                               \
    {                                                                                              \
        GR_WIRE(64, gr_checkpoint_info, member)                                                    \
    }
#define METER(meter)                                                                               \
    INFO(meter.loss), INFO(meter.correct), INFO(meter.steps), INFO(meter.samples),                 \
        INFO(meter.step_ns), INFO(meter.wait_ns)

/* The numbers that every rank needs, as 64-bit words. */
static gr_status share_info(gr_comm *comm, gr_checkpoint_info *info)
{
    static const gr_wire_field fields[] = {
        INFO(step),       INFO(seconds),   INFO(last_loss), METER(epoch), METER(total),
        INFO(best.value), INFO(best.step), INFO(best.wait), INFO(metric), {0}};
    uint64_t words[sizeof fields / sizeof fields[0] - 1];
    uint8_t *bytes = (uint8_t *)words;
    (void)gr_wire_put(fields, info, bytes);
    gr_status status = gr_broadcast(comm, words, sizeof words / sizeof *words, GR_I64, 0);
    bool sound = status != GR_OK || gr_wire_get(fields, bytes, bytes + sizeof words, info) != NULL;
    return sound ? status : GR_E_PROTOCOL;
}

static gr_status share(gr_trainer *t, float *all, gr_checkpoint_info *info)
{
    size_t length = gr_model_values(t->model);
    const char *name = NULL;
    float *state;
    gr_status status = share_info(t->gen.comm, info);
    if (status == GR_OK) {
        status = gr_broadcast(t->gen.comm, t->values, length, GR_F32, 0);
    }
    for (int s = 0; status == GR_OK && (state = gr_trainer_state(t, s, &name)) != NULL; s++) {
        status = gr_broadcast(t->gen.comm, state, length, GR_F32, 0);
    }
    if (status == GR_OK && kept_count(t) > 0) {
        status = move_kept(t, all, false);
    }
    return status;
}

gr_status gr_state_restore(gr_trainer *trainer, const char *path, gr_checkpoint_info *info_out,
                           gr_diag *diag)
{
    gr_trainer *t = trainer;
    gr_checkpoint *checkpoint = NULL;
    float *all = NULL;
    gr_status status = GR_OK;
    *info_out = (gr_checkpoint_info){0};
    if (t->gen.rank == 0 && kept_count(t) > 0) {
        status = make_room(t, &all, diag);
    }
    if (status == GR_OK && t->gen.rank == 0) {
        status = gr_checkpoint_open(path, &checkpoint, diag);
    }
    if (status == GR_OK && t->gen.rank == 0) {
        *info_out = *gr_checkpoint_info_of(checkpoint);
        status = load(t, checkpoint, all, diag);
    }
    gr_checkpoint_close(checkpoint);
    if (status == GR_OK) {
        status = gr_trainer_comm_status(t->gen.comm, share(t, all, info_out),
                                        "the checkpoint could not be shared", diag);
    }
    free(all);
    t->restored = info_out->step;
    return status == GR_OK ? gr_trainer_seek(t, info_out->step, diag) : status;
}
