/* SPDX-License-Identifier: Apache-2.0 */
/* A worker that dies while the ranks agree on where a NaN was seen first: the others have updated a
 * part of their weights by then, and do not repeat the step with these. */
#include "support_train.h"

#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { WORKERS = 3, DYING = 1 };

static int my_rank;

gr_status __real_gr_allreduce(gr_comm *comm, void *buffer, size_t count, gr_dtype dtype,
                              gr_redop op);
gr_status __wrap_gr_allreduce(gr_comm *comm, void *buffer, size_t count, gr_dtype dtype,
                              gr_redop op);

/* The agreement is the one minimum of a single number. */
gr_status __wrap_gr_allreduce(gr_comm *comm, void *buffer, size_t count, gr_dtype dtype,
                              gr_redop op)
{
    if (my_rank == DYING && count == 1 && dtype == GR_I64 && op == GR_MIN) {
        raise(SIGKILL);
    }
    return __real_gr_allreduce(comm, buffer, count, dtype, op);
}

static int run_worker(int rank, gr_comm *comm, void *folder)
{
    my_rank = rank;
    return support_train_member(rank, comm, folder);
}

static void not_finite_step_of_which_a_worker_dies_ends_the_job(void **state)
{
    (void)state;
    /* Without a relu that could die, the weights of two layers drive each other up. */
    const support_job job = {.model = "  - flatten\n  - linear: 32\n  - linear: 10\n",
                             .shards = 4,
                             .steps = 100,
                             .global_batch = 64,
                             .optimizer = "  kind: sgd\n  learning_rate: 1e6\n"};
    char folder[SUPPORT_PATH_BYTES], text[SUPPORT_SENTENCE_BYTES];
    int codes[WORKERS] = {0};
    setenv("GRADUS_MIN_WORKERS", "2", 1);
    support_folder(folder);
    support_write(folder, &job);
    support_group(WORKERS, "shm", run_worker, folder, codes);
    assert_int_equal(codes[DYING], 128 + SIGKILL);
    for (int rank = 0; rank < WORKERS; rank += 2) {
        assert_int_equal(codes[rank], 1);
        assert_int_equal(support_read_end(folder, rank, text), GR_E_NOT_FINITE);
        if (strstr(text, "and a rank was lost before it was known where first") == NULL) {
            fail_msg("rank %d: %s", rank, text);
        }
    }
    support_clean(folder);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(not_finite_step_of_which_a_worker_dies_ends_the_job),
    };
    (void)argc;
    support_one_thread(argv);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
