/* SPDX-License-Identifier: Apache-2.0 */
#include "ps/store/store_internal.h"

#include <string.h>

/* ---- Which pushes were taken ----------------------------------------------------------------- */
static gr_ps_seen *seen_of(const gr_ps_block *block, int client)
{
    for (size_t i = 0; i < block->seen_count; i++) {
        if (block->seen[i].client == client) {
            return &block->seen[i];
        }
    }
    return NULL;
}

gr_ps_known gr_ps_seen_find(const gr_ps_block *block, int client, uint64_t sequence)
{
    const gr_ps_seen *seen = seen_of(block, client);
    if (seen == NULL || sequence > seen->newest) {
        return GR_PS_UNKNOWN;
    }
    uint64_t back = seen->newest - sequence;
    if (back > GR_PS_SEQUENCES_KEPT) {
        return GR_PS_FORGOTTEN;
    }
    return back == 0 || (seen->before >> (back - 1) & 1) ? GR_PS_KNOWN : GR_PS_UNKNOWN;
}

static bool seen_reserve(gr_ps_store *store, gr_ps_block *block, int client_count)
{
    if (client_count == 0) {
        return true;
    }
    gr_ps_seen *seen = gr_ps_grow(store, block->seen, sizeof *seen, block->seen_count,
                                  &block->seen_capacity, block->seen_count + (size_t)client_count);
    if (seen == NULL) {
        return false;
    }
    block->seen = seen;
    return true;
}

/* seen_reserve was called. */
static void seen_add(gr_ps_block *block, int client, uint64_t sequence)
{
    gr_ps_seen *seen = seen_of(block, client);
    if (seen == NULL) {
        block->seen[block->seen_count++] = (gr_ps_seen){.client = client, .newest = sequence};
    } else if (sequence > seen->newest) {
        uint64_t on = sequence - seen->newest;
        seen->before = on < 64 ? seen->before << on : 0;
        seen->before |= on <= 64 ? (uint64_t)1 << (on - 1) : 0;
        seen->newest = sequence;
    } else if (sequence < seen->newest && seen->newest - sequence <= GR_PS_SEQUENCES_KEPT) {
        seen->before |= (uint64_t)1 << (seen->newest - sequence - 1);
    }
}

/* ---- Values ---------------------------------------------------------------------------------- */
bool gr_ps_parts_reserve(gr_ps_store *store, size_t count)
{
    gr_ps_part *parts =
        gr_ps_grow(store, store->parts, sizeof *parts, 0, &store->part_capacity, count);
    if (parts == NULL) {
        return false;
    }
    store->parts = parts;
    return true;
}

static bool scratch_reserve(gr_ps_store *store, int pieces)
{
    size_t piece_bytes = (size_t)GR_PS_PIECE * sizeof(float);
    if (pieces <= store->scratch_pieces) {
        return true;
    }
    float *scratch = gr_ps_take(store, (size_t)pieces * piece_bytes, false);
    if (scratch == NULL) {
        return false;
    }
    gr_ps_drop(store, store->scratch, (size_t)store->scratch_pieces * piece_bytes, false);
    store->scratch = scratch;
    store->scratch_pieces = pieces;
    return true;
}

/* The block has changed: until the replica has it, or at once, it is safe. */
static void changed(gr_ps_store *store, gr_ps_held *held, gr_ps_block *block, gr_ps_unsafe *unsafe,
                    gr_ps_update *update)
{
    if (unsafe == NULL) {
        block->safe = gr_ps_serial(block);
        return;
    }
    unsafe->serial = gr_ps_serial(block);
    if (block->unsafe_last != NULL) {
        block->unsafe_last->next = unsafe;
    } else {
        block->unsafe = unsafe;
    }
    block->unsafe_last = unsafe;
    update->key = held->tensor.key;
    update->block = block->number;
    if (block->rows == NULL) {
        update->count = block->count;
        update->values = unsafe->values->values;
    }
    store->config.ops.forward(store->config.ops_arg, update);
}

gr_status gr_ps_values_begin(gr_ps_store *store, gr_ps_held *held, gr_ps_block *block,
                             const float *values)
{
    gr_ps_unsafe *unsafe = NULL;
    if (block->role == GR_PS_LEADS) {
        unsafe = gr_ps_unsafe_take(store);
        if (unsafe == NULL) {
            return GR_E_NO_MEMORY;
        }
        unsafe->values = block->values; /* no copy: the next update makes one while it is in use */
        block->values->users++;
    }
    memcpy(block->values->values, values, block->count * sizeof *values);
    block->ready = true;
    block->version = 0;
    changed(store, held, block, unsafe, &(gr_ps_update){.initial = true});
    return GR_OK;
}

/* What a change needs before anything is changed. */
typedef struct means {
    gr_ps_loan *fresh; /* for the values, if they are on loan */
    gr_ps_unsafe *unsafe;
} means;

static gr_status means_take(gr_ps_store *store, gr_ps_held *held, gr_ps_block *block,
                            const gr_ps_change *change, means *means_out)
{
    means m = {0};
    int pieces = gr_ps_sum_plan(change->shards, store->parts, change->part_count);
    if (!scratch_reserve(store, pieces) || !seen_reserve(store, block, change->client_count)) {
        return GR_E_NO_MEMORY;
    }
    if (block->values->users > 1) {
        m.fresh = gr_ps_loan_take(store, held);
        if (m.fresh == NULL) {
            return GR_E_NO_MEMORY;
        }
    }
    if (block->role == GR_PS_LEADS) {
        m.unsafe = gr_ps_unsafe_take(store);
        if (m.unsafe == NULL) {
            goto undo_fresh;
        }
        m.unsafe->values = gr_ps_loan_take(store, held);
        if (m.unsafe->values == NULL) {
            goto undo_unsafe;
        }
    }
    *means_out = m;
    return GR_OK;

undo_unsafe:
    gr_ps_unsafe_drop(store, m.unsafe);
undo_fresh:
    if (m.fresh != NULL) {
        gr_ps_loan_drop(store, m.fresh);
    }
    return GR_E_NO_MEMORY;
}

/* To whom the values go while they are made. Until a replica has them, data that it may need again
 * stay as they are. */
static void choose_outs(const gr_ps_block *block, const gr_ps_change *change)
{
    for (gr_ps_ticket *push = change->tickets; push != NULL; push = push->next) {
        push->put = push->out != NULL && !push->silent &&
                    (block->role == GR_PS_ALONE || push->out != push->data.values);
    }
}

/* Sum and optimizer, a piece at a time: all is read and written while in the nearest cache. */
static bool run(gr_ps_store *store, gr_ps_held *held, gr_ps_block *block,
                const gr_ps_change *change, const means *m)
{
    const float *old = block->values->values;
    float *values = m->fresh != NULL ? m->fresh->values : block->values->values;
    float *sums = m->unsafe != NULL ? m->unsafe->values->values : NULL;
    float *states[GR_PS_STATES_MAX];
    const gr_ps_adder add = gr_ps_adder_of(store, held);
    bool finite = true;
    choose_outs(block, change);
    for (size_t at = 0; at < block->count; at += GR_PS_PIECE) {
        size_t count = block->count - at < GR_PS_PIECE ? block->count - at : GR_PS_PIECE;
        const float *sum = gr_ps_sum_piece(&add, store->parts, change->part_count, at, count,
                                           store->scratch, sums != NULL ? sums + at : NULL);
        if (m->fresh != NULL) {
            memcpy(values + at, old + at, count * sizeof *values);
        }
        for (int i = 0; i < held->states; i++) {
            states[i] = block->states + (size_t)i * held->buffer + at;
        }
        finite &= store->config.updaters.update(held->updater, block->version, change->rate,
                                                change->factor, values + at, states, sum, count);
        for (const gr_ps_ticket *push = change->tickets; push != NULL; push = push->next) {
            if (push->put) {
                memcpy(push->out + at, values + at, count * sizeof *values);
            }
        }
    }
    return finite;
}

/* The same of a table's block. */
static gr_status run_rows(gr_ps_store *store, gr_ps_held *held, gr_ps_block *block,
                          const gr_ps_change *change, gr_ps_unsafe **unsafe_out,
                          gr_ps_row_sum *sum_out, bool *finite_out)
{
    bool leads = block->role == GR_PS_LEADS;
    gr_ps_unsafe *unsafe = leads ? gr_ps_unsafe_take(store) : NULL;
    gr_status status = GR_E_NO_MEMORY;
    if ((!leads || unsafe != NULL) && seen_reserve(store, block, change->client_count)) {
        status = gr_ps_table_change(store, held, block, change, sum_out, finite_out);
    }
    if (status != GR_OK && unsafe != NULL) {
        gr_ps_unsafe_drop(store, unsafe);
        unsafe = NULL;
    }
    *unsafe_out = unsafe;
    return status;
}

gr_status gr_ps_change_make(gr_ps_store *store, gr_ps_held *held, gr_ps_block *block,
                            const gr_ps_change *change)
{
    means m = {0};
    gr_ps_row_sum sum = {0};
    bool finite = true;
    gr_status status;
    if (block->rows != NULL) {
        status = run_rows(store, held, block, change, &m.unsafe, &sum, &finite);
    } else {
        status = means_take(store, held, block, change, &m);
        finite = status != GR_OK || run(store, held, block, change, &m);
    }
    if (status != GR_OK) {
        return status;
    }
    store->stats.not_finite += !finite;
    if (m.fresh != NULL) {
        gr_ps_loan_drop(store, block->values);
        block->values = m.fresh;
        store->stats.copies++;
    }
    for (int i = 0; i < change->client_count; i++) {
        seen_add(block, change->clients[i], change->sequence);
    }
    store->stats.updates++;
    gr_ps_update update = {.version = block->version,
                           .rate = change->rate,
                           .factor = change->factor,
                           .sequence = change->sequence,
                           .clients = change->clients,
                           .client_count = change->client_count,
                           .count = sum.count,
                           .columns = held->tensor.spec.columns,
                           .values = sum.values,
                           .rows = sum.rows};
    block->version++;
    changed(store, held, block, m.unsafe, &update);
    gr_ps_row_sum_free(&sum);
    return GR_OK;
}
