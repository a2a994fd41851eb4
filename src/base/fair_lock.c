/* SPDX-License-Identifier: Apache-2.0 */
#include "base/fair_lock.h"

#include <limits.h>
#include <linux/futex.h>
#include <stddef.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static void futex(_Atomic uint32_t *word, int operation, uint32_t value,
                  const struct timespec *limit)
{
    /* A wait that returns early is repeated by its caller. */
    (void)syscall(SYS_futex, word, operation | FUTEX_PRIVATE_FLAG, value, limit, NULL, 0);
}

void gr_fair_lock_await(gr_fair_lock *lock, uint32_t ticket)
{
    for (;;) {
        uint32_t serving = atomic_load(&lock->serving);
        if (serving == ticket) {
            return;
        }
        futex(&lock->serving, FUTEX_WAIT, serving, NULL);
    }
}

void gr_fair_lock_wake(gr_fair_lock *lock)
{
    futex(&lock->serving, FUTEX_WAKE, INT_MAX, NULL);
}

void gr_counter_sleep(_Atomic uint32_t *counter, uint32_t seen, int64_t limit_us)
{
    struct timespec limit = {.tv_sec = limit_us / 1000000,
                             .tv_nsec = (long)(limit_us % 1000000) * 1000};
    futex(counter, FUTEX_WAIT, seen, limit_us < 0 ? NULL : &limit);
}

void gr_counter_raise(_Atomic uint32_t *counter)
{
    atomic_fetch_add(counter, 1);
    futex(counter, FUTEX_WAKE, INT_MAX, NULL);
}
