/* SPDX-License-Identifier: Apache-2.0 */
#include "support_train.h"

#include "base/clock.h"
#include "base/file.h"
#include "base/hash.h"
#include "data/sampler.h"
#include "group/group.h"

#include <dirent.h>
#include <poll.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

enum { GROUP_MAX = 16, GROUP_SECONDS = 100 };

const char support_cnn[] = "  - conv2d: {channels: 4, kernel: 3, padding: 1}\n"
                           "  - batch_norm\n"
                           "  - relu\n"
                           "  - max_pool: {kernel: 2}\n"
                           "  - flatten\n"
                           "  - dropout: {rate: 0.25}\n"
                           "  - linear: {units: 10}\n";

static const char small_mlp[] = "  - flatten\n"
                                "  - linear: {units: 32}\n"
                                "  - relu\n"
                                "  - linear: {units: 10}\n";

static const char plain_sgd[] = "  kind: sgd\n  learning_rate: 0.1\n  momentum: 0.9\n";

void support_one_thread(char **argv)
{
    const char *threads = getenv("OMP_NUM_THREADS");
    if (threads == NULL || strcmp(threads, "1") != 0) {
        setenv("OMP_NUM_THREADS", "1", 1);
        execv("/proc/self/exe", argv);
    }
}

void support_folder(char path_out[SUPPORT_PATH_BYTES])
{
    const char *base = getenv("TMPDIR");
    snprintf(path_out, SUPPORT_PATH_BYTES, "%s/gradus-test-XXXXXX", base != NULL ? base : "/tmp");
    assert_non_null(mkdtemp(path_out));
}

void support_clean(const char *folder)
{
    DIR *dir = opendir(folder);
    for (struct dirent *entry; dir != NULL && (entry = readdir(dir)) != NULL;) {
        char path[2 * SUPPORT_PATH_BYTES + 256];
        struct stat info;
        if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0) {
            continue;
        }
        snprintf(path, sizeof path, "%s/%s", folder, entry->d_name);
        if (lstat(path, &info) == 0 && S_ISDIR(info.st_mode)) {
            support_clean(path);
        } else {
            unlink(path);
        }
    }
    if (dir != NULL) {
        closedir(dir);
    }
    rmdir(folder);
}

void support_write(const char *folder, const support_job *job)
{
    char path[SUPPORT_PATH_BYTES + 16];
    snprintf(path, sizeof path, "%s/job.yaml", folder);
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    fprintf(file, "name: test\nmodel:\n%s", job->model != NULL ? job->model : small_mlp);
    fprintf(file,
            "data:\n  format: csv\n  file: %s/examples/digits/digits.csv.gz\n  shape: [1, 8, 8]\n"
            "  scale: 0.0625\n  test_count: 360\n",
            GR_TEST_SOURCE_DIR);
    fprintf(file, "optimizer:\n%s", job->optimizer != NULL ? job->optimizer : plain_sgd);
    fprintf(file, "loss: cross_entropy\nseed: 7\nsteps: %d\nglobal_batch: %d\n", job->steps,
            job->global_batch);
    fprintf(file, "micro_batches: %d\noutput: %s/out\n",
            job->micro_batches > 0 ? job->micro_batches : 1, folder);
    if (job->checkpoint != NULL) {
        fprintf(file, "checkpoint: %s\n", job->checkpoint);
    }
    fprintf(file, "distribution:\n  shards: %d\n%s", job->shards,
            job->distribution != NULL ? job->distribution : "");
    fclose(file);
}

gr_job *support_open(const char *folder, const support_job *job, int workers)
{
    char path[SUPPORT_PATH_BYTES + 16];
    gr_job_overrides overrides = {.run = {.workers = workers, .default_workers = workers}};
    gr_job *opened = NULL;
    gr_diag diag = {0};
    support_write(folder, job);
    snprintf(path, sizeof path, "%s/job.yaml", folder);
    if (gr_job_open(path, &overrides, &opened, &diag) != GR_OK) {
        fail_msg("%s", diag.text);
    }
    return opened;
}

/* ---- Groups ---------------------------------------------------------------------------------- */

static void set_number(const char *name, int value)
{
    char text[16];
    snprintf(text, sizeof text, "%d", value);
    setenv(name, text, 1);
}

/* In the child; leaves without cmocka's or the parent's exit handlers. */
static _Noreturn void run_member(int rank, int world_size, const char *link, const char *address,
                                 const char *secret, support_member *member, void *arg)
{
    gr_comm *comm = NULL;
    gr_diag diag = {0};
    set_number("GRADUS_RANK", rank);
    set_number("GRADUS_WORLD_SIZE", world_size);
    set_number("GRADUS_LOCAL_RANK", rank);
    set_number("GRADUS_LOCAL_SIZE", world_size);
    setenv("GRADUS_COORDINATOR", address, 1);
    setenv("GRADUS_SECRET", secret, 1);
    setenv("GRADUS_LINK", link, 1);
    alarm(GROUP_SECONDS);
    int code = 120;
    if (gr_comm_create(NULL, &comm, &diag) == GR_OK) {
        code = member(rank, comm, arg);
    } else {
        fprintf(stderr, "rank %d: %s\n", rank, diag.text);
    }
    gr_comm_destroy(comm);
    fflush(NULL);
    _exit(code);
}

static int running(pid_t *pids, int world_size, int *exit_codes_out)
{
    int left = 0;
    for (int rank = 0; rank < world_size; rank++) {
        int status = 0;
        if (pids[rank] > 0 && waitpid(pids[rank], &status, WNOHANG) == pids[rank]) {
            exit_codes_out[rank] = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
            pids[rank] = 0;
        }
        left += pids[rank] > 0;
    }
    return left;
}

void support_group(int world_size, const char *link, support_member *member, void *arg,
                   int *exit_codes_out)
{
    uint8_t secret[GR_SECRET_BYTES];
    char secret_hex[2 * GR_SECRET_BYTES + 1];
    pid_t pids[GROUP_MAX] = {0};
    gr_diag diag = {0};
    gr_coordinator *coordinator = NULL;
    assert_in_range(world_size, 1, GROUP_MAX);
    assert_int_equal(gr_random_bytes(secret, sizeof secret, &diag), GR_OK);
    gr_hex(secret, sizeof secret, secret_hex);
    const char *least = getenv("GRADUS_MIN_WORKERS");
    gr_coordinator_config config = {
        .world_size = world_size, .members_min = least ? atoi(least) : 0, .secret = secret};
    assert_int_equal(gr_coordinator_create(&config, &coordinator, &diag), GR_OK);
    fflush(NULL);
    for (int rank = 0; rank < world_size; rank++) {
        pids[rank] = fork();
        assert_true(pids[rank] >= 0);
        if (pids[rank] == 0) {
            run_member(rank, world_size, link, gr_coordinator_address(coordinator), secret_hex,
                       member, arg);
        }
    }
    struct pollfd wait = {.fd = gr_coordinator_fd(coordinator), .events = POLLIN};
    while (running(pids, world_size, exit_codes_out) > 0) {
        poll(&wait, 1, 10);
        assert_int_equal(gr_coordinator_progress(coordinator, &diag), GR_OK);
    }
    gr_coordinator_destroy(coordinator);
}

/* ---- Whole runs ------------------------------------------------------------------------------ */

const gr_train_options support_quiet = {.style = GR_REPORT_NONE};

int support_train_member(int rank, gr_comm *comm, void *arg)
{
    const char *folder = arg;
    char path[SUPPORT_PATH_BYTES + 32];
    gr_job_overrides overrides = {.run = {.workers = gr_comm_size(comm)}};
    gr_job *job = NULL;
    gr_diag diag = {0};
    snprintf(path, sizeof path, "%s/job.yaml", folder);
    gr_status status = gr_job_open(path, &overrides, &job, &diag);
    if (status == GR_OK) {
        status = gr_train_run(job, &comm, &support_quiet, &diag);
        gr_job_close(job);
    }
    snprintf(path, sizeof path, "%s/rank.%d", folder, rank);
    FILE *file = fopen(path, "w");
    if (file != NULL) {
        fprintf(file, "%d %s\n", status, diag.text);
        fclose(file);
    }
    /* run_member's communicator may be none any more. */
    gr_comm_destroy(comm);
    fflush(NULL);
    _exit(status == GR_OK ? 0 : 1);
}

gr_status support_read_end(const char *folder, int rank, char sentence_out[SUPPORT_SENTENCE_BYTES])
{
    char path[SUPPORT_PATH_BYTES + 32];
    int status = 0;
    snprintf(path, sizeof path, "%s/rank.%d", folder, rank);
    FILE *file = fopen(path, "r");
    assert_non_null(file);
    assert_int_equal(fscanf(file, "%d ", &status), 1);
    assert_non_null(fgets(sentence_out, SUPPORT_SENTENCE_BYTES, file));
    fclose(file);
    return (gr_status)status;
}

json_t *support_end_value(const char *folder, const char *key)
{
    char path[SUPPORT_PATH_BYTES + 32];
    char *text = NULL;
    size_t size = 0;
    gr_diag diag = {0};
    snprintf(path, sizeof path, "%s/out/metrics.jsonl", folder);
    assert_int_equal(gr_file_read(path, 1 << 20, &text, &size, &diag), GR_OK);
    assert_true(size > 1 && text[size - 1] == '\n');
    text[size - 1] = '\0';
    char *line = strrchr(text, '\n');
    json_t *object = json_loads(line != NULL ? line + 1 : text, 0, NULL);
    assert_non_null(object);
    json_t *value = json_incref(json_object_get(object, key));
    assert_non_null(value);
    json_decref(object);
    free(text);
    return value;
}

void support_end_sha(const char *folder, char sha_out[SUPPORT_SHA_BYTES])
{
    json_t *value = support_end_value(folder, "weights_sha256");
    snprintf(sha_out, SUPPORT_SHA_BYTES, "%s", json_string_value(value));
    assert_int_equal(strlen(sha_out), 64);
    json_decref(value);
}

void support_train_group(const support_job *job, int workers, const char *link,
                         char sha_out[SUPPORT_SHA_BYTES])
{
    char folder[SUPPORT_PATH_BYTES];
    int codes[GROUP_MAX] = {0};
    support_folder(folder);
    support_write(folder, job);
    support_group(workers, link, support_train_member, folder, codes);
    for (int rank = 0; rank < workers; rank++) {
        if (codes[rank] != 0) {
            fail_msg("rank %d of %d over %s ended with %d; see %s", rank, workers, link,
                     codes[rank], folder);
        }
    }
    support_end_sha(folder, sha_out);
    support_clean(folder);
}

void support_same_for_all(const support_job *job, const int *worlds, int count, const char *link,
                          char sha_out[SUPPORT_SHA_BYTES])
{
    support_train_group(job, 1, link, sha_out);
    for (int i = 0; i < count; i++) {
        char sha[SUPPORT_SHA_BYTES];
        support_train_group(job, worlds[i], link, sha);
        if (strcmp(sha, sha_out) != 0) {
            fail_msg("%d workers over %s end with other weights than one", worlds[i], link);
        }
    }
}

/* ---- Naively --------------------------------------------------------------------------------- */

void support_naive_init(support_naive *naive, const gr_job *job, int64_t batch)
{
    gr_diag diag = {0};
    gr_model_config config = {.spec = job->spec,
                              .batch = (int)job->shard_batch,
                              .gradient_scale = (float)(1.0 / (double)batch),
                              .seed = (uint64_t)job->config.seed,
                              .training = true};
    *naive = (support_naive){.job = job};
    assert_int_equal(gr_model_create(&config, &naive->model, &diag), GR_OK);
    naive->x = calloc((size_t)job->shard_batch * 64, sizeof *naive->x);
    naive->labels = calloc((size_t)job->shard_batch, sizeof *naive->labels);
    naive->numbers = calloc((size_t)job->shard_batch, sizeof *naive->numbers);
}

void support_naive_fini(support_naive *naive)
{
    gr_model_destroy(naive->model);
    free(naive->x);
    free(naive->labels);
    free(naive->numbers);
}

double support_naive_gradient(support_naive *naive, const float *values, uint64_t step, int shard,
                              float *gradient_out)
{
    support_naive *n = naive;
    const gr_job *job = n->job;
    gr_diag diag = {0};
    gr_sampler sampler;
    gr_sampler_init(&sampler, (uint64_t)job->config.seed, step / job->steps_per_epoch,
                    (uint64_t)gr_dataset_count(job->dataset, GR_SPLIT_TRAIN));
    uint64_t at = (uint64_t)shard * (uint64_t)job->shard_batch;
    uint64_t position = step % job->steps_per_epoch * (uint64_t)job->config.global_batch + at;
    for (int64_t i = 0; i < job->shard_batch; i++) {
        n->numbers[i] = (int64_t)gr_sampler_at(&sampler, position + (uint64_t)i);
    }
    assert_int_equal(gr_dataset_read(job->dataset, GR_SPLIT_TRAIN, n->numbers,
                                     (int)job->shard_batch, n->x, n->labels, NULL, &diag),
                     GR_OK);
    gr_batch batch = {.x = n->x, .labels = n->labels, .step = step, .sample_first = at};
    gr_batch_result result;
    assert_int_equal(gr_model_forward(n->model, values, &batch, &result, &diag), GR_OK);
    assert_int_equal(gr_model_backward(n->model, values, &batch, gradient_out, NULL, NULL, &diag),
                     GR_OK);
    return result.loss;
}

gr_status support_trainer_init(gr_trainer *trainer, gr_job *job, gr_comm *comm, gr_diag *diag)
{
    gr_trainer made;
    gr_status status = gr_trainer_prepare(&made, job, diag);
    if (status != GR_OK) {
        return status;
    }
    status = gr_trainer_enter(&made, comm, diag);
    if (status == GR_OK) {
        status = gr_trainer_seek(&made, 0, diag);
    }
    if (status != GR_OK) {
        gr_trainer_fini(&made);
        return status;
    }
    *trainer = made;
    return GR_OK;
}
