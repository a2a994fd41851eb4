/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GR_BASE_FAIR_LOCK_H
#define GR_BASE_FAIR_LOCK_H

/* A lock that threads take in the order in which they asked for it (a ticket lock), and the counter
 * on which threads sleep until something changes. A free lock costs one atomic addition. All zero
 * is a free lock. */

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

typedef struct gr_fair_lock {
    _Atomic uint32_t next;    /* the ticket that is given next */
    _Atomic uint32_t serving; /* the ticket that holds the lock */
} gr_fair_lock;

/* Takes the lock if the ticket is served at once: true. Else the caller has *ticket_out, and must
 * call gr_fair_lock_await. */
static inline bool gr_fair_lock_ask(gr_fair_lock *lock, uint32_t *ticket_out)
{
    *ticket_out = atomic_fetch_add(&lock->next, 1);
    return atomic_load(&lock->serving) == *ticket_out;
}
void gr_fair_lock_await(gr_fair_lock *lock, uint32_t ticket);

void gr_fair_lock_wake(gr_fair_lock *lock);
static inline void gr_fair_lock_give(gr_fair_lock *lock)
{
    uint32_t served = atomic_load_explicit(&lock->serving, memory_order_relaxed) + 1;
    atomic_store(&lock->serving, served);
    if (atomic_load(&lock->next) != served) {
        gr_fair_lock_wake(lock);
    }
}

/* Sleeps while *counter is `seen`, for at most `limit_us` (negative: without limit). May return
 * early. The second one wakes all that sleep on it. */
void gr_counter_sleep(_Atomic uint32_t *counter, uint32_t seen, int64_t limit_us);
void gr_counter_raise(_Atomic uint32_t *counter);

#endif
