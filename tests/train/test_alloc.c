/* SPDX-License-Identifier: Apache-2.0 */

/* A training step makes no heap allocation after warm-up. This program's own malloc stands in front
 * of the C library's for everybody in the process and counts who calls it: Gradus, or a library.
 * Ours must be none. oneDNN makes small ones of its own inside each call of a primitive, which no
 * setting avoids; they must be the same in every step and all be given back. */

#include "sanitized.h"
#include "support_train.h"

#include "train/checkpoint/checkpoint_state.h"

#include <errno.h>
#include <malloc.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define COUNTING (!SANITIZED) /* the sanitizers have a malloc of their own */

static atomic_long allocations; /* by Gradus */
static atomic_long foreign;     /* by libraries */
static atomic_long freed;
static atomic_bool trap; /* for a debugger: break on trapped() */
static atomic_bool some; /* only threads that say so count */
static _Thread_local bool one_of_them;

#if COUNTING
#pragma GCC visibility push(default)
extern void *__libc_malloc(size_t size);
extern void *__libc_calloc(size_t count, size_t size);
extern void *__libc_realloc(void *memory, size_t size);
extern void *__libc_memalign(size_t align, size_t size);
extern void __libc_free(void *memory);
extern char __executable_start, etext;

__attribute__((noinline)) static void trapped(void)
{
    __asm__ volatile("");
}

static void counted(const void *caller)
{
    const char *at = caller;
    if (atomic_load(&some) && !one_of_them) {
        return;
    }
    if (at < &__executable_start || at >= &etext) {
        atomic_fetch_add(&foreign, 1);
        return;
    }
    atomic_fetch_add(&allocations, 1);
    if (atomic_load(&trap)) {
        trapped();
    }
}

__attribute__((noinline)) void *malloc(size_t size)
{
    counted(__builtin_return_address(0));
    return __libc_malloc(size);
}

void *calloc(size_t count, size_t size)
{
    counted(__builtin_return_address(0));
    return __libc_calloc(count, size);
}

void *realloc(void *memory, size_t size)
{
    counted(__builtin_return_address(0));
    return __libc_realloc(memory, size);
}

void *aligned_alloc(size_t align, size_t size)
{
    counted(__builtin_return_address(0));
    return __libc_memalign(align, size);
}

void *memalign(size_t align, size_t size)
{
    counted(__builtin_return_address(0));
    return __libc_memalign(align, size);
}

int posix_memalign(void **memory_out, size_t align, size_t size)
{
    counted(__builtin_return_address(0));
    *memory_out = __libc_memalign(align, size);
    return *memory_out != NULL ? 0 : ENOMEM;
}
void free(void *memory)
{
    if (memory != NULL && (!atomic_load(&some) || one_of_them)) {
        atomic_fetch_add(&freed, 1);
    }
    __libc_free(memory);
}
#pragma GCC visibility pop
#endif

enum { WARM_UP = 20, STEPS = 100 };

/* What Gradus allocates in STEPS steps after WARM_UP, and what it leaves behind or does differently
 * from step to step. */
static long count_steps(gr_job *job, gr_comm *comm, gr_saver *saver_of(gr_trainer *trainer))
{
    gr_trainer trainer;
    gr_diag diag = {0};
    gr_meter meter = {0};
    long before = 0, foreign_before = 0, freed_before = 0, odd = 0, usual = -1;
    if (support_trainer_init(&trainer, job, comm, &diag) != GR_OK) {
        return -1;
    }
    trainer.saver = saver_of != NULL ? saver_of(&trainer) : NULL;
    int saved = 0;
    for (uint64_t step = 0; step < WARM_UP + STEPS; step++) {
        if (step == WARM_UP) {
            /* So that one begins while it is counted, however slow the disk. */
            saved = 0;
            if (trainer.saver != NULL && gr_saver_wait(trainer.saver, &diag) != GR_OK) {
                return -1;
            }
            before = atomic_load(&allocations);
            freed_before = atomic_load(&freed);
            atomic_store(&trap, true);
        }
        foreign_before = atomic_load(&foreign);
        if (gr_trainer_step(&trainer, step, &meter, &diag) != GR_OK) {
            return -1;
        }
        if (trainer.saver != NULL && !gr_saver_busy(trainer.saver)) {
            gr_checkpoint_info info = {.step = step + 1, .steps_per_epoch = 1, .epoch = meter};
            gr_saver_begin(trainer.saver, &info, NULL, true);
            saved++;
        }
        if (step >= WARM_UP) {
            long made = atomic_load(&foreign) - foreign_before;
            usual = usual < 0 ? made : usual;
            odd += made != usual;
        }
    }
    atomic_store(&trap, false);
    long after = atomic_load(&allocations);
    odd += atomic_load(&freed) - freed_before != usual * STEPS;
    odd += trainer.saver != NULL && (saved < 1 || gr_saver_wait(trainer.saver, &diag) != GR_OK);
    gr_saver_destroy(trainer.saver);
    gr_trainer_fini(&trainer);
    return after - before + odd;
}

static const support_job shape = {.model = support_cnn,
                                  .shards = 4,
                                  .steps = WARM_UP + STEPS,
                                  .global_batch = 32,
                                  .micro_batches = 2,
                                  .distribution = "  bucket_bytes_first: 1024\n"};

static void the_count_counts(void **state)
{
    (void)state;
    long before = atomic_load(&allocations);
    void *volatile memory = malloc(10);
    free(memory);
    assert_int_equal(atomic_load(&allocations) - before, COUNTING);
}

/* Rounds of steps of which some are in the middle and some at the end. */
static const support_job local_shape = {.shards = 4,
                                        .steps = WARM_UP + STEPS,
                                        .global_batch = 32,
                                        .distribution = "  strategy: local\n  sync_every: 3\n"
                                                        "  outer: {}\n"};

static void one_worker(void **state)
{
    (void)state;
    char folder[SUPPORT_PATH_BYTES];
    gr_comm *comm = NULL;
    gr_diag diag = {0};
    support_folder(folder);
    gr_job *job = support_open(folder, &shape, 1);
    assert_int_equal(gr_comm_create(NULL, &comm, &diag), GR_OK);
    assert_int_equal(count_steps(job, comm, NULL), 0);
    gr_comm_destroy(comm);
    gr_job_close(job);
    support_clean(folder);
}

static gr_saver *make_saver(gr_trainer *trainer)
{
    gr_saver *saver = NULL;
    gr_diag diag = {0};
    const gr_checkpoint_writer writer = {.run = 1, .generation = 1};
    gr_checkpoint_tensors tensors = gr_state_tensors(trainer);
    if (gr_saver_create(trainer->job, &tensors, &writer, NULL, &saver, &diag) != GR_OK) {
        fail_msg("%s", diag.text);
    }
    return saver;
}

/* The thread that writes checkpoints may allocate, the training may not. */
static void with_checkpoints(void **state)
{
    (void)state;
    char folder[SUPPORT_PATH_BYTES];
    gr_comm *comm = NULL;
    gr_diag diag = {0};
    support_job saving = shape;
    saving.checkpoint = "{every: 10 steps}";
    support_folder(folder);
    gr_job *job = support_open(folder, &saving, 1);
    assert_int_equal(gr_comm_create(NULL, &comm, &diag), GR_OK);
    one_of_them = true;
    atomic_store(&some, true);
    assert_int_equal(count_steps(job, comm, make_saver), 0);
    atomic_store(&some, false);
    gr_comm_destroy(comm);
    gr_job_close(job);
    support_clean(folder);
}

static int count_member(int rank, gr_comm *comm, void *arg)
{
    char path[SUPPORT_PATH_BYTES + 16];
    gr_job_overrides overrides = {.run = {.workers = gr_comm_size(comm)}};
    gr_job *job = NULL;
    gr_diag diag = {0};
    (void)rank;
    snprintf(path, sizeof path, "%s/job.yaml", (const char *)arg);
    if (gr_job_open(path, &overrides, &job, &diag) != GR_OK) {
        return 99;
    }
    long count = count_steps(job, comm, NULL);
    gr_job_close(job);
    return count < 0 ? 98 : count > 90 ? 90 : (int)count;
}

static void count_in_three(const support_job *job, const char *link)
{
    char folder[SUPPORT_PATH_BYTES];
    int codes[3] = {-1, -1, -1};
    support_folder(folder);
    support_write(folder, job);
    support_group(3, link, count_member, folder, codes);
    for (int rank = 0; rank < 3; rank++) {
        if (codes[rank] != 0) {
            fail_msg("rank %d over %s: %d allocations in %d steps", rank, link, codes[rank], STEPS);
        }
    }
    support_clean(folder);
}

static void three_workers(void **state)
{
    (void)state;
    count_in_three(&shape, "shm");
    count_in_three(&shape, "tcp");
}

static void three_workers_with_local_steps(void **state)
{
    (void)state;
    count_in_three(&local_shape, "shm");
}

int main(int argc, char **argv)
{
    (void)argc;
    support_one_thread(argv);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_count_counts),
        cmocka_unit_test(one_worker),
        cmocka_unit_test(with_checkpoints),
        cmocka_unit_test(three_workers),
        cmocka_unit_test(three_workers_with_local_steps),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
