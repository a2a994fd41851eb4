/* SPDX-License-Identifier: Apache-2.0 */
#include "support_train.h"

#include "base/clock.h"
#include "base/hash.h"
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
    gr_job_overrides overrides = {.workers = workers, .default_workers = workers};
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
    if (gr_comm_create(&comm, &diag) == GR_OK) {
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
    gr_coordinator_config config = {.world_size = world_size, .secret = secret};
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
