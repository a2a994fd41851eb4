/* SPDX-License-Identifier: Apache-2.0 */
#include "support_threads.h"
#include "base/hash.h"

#include <poll.h>
#include <stdio.h>
#include <string.h>

enum { LOOK_MS = 5, RANKS_MAX = 16 };

_Static_assert(sizeof((threads_host){0}.secret_hex) == 2 * GR_SECRET_BYTES + 1, "it fits");

static void *serve(void *arg)
{
    threads_host *host = arg;
    while (!atomic_load(&host->stop)) {
        struct pollfd fd = {.fd = gr_coordinator_fd(host->coordinator), .events = POLLIN};
        poll(&fd, 1, LOOK_MS);
        gr_diag diag;
        (void)!gr_coordinator_progress(host->coordinator, &diag);
    }
    return NULL;
}

int threads_host_start(threads_host *host, int world_size, const char *link)
{
    uint8_t secret[GR_SECRET_BYTES];
    gr_diag diag = {.text = "no thread"};
    memset(host, 0, sizeof *host);
    gr_arena_init(&host->arena, 1 << 16);
    gr_coordinator_config config = {.world_size = world_size, .secret = secret};
    if (gr_random_bytes(secret, sizeof secret, &diag) != GR_OK ||
        gr_config_defaults(&gr_group_config_table, &host->config, &host->arena, &diag) != GR_OK ||
        gr_coordinator_create(&config, &host->coordinator, &diag) != GR_OK) {
        fprintf(stderr, "the job cannot start: %s\n", diag.text);
        gr_arena_fini(&host->arena);
        return -1;
    }
    gr_hex(secret, sizeof secret, host->secret_hex);
    host->config.world_size = world_size;
    host->config.local_size = world_size;
    host->config.coordinator = gr_coordinator_address(host->coordinator);
    host->config.secret_hex = host->secret_hex;
    host->config.link = strcmp(link, "tcp") == 0 ? GR_LINK_ALL_TCP : GR_LINK_ALL_SHM;
    host->config.log_level = 0;
    if (pthread_create(&host->thread, NULL, serve, host) != 0) {
        gr_coordinator_destroy(host->coordinator);
        gr_arena_fini(&host->arena);
        return -1;
    }
    return 0;
}

void threads_host_stop(threads_host *host)
{
    atomic_store(&host->stop, true);
    pthread_join(host->thread, NULL);
    gr_coordinator_destroy(host->coordinator);
    gr_arena_fini(&host->arena);
}

typedef struct threads_rank {
    gr_group_config config;
    threads_function *function;
    void *arg;
    int result;
} threads_rank;

static void *run_rank(void *arg)
{
    threads_rank *rank = arg;
    gr_comm *comm = NULL;
    gr_diag diag;
    if (gr_comm_create_from(&rank->config, &comm, &diag) != GR_OK) {
        fprintf(stderr, "rank %d cannot join: %s\n", (int)rank->config.rank, diag.text);
        rank->result = 9;
        return NULL;
    }
    rank->result = rank->function(comm, rank->arg);
    return NULL;
}

int threads_run(int size, const char *link, int progress, threads_function *function, void *arg)
{
    threads_host host;
    threads_rank ranks[RANKS_MAX];
    pthread_t threads[RANKS_MAX];
    if (size > RANKS_MAX || threads_host_start(&host, size, link) != 0) {
        return -1;
    }
    int failed = 0, started = 0;
    for (; started < size; started++) {
        ranks[started] = (threads_rank){.config = host.config, .function = function, .arg = arg};
        ranks[started].config.rank = started;
        ranks[started].config.local_rank = started;
        ranks[started].config.progress = progress;
        if (pthread_create(&threads[started], NULL, run_rank, &ranks[started]) != 0) {
            failed = -1; /* the others end when the join times out */
            break;
        }
    }
    for (int i = 0; i < started; i++) {
        pthread_join(threads[i], NULL);
        failed |= ranks[i].result;
    }
    threads_host_stop(&host);
    return failed;
}
