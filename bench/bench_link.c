/* SPDX-License-Identifier: Apache-2.0 */

/* Latency and bandwidth of a link between two processes on this host: ping-pong of 4 B to 16 MiB
 * over each kind, out of memory that the peer can read and out of plain memory. Prints a table.
 *
 *     bench_link [shm|tcp] [milliseconds for each size, 100] [two cores, "0,1"; or -] [world size]
 *
 * With a world size the meshes have dynamic peers (as parameter servers have), for so many
 * peers; three of them are there, of which one answers. */

#include "base/fail.h"
#include "link/link.h"

#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

enum { SIZE_MAX_BYTES = 16 << 20, PING = 1, STOP = 2, WARM_UP = 20, SILENT = 2 };

static const uint8_t secret[GR_SECRET_BYTES] = {1, 2, 3};

typedef struct bench {
    gr_mesh *mesh;
    gr_link *link;
    uint8_t *out, *in;
    int world; /* 0: no dynamic peers */
} bench;

static void die(const char *what, const gr_diag *diag)
{
    fprintf(stderr, "bench_link: %s: %s\n", what, diag != NULL ? diag->text : "");
    exit(1);
}

static void progress(bench *b)
{
    gr_diag diag = {0};
    if (gr_mesh_progress(b->mesh, &diag) != GR_OK) {
        die("progress", &diag);
    }
    int peer;
    bool ended;
    while (gr_mesh_next_change(b->mesh, &peer, &ended)) { /* links say themselves that they end */
    }
}

static void send_one(bench *b, uint32_t what, uint32_t size, uint64_t *ticket)
{
    gr_frame frame = {.kind = GR_FRAME_DATA, .op_seq = what, .size_bytes = size};
    gr_status status;
    while ((status = gr_link_send(b->link, &frame, b->out, ticket)) == GR_E_AGAIN) {
        progress(b);
    }
    if (status != GR_OK) {
        die("send", gr_link_diag(b->link));
    }
}

/* Receive one message: looked at where it lies if the link can, copied otherwise. */
static gr_frame receive_one(bench *b, gr_clock *clock, bool copy)
{
    gr_frame frame;
    const void *data;
    gr_status status;
    while ((status = gr_link_peek(b->link, &frame)) == GR_PENDING) {
        gr_mesh_wait(b->mesh, gr_clock_now_us(clock) + 1000000);
        progress(b);
    }
    if (status != GR_OK) {
        die("receive", gr_link_diag(b->link));
    }
    if (copy || gr_link_view(b->link, &data) != GR_OK) {
        while ((status = gr_link_read(b->link, b->in)) == GR_PENDING) {
            gr_mesh_wait(b->mesh, gr_clock_now_us(clock) + 1000000);
            progress(b);
        }
        if (status != GR_OK) {
            die("read", gr_link_diag(b->link));
        }
    }
    gr_link_next(b->link, NULL);
    return frame;
}

static void finish(bench *b, gr_clock *clock, uint64_t ticket)
{
    while (!gr_link_sent(b->link, ticket)) {
        gr_mesh_wait(b->mesh, gr_clock_now_us(clock) + 1000000);
        progress(b);
    }
}

static void pin(const char *cores, int which)
{
    int core[2];
    cpu_set_t set;
    if (cores == NULL || sscanf(cores, "%d,%d", &core[0], &core[1]) != 2) {
        return;
    }
    CPU_ZERO(&set);
    CPU_SET((size_t)core[which], &set);
    (void)sched_setaffinity(0, sizeof set, &set);
}

static gr_mesh_config config_of(const bench *b, gr_link_kind kind, int rank)
{
    gr_mesh_config config;
    gr_mesh_config_init(&config);
    config.kind = kind;
    config.rank = rank;
    config.dynamic_peers = b->world > 0;
    config.world_size = config.dynamic_peers ? b->world : 2;
    config.secret = secret;
    return config;
}

/* Processes that are there and say nothing. */
static void start_silent(bench *b, gr_link_kind kind, gr_clock *clock, pid_t pid_out[SILENT])
{
    for (int i = 0; i < SILENT; i++) {
        pid_out[i] = fork();
        if (pid_out[i] == 0) {
            bench other = {.world = b->world};
            gr_mesh_config config = config_of(b, kind, 2 + i);
            prctl(PR_SET_PDEATHSIG, SIGKILL);
            if (gr_mesh_create(&config, &other.mesh, NULL) != GR_OK ||
                gr_mesh_connect(other.mesh, 0, gr_mesh_address(b->mesh), NULL) != GR_OK) {
                _exit(1);
            }
            for (;;) {
                progress(&other);
                gr_mesh_wait(other.mesh, gr_clock_now_us(clock) + 1000000);
            }
        }
        while (gr_mesh_link(b->mesh, 2 + i) == NULL) {
            gr_mesh_wait(b->mesh, gr_clock_now_us(clock) + 100000);
            progress(b);
        }
    }
}

static void open_side(bench *b, gr_link_kind kind, int rank, int socket_fd, gr_clock *clock,
                      bool plain)
{
    gr_mesh_config config = config_of(b, kind, rank);
    gr_diag diag = {0};
    char address[GR_ADDRESS_BYTES] = {0};
    void *mem;
    if (gr_mesh_create(&config, &b->mesh, &diag) != GR_OK) {
        die("create", &diag);
    }
    if (rank == 0) {
        snprintf(address, sizeof address, "%s", gr_mesh_address(b->mesh));
        if (write(socket_fd, address, sizeof address) != sizeof address) {
            die("address", NULL);
        }
    } else if (read(socket_fd, address, sizeof address) != sizeof address ||
               gr_mesh_connect(b->mesh, 0, address, &diag) != GR_OK) {
        die("connect", &diag);
    }
    while ((b->link = gr_mesh_link(b->mesh, 1 - rank)) == NULL) {
        gr_mesh_wait(b->mesh, gr_clock_now_us(clock) + 100000);
        progress(b);
    }
    b->in = calloc(1, SIZE_MAX_BYTES);
    if (plain) {
        b->out = calloc(1, SIZE_MAX_BYTES);
    } else if (gr_mesh_alloc(b->mesh, SIZE_MAX_BYTES, &mem) == GR_OK) {
        b->out = mem;
    }
    if (b->in == NULL || b->out == NULL) {
        die("no memory", NULL);
    }
    memset(b->out, 1, SIZE_MAX_BYTES);
}

static void answer(bench *b, gr_clock *clock, bool copy)
{
    uint64_t ticket = 0;
    for (;;) {
        gr_frame frame = receive_one(b, clock, copy);
        finish(b, clock, ticket);
        send_one(b, frame.op_seq, frame.size_bytes, &ticket);
        if (frame.op_seq == STOP) {
            finish(b, clock, ticket);
            return;
        }
    }
}

static void ask(bench *b, gr_clock *clock, const char *name, int64_t budget_ms, bool copy)
{
    uint64_t ticket;
    for (uint32_t size = 4; size <= SIZE_MAX_BYTES; size *= 4) {
        int64_t rounds = 0, start = 0, best = INT64_MAX, end_ns = 0, last = 0;
        gr_mesh_stats before = {0}, after;
        for (;; rounds++) {
            if (rounds == WARM_UP) {
                start = gr_now_ns();
                end_ns = start + budget_ms * 1000000;
                gr_mesh_get_stats(b->mesh, &before);
            }
            int64_t begin = gr_now_ns();
            if (rounds >= WARM_UP && begin >= end_ns) {
                last = begin;
                break;
            }
            send_one(b, PING, size, &ticket);
            (void)receive_one(b, clock, copy);
            finish(b, clock, ticket);
            int64_t took = gr_now_ns() - begin;
            best = took < best ? took : best;
        }
        gr_mesh_get_stats(b->mesh, &after);
        double mean_us = (double)(last - start) / 1e3 / (double)(rounds - WARM_UP) / 2;
        printf("%-16s %10u B %10.2f us %10.2f us %10.3f GB/s %8.2f calls\n", name, size, mean_us,
               (double)best / 2e3, (double)size / mean_us / 1e3,
               (double)(after.system_calls - before.system_calls) / (double)(rounds - WARM_UP));
    }
    send_one(b, STOP, 4, &ticket);
    (void)receive_one(b, clock, copy);
    fflush(stdout);
}

static void measure(gr_link_kind kind, const char *name, int64_t budget_ms, const char *cores,
                    int world, bool plain, bool copy)
{
    int fds[2];
    bench b = {.world = world};
    pid_t silent[SILENT] = {0};
    gr_clock clock = gr_clock_real();
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds) != 0) {
        die("socketpair", NULL);
    }
    pid_t child = fork();
    if (child < 0) {
        die("fork", NULL);
    }
    pin(cores, child == 0 ? 1 : 0);
    close(fds[child == 0 ? 0 : 1]);
    if (child == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
    }
    open_side(&b, kind, child == 0 ? 1 : 0, fds[child == 0 ? 1 : 0], &clock, plain);
    if (child == 0) {
        answer(&b, &clock, copy);
        gr_mesh_destroy(b.mesh); /* says BYE: to end without it is to die */
        _exit(0);
    }
    if (world > 0) {
        start_silent(&b, kind, &clock, silent);
    }
    ask(&b, &clock, name, budget_ms, copy);
    waitpid(child, NULL, 0);
    for (int i = 0; i < SILENT && silent[i] > 0; i++) {
        kill(silent[i], SIGKILL);
        waitpid(silent[i], NULL, 0);
    }
    if (plain) {
        free(b.out);
    }
    free(b.in);
    gr_mesh_destroy(b.mesh);
    close(fds[0]);
}

int main(int argc, char **argv)
{
    const char *only = argc > 1 ? argv[1] : "";
    int64_t budget_ms = argc > 2 ? atoll(argv[2]) : 100;
    const char *cores = argc > 3 ? argv[3] : NULL;
    int world = argc > 4 ? atoi(argv[4]) : 0;
    if (world != 0 && world < 2 + SILENT) {
        die("the world size must be 4 or more", NULL);
    }
    printf("%-16s %12s %13s %13s %15s\n", "link", "message", "one way", "best", "bandwidth");
    fflush(stdout);
    if (strcmp(only, "tcp") != 0) {
        measure(GR_LINK_SHM, "shm in place", budget_ms, cores, world, false, false);
        measure(GR_LINK_SHM, "shm copied out", budget_ms, cores, world, false, true);
        measure(GR_LINK_SHM, "shm staged", budget_ms, cores, world, true, true);
    }
    if (strcmp(only, "shm") != 0) {
        measure(GR_LINK_TCP, "tcp", budget_ms, cores, world, true, true);
    }
    return 0;
}
