/* SPDX-License-Identifier: Apache-2.0 */

/* Checkpoints: a run that is stopped and goes on ends with the bits of one that was not, whatever
 * the number of workers; damage is found; what is in the way of writing stops nothing. */

#include "support_train.h"

#include "base/fail.h"
#include "base/file.h"
#include "train/checkpoint/checkpoint_state.h"

#include <fcntl.h>
#include <jansson.h>
#include <limits.h>
#include <math.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

enum {
    SHA_BYTES = 65,
    WORKERS_MAX = 8,
    STOPPED = 7,
    PATH_BYTES = 2 * SUPPORT_PATH_BYTES,
    BLOCK = 4096
};

/* ---- Runs that stop and go on ---------------------------------------------------------------- */

typedef struct attempt {
    const char *folder;
    int stop_after; /* steps of this run; 0: never */
    int stopper;    /* the rank that wants it */
    bool resume;
    int asked;
} attempt;

static bool stop_now(void *stop_arg)
{
    attempt *a = stop_arg;
    return ++a->asked == a->stop_after;
}

static int train_member(int rank, gr_comm *comm, void *arg)
{
    attempt a = *(attempt *)arg;
    char path[PATH_BYTES];
    gr_job_overrides overrides = {.run = {.workers = gr_comm_size(comm)}};
    gr_job *job = NULL;
    gr_checkpoint *from = NULL;
    gr_diag diag = {0};
    snprintf(path, sizeof path, "%s/job.yaml", a.folder);
    gr_status status = gr_job_open(path, &overrides, &job, &diag);
    if (status == GR_OK && a.resume) {
        status = gr_checkpoint_find(job, NULL, &from, &diag);
    }
    if (status == GR_OK && from != NULL) {
        status = gr_checkpoint_path(job->checkpoint.to, gr_checkpoint_info_of(from)->step, path,
                                    sizeof path, &diag);
    }
    if (status == GR_OK) {
        const gr_train_options options = {.style = GR_REPORT_NONE,
                                          .resume = from != NULL ? path : NULL,
                                          .stop = rank == a.stopper ? stop_now : NULL,
                                          .stop_arg = &a};
        status = gr_train_run(job, &comm, &options, &diag);
    }
    gr_checkpoint_close(from);
    gr_job_close(job);
    if (status != GR_OK && status != GR_E_CANCELLED) {
        fprintf(stderr, "rank %d: %s\n", rank, diag.text);
    }
    return status == GR_OK ? 0 : status == GR_E_CANCELLED ? STOPPED : 1;
}

static void run_group(const char *folder, int workers, int stop_after, bool resume)
{
    int codes[WORKERS_MAX] = {0};
    attempt a = {
        .folder = folder, .stop_after = stop_after, .stopper = workers - 1, .resume = resume};
    support_group(workers, "shm", train_member, &a, codes);
    for (int rank = 0; rank < workers; rank++) {
        if (codes[rank] != (stop_after > 0 ? STOPPED : 0)) {
            fail_msg("rank %d of %d ended with %d; see %s", rank, workers, codes[rank], folder);
        }
    }
}

/* The lines of <folder>/out/metrics.jsonl that tell of epochs, with what depends on time left out,
 * and the last one's hash. */
static json_t *told(const char *folder, char sha_out[SHA_BYTES])
{
    char path[PATH_BYTES], *text = NULL;
    size_t size = 0;
    gr_diag diag = {0};
    json_t *list = json_array();
    snprintf(path, sizeof path, "%s/out/metrics.jsonl", folder);
    assert_int_equal(gr_file_read(path, 1 << 20, &text, &size, &diag), GR_OK);
    sha_out[0] = '\0';
    for (char *line = strtok(text, "\n"); line != NULL; line = strtok(NULL, "\n")) {
        json_t *object = json_loads(line, 0, NULL);
        const char *event = json_string_value(json_object_get(object, "event"));
        assert_non_null(event);
        if (strcmp(event, "epoch") == 0) {
            json_object_del(object, "samples_per_s");
            json_object_del(object, "comm_wait_share");
            json_object_del(object, "late_rank");
            json_object_del(object, "late_us");
            json_array_append(list, object);
        } else if (strcmp(event, "end") == 0) {
            assert_string_equal(sha_out, "");
            snprintf(sha_out, SHA_BYTES, "%s",
                     json_string_value(json_object_get(object, "weights_sha256")));
        }
        json_decref(object);
    }
    free(text);
    return list;
}

/* A run of `workers[0]` that is stopped, is gone on with by workers[1], and so on. */
static void goes_on(const support_job *job, const int *workers, int runs, int steps_each)
{
    char calm[SUPPORT_PATH_BYTES], folder[SUPPORT_PATH_BYTES];
    char wanted[SHA_BYTES], sha[SHA_BYTES];
    support_folder(calm);
    support_folder(folder);
    support_write(calm, job);
    support_write(folder, job);
    run_group(calm, 2, 0, false);
    for (int i = 0; i < runs; i++) {
        run_group(folder, workers[i], i < runs - 1 ? steps_each : 0, i > 0);
    }
    json_t *calm_epochs = told(calm, wanted), *epochs = told(folder, sha);
    assert_string_equal(sha, wanted);
    char *a = json_dumps(calm_epochs, JSON_SORT_KEYS), *b = json_dumps(epochs, JSON_SORT_KEYS);
    assert_string_equal(a, b);
    free(a);
    free(b);
    json_decref(calm_epochs);
    json_decref(epochs);
    support_clean(calm);
    support_clean(folder);
}

static const int worlds[] = {1, 3, 4, 2};

/* 22 steps are an epoch: the stops fall in the middle of one. */
static void sgd_goes_on(void **state)
{
    (void)state;
    support_job job = {.model = support_cnn, .shards = 4, .steps = 50, .global_batch = 64};
    goes_on(&job, worlds, 4, 13);
    job.optimizer = "  kind: sgd\n  momentum: 0\n  schedule: cosine\n  clip_norm: 1\n";
    goes_on(&job, worlds, 3, 11);
}

static void adam_goes_on(void **state)
{
    (void)state;
    support_job job = {.model = support_cnn,
                       .optimizer = "  kind: adamw\n  learning_rate: 0.01\n  weight_decay: 0.1\n",
                       .checkpoint = "{every: 7 steps, keep: 2}",
                       .shards = 8,
                       .steps = 40,
                       .global_batch = 64,
                       .micro_batches = 2};
    goes_on(&job, worlds, 4, 9);
}

static void topk_goes_on(void **state)
{
    (void)state;
    support_job job = {.distribution = "  compression: topk\n  compression_ratio: 0.05\n",
                       .checkpoint = "{every: 5 steps, keep: 0}",
                       .shards = 6,
                       .steps = 30,
                       .global_batch = 48};
    goes_on(&job, (const int[]){4, 1, 3, 2}, 4, 7);
    job.distribution = "  compression: f16\n  overlap: no\n";
    goes_on(&job, (const int[]){2, 3}, 2, 7);
}

/* Asked to end in the middle of a round, a job ends with what it had when that began. */
static void local_steps_go_on(void **state)
{
    (void)state;
    support_job job = {.model = support_cnn,
                       .distribution = "  strategy: local\n  sync_every: 4\n",
                       .checkpoint = "{every: 5 steps, keep: 2}",
                       .shards = 4,
                       .steps = 50,
                       .global_batch = 64};
    goes_on(&job, worlds, 4, 11);
    job.optimizer = "  kind: adam\n  learning_rate: 0.002\n";
    job.distribution = "  strategy: local\n  sync_every: 4\n  outer: {momentum: 0.6}\n";
    goes_on(&job, (const int[]){2, 3}, 2, 11);
    job.distribution = "  strategy: local\n  sync_every: 4\n  local_state: keep\n";
    goes_on(&job, (const int[]){3, 1, 4}, 3, 11);
}

/* A finished job that is made longer; one that is resumed when nothing is left to do. */
static void an_end_is_a_checkpoint_too(void **state)
{
    (void)state;
    char folder[SUPPORT_PATH_BYTES], wanted[SHA_BYTES], sha[SHA_BYTES];
    support_job job = {
        .checkpoint = "{every: 100 steps}", .shards = 2, .steps = 22, .global_batch = 64};
    support_folder(folder);
    support_write(folder, &job);
    run_group(folder, 2, 0, false);
    json_decref(told(folder, wanted));
    run_group(folder, 1, 0, true);
    json_decref(told(folder, sha));
    assert_string_equal(sha, wanted);
    job.steps = 44;
    support_write(folder, &job);
    run_group(folder, 2, 0, true);
    json_decref(told(folder, sha));
    support_clean(folder);
    support_folder(folder);
    support_write(folder, &job);
    run_group(folder, 1, 0, false);
    json_decref(told(folder, wanted));
    assert_string_equal(sha, wanted);
    support_clean(folder);
}

/* ---- One checkpoint -------------------------------------------------------------------------- */

/* A trainer, its job and its saver, without a run around them. */
typedef struct bench {
    char folder[SUPPORT_PATH_BYTES];
    gr_comm *comm;
    gr_job *job;
    gr_trainer trainer;
    gr_checkpoint_tensors tensors;
    gr_fingerprint fingerprint;
    gr_arena arena;
    gr_checkpoint_folder out;
    char warnings[4096];
} bench;

static void keep_warning(void *sink_arg, gr_log_level level, const char *component,
                         const char *line)
{
    char *text = sink_arg;
    size_t used = strlen(text);
    (void)level;
    snprintf(text + used, 4096 - used, "%s: %s\n", component, line);
}

static void open_bench(bench *b, const char *distribution)
{
    gr_diag diag = {0};
    support_job job = {.distribution = distribution,
                       .checkpoint = "{every: 5 steps, keep: 2}",
                       .shards = 2,
                       .steps = 22,
                       .global_batch = 32};
    *b = (bench){.out = {.keep = 2, .writer = {.run = 7, .generation = 1}, .lock_fd = -1}};
    support_folder(b->folder);
    b->job = support_open(b->folder, &job, 1);
    gr_arena_init(&b->arena, 1 << 20);
    assert_int_equal(gr_comm_create(NULL, &b->comm, &diag), GR_OK);
    assert_int_equal(support_trainer_init(&b->trainer, b->job, b->comm, &diag), GR_OK);
    assert_int_equal(gr_fingerprint_of_job(b->job, &b->arena, &b->fingerprint, &diag), GR_OK);
    b->tensors = gr_state_tensors(&b->trainer);
    b->out.path = b->job->checkpoint.to;
}

static void close_bench(bench *b)
{
    gr_checkpoint_folder_close(&b->out);
    gr_trainer_fini(&b->trainer);
    gr_comm_destroy(b->comm);
    gr_job_close(b->job);
    gr_arena_fini(&b->arena);
    support_clean(b->folder);
}

static gr_status put(bench *b, uint64_t step, gr_diag *diag)
{
    gr_checkpoint_info info = {
        .step = step, .total_steps = 22, .steps_per_epoch = 44, .shards = 2, .metric = -1};
    return gr_checkpoint_put(&b->out, &info, &b->fingerprint, &b->tensors, diag);
}

static gr_status check(const char *path, gr_diag *diag)
{
    gr_checkpoint *checkpoint = NULL;
    gr_status status = gr_checkpoint_open(path, &checkpoint, diag);
    if (status == GR_OK) {
        status = gr_checkpoint_check(checkpoint, diag);
    }
    gr_checkpoint_close(checkpoint);
    return status;
}

/* Cuts the file where the blocks of a disk end, and leaves a hole in place of each: the file is
 * named. In the end it has one byte less. */
static void cut_all(const char *checkpoint, const char *name, int fd, long size)
{
    static const char zeros[BLOCK];
    gr_diag diag = {0};
    char *all = malloc((size_t)size);
    assert_non_null(all);
    assert_int_equal(pread(fd, all, (size_t)size, 0), size);
    for (long at = 0; at < size; at += BLOCK) {
        long block = size - at < BLOCK ? size - at : BLOCK;
        assert_int_equal(ftruncate(fd, at), 0);
        assert_int_not_equal(check(checkpoint, &diag), GR_OK);
        assert_non_null(strstr(diag.text, name));
        assert_int_equal(pwrite(fd, all, (size_t)size, 0), size);
        if (memcmp(all + at, zeros, (size_t)block) != 0) {
            assert_int_equal(pwrite(fd, zeros, (size_t)block, at), block);
            assert_int_not_equal(check(checkpoint, &diag), GR_OK);
            assert_non_null(strstr(diag.text, name));
            assert_int_equal(pwrite(fd, all + at, (size_t)block, at), block);
        }
        assert_int_equal(check(checkpoint, &diag), GR_OK);
    }
    assert_int_equal(ftruncate(fd, size - 1), 0);
    assert_int_not_equal(check(checkpoint, &diag), GR_OK);
    free(all);
}

/* Flips bits of every `stride`-th byte in turn: each time the file is named. */
static void flip_all(const char *checkpoint, const char *name, long stride)
{
    char path[PATH_BYTES + 64];
    gr_diag diag = {0};
    struct stat info;
    snprintf(path, sizeof path, "%s/%s", checkpoint, name);
    int fd = open(path, O_RDWR);
    assert_true(fd >= 0 && fstat(fd, &info) == 0 && info.st_size > 64);
    for (long at = 0; at < info.st_size; at += stride) {
        unsigned char byte, flipped;
        assert_int_equal(pread(fd, &byte, 1, at), 1);
        flipped = byte ^ (unsigned char)(1 << at % 8);
        assert_int_equal(pwrite(fd, &flipped, 1, at), 1);
        if (check(checkpoint, &diag) == GR_OK) {
            fail_msg("byte %ld of %s is flipped, and nobody sees it", at, name);
        }
        assert_non_null(strstr(diag.text, name));
        assert_int_equal(pwrite(fd, &byte, 1, at), 1);
    }
    assert_int_equal(ftruncate(fd, info.st_size + 1), 0);
    assert_int_not_equal(check(checkpoint, &diag), GR_OK);
    assert_int_equal(ftruncate(fd, info.st_size), 0);
    cut_all(checkpoint, name, fd, info.st_size);
    close(fd);
    assert_int_equal(unlink(path), 0);
    assert_int_not_equal(check(checkpoint, &diag), GR_OK);
    assert_non_null(strstr(diag.text, name));
}

static void every_byte_counts(void **state)
{
    (void)state;
    static const struct {
        const char *name;
        long stride;
    } files[] = {{GR_CHECKPOINT_MANIFEST, 1},
                 {GR_CHECKPOINT_MODEL, 61},
                 {GR_CHECKPOINT_OPTIMIZER, 61},
                 {GR_CHECKPOINT_RESIDUALS, 97}};
    for (size_t i = 0; i < 4; i++) {
        bench b;
        gr_diag diag = {0};
        char path[PATH_BYTES];
        float *all = NULL;
        open_bench(&b, "  compression: topk\n");
        assert_int_equal(gr_state_gather(&b.trainer, 5, true, &all, &diag), GR_OK);
        b.tensors.residuals = all;
        assert_int_equal(put(&b, 5, &diag), GR_OK);
        assert_int_equal(gr_checkpoint_path(b.out.path, 5, path, sizeof path, &diag), GR_OK);
        assert_int_equal(check(path, &diag), GR_OK);
        flip_all(path, files[i].name, files[i].stride);
        free(all);
        close_bench(&b);
    }
}

static void damage(const char *checkpoint, const char *name)
{
    char path[PATH_BYTES + 64];
    snprintf(path, sizeof path, "%s/%s", checkpoint, name);
    int fd = open(path, O_RDWR);
    unsigned char byte;
    assert_int_equal(pread(fd, &byte, 1, 200), 1);
    byte = (unsigned char)~byte;
    assert_int_equal(pwrite(fd, &byte, 1, 200), 1);
    close(fd);
}

static void the_one_before_is_taken(void **state)
{
    (void)state;
    bench b;
    gr_diag diag = {0};
    gr_checkpoint *found = NULL;
    char path[PATH_BYTES];
    open_bench(&b, NULL);
    const gr_log log = {.level = GR_LOG_WARN, .sink = keep_warning, .sink_arg = b.warnings};
    assert_int_equal(gr_checkpoint_newest(b.out.path, &log, &found, &diag), GR_E_NOT_FOUND);
    assert_int_equal(put(&b, 5, &diag), GR_OK);
    assert_int_equal(put(&b, 10, &diag), GR_OK);
    assert_int_equal(gr_checkpoint_newest(b.out.path, &log, &found, &diag), GR_OK);
    assert_int_equal(gr_checkpoint_info_of(found)->step, 10);
    gr_checkpoint_close(found);
    assert_string_equal(b.warnings, "");
    assert_int_equal(gr_checkpoint_path(b.out.path, 10, path, sizeof path, &diag), GR_OK);
    damage(path, GR_CHECKPOINT_OPTIMIZER);
    assert_int_equal(gr_checkpoint_newest(b.out.path, &log, &found, &diag), GR_OK);
    assert_int_equal(gr_checkpoint_info_of(found)->step, 5);
    gr_checkpoint_close(found);
    assert_non_null(strstr(b.warnings, "step-000000010/optimizer.safetensors is damaged"));
    /* The damaged one is replaced when its step comes again. */
    assert_int_equal(put(&b, 10, &diag), GR_OK);
    assert_int_equal(check(path, &diag), GR_OK);
    damage(path, GR_CHECKPOINT_MODEL);
    assert_int_equal(gr_checkpoint_path(b.out.path, 5, path, sizeof path, &diag), GR_OK);
    damage(path, GR_CHECKPOINT_MODEL);
    assert_int_equal(gr_checkpoint_newest(b.out.path, &log, &found, &diag), GR_E_INVALID);
    assert_non_null(strstr(diag.text, "none of the 2 checkpoints"));
    close_bench(&b);
}

static int count_names(const char *folder)
{
    uint64_t *steps = NULL;
    int count = 0;
    gr_diag diag = {0};
    assert_int_equal(gr_checkpoint_list(folder, &steps, &count, &diag), GR_OK);
    free(steps);
    return count;
}

/* Losses may overflow in a training that recovers, or that is about to end. */
static void checkpoint_with_a_loss_that_is_not_finite_is_written_and_read(void **state)
{
    (void)state;
    bench b;
    gr_diag diag = {0};
    gr_checkpoint *checkpoint = NULL;
    char path[PATH_BYTES];
    open_bench(&b, NULL);
    const gr_checkpoint_info info = {.step = 5,
                                     .total_steps = 22,
                                     .steps_per_epoch = 44,
                                     .shards = 2,
                                     .last_loss = (double)INFINITY,
                                     .epoch = {.loss = (double)INFINITY, .steps = 3},
                                     .total = {.loss = (double)NAN, .correct = 4},
                                     .metric = GR_METRIC_TEST_R2,
                                     .best = {.value = 0.25, .step = 3, .wait = 2}};
    gr_status status = gr_checkpoint_put(&b.out, &info, &b.fingerprint, &b.tensors, &diag);
    if (status != GR_OK) {
        fail_msg("%s", diag.text);
    }
    assert_int_equal(gr_checkpoint_path(b.out.path, 5, path, sizeof path, &diag), GR_OK);
    assert_int_equal(gr_checkpoint_open(path, &checkpoint, &diag), GR_OK);
    const gr_checkpoint_info *read = gr_checkpoint_info_of(checkpoint);
    assert_true(isnan(read->last_loss) && isnan(read->epoch.loss) && isnan(read->total.loss));
    assert_true(read->epoch.steps == 3 && read->total.correct == 4);
    assert_int_equal(read->metric, GR_METRIC_TEST_R2);
    assert_true(read->best.value == 0.25 && read->best.step == 3 && read->best.wait == 2);
    gr_checkpoint_close(checkpoint);
    close_bench(&b);
}

/* Damaged ones are passed over when a job goes on; they must not push sound ones out. */
static void the_newest_sound_ones_stay_beside_damaged_ones(void **state)
{
    (void)state;
    bench b;
    gr_diag diag = {0};
    char path[PATH_BYTES];
    open_bench(&b, NULL); /* keep: 2 */
    for (uint64_t step = 5; step <= 20; step += 5) {
        assert_int_equal(put(&b, step, &diag), GR_OK);
    }
    for (uint64_t step = 10; step <= 20; step += 5) {
        assert_int_equal(gr_checkpoint_path(b.out.path, step, path, sizeof path, &diag), GR_OK);
        damage(path, GR_CHECKPOINT_MODEL);
    }
    gr_checkpoint_folder_close(&b.out); /* as another process */
    assert_int_equal(put(&b, 8, &diag), GR_OK);
    assert_int_equal(gr_checkpoint_retain(&b.out, 8, &diag), GR_OK);
    assert_int_equal(count_names(b.out.path), 5); /* 5 and 8 are the only sound ones */
    assert_int_equal(put(&b, 18, &diag), GR_OK);
    assert_int_equal(gr_checkpoint_retain(&b.out, 18, &diag), GR_OK);
    for (uint64_t step = 5; step <= 20; step++) {
        assert_int_equal(gr_checkpoint_path(b.out.path, step, path, sizeof path, &diag), GR_OK);
        bool there = access(path, F_OK) == 0;
        assert_int_equal(there, step == 8 || step == 10 || step == 15 || step == 18 || step == 20);
    }
    close_bench(&b);
}

static void best_checkpoint_stays_whatever_its_age(void **state)
{
    (void)state;
    bench b;
    gr_diag diag = {0};
    uint64_t *steps;
    int count;
    open_bench(&b, NULL);
    b.out.keep = 2;
    b.out.best = 5;
    for (uint64_t step = 5; step <= 25; step += 5) {
        assert_int_equal(put(&b, step, &diag), GR_OK);
        assert_int_equal(gr_checkpoint_retain(&b.out, step, &diag), GR_OK);
    }
    assert_int_equal(gr_checkpoint_list(b.out.path, &steps, &count, &diag), GR_OK);
    assert_int_equal(count, 3);
    assert_true(steps[0] == 5 && steps[1] == 20 && steps[2] == 25);
    free(steps);
    b.out.best = 25; /* one of the newest: the one before goes */
    assert_int_equal(gr_checkpoint_retain(&b.out, 25, &diag), GR_OK);
    assert_int_equal(count_names(b.out.path), 2);
    close_bench(&b);
}

static void the_oldest_go(void **state)
{
    (void)state;
    bench b;
    gr_diag diag = {0};
    char path[PATH_BYTES];
    struct stat info;
    open_bench(&b, NULL);
    for (uint64_t step = 5; step <= 25; step += 5) {
        assert_int_equal(put(&b, step, &diag), GR_OK);
        assert_int_equal(gr_checkpoint_retain(&b.out, step, &diag), GR_OK);
        assert_int_equal(count_names(b.out.path), step < 10 ? 1 : 2);
    }
    assert_int_equal(gr_checkpoint_path(b.out.path, 25, path, sizeof path, &diag), GR_OK);
    assert_int_equal(stat(path, &info), 0);
    /* One that was just written stays, though those of an earlier run are ahead of it. */
    assert_int_equal(put(&b, 5, &diag), GR_OK);
    assert_int_equal(gr_checkpoint_retain(&b.out, 5, &diag), GR_OK);
    assert_int_equal(gr_checkpoint_path(b.out.path, 5, path, sizeof path, &diag), GR_OK);
    assert_int_equal(stat(path, &info), 0);
    close_bench(&b);
}

/* ---- The folder ------------------------------------------------------------------------------ */

static void half_written_ones_of_the_dead_go(void **state)
{
    (void)state;
    bench b;
    gr_diag diag = {0};
    char path[PATH_BYTES], file[PATH_BYTES + 32];
    struct stat info;
    open_bench(&b, NULL);
    snprintf(path, sizeof path, "%s/.step-000000003.partial", b.out.path);
    snprintf(file, sizeof file, "%s/model.safetensors", path);
    assert_int_equal(gr_dir_create(path, &diag), GR_OK);
    assert_int_equal(gr_file_replace(file, "half", 4, &diag), GR_OK);
    assert_int_equal(count_names(b.out.path), 0);
    assert_int_equal(gr_checkpoint_folder_open(&b.out, &diag), GR_OK);
    assert_int_not_equal(stat(path, &info), 0);
    close_bench(&b);
}

static void two_runs_do_not_share_a_folder(void **state)
{
    (void)state;
    bench b;
    gr_diag diag = {0};
    open_bench(&b, NULL);
    gr_checkpoint_folder other = b.out;
    other.writer.run++;
    assert_int_equal(gr_checkpoint_folder_open(&b.out, &diag), GR_OK);
    assert_int_equal(gr_checkpoint_folder_open(&other, &diag), GR_E_INVALID);
    char owner[48];
    snprintf(owner, sizeof owner, "another run (process %d)", (int)getpid());
    assert_non_null(strstr(diag.text, owner));
    assert_int_equal(gr_checkpoint_may_start(b.job, true, &diag), GR_E_INVALID);
    gr_checkpoint_folder_close(&b.out);
    assert_int_equal(gr_checkpoint_may_start(b.job, false, &diag), GR_OK);
    assert_int_equal(gr_checkpoint_folder_open(&other, &diag), GR_OK);
    gr_checkpoint_folder_close(&other);
    /* Nor does a run from the beginning mix its own with those of an earlier one. */
    assert_int_equal(put(&b, 5, &diag), GR_OK);
    gr_checkpoint_folder_close(&b.out);
    assert_int_equal(gr_checkpoint_may_start(b.job, true, &diag), GR_OK);
    assert_int_equal(gr_checkpoint_may_start(b.job, false, &diag), GR_E_INVALID);
    assert_non_null(strstr(diag.text, "--resume"));
    close_bench(&b);
}

/* The old writer is stopped or cut off: it still has the lock. */
static void checkpoint_of_a_later_generation_is_written_past_the_old_lock(void **state)
{
    (void)state;
    bench b;
    gr_diag diag = {0};
    char path[PATH_BYTES];
    open_bench(&b, NULL);
    gr_checkpoint_folder old = b.out;
    assert_int_equal(gr_checkpoint_folder_open(&old, &diag), GR_OK);
    snprintf(path, sizeof path, "%s/.step-000000003.1.partial", b.out.path);
    assert_int_equal(gr_dir_create(path, &diag), GR_OK);
    b.out.writer.generation = 4;
    assert_int_equal(put(&b, 5, &diag), GR_OK);
    assert_int_not_equal(access(path, F_OK), 0);
    /* Should it go on, it writes and removes nothing more, even when the new one has ended. */
    gr_checkpoint_folder new = b.out;
    b.out = old;
    assert_int_equal(put(&b, 10, &diag), GR_E_INVALID);
    assert_non_null(strstr(diag.text, "generation 4 of this job"));
    gr_checkpoint_folder_close(&new);
    assert_int_equal(put(&b, 10, &diag), GR_E_INVALID);
    b.out.keep = 1;
    assert_int_equal(gr_checkpoint_retain(&b.out, 10, &diag), GR_OK);
    assert_int_equal(count_names(b.out.path), 1);
    /* The next generation goes on. */
    b.out = (gr_checkpoint_folder){
        .path = b.out.path, .keep = 2, .writer = {.run = 7, .generation = 5}, .lock_fd = -1};
    assert_int_equal(put(&b, 10, &diag), GR_OK);
    assert_int_equal(count_names(b.out.path), 2);
    close_bench(&b);
}

static void another_job_is_refused(void **state)
{
    (void)state;
    static const struct {
        support_job job;
        const char *sentence;
    } others[] = {
        {{.optimizer = "  kind: sgd\n  learning_rate: 0.2\n", .shards = 2, .global_batch = 32},
         "optimizer.learning_rate is 0.1 there and 0.2 in "},
        {{.shards = 4, .global_batch = 32}, "distribution.shards is 2 there and 4 in "},
        {{.shards = 2, .global_batch = 64}, "global_batch is 32 there and 64 in "},
        {{.model = "  - flatten\n  - linear: {units: 33}\n  - relu\n  - linear: {units: 10}\n",
          .shards = 2,
          .global_batch = 32},
         "model[1] is {linear: {units: 32}} there and {linear: {units: 33}} in "},
        {{.model = "  - flatten\n  - linear: {units: 32}\n  - relu\n  - linear: {units: 10}\n",
          .shards = 2,
          .global_batch = 32,
          .steps = 4},
         "is beyond the job's end: it has done 5 steps, the job has 4"},
        {{.shards = 2, .global_batch = 32, .distribution = "  link: tcp\n  overlap: no\n"}, NULL},
    };
    bench b;
    gr_diag diag = {0};
    gr_checkpoint *found = NULL;
    open_bench(&b, NULL);
    assert_int_equal(put(&b, 5, &diag), GR_OK);
    for (size_t i = 0; i < sizeof others / sizeof others[0]; i++) {
        support_job job = others[i].job;
        job.steps = job.steps > 0 ? job.steps : 30;
        gr_job *other = support_open(b.folder, &job, 1);
        gr_status status = gr_checkpoint_find(other, NULL, &found, &diag);
        if (others[i].sentence == NULL) {
            assert_int_equal(status, GR_OK);
            gr_checkpoint_close(found);
        } else {
            assert_int_equal(status, GR_E_INVALID);
            if (strstr(diag.text, others[i].sentence) == NULL) {
                fail_msg("\"%s\" is not in: %s", others[i].sentence, diag.text);
            }
        }
        gr_job_close(other);
    }
    close_bench(&b);
}

/* A manifest is sound in itself; what it says must be of these files, and of this job. */
static void a_manifest_of_another_job_is_noticed(void **state)
{
    (void)state;
    bench a, b;
    gr_diag diag = {0};
    char path[PATH_BYTES], from[PATH_BYTES + 64], to[PATH_BYTES + 64];
    gr_checkpoint *found = NULL;
    open_bench(&a, NULL);
    open_bench(&b, "  compression: topk\n");
    assert_int_equal(put(&a, 5, &diag), GR_OK);
    for (int other_weights = 0; other_weights < 2; other_weights++) {
        uint64_t step = 5 + (uint64_t)other_weights;
        b.trainer.values[0] += (float)other_weights;
        assert_int_equal(put(&b, step, &diag), GR_OK);
        assert_int_equal(gr_checkpoint_path(b.out.path, step, path, sizeof path, &diag), GR_OK);
        snprintf(from, sizeof from, "%s/%s", path, GR_CHECKPOINT_MANIFEST);
        assert_int_equal(gr_checkpoint_path(a.out.path, 5, path, sizeof path, &diag), GR_OK);
        snprintf(to, sizeof to, "%s/%s", path, GR_CHECKPOINT_MANIFEST);
        assert_int_equal(rename(from, to), 0);
        assert_int_equal(gr_checkpoint_find(a.job, NULL, &found, &diag), GR_E_INVALID);
        const char *words =
            other_weights ? "none of the 1 checkpoints" : "distribution.compression";
        if (strstr(diag.text, words) == NULL) {
            fail_msg("\"%s\" is not in: %s", words, diag.text);
        }
    }
    close_bench(&b);
    close_bench(&a);
}

/* ---- What is in the way of writing ----------------------------------------------------------- */

static void save(gr_saver *saver, uint64_t step, gr_status wanted)
{
    gr_diag diag = {0};
    gr_checkpoint_info info = {.step = step, .steps_per_epoch = 44};
    gr_saver_begin(saver, &info, NULL, true);
    gr_saver_settle(saver);
    gr_status status = gr_saver_wait(saver, &diag);
    if (status != wanted) {
        fail_msg("step %d: %d, not %d: %s", (int)step, status, wanted, diag.text);
    }
}

static int lines_of(const char *text)
{
    int lines = 0;
    for (; *text != '\0'; text++) {
        lines += *text == '\n';
    }
    return lines;
}

static void limits_and_lost_folders_are_said_once(void **state)
{
    (void)state;
    bench b;
    gr_saver *saver = NULL;
    gr_diag diag = {0};
    char away[PATH_BYTES];
    struct rlimit before, small = {.rlim_cur = 1000};
    open_bench(&b, NULL);
    const gr_log log = {.level = GR_LOG_WARN, .sink = keep_warning, .sink_arg = b.warnings};
    assert_int_equal(gr_saver_create(b.job, &b.tensors, &b.out.writer, &log, &saver, &diag), GR_OK);
    save(saver, 5, GR_OK);
    assert_string_equal(b.warnings, "");
    /* A limit of the file size: without care its signal would end the process. */
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
    small.rlim_max = before.rlim_max;
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
    save(saver, 10, GR_E_IO);
    save(saver, 15, GR_E_IO);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &before), 0);
    assert_int_equal(lines_of(b.warnings), 1);
    assert_non_null(strstr(b.warnings, "File too large"));
    assert_int_equal(count_names(b.out.path), 1);
    /* Nothing half-written stays: only ".", "..", the lock and one checkpoint. */
    save(saver, 20, GR_OK);
    assert_int_equal(lines_of(b.warnings), 2);
    assert_non_null(strstr(b.warnings, "step 20 was written again"));
    /* The folder goes away and comes back. */
    snprintf(away, sizeof away, "%s.away", b.out.path);
    assert_int_equal(rename(b.out.path, away), 0);
    save(saver, 25, GR_E_NOT_FOUND);
    save(saver, 30, GR_E_NOT_FOUND);
    assert_int_equal(lines_of(b.warnings), 3);
    assert_int_not_equal(access(b.out.path, F_OK), 0);
    assert_int_equal(rename(away, b.out.path), 0);
    save(saver, 35, GR_OK);
    assert_int_equal(count_names(b.out.path), 2);
    gr_saver_destroy(saver);
    close_bench(&b);
}

/* A file server may keep the lock of a run that is gone. */
static void saver_with_a_foreign_lock_tries_again_later(void **state)
{
    (void)state;
    bench b;
    gr_saver *saver = NULL;
    gr_diag diag = {0};
    open_bench(&b, NULL);
    const gr_checkpoint_writer writer = {.run = 8, .generation = 1};
    const gr_log log = {.level = GR_LOG_WARN, .sink = keep_warning, .sink_arg = b.warnings};
    assert_int_equal(gr_checkpoint_folder_open(&b.out, &diag), GR_OK);
    assert_int_equal(gr_saver_create(b.job, &b.tensors, &writer, &log, &saver, &diag), GR_OK);
    save(saver, 5, GR_E_INVALID);
    assert_int_equal(lines_of(b.warnings), 1);
    assert_non_null(strstr(b.warnings, "another run (process "));
    assert_int_equal(count_names(b.out.path), 0);
    gr_checkpoint_folder_close(&b.out);
    save(saver, 10, GR_OK);
    assert_int_equal(count_names(b.out.path), 1);
    gr_saver_destroy(saver);
    close_bench(&b);
}

/* What is written is what was there when it began, whatever happens to the weights afterwards. */
static void a_checkpoint_is_of_one_moment(void **state)
{
    (void)state;
    bench b;
    gr_saver *saver = NULL;
    gr_diag diag = {0};
    gr_checkpoint *checkpoint = NULL;
    gr_safetensors *file = NULL;
    char path[PATH_BYTES];
    open_bench(&b, NULL);
    size_t count = gr_model_values(b.trainer.model);
    assert_int_equal(gr_saver_create(b.job, &b.tensors, &b.out.writer, NULL, &saver, &diag), GR_OK);
    for (int turn = 1; turn <= 20; turn++) {
        for (size_t i = 0; i < count; i++) {
            b.trainer.values[i] = (float)turn;
        }
        gr_checkpoint_info info = {.step = (uint64_t)turn, .steps_per_epoch = 44};
        gr_saver_begin(saver, &info, NULL, true);
        gr_saver_settle(saver);
        memset(b.trainer.values, 0, count * sizeof *b.trainer.values);
        assert_int_equal(gr_saver_wait(saver, &diag), GR_OK);
        assert_int_equal(gr_checkpoint_path(b.out.path, (uint64_t)turn, path, sizeof path, &diag),
                         GR_OK);
        assert_int_equal(gr_checkpoint_open(path, &checkpoint, &diag), GR_OK);
        assert_int_equal(gr_checkpoint_read(checkpoint, GR_CHECKPOINT_MODEL, &file, &diag), GR_OK);
        for (int t = 0; t < gr_safetensors_count(file); t++) {
            const gr_safetensors_entry *entry = gr_safetensors_at(file, t);
            for (size_t i = 0; i < entry->count; i++) {
                float value;
                memcpy(&value, (const char *)entry->data + i * sizeof value, sizeof value);
                assert_true(value == (float)turn);
            }
        }
        gr_safetensors_close(file);
        gr_checkpoint_close(checkpoint);
    }
    assert_int_equal(gr_saver_counts_of(saver).begun, 20);
    gr_saver_destroy(saver);
    close_bench(&b);
}

int main(int argc, char **argv)
{
    (void)argc;
    support_one_thread(argv);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sgd_goes_on),
        cmocka_unit_test(adam_goes_on),
        cmocka_unit_test(topk_goes_on),
        cmocka_unit_test(local_steps_go_on),
        cmocka_unit_test(an_end_is_a_checkpoint_too),
        cmocka_unit_test(every_byte_counts),
        cmocka_unit_test(the_one_before_is_taken),
        cmocka_unit_test(best_checkpoint_stays_whatever_its_age),
        cmocka_unit_test(the_oldest_go),
        cmocka_unit_test(checkpoint_with_a_loss_that_is_not_finite_is_written_and_read),
        cmocka_unit_test(the_newest_sound_ones_stay_beside_damaged_ones),
        cmocka_unit_test(half_written_ones_of_the_dead_go),
        cmocka_unit_test(two_runs_do_not_share_a_folder),
        cmocka_unit_test(checkpoint_of_a_later_generation_is_written_past_the_old_lock),
        cmocka_unit_test(another_job_is_refused),
        cmocka_unit_test(a_manifest_of_another_job_is_noticed),
        cmocka_unit_test(limits_and_lost_folders_are_said_once),
        cmocka_unit_test(saver_with_a_foreign_lock_tries_again_later),
        cmocka_unit_test(a_checkpoint_is_of_one_moment),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
