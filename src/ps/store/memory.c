/* SPDX-License-Identifier: Apache-2.0 */
#include "ps/store/store_internal.h"

#include <stdlib.h>
#include <string.h>

enum { ALIGN = 64 };

static void *take_once(gr_ps_store *store, size_t size_bytes, bool shared)
{
    uint64_t most = store->config.bytes_max;
    if (most > 0 && (store->stats.bytes > most || size_bytes > most - store->stats.bytes)) {
        return NULL;
    }
    void *memory;
    if (shared && store->config.ops.alloc != NULL) {
        memory = store->config.ops.alloc(store->config.ops_arg, size_bytes);
    } else if (shared || size_bytes >= (size_t)GR_PS_PIECE) {
        memory = aligned_alloc(ALIGN, (size_bytes + ALIGN - 1) / ALIGN * ALIGN);
        if (memory != NULL) {
            memset(memory, 0, size_bytes);
        }
    } else {
        memory = calloc(1, size_bytes);
    }
    if (memory != NULL) {
        store->stats.bytes += size_bytes;
    }
    return memory;
}

void *gr_ps_take(gr_ps_store *store, size_t size_bytes, bool shared)
{
    void *memory = take_once(store, size_bytes, shared);
    if (memory == NULL) {
        for (size_t i = 0; i < store->held_count; i++) {
            gr_ps_spares_trim(store, store->held[i], true);
        }
        memory = take_once(store, size_bytes, shared);
    }
    return memory;
}

void gr_ps_drop(gr_ps_store *store, void *memory, size_t size_bytes, bool shared)
{
    if (memory == NULL) {
        return;
    }
    store->stats.bytes -= size_bytes;
    if (shared && store->config.ops.alloc != NULL) {
        store->config.ops.free(store->config.ops_arg, memory);
    } else {
        free(memory);
    }
}

void *gr_ps_grow(gr_ps_store *store, void *array, size_t element_bytes, size_t used,
                 size_t *capacity, size_t wanted)
{
    if (wanted <= *capacity) {
        return array;
    }
    size_t more = *capacity * 2 > wanted ? *capacity * 2 : wanted;
    void *larger = gr_ps_take(store, more * element_bytes, false);
    if (larger == NULL) {
        return NULL;
    }
    if (used > 0) {
        memcpy(larger, array, used * element_bytes);
    }
    gr_ps_drop(store, array, *capacity * element_bytes, false);
    *capacity = more;
    return larger;
}

gr_ps_ticket *gr_ps_ticket_take(gr_ps_store *store)
{
    gr_ps_ticket *ticket = store->free_tickets;
    if (store->stats.waiting >= GR_PS_WAITING_MAX) {
        return NULL;
    }
    if (ticket != NULL) {
        store->free_tickets = ticket->next;
        memset(ticket, 0, sizeof *ticket);
    } else {
        ticket = gr_ps_take(store, sizeof *ticket, false);
    }
    store->stats.waiting += ticket != NULL;
    return ticket;
}

void gr_ps_ticket_drop(gr_ps_store *store, gr_ps_ticket *ticket)
{
    ticket->next = store->free_tickets;
    store->free_tickets = ticket;
    store->stats.waiting--;
}

gr_ps_unsafe *gr_ps_unsafe_take(gr_ps_store *store)
{
    gr_ps_unsafe *unsafe = store->free_unsafe;
    if (unsafe == NULL) {
        return gr_ps_take(store, sizeof *unsafe, false);
    }
    store->free_unsafe = unsafe->next;
    memset(unsafe, 0, sizeof *unsafe);
    return unsafe;
}

void gr_ps_unsafe_drop(gr_ps_store *store, gr_ps_unsafe *unsafe)
{
    if (unsafe->values != NULL) {
        gr_ps_loan_drop(store, unsafe->values);
    }
    unsafe->next = store->free_unsafe;
    store->free_unsafe = unsafe;
}

gr_ps_loan *gr_ps_loan_take(gr_ps_store *store, gr_ps_held *held)
{
    gr_ps_loan *loan = held->spares;
    if (loan != NULL) {
        held->spares = loan->next_spare;
        held->spare_count--;
        loan->users = 1;
        return loan;
    }
    return gr_ps_loan_make(store, held, 1);
}

static size_t loan_bytes(const gr_ps_held *held, int vectors)
{
    return (size_t)vectors * held->buffer * sizeof(float);
}

gr_ps_loan *gr_ps_loan_make(gr_ps_store *store, gr_ps_held *held, int vectors)
{
    gr_ps_loan *loan = gr_ps_take(store, sizeof *loan, false);
    if (loan == NULL) {
        return NULL;
    }
    loan->values = gr_ps_take(store, loan_bytes(held, vectors), true);
    if (loan->values == NULL) {
        gr_ps_drop(store, loan, sizeof *loan, false);
        return NULL;
    }
    loan->vectors = vectors;
    loan->users = 1;
    loan->held = held;
    loan->next = store->loans;
    if (loan->next != NULL) {
        loan->next->previous = loan;
    }
    store->loans = loan;
    return loan;
}

static void loan_free(gr_ps_store *store, gr_ps_loan *loan)
{
    if (loan->previous != NULL) {
        loan->previous->next = loan->next;
    } else {
        store->loans = loan->next;
    }
    if (loan->next != NULL) {
        loan->next->previous = loan->previous;
    }
    gr_ps_drop(store, loan->values, loan_bytes(loan->held, loan->vectors), true);
    gr_ps_drop(store, loan, sizeof *loan, false);
}

/* The next update will need it again: a step makes no allocation. For each block one is on loan at
 * most when all goes well, and one is on the way to the replica. */
static uint32_t spares_max(const gr_ps_held *held)
{
    return 2 * (held->led + held->followed);
}

void gr_ps_loan_drop(gr_ps_store *store, gr_ps_loan *loan)
{
    gr_ps_held *held = loan->held;
    if (--loan->users > 0) {
        return;
    }
    if (loan->vectors == 1 && held->spare_count < spares_max(held)) {
        loan->next_spare = held->spares;
        held->spares = loan;
        held->spare_count++;
    } else {
        loan_free(store, loan);
    }
}

void gr_ps_spares_trim(gr_ps_store *store, gr_ps_held *held, bool all)
{
    while (held->spare_count > (all ? 0 : spares_max(held))) {
        gr_ps_loan *loan = held->spares;
        held->spares = loan->next_spare;
        held->spare_count--;
        loan_free(store, loan);
    }
}

void gr_ps_memory_fini(gr_ps_store *store)
{
    while (store->loans != NULL) {
        loan_free(store, store->loans);
    }
    while (store->free_tickets != NULL) {
        gr_ps_ticket *ticket = store->free_tickets;
        store->free_tickets = ticket->next;
        gr_ps_drop(store, ticket, sizeof *ticket, false);
    }
    while (store->free_unsafe != NULL) {
        gr_ps_unsafe *unsafe = store->free_unsafe;
        store->free_unsafe = unsafe->next;
        gr_ps_drop(store, unsafe, sizeof *unsafe, false);
    }
    gr_ps_drop(store, store->parts, store->part_capacity * sizeof *store->parts, false);
    gr_ps_drop(store, store->scratch, (size_t)store->scratch_pieces * GR_PS_PIECE * sizeof(float),
               false);
}
