/* SPDX-License-Identifier: Apache-2.0 */
#include "coll/plan/plan.h"
#include "ps/message.h"
#include "ps/store/store_internal.h"

#include <gradus/shards.h>

#include <inttypes.h>
#include <string.h>

/* What a call is about, once it was found. */
typedef struct push_target {
    gr_ps_held *held;
    gr_ps_block *block;
} push_target;

static gr_status find_led(gr_ps_store *store, int client, uint64_t key, uint32_t number,
                          push_target *target_out)
{
    GR_CHECK(client >= 0 && client < GR_PS_PEERS_MAX);
    push_target t = {0};
    gr_status status = gr_ps_find_block(store, key, number, &t.held, &t.block, &store->diag);
    if (status == GR_OK && t.block->role == GR_PS_FOLLOWS) {
        status = gr_fail(&store->diag, GR_E_AGAIN,
                         "block %u of tensor \"%s\" has only its replica on this server", number,
                         t.held->tensor.spec.name);
    }
    *target_out = t;
    return status;
}

static gr_status no_memory(gr_ps_store *store, const push_target *t)
{
    return gr_fail(&store->diag, GR_E_NO_MEMORY,
                   "no memory for a push to block %u of tensor \"%s\": the server keeps %" PRIu64
                   " MiB already; push it again, or give the server more",
                   t->block->number, t->held->tensor.spec.name, store->stats.bytes >> 20);
}

static bool all_finite(const float *values, size_t count)
{
    uint32_t bad = 0;
    for (size_t i = 0; i < count; i++) {
        uint32_t bits;
        memcpy(&bits, &values[i], sizeof bits);
        bad |= (bits & 0x7f800000u) == 0x7f800000u;
    }
    return bad == 0;
}

/* What is true of initial values as well. */
static gr_status check_data(gr_ps_store *store, const push_target *t, int client,
                            const gr_ps_data *data, uint64_t count)
{
    const float *values = data->values;
    char who[GR_PS_PEER_NAME_BYTES];
    if (t->block->rows != NULL || data->rows != NULL) {
        gr_status status = gr_ps_table_check_push(store, t->held, client, data, count);
        if (status != GR_OK) {
            return status;
        }
    } else if (count != t->block->count) {
        return gr_fail(&store->diag, GR_E_INVALID,
                       "%s sends %" PRIu64 " elements for block %u of tensor \"%s\", which "
                       "has %u",
                       gr_ps_peer_name(client, who), count, t->block->number,
                       t->held->tensor.spec.name, t->block->count);
    }
    if (t->held->tensor.spec.refuse_not_finite && !all_finite(values, count)) {
        return gr_fail(&store->diag, GR_E_NOT_FINITE,
                       "%s sends NaN or infinity for block %u of tensor \"%s\": lower its "
                       "learning rate, or look at its data",
                       gr_ps_peer_name(client, who), t->block->number, t->held->tensor.spec.name);
    }
    return GR_OK;
}

void gr_ps_store_set(gr_ps_store *store, int client, uint64_t token, uint64_t key, uint32_t block,
                     const float *values, uint64_t count)
{
    push_target t;
    gr_status status = find_led(store, client, key, block, &t);
    if (status == GR_OK) {
        status = check_data(store, &t, client, &(gr_ps_data){.values = values}, count);
    }
    gr_ps_outcome outcome = status == GR_OK && t.block->ready ? GR_PS_REPEATED : GR_PS_TAKEN;
    if (status == GR_OK && !t.block->ready) {
        status = gr_ps_values_begin(store, t.held, t.block, values);
    }
    if (status == GR_OK) {
        status = gr_ps_answer_safe(store, t.block, client, token, outcome, 1);
    }
    if (status == GR_E_NO_MEMORY) {
        status = no_memory(store, &t);
    }
    if (status != GR_OK) {
        gr_ps_answer_pushed(store, t.block, client, token, status, GR_PS_TAKEN);
        return;
    }
    gr_ps_settle(store, t.held, t.block);
}

/* ---- By steps -------------------------------------------------------------------------------- */
static gr_status check_step(gr_ps_store *store, const push_target *t, const gr_ps_push *push)
{
    gr_tree_range cover[GR_SHARD_PARTIALS_MAX];
    char who[GR_PS_PEER_NAME_BYTES];
    if (push->step > t->block->version) {
        return gr_fail(&store->diag, GR_E_INVALID,
                       "%s pushes step %" PRIu64 " to block %u of tensor \"%s\", which "
                       "waits for step %" PRIu64,
                       gr_ps_peer_name(push->client, who), push->step, t->block->number,
                       t->held->tensor.spec.name, t->block->version);
    }
    if (t->held->tensor.spec.consistency == GR_BSP &&
        gr_tree_cover(t->held->tensor.spec.shards, push->first, push->shards, cover) != 1) {
        return gr_fail(&store->diag, GR_E_INVALID,
                       "%s pushes %d shards from %d on to tensor \"%s\": no whole subtree "
                       "of its %d shards",
                       gr_ps_peer_name(push->client, who), push->shards, push->first,
                       t->held->tensor.spec.name, t->held->tensor.spec.shards);
    }
    return GR_OK;
}

/* Left to right, the larger subtree first; of equals the one that came first. */
static gr_ps_ticket **step_add(gr_ps_block *block, gr_ps_ticket *ticket)
{
    gr_ps_ticket **link = &block->step;
    while (*link != NULL && ((*link)->first < ticket->first || ((*link)->first == ticket->first &&
                                                                (*link)->count >= ticket->count))) {
        link = &(*link)->next;
    }
    ticket->next = *link;
    *link = ticket;
    block->step_count++;
    return link;
}

/* Chooses the pushes that are added. Subtrees are apart, or one lies in the other: who comes first
 * and begins where the last one ended is the largest there is. False: something is missing. */
static bool step_choose(gr_ps_store *store, const push_target *t, gr_ps_change *change_out)
{
    bool backup = t->held->tensor.spec.consistency == GR_BSP_BACKUP;
    int shards = backup ? t->held->tensor.spec.aggregate : t->held->tensor.spec.shards;
    int found = 0;
    int end = 0;
    for (gr_ps_ticket *push = t->block->step; push != NULL; push = push->next) {
        push->chosen = push->first >= end;
        if (!push->chosen) {
            continue;
        }
        if (!backup && push->first > end) {
            return false;
        }
        if (found == 0) {
            change_out->rate = push->rate;
            change_out->factor = push->factor;
        }
        store->parts[found] = (gr_ps_part){.first = backup ? found : push->first,
                                           .count = push->count,
                                           .values = push->data.values,
                                           .rows = push->data.rows,
                                           .row_count = push->data.row_count};
        if (backup) {
            store->contributors[found] = push->client;
        }
        end = push->first + push->count;
        found++;
    }
    change_out->shards = shards;
    change_out->part_count = found;
    change_out->tickets = t->block->step;
    change_out->clients = store->contributors;
    change_out->client_count = backup ? found : 0;
    change_out->sequence = t->block->version;
    return backup ? found == shards : end == shards;
}

/* Its data are not needed any more; it is answered when `serial` is safe. */
static void step_spend(gr_ps_store *store, gr_ps_block *block, gr_ps_ticket **link, uint64_t serial,
                       gr_ps_outcome outcome)
{
    gr_ps_ticket *push = *link;
    *link = push->next;
    block->step_count--;
    store->config.ops.release(store->config.ops_arg, push->data.lease);
    if (push->silent) {
        gr_ps_ticket_drop(store, push);
        return;
    }
    push->outcome = outcome;
    push->serial = serial;
    push->next = block->answers;
    block->answers = push;
}

/* While the step waits for others: lasting data that are the two children of one node become one
 * (but a table's, which have other rows), and what lies within lasting data is not needed. */
static void step_merge(gr_ps_store *store, const push_target *t)
{
    gr_ps_block *block = t->block;
    const gr_ps_adder add = gr_ps_adder_of(store, t->held);
    uint64_t serial = gr_ps_serial(block) + 1; /* of the step, once it is made */
    gr_ps_ticket **link = &block->step;
    while (*link != NULL) {
        gr_ps_ticket *left = *link;
        gr_ps_ticket *right = left->next;
        if (!left->data.lasting || right == NULL) {
            link = &left->next;
        } else if (right->first < left->first + left->count) {
            step_spend(store, block, &left->next, serial, GR_PS_REPEATED);
        } else if (right->data.lasting && block->rows == NULL &&
                   gr_tree_siblings(t->held->tensor.spec.shards,
                                    (gr_tree_range){left->first, left->count},
                                    (gr_tree_range){right->first, right->count})) {
            float *sum = (float *)left->data.values;
            gr_ps_add(&add, sum, sum, right->data.values, block->count);
            left->count += right->count;
            step_spend(store, block, &left->next, serial, GR_PS_TAKEN);
            *link = left->next; /* it may belong elsewhere now */
            block->step_count--;
            step_add(block, left);
            link = &block->step;
        } else {
            link = &left->next;
        }
    }
}

static gr_status step_make(gr_ps_store *store, const push_target *t, int client)
{
    gr_ps_change change;
    if (!gr_ps_parts_reserve(store, (size_t)t->block->step_count)) {
        return GR_E_NO_MEMORY;
    }
    if (!step_choose(store, t, &change)) {
        if (t->held->tensor.spec.consistency == GR_BSP) {
            step_merge(store, t);
        }
        return GR_OK;
    }
    gr_status status = gr_ps_change_make(store, t->held, t->block, &change);
    if (status != GR_OK) {
        return status;
    }
    store->stats.last[client]++;
    while (t->block->step != NULL) {
        gr_ps_outcome outcome = t->block->step->chosen ? GR_PS_TAKEN : GR_PS_REPEATED;
        step_spend(store, t->block, &t->block->step, gr_ps_serial(t->block), outcome);
    }
    return GR_OK;
}

static gr_status push_step(gr_ps_store *store, const push_target *t, const gr_ps_push *push,
                           const gr_ps_data *data)
{
    gr_ps_ticket *ticket = gr_ps_ticket_take(store);
    if (ticket == NULL) {
        return GR_E_NO_MEMORY;
    }
    bool backup = t->held->tensor.spec.consistency == GR_BSP_BACKUP;
    ticket->client = push->client;
    ticket->token = push->token;
    ticket->first = backup ? push->client : push->first;
    ticket->count = backup ? 1 : push->shards;
    ticket->data = *data;
    ticket->rate = push->rate;
    ticket->factor = push->factor;
    ticket->out = push->out;
    gr_ps_ticket **link = step_add(t->block, ticket);
    gr_status status = step_make(store, t, push->client);
    if (status != GR_OK) {
        *link = ticket->next;
        t->block->step_count--;
        gr_ps_ticket_drop(store, ticket);
    }
    return status;
}

/* Its step has been made. */
static gr_status push_behind(gr_ps_store *store, const push_target *t, const gr_ps_push *push)
{
    gr_ps_outcome outcome = GR_PS_REPEATED;
    if (t->held->tensor.spec.consistency == GR_BSP_BACKUP &&
        gr_ps_seen_find(t->block, push->client, push->step) != GR_PS_KNOWN) {
        outcome = GR_PS_LATE;
    }
    gr_status status =
        gr_ps_answer_safe(store, t->block, push->client, push->token, outcome, push->step + 2);
    if (status == GR_OK && outcome == GR_PS_LATE) {
        store->stats.late[push->client]++;
        store->stats.pushes_late++;
    }
    return status;
}

/* ---- One by one ------------------------------------------------------------------------------ */
static gr_status push_now(gr_ps_store *store, const push_target *t, const gr_ps_push *push,
                          const gr_ps_data *data)
{
    gr_ps_block *block = t->block;
    gr_ps_known known = gr_ps_seen_find(block, push->client, push->sequence);
    if (known == GR_PS_FORGOTTEN) {
        char who[GR_PS_PEER_NAME_BYTES];
        return gr_fail(&store->diag, GR_E_INVALID,
                       "%s pushes number %" PRIu64 " to tensor \"%s\", more than %d below "
                       "its newest one",
                       gr_ps_peer_name(push->client, who), push->sequence,
                       t->held->tensor.spec.name, GR_PS_SEQUENCES_KEPT);
    }
    if (known == GR_PS_KNOWN) {
        /* When exactly it was taken is not kept: all that is here is safe is enough. */
        return gr_ps_answer_safe(store, block, push->client, push->token, GR_PS_REPEATED,
                                 gr_ps_serial(block));
    }
    /* The answer may have to wait. Its ticket comes first: an update cannot be taken back. */
    gr_ps_ticket *ticket = gr_ps_ticket_take(store);
    if (ticket == NULL || !gr_ps_parts_reserve(store, 1)) {
        goto undo;
    }
    /* A replica that was promoted may be behind what its clients have seen. */
    uint64_t staleness = block->version > push->step ? block->version - push->step : 0;
    bool adapts = t->held->tensor.spec.adapt_rate;
    store->parts[0] = (gr_ps_part){
        .count = 1, .values = data->values, .rows = data->rows, .row_count = data->row_count};
    ticket->data.values = data->values;
    /* In ssp a pull may have to wait for others. */
    ticket->out = t->held->tensor.spec.consistency == GR_ASYNC ? push->out : NULL;
    const gr_ps_change change = {.shards = 1,
                                 .part_count = 1,
                                 .rate =
                                     adapts ? push->rate / (1.0 + (double)staleness) : push->rate,
                                 .factor = push->factor,
                                 .tickets = ticket,
                                 .clients = &push->client,
                                 .client_count = 1,
                                 .sequence = push->sequence};
    if (gr_ps_change_make(store, t->held, block, &change) != GR_OK) {
        goto undo;
    }
    store->stats
        .staleness[staleness < GR_PS_STALENESS_BINS ? staleness : GR_PS_STALENESS_BINS - 1]++;
    ticket->client = push->client;
    ticket->token = push->token;
    ticket->outcome = GR_PS_TAKEN;
    ticket->serial = gr_ps_serial(block);
    ticket->next = block->answers;
    block->answers = ticket;
    return GR_OK;

undo:
    if (ticket != NULL) {
        gr_ps_ticket_drop(store, ticket);
    }
    return GR_E_NO_MEMORY;
}

void gr_ps_store_push(gr_ps_store *store, const gr_ps_push *push, const gr_ps_data *data)
{
    push_target t;
    gr_status status = find_led(store, push->client, push->key, push->block, &t);
    if (status == GR_OK) {
        status = check_data(store, &t, push->client, data, push->count);
    }
    if (status == GR_OK && !t.block->ready) {
        char who[GR_PS_PEER_NAME_BYTES];
        status = gr_fail(&store->diag, GR_E_INVALID,
                         "%s pushes to block %u of tensor \"%s\", which has no initial "
                         "values yet",
                         gr_ps_peer_name(push->client, who), push->block, t.held->tensor.spec.name);
    }
    bool keeps = false; /* the step does, and releases the lease */
    if (status == GR_OK && gr_ps_by_steps(t.held)) {
        status = check_step(store, &t, push);
        if (status == GR_OK && push->step < t.block->version) {
            status = push_behind(store, &t, push);
        } else if (status == GR_OK) {
            status = push_step(store, &t, push, data);
            keeps = status == GR_OK;
        }
    } else if (status == GR_OK) {
        status = push_now(store, &t, push, data);
    }
    if (!keeps) {
        store->config.ops.release(store->config.ops_arg, data->lease);
    }
    if (status == GR_E_NO_MEMORY) {
        status = no_memory(store, &t);
    }
    if (status != GR_OK) {
        gr_ps_answer_pushed(store, t.block, push->client, push->token, status, GR_PS_TAKEN);
        return;
    }
    gr_ps_settle(store, t.held, t.block);
}

/* ---- Pulls and clocks ------------------------------------------------------------------------ */

static gr_status check_state(gr_ps_store *store, const gr_ps_held *held, const gr_ps_pull *pull)
{
    int states = held->states;
    if (pull->whole ? pull->state == states : pull->state >= 0 && pull->state <= states) {
        return GR_OK;
    }
    return gr_fail(&store->diag, GR_E_INVALID,
                   "tensor \"%s\" has %d vectors of its optimizer's state, and %s %d",
                   held->tensor.spec.name, states, pull->whole ? "not" : "no number",
                   pull->whole ? pull->state : pull->state - 1);
}

void gr_ps_store_pull(gr_ps_store *store, const gr_ps_pull *pull)
{
    push_target t;
    gr_status status = find_led(store, pull->client, pull->key, pull->block, &t);
    gr_ps_ticket *ticket = NULL;
    if (status == GR_OK && pull->rows != (t.block->rows != NULL)) {
        status = gr_fail(&store->diag, GR_E_INVALID,
                         pull->rows ? "tensor \"%s\" is no table: pull all of it"
                                    : "tensor \"%s\" is a table: pull rows of it",
                         t.held->tensor.spec.name);
    }
    if (status == GR_OK) {
        status = check_state(store, t.held, pull);
    }
    if (status == GR_OK) {
        ticket = gr_ps_ticket_take(store);
        if (ticket == NULL) {
            status = gr_fail(&store->diag, GR_E_NO_MEMORY,
                             "no memory to remember a pull of block %u of tensor \"%s\"",
                             pull->block, t.held->tensor.spec.name);
        }
    }
    if (status != GR_OK) {
        gr_ps_answer_pulled(store, t.block, NULL, pull->client, pull->token, status);
        return;
    }
    ticket->client = pull->client;
    ticket->token = pull->token;
    ticket->state = pull->state;
    ticket->whole = pull->whole;
    ticket->version = pull->version;
    ticket->clock = pull->clock;
    ticket->next = t.block->pulls;
    t.block->pulls = ticket;
    if (t.held->tensor.spec.consistency == GR_SSP) {
        store->ssp_pulls++;
        if (!pull->reads) {
            gr_ps_store_clock(store, pull->client, pull->clock);
        }
    }
    gr_ps_settle(store, t.held, t.block);
}

void gr_ps_store_give_back(gr_ps_store *store, gr_ps_loan *loan)
{
    gr_ps_loan_drop(store, loan);
}

bool gr_ps_store_slowest(const gr_ps_store *store, uint64_t *clock_out, int *client_out)
{
    int slowest = -1;
    for (int client = 0; client < GR_PS_PEERS_MAX; client++) {
        if (store->working[client] &&
            (slowest < 0 || store->clock[client] < store->clock[slowest])) {
            slowest = client;
        }
    }
    if (slowest >= 0) {
        *clock_out = store->clock[slowest];
        *client_out = slowest;
    }
    return slowest >= 0;
}

/* After a clock has changed: those who waited for the slowest. */
static void clocks_settle(gr_ps_store *store)
{
    uint64_t slowest = UINT64_MAX;
    int client;
    (void)gr_ps_store_slowest(store, &slowest, &client);
    bool later = slowest > store->slowest;
    store->slowest = slowest;
    if (!later || store->ssp_pulls == 0) {
        return;
    }
    for (size_t i = 0; i < store->held_count; i++) {
        gr_ps_held *held = store->held[i];
        for (uint32_t b = 0; held->tensor.spec.consistency == GR_SSP && b < held->tensor.cut.blocks;
             b++) {
            if (held->blocks[b] != NULL && held->blocks[b]->pulls != NULL) {
                gr_ps_settle(store, held, held->blocks[b]);
            }
        }
    }
}

void gr_ps_store_clock(gr_ps_store *store, int client, uint64_t clock)
{
    GR_CHECK(client >= 0 && client < GR_PS_PEERS_MAX);
    if (store->working[client] && store->clock[client] >= clock) {
        return;
    }
    store->working[client] = true;
    store->clock[client] = clock;
    clocks_settle(store);
}

void gr_ps_store_forget(gr_ps_store *store, int client)
{
    GR_CHECK(client >= 0 && client < GR_PS_PEERS_MAX);
    for (size_t i = 0; i < store->held_count; i++) {
        gr_ps_held *held = store->held[i];
        for (uint32_t b = 0; b < held->tensor.cut.blocks; b++) {
            if (held->blocks[b] != NULL) {
                gr_ps_forget(store, held, held->blocks[b], client);
            }
        }
    }
}

void gr_ps_store_gone(gr_ps_store *store, int client)
{
    gr_ps_store_forget(store, client);
    if (store->working[client]) {
        store->working[client] = false;
        clocks_settle(store);
    }
}
