/* SPDX-License-Identifier: Apache-2.0 */
#include "base/hash.h"
#include "ps/message.h"
#include "ps/store/store_internal.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- Life ------------------------------------------------------------------------------------ */
gr_status gr_ps_store_create(const gr_ps_store_config *config, gr_ps_store **store_out,
                             gr_diag *diag)
{
    gr_ps_store *store = calloc(1, sizeof *store);
    if (store == NULL) {
        return gr_fail(diag, GR_E_NO_MEMORY, "no memory for the parameter server's store");
    }
    store->config = *config;
    store->add = gr_reduce_kernel(gr_isa_best(), GR_F32, GR_SUM);
    store->slowest = UINT64_MAX;
    store->stats.bytes = sizeof *store;
    *store_out = store;
    return GR_OK;
}

static void role_count(gr_ps_held *held, gr_ps_role role, bool more)
{
    if (role == GR_PS_FOLLOWS) {
        held->followed += more ? 1u : UINT32_MAX;
    } else if (role != GR_PS_ABSENT) {
        held->led += more ? 1u : UINT32_MAX;
    }
}

static void unsafe_clear(gr_ps_store *store, gr_ps_block *block)
{
    while (block->unsafe != NULL) {
        gr_ps_unsafe *unsafe = block->unsafe;
        block->unsafe = unsafe->next;
        gr_ps_unsafe_drop(store, unsafe);
    }
    block->unsafe_last = NULL;
}

static size_t states_bytes(const gr_ps_held *held)
{
    return (size_t)held->states * held->buffer * sizeof(float);
}

/* Nobody waits for it any more. */
static void block_free(gr_ps_store *store, gr_ps_held *held, gr_ps_block *block)
{
    role_count(held, block->role, false);
    unsafe_clear(store, block);
    gr_ps_table_end(store, block);
    if (block->values != NULL) {
        gr_ps_loan_drop(store, block->values);
    }
    gr_ps_spares_trim(store, held, false);
    gr_ps_drop(store, block->states, states_bytes(held), false);
    gr_ps_drop(store, block->seen, block->seen_capacity * sizeof *block->seen, false);
    held->blocks[block->number] = NULL;
    gr_ps_drop(store, block, sizeof *block, false);
}

static void held_free(gr_ps_store *store, gr_ps_held *held)
{
    if (held->updater != NULL) {
        store->config.updaters.destroy(held->updater);
    }
    gr_ps_drop(store, (char *)held->tensor.spec.name, gr_ps_texts_bytes(&held->tensor.spec), false);
    gr_ps_drop(store, held->blocks, held->tensor.cut.blocks * sizeof *held->blocks, false);
    gr_ps_drop(store, held, sizeof *held, false);
}

void gr_ps_store_destroy(gr_ps_store *store)
{
    if (store == NULL) {
        return;
    }
    for (size_t i = 0; i < store->held_count; i++) {
        gr_ps_held *held = store->held[i];
        for (uint32_t b = 0; b < held->tensor.cut.blocks; b++) {
            if (held->blocks[b] != NULL) {
                gr_ps_forget(store, held, held->blocks[b], GR_PS_EVERYBODY);
                block_free(store, held, held->blocks[b]);
            }
        }
    }
    gr_ps_memory_fini(store);
    for (size_t i = 0; i < store->held_count; i++) {
        held_free(store, store->held[i]);
    }
    free(store->held);
    free(store->slots);
    free(store);
}

/* ---- Declarations ---------------------------------------------------------------------------- */
enum { DESCRIPTION_BYTES = 256 };

/* Only what the mode reads counts. */
static void describe(const gr_ps_tensor *tensor, char text_out[DESCRIPTION_BYTES])
{
    static const char *const modes[] = {"bsp", "backup", "async", "ssp"};
    const gr_ps_spec *t = &tensor->spec;
    char mode[64] = "";
    switch (t->consistency) {
    case GR_BSP:
        snprintf(mode, sizeof mode, " over %d shards", t->shards);
        break;
    case GR_BSP_BACKUP:
        snprintf(mode, sizeof mode, " of %d of %d workers", t->aggregate, t->total);
        break;
    case GR_SSP:
        snprintf(mode, sizeof mode, " %d%s", t->staleness, t->adapt_rate ? ", adapted rate" : "");
        break;
    default:
        snprintf(mode, sizeof mode, "%s", t->adapt_rate ? ", adapted rate" : "");
    }
    char shape[96];
    if (t->columns > 0) {
        snprintf(shape, sizeof shape,
                 "%" PRIu64 " rows of %u columns with seed %" PRIu64 " and deviation %.9g",
                 t->elements / t->columns, t->columns, t->seed, (double)t->deviation);
    } else {
        snprintf(shape, sizeof shape, "%" PRIu64 " elements in blocks of %u", t->elements,
                 tensor->cut.block);
    }
    snprintf(text_out, DESCRIPTION_BYTES, "%s, %s%s, gradients of %s, NaN %s", shape,
             modes[t->consistency], mode, gr_dtype_name((gr_dtype)t->gradient_type),
             t->refuse_not_finite ? "refused" : "taken");
}

static gr_status check_same(const gr_ps_tensor *ours, const gr_ps_tensor *theirs, int who,
                            gr_diag *diag)
{
    if (strcmp(ours->spec.name, theirs->spec.name) != 0) {
        return gr_fail(diag, GR_E_INVALID,
                       "the names \"%s\" and \"%s\" have the same hash: rename one of the tensors",
                       ours->spec.name, theirs->spec.name);
    }
    const char *optimizer = theirs->spec.optimizer != NULL ? theirs->spec.optimizer : "";
    char name[GR_PS_PEER_NAME_BYTES];
    char here[DESCRIPTION_BYTES];
    char there[DESCRIPTION_BYTES];
    describe(ours, here);
    describe(theirs, there);
    if (strcmp(here, there) != 0) {
        return gr_fail(diag, GR_E_INVALID,
                       "%s declares tensor \"%s\" otherwise than it is: %s; here: %s",
                       gr_ps_peer_name(who, name), ours->spec.name, there, here);
    }
    if (strcmp(ours->spec.optimizer, optimizer) != 0) {
        return gr_fail(diag, GR_E_INVALID,
                       "%s declares tensor \"%s\" with optimizer %.100s; here it has %.100s",
                       gr_ps_peer_name(who, name), ours->spec.name, optimizer,
                       ours->spec.optimizer);
    }
    return GR_OK;
}

static uint32_t *slot_of(const gr_ps_store *store, uint64_t key)
{
    if (store->slot_count == 0) {
        return NULL;
    }
    size_t at = (size_t)key & (store->slot_count - 1);
    while (store->slots[at] != 0 && store->held[store->slots[at] - 1]->tensor.key != key) {
        at = (at + 1) & (store->slot_count - 1);
    }
    return &store->slots[at];
}

gr_ps_held *gr_ps_find(const gr_ps_store *store, uint64_t key)
{
    const uint32_t *slot = slot_of(store, key);
    return slot != NULL && *slot != 0 ? store->held[*slot - 1] : NULL;
}

/* Room for one more tensor, the hash table at most half full. */
static bool table_reserve(gr_ps_store *store)
{
    if (store->held_count < store->held_capacity) {
        return true;
    }
    size_t capacity = store->held_capacity > 0 ? store->held_capacity * 2 : 16;
    size_t bytes = capacity * sizeof(gr_ps_held *) + 2 * capacity * sizeof(uint32_t);
    uint64_t most = store->config.bytes_max;
    if (most > 0 && (store->stats.bytes > most || bytes > most - store->stats.bytes)) {
        return false;
    }
    gr_ps_held **held = calloc(capacity, sizeof(gr_ps_held *));
    uint32_t *slots = calloc(2 * capacity, sizeof *slots);
    if (held == NULL || slots == NULL) {
        free(held);
        free(slots);
        return false;
    }
    if (store->held_count > 0) {
        memcpy(held, store->held, store->held_count * sizeof(gr_ps_held *));
    }
    free(store->held);
    free(store->slots);
    store->stats.bytes += bytes - (store->held_capacity * sizeof(gr_ps_held *) +
                                   store->slot_count * sizeof(uint32_t));
    store->held = held;
    store->slots = slots;
    store->held_capacity = capacity;
    store->slot_count = 2 * capacity;
    for (size_t i = 0; i < store->held_count; i++) {
        *slot_of(store, held[i]->tensor.key) = (uint32_t)i + 1;
    }
    return true;
}

/* Texts and the table of blocks; the updater is not made. */
static gr_ps_held *held_make(gr_ps_store *store, const gr_ps_tensor *tensor)
{
    gr_ps_held *held = gr_ps_take(store, sizeof *held, false);
    if (held == NULL) {
        return NULL;
    }
    held->tensor = *tensor;
    held->buffer = gr_ps_block_count(&tensor->cut, 0);
    char *texts = gr_ps_take(store, gr_ps_texts_bytes(&tensor->spec), false);
    held->blocks = gr_ps_take(store, held->tensor.cut.blocks * sizeof *held->blocks, false);
    if (texts == NULL || held->blocks == NULL) {
        gr_ps_drop(store, texts, gr_ps_texts_bytes(&tensor->spec), false);
        gr_ps_drop(store, held->blocks, held->tensor.cut.blocks * sizeof *held->blocks, false);
        gr_ps_drop(store, held, sizeof *held, false);
        return NULL;
    }
    gr_ps_copy_texts(&held->tensor.spec, texts);
    return held;
}

gr_status gr_ps_store_declare(gr_ps_store *store, int who, const gr_ps_tensor *tensor,
                              gr_diag *diag)
{
    const gr_ps_held *known = gr_ps_find(store, tensor->key);
    if (known != NULL) {
        return check_same(&known->tensor, tensor, who, diag);
    }
    gr_ps_held *held = NULL;
    if (store->held_count < GR_PS_TENSORS_MAX && table_reserve(store)) {
        held = held_make(store, tensor);
    }
    if (held == NULL) {
        return gr_fail(diag, GR_E_NO_MEMORY,
                       "no memory for tensor \"%s\": the server keeps %" PRIu64
                       " MiB already; give it more, or take more servers",
                       tensor->spec.name, store->stats.bytes >> 20);
    }
    gr_status status = store->config.updaters.create(store->config.updaters_arg, &held->tensor.spec,
                                                     &held->updater, diag);
    if (status != GR_OK) {
        held_free(store, held);
        return status;
    }
    held->states = store->config.updaters.states(held->updater);
    GR_CHECK(held->states >= 0 && held->states <= GR_PS_STATES_MAX);
    *slot_of(store, tensor->key) = (uint32_t)store->held_count + 1;
    store->held[store->held_count++] = held;
    return GR_OK;
}

const gr_ps_tensor *gr_ps_store_tensor(const gr_ps_store *store, uint64_t key)
{
    const gr_ps_held *held = gr_ps_find(store, key);
    return held != NULL ? &held->tensor : NULL;
}

/* ---- Blocks ---------------------------------------------------------------------------------- */
static gr_status find_place(const gr_ps_store *store, uint64_t key, uint32_t number,
                            gr_ps_held **held_out, gr_diag *diag)
{
    gr_ps_held *held = gr_ps_find(store, key);
    if (held == NULL) {
        return gr_fail(diag, GR_E_NOT_FOUND,
                       "no tensor with key %016" PRIx64 " is known here: declare it first", key);
    }
    if (number >= held->tensor.cut.blocks) {
        return gr_fail(diag, GR_E_INVALID, "tensor \"%s\" has blocks 0 to %u, and no block %u",
                       held->tensor.spec.name, held->tensor.cut.blocks - 1, number);
    }
    *held_out = held;
    return GR_OK;
}

gr_status gr_ps_find_block(const gr_ps_store *store, uint64_t key, uint32_t number,
                           gr_ps_held **held_out, gr_ps_block **block_out, gr_diag *diag)
{
    gr_ps_held *held = NULL;
    gr_status status = find_place(store, key, number, &held, diag);
    if (status != GR_OK) {
        return status;
    }
    if (held->blocks[number] == NULL) {
        return gr_fail(diag, GR_E_AGAIN, "block %u of tensor \"%s\" is not on this server", number,
                       held->tensor.spec.name);
    }
    *held_out = held;
    *block_out = held->blocks[number];
    return GR_OK;
}

static gr_ps_block *block_make(gr_ps_store *store, gr_ps_held *held, uint32_t number)
{
    gr_ps_block *block = gr_ps_take(store, sizeof *block, false);
    if (block == NULL) {
        return NULL;
    }
    block->number = number;
    block->count = gr_ps_block_count(&held->tensor.cut, number);
    if (held->tensor.spec.columns > 0) {
        if (gr_ps_table_begin(store, held, block, NULL) != GR_OK) {
            goto undo_block;
        }
        held->blocks[number] = block;
        return block;
    }
    if (held->states > 0) {
        block->states = gr_ps_take(store, states_bytes(held), false);
        if (block->states == NULL) {
            goto undo_block;
        }
    }
    block->values = gr_ps_loan_take(store, held);
    if (block->values == NULL) {
        goto undo_states;
    }
    held->blocks[number] = block;
    return block;

undo_states:
    gr_ps_drop(store, block->states, states_bytes(held), false);
undo_block:
    gr_ps_drop(store, block, sizeof *block, false);
    return NULL;
}

gr_status gr_ps_store_hold(gr_ps_store *store, uint64_t key, uint32_t number, gr_ps_role role,
                           gr_diag *diag)
{
    gr_ps_held *held = NULL;
    gr_status status = find_place(store, key, number, &held, diag);
    if (status != GR_OK) {
        return status;
    }
    gr_ps_block *block = held->blocks[number];
    gr_ps_role before = block != NULL ? block->role : GR_PS_ABSENT;
    if (before == role) {
        return GR_OK;
    }
    if (block == NULL) {
        block = block_make(store, held, number);
        if (block == NULL) {
            return gr_fail(diag, GR_E_NO_MEMORY,
                           "no memory for block %u of tensor \"%s\" with its optimizer's states: "
                           "the server keeps %" PRIu64 " MiB already; give it more, or take more "
                           "servers",
                           number, held->tensor.spec.name, store->stats.bytes >> 20);
        }
    }
    if (role == GR_PS_ABSENT || role == GR_PS_FOLLOWS) {
        gr_ps_dismiss(store, held, block);
    }
    if (role == GR_PS_ABSENT) {
        block_free(store, held, block);
        return GR_OK;
    }
    role_count(held, before, false);
    role_count(held, role, true);
    block->role = role;
    unsafe_clear(store, block);
    block->safe = gr_ps_serial(block);
    gr_ps_settle(store, held, block);
    return GR_OK;
}

/* ---- Looking --------------------------------------------------------------------------------- */
void gr_ps_store_get_stats(const gr_ps_store *store, gr_ps_stats *stats_out)
{
    *stats_out = store->stats;
    stats_out->tensors = store->held_count;
    for (size_t i = 0; i < store->held_count; i++) {
        stats_out->blocks_led += store->held[i]->led;
        stats_out->blocks_followed += store->held[i]->followed;
    }
}

bool gr_ps_store_info(const gr_ps_store *store, uint64_t index, gr_ps_tensor_info *info_out)
{
    if (index >= store->held_count) {
        return false;
    }
    const gr_ps_held *held = store->held[index];
    gr_ps_tensor_info info = {.tensor = &held->tensor,
                              .states = held->states,
                              .led = held->led,
                              .followed = held->followed};
    bool any = false;
    for (uint32_t b = 0; b < held->tensor.cut.blocks; b++) {
        const gr_ps_block *block = held->blocks[b];
        if (block == NULL || block->role == GR_PS_FOLLOWS || !block->ready) {
            continue;
        }
        uint64_t version = block->version;
        info.version_min = any && info.version_min < version ? info.version_min : version;
        info.version_max = info.version_max > version ? info.version_max : version;
        info.rows += block->rows != NULL ? gr_ps_rows_count(block->rows) : 0;
        any = true;
    }
    *info_out = info;
    return true;
}
