/* SPDX-License-Identifier: Apache-2.0 */
#include "ps/store/store_internal.h"

#include <inttypes.h>
#include <string.h>

static void answer_pushed(gr_ps_store *store, const gr_ps_pushed *answer)
{
    bool taken = answer->status == GR_OK;
    store->stats.pushes_taken += taken && answer->outcome == GR_PS_TAKEN;
    store->stats.pushes_repeated += taken && answer->outcome == GR_PS_REPEATED;
    store->stats.pushes_refused += !taken;
    store->stats.pulls += answer->put;
    store->config.ops.pushed(store->config.ops_arg, answer);
}

void gr_ps_answer_pushed(gr_ps_store *store, const gr_ps_block *block, int client, uint64_t token,
                         gr_status status, gr_ps_outcome outcome)
{
    const gr_ps_pushed answer = {.client = client,
                                 .token = token,
                                 .status = status,
                                 .outcome = outcome,
                                 .version = block != NULL ? block->version : 0,
                                 .diag = status != GR_OK ? &store->diag : NULL};
    answer_pushed(store, &answer);
}

void gr_ps_answer_pulled(gr_ps_store *store, const gr_ps_block *block, gr_ps_loan *loan, int client,
                         uint64_t token, gr_status status)
{
    gr_ps_pulled answer = {.client = client, .token = token, .status = status};
    if (status == GR_OK) {
        store->stats.pulls++;
        answer.version = block->version;
        answer.values = loan != NULL ? loan->values : NULL;
        answer.count = block->count * (loan != NULL ? (uint32_t)loan->vectors : 1);
        answer.loan = loan;
    } else {
        answer.diag = &store->diag;
    }
    store->config.ops.pulled(store->config.ops_arg, &answer);
}

gr_status gr_ps_answer_safe(gr_ps_store *store, gr_ps_block *block, int client, uint64_t token,
                            gr_ps_outcome outcome, uint64_t serial)
{
    if (block->safe >= serial) {
        gr_ps_answer_pushed(store, block, client, token, GR_OK, outcome);
        return GR_OK;
    }
    gr_ps_ticket *ticket = gr_ps_ticket_take(store);
    if (ticket == NULL) {
        return GR_E_NO_MEMORY;
    }
    ticket->client = client;
    ticket->token = token;
    ticket->outcome = outcome;
    ticket->serial = serial;
    ticket->next = block->answers;
    block->answers = ticket;
    return GR_OK;
}

/* By steps nobody sees values that may be lost with this server: a worker that has gone on from
 * them would be ahead of the replica. Otherwise others' updates may come all the time, and waiting
 * for a moment at which all are safe might have no end. */
static bool may_be_pulled(const gr_ps_store *store, const gr_ps_held *held,
                          const gr_ps_block *block, const gr_ps_ticket *pull)
{
    if (!block->ready || pull->version > block->version || pull->version + 1 > block->safe ||
        (gr_ps_by_steps(held) && block->safe < gr_ps_serial(block))) {
        return false;
    }
    uint64_t ahead = (uint64_t)held->tensor.spec.staleness;
    return held->tensor.spec.consistency != GR_SSP || pull->whole || pull->clock <= ahead ||
           pull->clock - ahead <= store->slowest;
}

/* States change where they lie, so they are copied; with `whole` the values before them as well. */
static gr_status copy_states(gr_ps_store *store, gr_ps_held *held, const gr_ps_block *block,
                             const gr_ps_ticket *pull, gr_ps_loan **loan_out)
{
    size_t bytes = block->count * sizeof(float);
    gr_ps_loan *copy =
        pull->whole ? gr_ps_loan_make(store, held, 1 + held->states) : gr_ps_loan_take(store, held);
    if (copy == NULL) {
        return gr_fail(&store->diag, GR_E_NO_MEMORY,
                       "no memory to copy states of block %u of tensor \"%s\"; pull them again",
                       block->number, held->tensor.spec.name);
    }
    float *to = copy->values;
    if (pull->whole) {
        memcpy(to, block->values->values, bytes);
        to += block->count;
    }
    for (int i = pull->whole ? 0 : pull->state - 1; i < pull->state; i++, to += block->count) {
        memcpy(to, block->states + (size_t)i * held->buffer, bytes);
    }
    *loan_out = copy;
    return GR_OK;
}

/* What a pull that is due gets. */
static gr_status lend(gr_ps_store *store, gr_ps_held *held, gr_ps_block *block,
                      const gr_ps_ticket *pull, gr_ps_loan **loan_out)
{
    if (block->rows != NULL) {
        *loan_out = NULL; /* they are read in the callback */
        return GR_OK;
    }
    if (pull->state == 0 && !pull->whole) {
        block->values->users++;
        *loan_out = block->values;
        return GR_OK;
    }
    if (!pull->whole && pull->version > 0 && block->version > pull->version) {
        return gr_fail(&store->diag, GR_E_INVALID,
                       "block %u of tensor \"%s\" is at version %" PRIu64 ": the optimizer's "
                       "states of version %" PRIu64 " are gone; pull them before the next push",
                       block->number, held->tensor.spec.name, block->version, pull->version);
    }
    return copy_states(store, held, block, pull, loan_out);
}

static void pull_end(gr_ps_store *store, const gr_ps_held *held, gr_ps_ticket **link)
{
    gr_ps_ticket *pull = *link;
    *link = pull->next;
    store->ssp_pulls -= held->tensor.spec.consistency == GR_SSP;
    gr_ps_ticket_drop(store, pull);
}

void gr_ps_settle(gr_ps_store *store, gr_ps_held *held, gr_ps_block *block)
{
    for (gr_ps_ticket **link = &block->answers; *link != NULL;) {
        gr_ps_ticket *answer = *link;
        if (answer->serial > block->safe) {
            link = &answer->next;
            continue;
        }
        *link = answer->next;
        answer_pushed(
            store, &(gr_ps_pushed){.client = answer->client,
                                   .token = answer->token,
                                   .status = GR_OK,
                                   .outcome = answer->outcome,
                                   .put = answer->put,
                                   .version = answer->put ? answer->serial - 1 : block->version});
        gr_ps_ticket_drop(store, answer);
    }
    for (gr_ps_ticket **link = &block->pulls; *link != NULL;) {
        if (!may_be_pulled(store, held, block, *link)) {
            link = &(*link)->next;
            continue;
        }
        gr_ps_loan *loan = NULL;
        gr_status status = lend(store, held, block, *link, &loan);
        gr_ps_answer_pulled(store, block, loan, (*link)->client, (*link)->token, status);
        pull_end(store, held, link);
    }
}

/* Takes a push of the running step off, and releases its lease. */
static void end_step(gr_ps_store *store, gr_ps_block *block, gr_ps_ticket **link)
{
    gr_ps_ticket *push = *link;
    *link = push->next;
    block->step_count--;
    store->config.ops.release(store->config.ops_arg, push->data.lease);
    gr_ps_ticket_drop(store, push);
}

void gr_ps_dismiss(gr_ps_store *store, gr_ps_held *held, gr_ps_block *block)
{
    (void)gr_fail(&store->diag, GR_E_AGAIN,
                  "block %u of tensor \"%s\" is led by another server now: ask that one",
                  block->number, held->tensor.spec.name);
    while (block->step != NULL) {
        if (!block->step->silent) {
            gr_ps_answer_pushed(store, block, block->step->client, block->step->token, GR_E_AGAIN,
                                GR_PS_TAKEN);
        }
        end_step(store, block, &block->step);
    }
    while (block->answers != NULL) {
        gr_ps_ticket *answer = block->answers;
        block->answers = answer->next;
        gr_ps_answer_pushed(store, block, answer->client, answer->token, GR_E_AGAIN, GR_PS_TAKEN);
        gr_ps_ticket_drop(store, answer);
    }
    while (block->pulls != NULL) {
        gr_ps_answer_pulled(store, block, NULL, block->pulls->client, block->pulls->token,
                            GR_E_AGAIN);
        pull_end(store, held, &block->pulls);
    }
}

static bool is_of(const gr_ps_ticket *ticket, int client)
{
    return client == GR_PS_EVERYBODY || ticket->client == client;
}

void gr_ps_forget(gr_ps_store *store, gr_ps_held *held, gr_ps_block *block, int client)
{
    for (gr_ps_ticket **link = &block->step; *link != NULL;) {
        gr_ps_ticket *push = *link;
        if (is_of(push, client) && (!push->data.lasting || client == GR_PS_EVERYBODY)) {
            end_step(store, block, link);
            continue;
        }
        push->silent |= is_of(push, client);
        link = &push->next;
    }
    for (gr_ps_ticket **link = &block->answers; *link != NULL;) {
        gr_ps_ticket *answer = *link;
        if (is_of(answer, client)) {
            *link = answer->next;
            gr_ps_ticket_drop(store, answer);
            continue;
        }
        link = &answer->next;
    }
    for (gr_ps_ticket **link = &block->pulls; *link != NULL;) {
        if (is_of(*link, client)) {
            pull_end(store, held, link);
            continue;
        }
        link = &(*link)->next;
    }
}
