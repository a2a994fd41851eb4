/* SPDX-License-Identifier: Apache-2.0 */
#include "base/fail.h"
#include "coll/comm_internal.h"
#include "coll/reduce.h"

#include <stdlib.h>

/* The factor of the contributions is applied before an operation starts: in the caller's buffer
 * where that may be overwritten, else on the way into the result's buffer, else, where the result's
 * buffer is too small or missing, on the way into memory of our own. */

static gr_status grow(gr_family *family, gr_temp *temp, size_t size_bytes)
{
    if (temp->size_bytes >= size_bytes) {
        return GR_OK;
    }
    if (temp->memory) {
        gr_mesh_free(family->mesh, temp->memory);
        temp->memory = NULL;
        temp->size_bytes = 0;
    }
    gr_status status = gr_mesh_alloc(family->mesh, size_bytes, &temp->memory);
    temp->size_bytes = status == GR_OK ? size_bytes : 0;
    return status;
}

/* Finds room; *key names all rooms of one operation, the first one taken gives it. */
static gr_temp *take_temp(gr_family *family, size_t size_bytes, gr_temp **key, gr_diag *diag)
{
    gr_temp *best = NULL;
    for (int i = 0; i < GR_EXEC_OPS_MAX; i++) {
        gr_temp *temp = &family->temps[i];
        bool fits = temp->size_bytes >= size_bytes;
        if (!atomic_load(&temp->key) && (!best || (fits && best->size_bytes < size_bytes))) {
            best = temp;
        }
    }
    if (!best || grow(family, best, size_bytes) != GR_OK) {
        (void)gr_fail(diag, GR_E_NO_MEMORY, "no memory for %zu bytes of scaled contributions",
                      size_bytes);
        return NULL;
    }
    *key = *key ? *key : best;
    best->family = family;
    best->done = NULL;
    atomic_store(&best->key, *key);
    return best;
}

void gr_temps_give(gr_family *family, const gr_temp *key)
{
    for (int i = 0; i < GR_EXEC_OPS_MAX; i++) {
        const gr_temp *expected = key;
        atomic_compare_exchange_strong(&family->temps[i].key, &expected, NULL);
    }
}

void gr_temps_give_op(gr_family *family, const gr_op *op)
{
    for (int i = 0; i < GR_EXEC_OPS_MAX; i++) {
        gr_temp *temp = &family->temps[i];
        if (atomic_load(&temp->key) == temp && temp->op == op) {
            temp->op = NULL;
            family->temp_ops--;
            gr_temps_give(family, temp);
            return;
        }
    }
}

void gr_temps_done(gr_status status, void *arg)
{
    gr_temp *key = arg;
    gr_done *done = key->done;
    void *done_arg = key->done_arg;
    gr_temps_give(key->family, key);
    done(status, done_arg);
}

static void scale_partials(const gr_comm *comm, const gr_task *task)
{
    int first, dealt;
    gr_shard_range(task->shards, comm->size, comm->rank, &first, &dealt);
    int partials = dealt > 0 ? gr_task_partials(task, comm->rank, comm->size) : 0;
    for (int i = 0; i < partials; i++) {
        gr_scale(task->call->partials[i], task->count, task->call->dtype, task->prescale);
    }
}

gr_status gr_task_prescale(gr_comm *comm, gr_task *task, gr_temp **key, gr_diag *diag)
{
    gr_dtype dtype = task->call->dtype;
    if (task->prescale == 1) {
        return GR_OK;
    }
    if (task->call->partials) {
        scale_partials(comm, task);
    } else if (!task->out_of_place) {
        gr_scale(task->user, task->user_elements, dtype, task->prescale);
    } else if (task->user && task->user_only < 0) {
        gr_scale_to(task->user, task->input, task->input_elements, dtype, task->prescale);
        task->out_of_place = false;
        task->input = NULL;
    } else if (task->input_elements > 0) {
        gr_temp *temp =
            take_temp(comm->family, task->input_elements * gr_dtype_bytes(dtype), key, diag);
        if (!temp) {
            return GR_E_NO_MEMORY;
        }
        gr_scale_to(temp->memory, task->input, task->input_elements, dtype, task->prescale);
        task->input = temp->memory;
    }
    return GR_OK;
}
