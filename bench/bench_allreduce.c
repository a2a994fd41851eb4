/* SPDX-License-Identifier: Apache-2.0 */
/* How long an allreduce takes, by size, number of ranks, kind of link and algorithm. Starts its own
 * ranks on this host, joined by a coordinator in the parent; checks every result.
 *
 *   bench_allreduce [-n 1,2,4,8] [-l shm,tcp] [-a auto,direct,...] [-s 4,1k,4m] [-g 256k] [-p] [-i]
 *
 * -o MICROSECONDS: the ranks compute for so long between start and wait, and the figures are what
 * the operation costs on top of that. -p: plain memory instead of gr_alloc; -i: without, -t: with a
 * progress thread; -r ROUNDS; -d SECONDS of a round; -g: segments */
#include "base/clock.h"
#include "base/hash.h"
#include "coll/comm.h"

#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

enum { SIZES_MAX = 32, NAMES_MAX = 16, WORLD_MAX = 64, ROUNDS_MAX = 31, WAIT_MS = 5 };

typedef struct settings {
    size_t sizes[SIZES_MAX];
    int size_count;
    int worlds[NAMES_MAX], world_count;
    const char *links[NAMES_MAX];
    int link_count;
    const char *algorithms[NAMES_MAX];
    int algorithm_count;
    int64_t segment_bytes;
    int progress;
    int rounds;
    double round_s;
    int64_t overlap_us;
    bool plain;
} settings;

/* ---- One rank -------------------------------------------------------------------------------- */
static void die(const char *what, gr_status status, const gr_diag *diag)
{
    fprintf(stderr, "bench_allreduce: %s: %s %s\n", what, gr_status_name(status),
            diag ? diag->text : "");
    exit(1);
}

static void need(gr_comm *comm, gr_status status)
{
    if (status != GR_OK) {
        die("operation", status, gr_comm_diag(comm));
    }
}

static void check_result(gr_comm *comm, float *buf, size_t count)
{
    int size = gr_comm_size(comm);
    for (size_t i = 0; i < count; i++) {
        buf[i] = (float)((i + (size_t)gr_comm_rank(comm)) % 64);
    }
    need(comm, gr_allreduce(comm, buf, count, GR_F32, GR_SUM));
    for (size_t i = 0; i < count; i++) {
        float want = 0;
        for (int rank = 0; rank < size; rank++) {
            want += (float)((i + (size_t)rank) % 64);
        }
        if (buf[i] != want) {
            fprintf(stderr, "bench_allreduce: element %zu is %g and should be %g\n", i,
                    (double)buf[i], (double)want);
            exit(1);
        }
    }
    memset(buf, 0, count * sizeof *buf); /* sums stay zero however often they are taken */
}

static void compute_for(int64_t us)
{
    int64_t end_ns = gr_now_ns() + us * 1000;
    while (gr_now_ns() < end_ns) {
    }
}

static double run_some(gr_comm *comm, float *buf, size_t count, int iterations, int64_t overlap_us)
{
    need(comm, gr_barrier(comm));
    int64_t start_ns = gr_now_ns();
    for (int i = 0; i < iterations; i++) {
        if (overlap_us > 0) {
            gr_op *op = NULL;
            need(comm, gr_allreduce_start(comm, buf, count, GR_F32, GR_SUM, &op));
            compute_for(overlap_us);
            need(comm, gr_wait(op));
        } else {
            need(comm, gr_allreduce(comm, buf, count, GR_F32, GR_SUM));
        }
    }
    return (double)(gr_now_ns() - start_ns) / 1e3 / iterations - (double)overlap_us;
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a;
    double y = *(const double *)b;
    return (x > y) - (x < y);
}

static void measure(gr_comm *comm, const settings *s, size_t size_bytes, double *median_out,
                    double *least_out, double *most_out)
{
    size_t count = size_bytes / sizeof(float);
    void *buf = NULL;
    if (s->plain) {
        buf = aligned_alloc(64, (size_bytes + 63) & ~(size_t)63);
    } else {
        need(comm, gr_alloc(comm, size_bytes, &buf));
    }
    memset(buf, 0, size_bytes);
    check_result(comm, buf, count);
    double once_us = run_some(comm, buf, count, 3, 0);
    once_us = run_some(comm, buf, count, 3, 0);
    int32_t iterations = (int32_t)(s->round_s * 1e6 / (once_us + (double)s->overlap_us + 0.1)) + 1;
    iterations = iterations < 200000 ? iterations : 200000;
    need(comm, gr_broadcast(comm, &iterations, 1, GR_I32, 0));
    double times[ROUNDS_MAX];
    for (int round = 0; round < s->rounds; round++) {
        times[round] = run_some(comm, buf, count, iterations, s->overlap_us);
    }
    qsort(times, (size_t)s->rounds, sizeof times[0], by_value);
    *median_out = times[s->rounds / 2];
    *least_out = times[0];
    *most_out = times[s->rounds - 1];
    if (s->plain) {
        free(buf);
    } else {
        gr_free(comm, buf);
    }
}

static int run_rank(const settings *s, const gr_group_config *config, const char *label)
{
    gr_comm *comm = NULL;
    gr_diag diag;
    gr_status status = gr_comm_create_from(config, &comm, &diag);
    if (status != GR_OK) {
        die("create", status, &diag);
    }
    for (int i = 0; i < s->size_count; i++) {
        double median, least, most;
        measure(comm, s, s->sizes[i], &median, &least, &most);
        if (gr_comm_rank(comm) == 0) {
            printf("%-3s n=%d %-18s %10zu %12.2f %12.2f %12.2f %9.2f\n", gr_comm_link_name(comm),
                   gr_comm_size(comm), label, s->sizes[i], median, least, most,
                   (double)s->sizes[i] / median / 1e3);
            fflush(stdout);
        }
    }
    need(comm, gr_barrier(comm));
    gr_comm_destroy(comm);
    return 0;
}

/* ---- The parent ------------------------------------------------------------------------------ */
static pid_t start_rank(const settings *s, gr_group_config config, int rank, const char *label)
{
    pid_t parent = getpid();
    fflush(stdout);
    pid_t pid = fork();
    if (pid != 0) {
        return pid;
    }
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) {
        _exit(1);
    }
    long cores = sysconf(_SC_NPROCESSORS_ONLN);
    if (config.world_size <= cores) {
        cpu_set_t set;
        CPU_ZERO(&set);
        CPU_SET((size_t)(rank % cores), &set);
        (void)sched_setaffinity(0, sizeof set, &set);
    }
    config.rank = rank;
    config.local_rank = rank;
    _exit(run_rank(s, &config, label));
}

static int run_world(const settings *s, const char *link, int world_size, const char *algorithm)
{
    uint8_t secret[GR_SECRET_BYTES];
    char secret_hex[2 * GR_SECRET_BYTES + 1];
    char choice[64];
    gr_diag diag;
    gr_arena arena;
    gr_arena_init(&arena, 1 << 16);
    gr_group_config config;
    gr_coordinator *coordinator = NULL;
    gr_status status = gr_random_bytes(secret, sizeof secret, &diag);
    if (status == GR_OK) {
        status = gr_config_defaults(&gr_group_config_table, &config, &arena, &diag);
    }
    if (status == GR_OK) {
        gr_coordinator_config coordinator_config = {.world_size = world_size, .secret = secret};
        status = gr_coordinator_create(&coordinator_config, &coordinator, &diag);
    }
    if (status != GR_OK) {
        die("start", status, &diag);
    }
    gr_hex(secret, sizeof secret, secret_hex);
    snprintf(choice, sizeof choice, "allreduce=%s", algorithm);
    config.world_size = world_size;
    config.local_size = world_size;
    config.coordinator = gr_coordinator_address(coordinator);
    config.secret_hex = secret_hex;
    config.link = strcmp(link, "tcp") == 0 ? 2 : 1;
    config.algorithm = strcmp(algorithm, "auto") == 0 ? NULL : choice;
    config.exact = strcmp(algorithm, "ring") != 0;
    config.progress = s->progress;
    config.segment_bytes = s->segment_bytes > 0 ? s->segment_bytes : config.segment_bytes;
    for (int rank = 0; rank < world_size; rank++) {
        start_rank(s, config, rank, algorithm);
    }
    int failed = 0;
    for (int left = world_size; left > 0;) {
        struct pollfd fd = {.fd = gr_coordinator_fd(coordinator), .events = POLLIN};
        poll(&fd, 1, WAIT_MS);
        (void)!gr_coordinator_progress(coordinator, &diag);
        int how;
        while (left > 0 && waitpid(-1, &how, WNOHANG) > 0) {
            left--;
            failed |= how != 0;
        }
    }
    gr_coordinator_destroy(coordinator);
    gr_arena_fini(&arena);
    return failed;
}

static int cut(char *list, const char **words)
{
    int count = 0;
    for (char *word = strtok(list, ","); word && count < NAMES_MAX; word = strtok(NULL, ",")) {
        words[count++] = word;
    }
    return count;
}

static size_t bytes_of(const char *text)
{
    char *end;
    size_t value = strtoull(text, &end, 10);
    return *end == 'k' ? value << 10 : *end == 'm' ? value << 20 : value;
}

int main(int argc, char **argv)
{
    static const size_t usual[] = {4, 1024, 16384, 262144, 1048576, 4194304, 26214400, 67108864};
    settings s = {.size_count = sizeof usual / sizeof usual[0],
                  .worlds = {1, 2, 4, 8},
                  .world_count = 4,
                  .links = {"shm", "tcp"},
                  .link_count = 2,
                  .algorithms = {"auto"},
                  .algorithm_count = 1,
                  .rounds = 7,
                  .round_s = 0.05};
    memcpy(s.sizes, usual, sizeof usual);
    const char *words[NAMES_MAX];
    int option;
    while ((option = getopt(argc, argv, "n:l:a:s:g:r:d:o:pit")) != -1) {
        switch (option) {
        case 'n':
            s.world_count = cut(optarg, words);
            for (int i = 0; i < s.world_count; i++) {
                s.worlds[i] = atoi(words[i]);
            }
            break;
        case 'l':
            s.link_count = cut(optarg, s.links);
            break;
        case 'a':
            s.algorithm_count = cut(optarg, s.algorithms);
            break;
        case 's':
            s.size_count = cut(optarg, words);
            for (int i = 0; i < s.size_count; i++) {
                s.sizes[i] = bytes_of(words[i]);
            }
            break;
        case 'g':
            s.segment_bytes = (int64_t)bytes_of(optarg);
            break;
        case 'r':
            s.rounds = atoi(optarg) < ROUNDS_MAX ? atoi(optarg) : ROUNDS_MAX;
            break;
        case 'd':
            s.round_s = atof(optarg);
            break;
        case 'o':
            s.overlap_us = atoll(optarg);
            break;
        case 'p':
            s.plain = true;
            break;
        case 'i':
            s.progress = 2;
            break;
        case 't':
            s.progress = 1;
            break;
        default:
            return 2;
        }
    }
    printf("%-3s %-3s %-18s %10s %12s %12s %12s %9s\n", "", "", "algorithm", "bytes", "median us",
           "least us", "most us", "GB/s");
    int failed = 0;
    for (int l = 0; l < s.link_count; l++) {
        for (int w = 0; w < s.world_count; w++) {
            for (int a = 0; a < s.algorithm_count && (l == 0 || s.worlds[w] > 1); a++) {
                failed |= run_world(&s, s.links[l], s.worlds[w], s.algorithms[a]);
            }
        }
    }
    return failed;
}
