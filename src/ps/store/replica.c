/* SPDX-License-Identifier: Apache-2.0 */
#include "ps/store/store_internal.h"

#include <inttypes.h>
#include <string.h>

void gr_ps_store_replicated(gr_ps_store *store, uint64_t key, uint32_t number, uint64_t version)
{
    gr_ps_held *held = gr_ps_find(store, key);
    gr_ps_block *block =
        held != NULL && number < held->tensor.cut.blocks ? held->blocks[number] : NULL;
    if (block == NULL || block->role != GR_PS_LEADS || !block->ready) {
        return; /* the word was under way when the role changed */
    }
    uint64_t serial = (version < block->version ? version : block->version) + 1;
    if (serial <= block->safe) {
        return;
    }
    block->safe = serial;
    while (block->unsafe != NULL && block->unsafe->serial <= serial) {
        gr_ps_unsafe *unsafe = block->unsafe;
        block->unsafe = unsafe->next;
        gr_ps_unsafe_drop(store, unsafe);
    }
    block->unsafe_last = block->unsafe != NULL ? block->unsafe_last : NULL;
    gr_ps_settle(store, held, block);
}

static bool are_clients(const int *clients, int count)
{
    for (int i = 0; count <= GR_PS_PEERS_MAX && i < count; i++) {
        if (clients[i] < 0 || clients[i] >= GR_PS_PEERS_MAX) {
            return false;
        }
    }
    return 0 <= count && count <= GR_PS_PEERS_MAX;
}

gr_status gr_ps_store_follow(gr_ps_store *store, const gr_ps_update *update, gr_diag *diag)
{
    gr_ps_held *held = NULL;
    gr_ps_block *block = NULL;
    gr_status status = gr_ps_find_block(store, update->key, update->block, &held, &block, diag);
    if (status != GR_OK) {
        return status;
    }
    if (block->role != GR_PS_FOLLOWS || update->columns != held->tensor.spec.columns ||
        (block->rows == NULL && update->count != block->count)) {
        return gr_fail(diag, GR_E_INVALID,
                       "an update of %u elements came for block %u of tensor \"%s\", which %s "
                       "and has %u",
                       update->count, block->number, held->tensor.spec.name,
                       block->role == GR_PS_FOLLOWS ? "is a replica here" : "this server leads",
                       block->count);
    }
    if (!are_clients(update->clients, update->client_count)) {
        return gr_fail(diag, GR_E_INVALID,
                       "an update of block %u of tensor \"%s\" names clients that cannot be",
                       block->number, held->tensor.spec.name);
    }
    uint64_t before = update->initial ? 0 : update->version + 1;
    if (before < gr_ps_serial(block)) {
        return GR_OK;
    }
    if (before > gr_ps_serial(block)) {
        return gr_fail(diag, GR_E_INVALID,
                       "the replica of block %u of tensor \"%s\" lacks updates before version "
                       "%" PRIu64 ": it needs the whole block",
                       block->number, held->tensor.spec.name, update->version);
    }
    if (update->initial) {
        status = gr_ps_values_begin(store, held, block, update->values);
    } else if (!gr_ps_parts_reserve(store, 1)) {
        status = GR_E_NO_MEMORY;
    } else {
        store->parts[0] = (gr_ps_part){.count = 1,
                                       .values = update->values,
                                       .rows = update->rows,
                                       .row_count = block->rows != NULL ? update->count : 0};
        const gr_ps_change change = {.shards = 1,
                                     .part_count = 1,
                                     .rate = update->rate,
                                     .factor = update->factor,
                                     .clients = update->clients,
                                     .client_count = update->client_count,
                                     .sequence = update->sequence};
        status = gr_ps_change_make(store, held, block, &change);
    }
    if (status != GR_OK) {
        return gr_fail(diag, status, "no memory for an update of block %u of tensor \"%s\"",
                       block->number, held->tensor.spec.name);
    }
    return GR_OK;
}

gr_status gr_ps_store_image(const gr_ps_store *store, uint64_t key, uint32_t number,
                            gr_ps_image *image_out, gr_diag *diag)
{
    gr_ps_held *held = NULL;
    gr_ps_block *block = NULL;
    gr_status status = gr_ps_find_block(store, key, number, &held, &block, diag);
    if (status != GR_OK) {
        return status;
    }
    gr_ps_image image = {.key = key,
                         .block = number,
                         .ready = block->ready,
                         .version = block->version,
                         .states = held->states,
                         .seen = block->seen,
                         .seen_count = (int)block->seen_count,
                         .columns = held->tensor.spec.columns,
                         .begins = true,
                         .ends = true};
    if (block->rows != NULL) {
        image.count = (uint32_t)gr_ps_rows_count(block->rows);
    } else {
        image.count = block->count;
        image.values = block->values->values;
    }
    for (int i = 0; block->rows == NULL && i < held->states; i++) {
        image.state[i] = block->states + (size_t)i * held->buffer;
    }
    *image_out = image;
    return GR_OK;
}

gr_status gr_ps_store_restore(gr_ps_store *store, const gr_ps_image *image, gr_diag *diag)
{
    gr_ps_held *held = NULL;
    gr_ps_block *block = NULL;
    gr_status status = gr_ps_find_block(store, image->key, image->block, &held, &block, diag);
    if (status != GR_OK) {
        return status;
    }
    if (image->columns != held->tensor.spec.columns ||
        (block->rows == NULL && image->count != block->count) || image->states != held->states ||
        image->seen_count < 0 || image->seen_count > GR_PS_PEERS_MAX) {
        return gr_fail(diag, GR_E_INVALID,
                       "a copy of block %u of tensor \"%s\" has %u elements and %d states, the "
                       "block has %u and %d",
                       block->number, held->tensor.spec.name, image->count, image->states,
                       block->count, held->states);
    }
    if (block->role == GR_PS_LEADS || block->step != NULL) {
        return gr_fail(diag, GR_E_INVALID,
                       "block %u of tensor \"%s\" is in use: nothing may be put in its place",
                       block->number, held->tensor.spec.name);
    }
    if (block->rows != NULL) {
        return gr_ps_table_restore_block(store, held, block, image, diag);
    }
    size_t seen_count = (size_t)image->seen_count;
    gr_ps_loan *values = gr_ps_loan_take(store, held);
    gr_ps_seen *seen = seen_count > 0 ? gr_ps_take(store, seen_count * sizeof *seen, false) : NULL;
    if (values == NULL || (seen == NULL && seen_count > 0)) {
        if (values != NULL) {
            gr_ps_loan_drop(store, values);
        }
        return gr_fail(diag, GR_E_NO_MEMORY, "no memory to restore block %u of tensor \"%s\"",
                       block->number, held->tensor.spec.name);
    }
    if (image->ready) {
        memcpy(values->values, image->values, block->count * sizeof(float));
        for (int i = 0; i < held->states; i++) {
            memcpy(block->states + (size_t)i * held->buffer, image->state[i],
                   block->count * sizeof(float));
        }
    }
    if (seen_count > 0) {
        memcpy(seen, image->seen, seen_count * sizeof *seen);
    }
    gr_ps_loan_drop(store, block->values);
    gr_ps_drop(store, block->seen, block->seen_capacity * sizeof *block->seen, false);
    block->values = values;
    block->seen = seen;
    block->seen_count = block->seen_capacity = seen_count;
    block->ready = image->ready;
    block->version = image->version;
    block->safe = gr_ps_serial(block);
    gr_ps_settle(store, held, block);
    return GR_OK;
}
