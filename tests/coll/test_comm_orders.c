/* SPDX-License-Identifier: Apache-2.0 */
/* Threads that start operations of two sub-groups in orders of their own: those have one order, and
 * say so. (Communicators that were created separately are independent: test_binding.c.) */
#include "support_ranks.h"
#include "support_threads.h"

#include <gradus/coll.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

/* Rank 0 starts in one sub-group first, rank 1 in the other; both threads of each wait. */
typedef struct waiter {
    gr_comm *own;
    gr_op *op;
    int32_t word;
    gr_status status;
} waiter;

static void *wait_for_own(void *arg)
{
    waiter *w = arg;
    if (w->op != NULL) {
        w->status = gr_wait(w->op);
    }
    return NULL;
}

/* The second start may fail already: where a thread moves operations, it may have seen by then what
 * the other rank has started. */
static int run_crossed(gr_comm *comm, void *arg)
{
    waiter waiters[2] = {{.word = 1}, {.word = 2}};
    pthread_t threads[2];
    pthread_barrier_t *both_know = arg;
    for (int i = 0; i < 2; i++) {
        EXPECT(gr_comm_split(comm, 0, 0, &waiters[i].own, NULL) == GR_OK);
    }
    for (int i = 0; i < 2; i++) {
        waiter *w = &waiters[(i + gr_comm_rank(comm)) % 2];
        w->status = gr_allreduce_start(w->own, &w->word, 1, GR_I32, GR_SUM, &w->op);
    }
    for (int i = 0; i < 2; i++) {
        EXPECT(pthread_create(&threads[i], NULL, wait_for_own, &waiters[i]) == 0);
    }
    for (int i = 0; i < 2; i++) {
        pthread_join(threads[i], NULL);
        EXPECT(waiters[i].status == GR_E_MISMATCH || waiters[i].status == GR_E_COMM_BROKEN);
    }
    const char *text = gr_comm_diag(comm)->text;
    EXPECT(gr_comm_diag(comm)->status == GR_E_MISMATCH);
    EXPECT(strstr(text, "different orders") && strstr(text, "gr_comm_create"));
    pthread_barrier_wait(both_know); /* before one leaves */
    for (int i = 0; i < 2; i++) {
        gr_comm_destroy(waiters[i].own);
    }
    gr_comm_destroy(comm);
    return 0;
}

static void subgroups_of_threads_in_different_orders_are_a_mismatch(void **state)
{
    (void)state;
    for (int progress = 1; progress <= 2; progress++) {
        pthread_barrier_t both_know;
        assert_int_equal(pthread_barrier_init(&both_know, NULL, 2), 0);
        assert_int_equal(threads_run(2, "tcp", progress, run_crossed, &both_know), 0);
        pthread_barrier_destroy(&both_know);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(subgroups_of_threads_in_different_orders_are_a_mismatch)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
