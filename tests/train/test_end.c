/* SPDX-License-Identifier: Apache-2.0 */
/* A worker that dies when all steps are done, and the end's record is written: the others come
 * together once more, and end the job without a second record. */
#include "support_train.h"

#include "base/file.h"
#include "train/metrics.h"

#include <errno.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cmocka.h>

enum { WORKERS = 3, DYING = 1 };

static _Atomic int *written; /* records, by all workers */
static int told[2];          /* a pipe: a byte for each */
static int my_rank;

gr_status __real_gr_barrier(gr_comm *comm);
gr_status __wrap_gr_barrier(gr_comm *comm);
gr_status __real_gr_end_write(const gr_end_record *record, FILE *file, const char *where,
                              gr_diag *diag);
gr_status __wrap_gr_end_write(const gr_end_record *record, FILE *file, const char *where,
                              gr_diag *diag);

/* Workers meet only here when all steps are done. */
gr_status __wrap_gr_barrier(gr_comm *comm)
{
    char byte;
    if (my_rank == DYING && read(told[0], &byte, 1) == 1) {
        raise(SIGKILL);
    }
    return __real_gr_barrier(comm);
}

gr_status __wrap_gr_end_write(const gr_end_record *record, FILE *file, const char *where,
                              gr_diag *diag)
{
    gr_status status = __real_gr_end_write(record, file, where, diag);
    atomic_fetch_add(written, 1);
    return write(told[1], "", 1) == 1 ? status : gr_fail_errno(diag, "write", "the pipe", errno);
}

static int run_worker(int rank, gr_comm *comm, void *folder)
{
    my_rank = rank;
    return support_train_member(rank, comm, folder);
}

static void the_end_is_told_once_though_a_worker_dies_behind_it(void **state)
{
    (void)state;
    support_job job = {.shards = 6, .steps = 3, .global_batch = 48};
    char folder[SUPPORT_PATH_BYTES], sha[SUPPORT_SHA_BYTES], undisturbed[SUPPORT_SHA_BYTES];
    int codes[WORKERS] = {0};
    written =
        mmap(NULL, sizeof *written, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_true(written != MAP_FAILED);
    assert_int_equal(pipe(told), 0);
    setenv("GRADUS_MIN_WORKERS", "2", 1);
    support_folder(folder);
    support_write(folder, &job);
    support_group(WORKERS, "shm", run_worker, folder, codes);
    assert_int_equal(codes[DYING], 128 + SIGKILL);
    assert_int_equal(codes[0], 0);
    assert_int_equal(codes[2], 0);
    assert_int_equal(atomic_load(written), 1);
    support_end_sha(folder, sha);
    support_clean(folder);
    my_rank = 0;
    support_train_group(&job, 1, "shm", undisturbed);
    assert_string_equal(sha, undisturbed);
    close(told[0]);
    close(told[1]);
    munmap((void *)written, sizeof *written);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_end_is_told_once_though_a_worker_dies_behind_it),
    };
    (void)argc;
    support_one_thread(argv);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
