/* SPDX-License-Identifier: Apache-2.0 */
/* How near an allreduce comes to what the machine can do: beside it, in the same processes and in
 * turns, runs a reduction without any library. Each rank's buffer lies in memory that all of them
 * map; a barrier; rank r adds slice r of all buffers and writes the sum into all of them; a
 * barrier. With -t both go by TCP over loopback: the bare one sends and receives with each partner
 * of a halving and doubling in turn (of what is small: all of it, by doubling alone), without
 * headers. Prints medians over rounds and the ratio of the two (100 %: as fast as the bare loop).
 *
 *   bench_ceiling [-n 2,4,8] [-s 4,1k,256k,25m] [-p] [-t] [-r ROUNDS] [-d SECONDS]
 *
 * -p: plain memory instead of gr_alloc (of the library; the bare loop has none to do with it).
 * -t: powers of two of ranks.
 * -d: of a round of each. */
#include "bare.h"
#include "base/clock.h"
#include "base/hash.h"
#include "coll/comm.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

enum {
    LIST_MAX = 32,
    ROUNDS_MAX = 31,
    WAIT_MS = 5,
    WHOLE_BYTES = 16 << 10 /* as much is exchanged whole */
};

typedef struct settings {
    size_t sizes[LIST_MAX];
    int size_count;
    int worlds[LIST_MAX], world_count;
    int rounds;
    double round_s;
    bool plain, tcp;
} settings;

/* ---- The same by TCP ------------------------------------------------------------------------- */
static void exchange(const place *at, int peer, const void *out, size_t out_bytes, void *in,
                     size_t in_bytes)
{
    int fd = at->sockets[peer];
    size_t sent = 0, got = 0;
    while (sent < out_bytes || got < in_bytes) {
        ssize_t put = sent < out_bytes ? send(fd, (const uint8_t *)out + sent, out_bytes - sent,
                                              MSG_DONTWAIT | MSG_NOSIGNAL)
                                       : 0;
        ssize_t took =
            got < in_bytes ? recv(fd, (uint8_t *)in + got, in_bytes - got, MSG_DONTWAIT) : 0;
        sent += put > 0 ? (size_t)put : 0;
        got += took > 0 ? (size_t)took : 0;
        if (at->yields && put <= 0 && took <= 0) {
            sched_yield();
        }
    }
}

/* Each step leaves one half of what is left to each of two partners; the halves come back the same
 * way. */
static void halve(const place *at, float *buf, size_t begin, size_t end, int distance)
{
    int peer = at->rank ^ distance;
    size_t middle = begin + (end - begin) / 2;
    bool low = at->rank < peer;
    size_t from = low ? begin : middle, to = low ? middle : end;
    float *theirs = buf + (low ? middle : begin);
    size_t their_bytes = (low ? end - middle : middle - begin) * sizeof *buf;
    if (distance == 0) {
        return;
    }
    exchange(at, peer, theirs, their_bytes, at->received, (to - from) * sizeof *buf);
    add_to(buf + from, at->received, to - from);
    halve(at, buf, from, to, distance / 2);
    exchange(at, peer, buf + from, (to - from) * sizeof *buf, theirs, their_bytes);
}

static void reduce_by_tcp(const place *at, size_t count)
{
    float *buf = at->buf[at->rank];
    if (count * sizeof *buf > WHOLE_BYTES) {
        halve(at, buf, 0, count, at->size / 2);
        return;
    }
    for (int distance = 1; distance < at->size; distance *= 2) {
        exchange(at, at->rank ^ distance, buf, count * sizeof *buf, at->received,
                 count * sizeof *buf);
        add_to(buf, at->received, count);
    }
}

/* ---- One rank -------------------------------------------------------------------------------- */
static void die(const char *what, gr_status status, const gr_diag *diag)
{
    fprintf(stderr, "bench_ceiling: %s: %s %s\n", what, gr_status_name(status),
            diag ? diag->text : "");
    exit(1);
}

static void need(gr_comm *comm, gr_status status)
{
    if (status != GR_OK) {
        die("operation", status, gr_comm_diag(comm));
    }
}

static void fill(float *buf, size_t count, int rank)
{
    for (size_t i = 0; i < count; i++) {
        buf[i] = (float)((i + (size_t)rank) % 64);
    }
}

static void check(const float *buf, size_t count, int size, const char *whose)
{
    for (size_t i = 0; i < count; i++) {
        float want = 0;
        for (int rank = 0; rank < size; rank++) {
            want += (float)((i + (size_t)rank) % 64);
        }
        if (buf[i] != want) {
            fprintf(stderr, "bench_ceiling: %s: element %zu is %g and should be %g\n", whose, i,
                    (double)buf[i], (double)want);
            exit(1);
        }
    }
}

static void reduce_once(place *at, size_t count)
{
    if (at->received) {
        reduce_by_tcp(at, count);
    } else {
        reduce_bare(at, count);
    }
}

static double time_bare(place *at, size_t count, int iterations)
{
    barrier(at);
    int64_t start_ns = gr_now_ns();
    for (int i = 0; i < iterations; i++) {
        reduce_once(at, count);
    }
    return (double)(gr_now_ns() - start_ns) / 1e3 / iterations;
}

static double time_library(gr_comm *comm, float *buf, size_t count, int iterations)
{
    need(comm, gr_barrier(comm));
    int64_t start_ns = gr_now_ns();
    for (int i = 0; i < iterations; i++) {
        need(comm, gr_allreduce(comm, buf, count, GR_F32, GR_SUM));
    }
    return (double)(gr_now_ns() - start_ns) / 1e3 / iterations;
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median_of(double *values, int count)
{
    qsort(values, (size_t)count, sizeof *values, by_value);
    return values[count / 2];
}

static int32_t iterations_for(gr_comm *comm, double once_us, double round_s)
{
    int32_t iterations = (int32_t)(round_s * 1e6 / (once_us + 0.1)) + 1;
    iterations = iterations < 200000 ? iterations : 200000;
    need(comm, gr_broadcast(comm, &iterations, 1, GR_I32, 0));
    return iterations;
}

static void measure(gr_comm *comm, place *at, const settings *s, size_t size_bytes)
{
    size_t count = size_bytes / sizeof(float);
    void *mem = NULL;
    if (s->plain) {
        mem = aligned_alloc(LINE, (size_bytes + LINE - 1) / LINE * LINE);
        if (!mem) {
            die("memory", GR_E_NO_MEMORY, NULL);
        }
    } else {
        need(comm, gr_alloc(comm, size_bytes, &mem));
    }
    fill(mem, count, at->rank);
    need(comm, gr_allreduce(comm, mem, count, GR_F32, GR_SUM));
    check(mem, count, at->size, "allreduce");
    fill(at->buf[at->rank], count, at->rank);
    reduce_once(at, count);
    check(at->buf[at->rank], count, at->size, "bare");
    memset(mem, 0, size_bytes); /* sums stay zero however often they are taken */
    memset(at->buf[at->rank], 0, size_bytes);
    double once_us[2] = {time_bare(at, count, 2), time_library(comm, mem, count, 2)};
    once_us[0] = time_bare(at, count, 3);
    once_us[1] = time_library(comm, mem, count, 3);
    int32_t iterations[2] = {iterations_for(comm, once_us[0], s->round_s),
                             iterations_for(comm, once_us[1], s->round_s)};
    double times[2][ROUNDS_MAX], ratios[ROUNDS_MAX];
    for (int round = 0; round < s->rounds; round++) {
        times[0][round] = time_bare(at, count, iterations[0]);
        times[1][round] = time_library(comm, mem, count, iterations[1]);
        ratios[round] = times[0][round] / times[1][round] * 100;
    }
    double bare_us = median_of(times[0], s->rounds), ours_us = median_of(times[1], s->rounds);
    double ratio = median_of(ratios, s->rounds);
    if (at->rank == 0) {
        printf("n=%d %-8s %10zu %12.2f %12.2f %9.0f %%\n", at->size,
               s->plain ? "malloc" : "gr_alloc", size_bytes, bare_us, ours_us, ratio);
        fflush(stdout);
    }
    if (s->plain) {
        free(mem);
    } else {
        gr_free(comm, mem);
    }
}

/* A buffer for each of the sizes, in whole pages. */
static size_t most_bytes(const settings *s)
{
    size_t most = LINE;
    for (int i = 0; i < s->size_count; i++) {
        most = s->sizes[i] > most ? s->sizes[i] : most;
    }
    return (most + 4095) / 4096 * 4096;
}

static int run_rank(const settings *s, const gr_group_config *config, place *at)
{
    gr_comm *comm = NULL;
    gr_diag diag;
    gr_status status = gr_comm_create_from(config, &comm, &diag);
    if (status != GR_OK) {
        die("create", status, &diag);
    }
    at->received = s->tcp ? aligned_alloc(LINE, most_bytes(s)) : NULL;
    if (s->tcp && !at->received) {
        die("memory", GR_E_NO_MEMORY, NULL);
    }
    for (int i = 0; i < s->size_count; i++) {
        measure(comm, at, s, s->sizes[i]);
    }
    need(comm, gr_barrier(comm));
    gr_comm_destroy(comm);
    free(at->received);
    return 0;
}

/* ---- The parent ------------------------------------------------------------------------------ */
static void map_shared(place *at, const settings *s, size_t *bytes_out)
{
    size_t most = most_bytes(s);
    *bytes_out = 4096 + (size_t)at->size * most;
    uint8_t *base =
        mmap(NULL, *bytes_out, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (base == MAP_FAILED) {
        die("memory in common", GR_E_NO_MEMORY, NULL);
    }
    at->shared = (bare *)(void *)base;
    for (int rank = 0; rank < at->size; rank++) {
        at->buf[rank] = (float *)(void *)(base + 4096 + (size_t)rank * most);
    }
}

static void set_up(int fd)
{
    static const char calm[] = "reno"; /* as the library: what paces is slow here */
    int one = 1;
    if (fd < 0 || setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one) != 0 ||
        setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, calm, sizeof calm - 1) != 0) {
        die("a connection over loopback", GR_E_IO, NULL);
    }
}

static void connect_two(int listener, int ends[2])
{
    struct sockaddr_in at;
    socklen_t size = sizeof at;
    ends[0] = socket(AF_INET, SOCK_STREAM, 0);
    if (getsockname(listener, (struct sockaddr *)&at, &size) != 0 ||
        connect(ends[0], (struct sockaddr *)&at, size) != 0) {
        die("a connection over loopback", GR_E_IO, NULL);
    }
    ends[1] = accept(listener, NULL, NULL);
    set_up(ends[0]);
    set_up(ends[1]);
}

/* [rank][partner] */
static void connect_all(int size, int sockets[RANKS_MAX][RANKS_MAX])
{
    struct sockaddr_in any = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int listener = socket(AF_INET, SOCK_STREAM, 0);
    if (listener < 0 || bind(listener, (struct sockaddr *)&any, sizeof any) != 0 ||
        listen(listener, 1) != 0) {
        die("a listener on loopback", GR_E_IO, NULL);
    }
    for (int rank = 0; rank < size; rank++) {
        for (int distance = 1; distance < size; distance *= 2) {
            int peer = rank ^ distance, ends[2];
            if (rank < peer) {
                connect_two(listener, ends);
                sockets[rank][peer] = ends[0];
                sockets[peer][rank] = ends[1];
            }
        }
    }
    close(listener);
}

static void close_all(int size, int sockets[RANKS_MAX][RANKS_MAX])
{
    for (int rank = 0; rank < size; rank++) {
        for (int distance = 1; distance < size; distance *= 2) {
            close(sockets[rank][rank ^ distance]);
        }
    }
}

static pid_t start_rank(const settings *s, gr_group_config config, place at, int rank)
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
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET((size_t)(rank % sysconf(_SC_NPROCESSORS_ONLN)), &set);
    if (!at.yields) {
        (void)sched_setaffinity(0, sizeof set, &set);
    }
    at.rank = rank;
    config.rank = rank;
    config.local_rank = rank;
    _exit(run_rank(s, &config, &at));
}

static int run_world(const settings *s, int size)
{
    uint8_t secret[GR_SECRET_BYTES];
    char secret_hex[2 * GR_SECRET_BYTES + 1];
    gr_diag diag;
    gr_arena arena;
    gr_group_config config;
    gr_coordinator *coordinator = NULL;
    gr_coordinator_config coordinator_config = {.world_size = size, .secret = secret};
    gr_arena_init(&arena, 1 << 16);
    gr_status status = gr_random_bytes(secret, sizeof secret, &diag);
    if (status == GR_OK) {
        status = gr_config_defaults(&gr_group_config_table, &config, &arena, &diag);
    }
    if (status == GR_OK) {
        status = gr_coordinator_create(&coordinator_config, &coordinator, &diag);
    }
    if (status != GR_OK) {
        die("start", status, &diag);
    }
    gr_hex(secret, sizeof secret, secret_hex);
    config.world_size = size;
    config.local_size = size;
    config.coordinator = gr_coordinator_address(coordinator);
    config.secret_hex = secret_hex;
    config.link = s->tcp ? GR_LINK_ALL_TCP : GR_LINK_ALL_SHM;
    size_t bytes;
    place at = {.size = size, .yields = size > sysconf(_SC_NPROCESSORS_ONLN)};
    map_shared(&at, s, &bytes);
    int sockets[RANKS_MAX][RANKS_MAX];
    if (s->tcp) {
        connect_all(size, sockets);
    }
    pid_t pids[RANKS_MAX];
    for (int rank = 0; rank < size; rank++) {
        memcpy(at.sockets, sockets[rank], sizeof at.sockets);
        pids[rank] = start_rank(s, config, at, rank);
    }
    int failed = 0;
    for (int left = size; left > 0;) {
        struct pollfd fd = {.fd = gr_coordinator_fd(coordinator), .events = POLLIN};
        poll(&fd, 1, WAIT_MS);
        (void)!gr_coordinator_progress(coordinator, &diag);
        int how;
        for (int rank = 0; rank < size; rank++) {
            if (pids[rank] > 0 && waitpid(pids[rank], &how, failed ? 0 : WNOHANG) > 0) {
                pids[rank] = 0;
                left--;
                for (int i = 0; i < size && how != 0 && !failed; i++) {
                    if (pids[i] > 0) {
                        kill(pids[i], SIGKILL); /* the bare loop would wait for ever */
                    }
                }
                failed |= how != 0;
            }
        }
    }
    if (s->tcp) {
        close_all(size, sockets);
    }
    munmap(at.shared, bytes);
    gr_coordinator_destroy(coordinator);
    gr_arena_fini(&arena);
    return failed;
}

static size_t bytes_of(const char *text)
{
    char *end;
    size_t value = strtoull(text, &end, 10);
    value = *end == 'k' ? value << 10 : *end == 'm' ? value << 20 : value;
    return value < sizeof(float) ? sizeof(float) : value / sizeof(float) * sizeof(float);
}

int main(int argc, char **argv)
{
    static const size_t usual[] = {4, 1024, 16384, 65536, 262144, 1048576, 4194304, 26214400};
    settings s = {.size_count = sizeof usual / sizeof usual[0],
                  .worlds = {2, 4, 8},
                  .world_count = 3,
                  .rounds = 7,
                  .round_s = 0.05};
    memcpy(s.sizes, usual, sizeof usual);
    int option;
    while ((option = getopt(argc, argv, "n:s:r:d:pt")) != -1) {
        if (option == 'n' || option == 's') {
            int count = 0;
            for (char *word = strtok(optarg, ","); word && count < LIST_MAX;
                 word = strtok(NULL, ",")) {
                if (option == 's') {
                    s.sizes[count] = bytes_of(word);
                } else {
                    s.worlds[count] = atoi(word);
                }
                count++;
            }
            *(option == 's' ? &s.size_count : &s.world_count) = count;
        } else if (option == 'r') {
            s.rounds = atoi(optarg);
        } else if (option == 'd') {
            s.round_s = atof(optarg);
        } else if (option == 'p') {
            s.plain = true;
        } else if (option == 't') {
            s.tcp = true;
        } else {
            return 2;
        }
    }
    s.rounds = s.rounds < 1 ? 1 : s.rounds > ROUNDS_MAX ? ROUNDS_MAX : s.rounds;
    printf("%-12s %10s %12s %12s %11s\n", "", "bytes", "bare us", "allreduce us", "of its speed");
    int failed = 0;
    for (int w = 0; w < s.world_count; w++) {
        int n = s.worlds[w];
        if (n < 2 || n > RANKS_MAX || (s.tcp && (n & (n - 1)) != 0)) {
            fprintf(stderr, "bench_ceiling: -n: 2 to %d ranks; with -t a power of two\n",
                    RANKS_MAX);
            return 2;
        }
        failed |= run_world(&s, n);
    }
    return failed;
}
