/* SPDX-License-Identifier: Apache-2.0 */
#include "support_ranks.h"
#include "base/clock.h"
#include "base/hash.h"

#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

enum { RANKS_MAX = 64, WAIT_MS = 2, LIMIT_US = 120000000 };

gr_status ranks_get_pids(gr_comm *comm, int32_t *pids_out)
{
    pids_out[gr_comm_rank(comm)] = (int32_t)getpid();
    return gr_allgather(comm, pids_out, 1, GR_I32);
}

static bool is_awake(int32_t pid)
{
    char path[32], text[256] = "";
    snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
    FILE *file = fopen(path, "r");
    if (!file) {
        return false;
    }
    text[fread(text, 1, sizeof text - 1, file)] = 0;
    fclose(file);
    const char *name_end = strrchr(text, ')');
    return name_end && name_end[1] == ' ' && name_end[2] == 'R';
}

void ranks_wait_until_others_sleep(const gr_comm *comm, const int32_t *pids)
{
    for (int peer = 0; peer < gr_comm_size(comm); peer++) {
        while (peer != gr_comm_rank(comm) && is_awake(pids[peer])) {
            poll(NULL, 0, 1);
        }
    }
}

/* Through memory that all share. */
typedef struct gathering {
    pthread_barrier_t all;
    uint8_t records[RANKS_MAX][1024];
} gathering;

typedef struct gatherer {
    gathering *of;
    int rank, size;
} gatherer;

static int gather(void *gatherer_arg, const void *mine, size_t size_bytes, void *all_out)
{
    const gatherer *g = gatherer_arg;
    if (size_bytes > sizeof g->of->records[0]) {
        return -1;
    }
    memcpy(g->of->records[g->rank], mine, size_bytes);
    (void)pthread_barrier_wait(&g->of->all);
    for (int rank = 0; rank < g->size; rank++) {
        memcpy((uint8_t *)all_out + (size_t)rank * size_bytes, g->of->records[rank], size_bytes);
    }
    (void)pthread_barrier_wait(&g->of->all);
    return 0;
}

static gathering *open_gathering(int size)
{
    pthread_barrierattr_t shared;
    gathering *g = mmap(NULL, sizeof *g, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (g != MAP_FAILED) {
        pthread_barrierattr_init(&shared);
        pthread_barrierattr_setpshared(&shared, PTHREAD_PROCESS_SHARED);
        pthread_barrier_init(&g->all, &shared, (unsigned)size);
    }
    return g;
}

static void run_rank(const ranks_job *job, gr_group_config config, int rank, gathering *meeting,
                     ranks_function *function)
{
    gatherer g = {.of = meeting, .rank = rank, .size = job->size};
    config.rank = rank;
    if (job->hosted) {
        config.coordinator = NULL;
        config.secret_hex = NULL;
        config.allgather = gather;
        config.allgather_arg = &g;
    }
    config.local_rank = rank;
    config.joining = rank >= job->size - job->joining;
    char host[32];
    if (job->per_host > 0) { /* found out by the ranks themselves */
        snprintf(host, sizeof host, "host%d", rank / job->per_host);
        config.host = host;
        config.local_rank = 0;
        config.local_size = 0;
    }
    gr_comm *comm = NULL;
    gr_diag diag;
    gr_status status = gr_comm_create_from(&config, &comm, &diag);
    if (status == GR_E_CANCELLED && config.joining) {
        _exit(0); /* the job was over before */
    }
    if (status != GR_OK) {
        if (!job->quiet) {
            fprintf(stderr, "rank %d cannot join: %s\n", rank, diag.text);
        }
        _exit(9);
    }
    ranks_job own = *job;
    own.config = &config;
    int result = function(comm, &own);
    fflush(stderr);
    exit(result); /* with the leak checker */
}

static uint64_t collect(pid_t *pids, int size, gr_coordinator *coordinator, uint64_t may_die)
{
    uint64_t failed = 0;
    gr_clock clock = gr_clock_real();
    int64_t end_us = gr_clock_now_us(&clock) + LIMIT_US;
    for (int left = size; left > 0;) {
        struct pollfd fd = {.fd = gr_coordinator_fd(coordinator), .events = POLLIN};
        poll(&fd, 1, WAIT_MS);
        gr_diag diag;
        (void)!gr_coordinator_progress(coordinator, &diag);
        bool late = gr_clock_now_us(&clock) > end_us;
        for (int rank = 0; rank < size; rank++) {
            int how;
            if (pids[rank] > 0 && late) {
                fprintf(stderr, "rank %d hangs\n", rank);
                kill(pids[rank], SIGKILL);
            }
            if (pids[rank] > 0 && waitpid(pids[rank], &how, late ? 0 : WNOHANG) > 0) {
                bool fine = how == 0 || (WIFSIGNALED(how) && (may_die >> rank & 1));
                failed |= (uint64_t)(!fine || late) << rank;
                if (!fine) {
                    fprintf(stderr, "rank %d of %d ended with %#x\n", rank, size, (unsigned)how);
                }
                pids[rank] = 0;
                left--;
                gr_coordinator_member_ended(coordinator, rank);
            }
        }
    }
    return failed;
}

uint64_t ranks_run(const ranks_job *job, ranks_function *function, uint64_t may_die)
{
    uint8_t secret[GR_SECRET_BYTES];
    char secret_hex[2 * GR_SECRET_BYTES + 1];
    gr_diag diag;
    gr_arena arena;
    gr_group_config config;
    gr_coordinator *coordinator = NULL;
    gr_arena_init(&arena, 1 << 16);
    gr_coordinator_config coordinator_config = {.world_size = job->size - job->joining,
                                                .world_max = job->size,
                                                .members_min = job->members_min,
                                                .secret = secret};
    if (gr_random_bytes(secret, sizeof secret, &diag) != GR_OK ||
        gr_config_defaults(&gr_group_config_table, &config, &arena, &diag) != GR_OK ||
        gr_coordinator_create(&coordinator_config, &coordinator, &diag) != GR_OK) {
        fprintf(stderr, "the job cannot start: %s\n", diag.text);
        gr_arena_fini(&arena);
        return UINT64_MAX;
    }
    gr_hex(secret, sizeof secret, secret_hex);
    config.world_size = job->size - job->joining;
    config.members_max = job->size;
    config.local_size = config.world_size;
    config.members_min = job->members_min;
    config.coordinator = gr_coordinator_address(coordinator);
    config.secret_hex = secret_hex;
    config.link = strcmp(job->link, "tcp") == 0    ? GR_LINK_ALL_TCP
                  : strcmp(job->link, "auto") == 0 ? GR_LINK_AUTO
                                                   : GR_LINK_ALL_SHM;
    config.algorithm = job->algorithm;
    config.tune = job->tune ? job->tune : config.tune;
    config.exact = !job->inexact;
    config.progress = job->progress;
    config.cma = (int)job->cma;
    config.threads = job->threads;
    config.segment_bytes = job->segment_bytes > 0 ? job->segment_bytes : config.segment_bytes;
    config.connect_all_max = job->on_demand ? 1 : 0;
    config.op_timeout_us = job->op_timeout_us > 0 ? job->op_timeout_us : 80000000;
    config.log_level = 0; /* wrong calls are part of the tests */
    pid_t pids[RANKS_MAX];
    pid_t parent = getpid();
    gathering *meeting = open_gathering(job->size);
    if (meeting == MAP_FAILED) {
        return UINT64_MAX;
    }
    for (int rank = job->size - job->joining; rank < job->size; rank++) {
        gr_coordinator_reserve(coordinator, rank);
        gr_coordinator_set_target_size(coordinator, job->size);
    }
    for (int rank = 0; rank < job->size; rank++) {
        fflush(stdout);
        fflush(stderr);
        pids[rank] = fork();
        if (pids[rank] == 0) {
            prctl(PR_SET_PDEATHSIG, SIGKILL);
            if (getppid() == parent) {
                run_rank(job, config, rank, meeting, function);
            }
            _exit(8);
        }
    }
    uint64_t failed = collect(pids, job->size, coordinator, may_die);
    munmap(meeting, sizeof *meeting);
    gr_coordinator_destroy(coordinator);
    gr_arena_fini(&arena);
    return failed;
}

uint64_t ranks_run_sizes(ranks_function *function, int first, int last)
{
    uint64_t failed = 0;
    for (int size = first; size <= last && failed == 0; size++) {
        ranks_job job = {.size = size, .link = "shm", .progress = 2};
        failed = ranks_run(&job, function, 0);
    }
    return failed;
}

uint64_t ranks_run_pairs(ranks_function *function)
{
    uint64_t failed = 0;
    for (int i = 0; i < 4 && failed == 0; i++) {
        int fds[2];
        if (pipe(fds) != 0) {
            return UINT64_MAX;
        }
        ranks_job job = {
            .size = 2, .link = i % 2 ? "tcp" : "shm", .progress = i > 1 ? 1 : 2, .arg = fds};
        failed = ranks_run(&job, function, 0);
        close(fds[0]);
        close(fds[1]);
    }
    return failed;
}
