/* SPDX-License-Identifier: Apache-2.0 */

/* Jobs whose gradients meet on parameter servers: the weights of one worker with its own optimizer,
 * bit for bit, for any number of workers and servers. */

#include "support_ps.h"

#include <gradus/ps.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static const char momentum[] = "  kind: sgd\n  learning_rate: 0.1\n  momentum: 0.9\n"
                               "  weight_decay: 0.001\n  schedule: cosine\n";
static const char plain[] = "  kind: sgd\n  learning_rate: 0.1\n  momentum: 0\n";
static const char clipping[] = "  kind: sgd\n  learning_rate: 0.1\n  clip_norm: 0.5\n";
static const char adam[] = "  kind: adam\n  learning_rate: 0.002\n  warmup_epochs: 0.5\n";

static const support_job shape = {
    .model = support_cnn, .optimizer = momentum, .shards = 8, .steps = 12, .global_batch = 64};

/* With allreduce, in one worker: a group of one has none. */
static void without_servers(const support_job *job, char sha_out[SUPPORT_SHA_BYTES])
{
    support_train_group(job, 1, "shm", sha_out);
}

static void with_servers(const support_job *job, const char *distribution, int workers, int servers,
                         const char *link, const char *wanted)
{
    support_servers started;
    support_job on = *job;
    char sha[SUPPORT_SHA_BYTES];
    on.distribution = distribution;
    support_servers_start(&started, servers, link);
    support_train_group(&on, workers, link, sha);
    support_servers_stop(&started);
    if (strcmp(sha, wanted) != 0) {
        fail_msg("%d workers and %d servers over %s end with other weights than allreduce", workers,
                 servers, link);
    }
}

static void the_bits_are_those_of_allreduce(void **state)
{
    (void)state;
    static const char *const optimizers[] = {momentum, plain, adam};
    static const char *const links[] = {"shm", "tcp"};
    for (int o = 0; o < 3; o++) {
        support_job job = shape;
        char wanted[SUPPORT_SHA_BYTES];
        job.optimizer = optimizers[o];
        without_servers(&job, wanted);
        for (int workers = 1; workers <= 4; workers++) {
            for (int servers = 1; servers <= 3; servers++) {
                /* All of them with one optimizer, and each link and number with the others. */
                for (int l = 0; l < 2; l++) {
                    if (o == 0 || (workers + servers + l) % 3 == o % 3) {
                        with_servers(&job, "  strategy: ps\n", workers, servers, links[l], wanted);
                    }
                }
            }
        }
    }
}

/* Several sums a worker, micro batches, no overlap. */
static void any_cut_has_these_bits(void **state)
{
    (void)state;
    support_job job = shape;
    char wanted[SUPPORT_SHA_BYTES];
    job.shards = 32;
    job.micro_batches = 2;
    without_servers(&job, wanted);
    with_servers(&job, "  strategy: ps\n", 3, 2, "shm", wanted);
    with_servers(&job, "  strategy: ps\n  overlap: false\n", 3, 2, "tcp", wanted);
}

/* Whatever is rounded: each shard, and each sum, on workers and on servers. */
static void sixteen_bits_have_those_of_compressed_allreduce(void **state)
{
    (void)state;
    static const char *const types[] = {"f16", "bf16"};
    support_job job = shape;
    char full[SUPPORT_SHA_BYTES], wanted[SUPPORT_SHA_BYTES], distribution[64];
    without_servers(&job, full);
    for (int i = 0; i < 2; i++) {
        snprintf(distribution, sizeof distribution, "  compression: %s\n", types[i]);
        job.distribution = distribution;
        without_servers(&job, wanted);
        assert_string_not_equal(wanted, full);
        char ps[96];
        snprintf(ps, sizeof ps, "  strategy: ps\n%s", distribution);
        with_servers(&job, ps, 1, 2, "shm", wanted);
        with_servers(&job, ps, 3, 1 + i, "shm", wanted);
        with_servers(&job, ps, 2, 3, "tcp", wanted);
    }
}

/* In the buckets of allreduce, over links that leave out zeros and where servers read gradients in
 * place; each shard keeps what it has left out. */
static void sparse_gradients_have_those_of_allreduce(void **state)
{
    (void)state;
    static const char *const ways[] = {
        "  compression: topk\n  compression_ratio: 0.05\n  bucket_bytes_first: 1 KiB\n"
        "  bucket_bytes: 4 KiB\n",
        "  compression: sparse\n"};
    support_job job = shape;
    char full[SUPPORT_SHA_BYTES], wanted[SUPPORT_SHA_BYTES], ps[256];
    without_servers(&job, full);
    for (int i = 0; i < 2; i++) {
        job.distribution = ways[i];
        without_servers(&job, wanted);
        assert_true((strcmp(wanted, full) == 0) == (i == 1));
        snprintf(ps, sizeof ps, "  strategy: ps\n%s", ways[i]);
        with_servers(&job, ps, 1 + i, 2, "shm", wanted);
        with_servers(&job, ps, 3, 1 + i, "tcp", wanted);
        with_servers(&job, ps, 4, 3, i == 0 ? "shm" : "tcp", wanted);
    }
}

/* Whose norm is that of the whole sum. */
static void clipped_gradients_have_those_of_allreduce(void **state)
{
    (void)state;
    static const char *const clipped[] = {
        "  kind: sgd\n  learning_rate: 0.1\n  momentum: 0.9\n  clip_norm: 0.3\n",
        "  kind: adamw\n  learning_rate: 0.002\n  weight_decay: 0.1\n  clip_norm: 0.3\n"};
    support_job job = shape;
    char full[SUPPORT_SHA_BYTES], wanted[SUPPORT_SHA_BYTES];
    job.optimizer = "  kind: sgd\n  learning_rate: 0.1\n  momentum: 0.9\n";
    without_servers(&job, full);
    for (int i = 0; i < 2; i++) {
        job.optimizer = clipped[i];
        job.distribution = "";
        without_servers(&job, wanted);
        assert_string_not_equal(wanted, full);
        with_servers(&job, "  strategy: ps\n", 1 + i, 2, "shm", wanted);
        with_servers(&job, "  strategy: ps\n", 3, 1 + 2 * i, "tcp", wanted);
    }
    job.distribution = "  compression: f16\n";
    without_servers(&job, wanted);
    with_servers(&job, "  strategy: ps\n  compression: f16\n", 3, 2, "shm", wanted);
}

/* Who does what is a matter of time, but all end with the same weights. */
static void each_goes_its_own_way(void **state)
{
    (void)state;
    static const char *const ways[] = {
        "  strategy: ps\n  consistency: async\n",
        "  strategy: ps\n  consistency: ssp\n  staleness: 0\n",
        "  strategy: ps\n  consistency: ssp\n  staleness: 2\n  compression: f16\n",
        "  strategy: ps\n  replicas_to_aggregate: 2\n",
        "  strategy: ps\n  consistency: async\n  compression: topk\n  compression_ratio: 0.1\n",
        "  strategy: ps\n  consistency: async\n  compression: sparse\n",
    };
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
        support_servers started;
        support_job job = shape;
        char sha[SUPPORT_SHA_BYTES];
        job.shards = 2;
        job.distribution = ways[i];
        job.optimizer = i % 2 == 0 ? momentum : clipping;
        support_servers_start(&started, 2, i % 2 == 0 ? "shm" : "tcp");
        support_train_group(&job, 3, i % 2 == 0 ? "shm" : "tcp", sha);
        support_servers_stop(&started);
    }
}

/* ---- A worker that comes to its first step when the others have done all --------------------- */

static const char *late_rank; /* NULL: none */

gr_status __real_gr_ps_pull_run(gr_ps *ps, int id, uint64_t version, float *values,
                                uint64_t *version_out);

/* The trainer's pulls (--wrap): those of the late rank wait for the end. */
gr_status __wrap_gr_ps_pull_run(gr_ps *ps, int id, uint64_t version, float *values,
                                uint64_t *version_out);
gr_status __wrap_gr_ps_pull_run(gr_ps *ps, int id, uint64_t version, float *values,
                                uint64_t *version_out)
{
    const char *rank = getenv("GRADUS_RANK");
    bool late = late_rank != NULL && rank != NULL && strcmp(rank, late_rank) == 0;
    return __real_gr_ps_pull_run(ps, id, late ? (uint64_t)shape.steps : version, values,
                                 version_out);
}

static void a_worker_that_comes_after_the_end_does_no_step(void **state)
{
    (void)state;
    support_servers started;
    support_job job = shape;
    char sha[SUPPORT_SHA_BYTES];
    job.shards = 2;
    job.distribution = "  strategy: ps\n  replicas_to_aggregate: 2\n";
    late_rank = "2";
    support_servers_start(&started, 2, "tcp");
    support_train_group(&job, 3, "tcp", sha);
    support_servers_stop(&started);
    late_rank = NULL;
}

int main(int argc, char **argv)
{
    (void)argc;
    support_one_thread(argv);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_bits_are_those_of_allreduce),
        cmocka_unit_test(any_cut_has_these_bits),
        cmocka_unit_test(each_goes_its_own_way),
        cmocka_unit_test(a_worker_that_comes_after_the_end_does_no_step),
        cmocka_unit_test(sixteen_bits_have_those_of_compressed_allreduce),
        cmocka_unit_test(clipped_gradients_have_those_of_allreduce),
        cmocka_unit_test(sparse_gradients_have_those_of_allreduce),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
