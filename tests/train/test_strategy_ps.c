/* SPDX-License-Identifier: Apache-2.0 */

/* Jobs whose gradients meet on parameter servers: the weights of one worker with its own optimizer,
 * bit for bit, for any number of workers and servers. */

#include "support_ps.h"

#include <gradus/ps.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

enum { BEST = 1 }; /* the step after which a worker dies */

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
static int goes_on; /* the shards that a step has: servers do one more before a pull; 0: none */

gr_status __real_gr_ps_pull_run(gr_ps *ps, int id, uint64_t version, float *values,
                                uint64_t *version_out);

/* The trainer's pulls (--wrap): those of the late rank wait for the end. */
gr_status __wrap_gr_ps_pull_run(gr_ps *ps, int id, uint64_t version, float *values,
                                uint64_t *version_out);
gr_status __wrap_gr_ps_pull_run(gr_ps *ps, int id, uint64_t version, float *values,
                                uint64_t *version_out)
{
    static const float zeros[1 << 16];
    const gr_ps_gradient push = {.values = zeros, .step = BEST, .count = goes_on, .rate = 0.1};
    if (goes_on > 0 && gr_ps_push_run(ps, id, &push) != GR_OK) {
        return GR_E_INVALID;
    }
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

/* ---- A worker that dies when the best weights are to be saved -------------------------------- */

typedef struct member {
    const char *folder;
    int dying, shards;
    int rank;
    uint64_t step; /* done */
} member;

static void note(void *arg, const gr_train_figures *figures)
{
    ((member *)arg)->step = figures->step;
}

/* Asked before each step. */
static bool die_or_go_on(void *arg)
{
    const member *m = arg;
    if (m->step == BEST && m->rank == m->dying) {
        raise(SIGKILL);
    }
    goes_on = m->step == BEST ? m->shards : 0;
    return false;
}

static int run_member(int rank, gr_comm *comm, void *arg)
{
    member *m = arg;
    char path[SUPPORT_PATH_BYTES + 32];
    snprintf(path, sizeof path, "%s/rank.%d", m->folder, rank);
    FILE *file = fopen(path, "w");
    gr_job_overrides overrides = {.run = {.workers = gr_comm_size(comm)}};
    const gr_log log = {.level = GR_LOG_WARN, .sink = gr_log_to_file, .sink_arg = file};
    const gr_train_options options = {.style = GR_REPORT_NONE,
                                      .log = &log,
                                      .stop = die_or_go_on,
                                      .stop_arg = m,
                                      .progress = note,
                                      .progress_arg = m};
    gr_job *job = NULL;
    gr_diag diag = {0};
    m->rank = rank;
    snprintf(path, sizeof path, "%s/job.yaml", m->folder);
    gr_status status = gr_job_open(path, &overrides, &job, &diag);
    if (status == GR_OK) {
        status = gr_train_run(job, &comm, &options, &diag);
        gr_job_close(job);
    }
    fprintf(file, "%s\n", status == GR_OK ? "trained" : diag.text);
    fclose(file);
    gr_comm_destroy(comm);
    _exit(status != GR_OK);
}

/* By then the servers may have done the next step, and have no more what belongs to them. */
static void best_weights_whose_states_are_gone_are_left_out(void **state)
{
    (void)state;
    const support_job job = {.optimizer = momentum,
                             .shards = 8,
                             .steps = 3,
                             .global_batch = 1024,
                             .distribution = "  strategy: ps\n",
                             .checkpoint = "{keep_best: true, metric: loss}"};
    setenv("GRADUS_MIN_WORKERS", "1", 1);
    for (int dying = 0; dying < 2; dying++) {
        support_servers started;
        char folder[SUPPORT_PATH_BYTES], path[SUPPORT_PATH_BYTES + 32], text[4096] = "";
        member m = {.folder = folder, .dying = dying, .shards = job.shards};
        int codes[2] = {-1, -1};
        support_folder(folder);
        support_write(folder, &job);
        support_servers_start(&started, 2, "shm");
        support_group(2, "shm", run_member, &m, codes);
        support_servers_stop(&started);
        snprintf(path, sizeof path, "%s/rank.%d", folder, 1 - dying);
        FILE *file = fopen(path, "r");
        assert_non_null(file);
        text[fread(text, 1, sizeof text - 1, file)] = '\0';
        fclose(file);
        bool warned =
            strstr(text, "the best one, of step 1, is left out unless it is there") != NULL;
        if (codes[dying] != 128 + SIGKILL || codes[1 - dying] != 0 || (dying == 0 && !warned)) {
            fail_msg("rank %d: %s", 1 - dying, text);
        }
        support_clean(folder);
    }
    unsetenv("GRADUS_MIN_WORKERS");
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
        cmocka_unit_test(best_weights_whose_states_are_gone_are_left_out),
        cmocka_unit_test(sixteen_bits_have_those_of_compressed_allreduce),
        cmocka_unit_test(clipped_gradients_have_those_of_allreduce),
        cmocka_unit_test(sparse_gradients_have_those_of_allreduce),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
