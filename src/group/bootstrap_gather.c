/* SPDX-License-Identifier: Apache-2.0 */

/* The callback backend: the caller's allgather is called twice. First each rank says where it runs;
 * then rank 0 says where its coordinator is, or why it has none. */

#include "base/fail.h"
#include "base/hash.h"
#include "base/thread.h"
#include "group/bootstrap_internal.h"
#include "group/member.h"
#include "link/secret.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* One call of the callback. It runs on a thread of its own, so that a callback that hangs does not
 * keep the join. Whoever lets go last, the join or that thread, frees it. */
typedef struct gather {
    pthread_mutex_t lock; /* guards done and abandoned; held for a moment */
    pthread_cond_t ended; /* done has become true */
    bool done, abandoned;
    int result;
    gr_bootstrap_allgather *callback;
    void *arg;
    size_t all_bytes;
    uint8_t mine[GR_RECORD_BYTES];
    uint8_t all[]; /* GR_RECORD_BYTES for each rank */
} gather;

static gather *create(const gr_group_config *config, const gr_record *mine)
{
    size_t all_bytes = (size_t)config->world_size * GR_RECORD_BYTES;
    gather *g = calloc(1, sizeof *g + all_bytes);
    pthread_condattr_t monotonic;
    if (g == NULL) {
        return NULL;
    }
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&g->ended, &monotonic);
    pthread_condattr_destroy(&monotonic);
    pthread_mutex_init(&g->lock, NULL);
    g->callback = config->allgather;
    g->arg = config->allgather_arg;
    g->all_bytes = all_bytes;
    gr_record_put(mine, g->mine);
    return g;
}

static void destroy(gather *g)
{
    gr_wipe(g->mine, sizeof g->mine);
    gr_wipe(g->all, g->all_bytes); /* the secret is in it */
    pthread_cond_destroy(&g->ended);
    pthread_mutex_destroy(&g->lock);
    free(g);
}

static void *run(void *gather_arg)
{
    gather *g = gather_arg;
    int result = g->callback(g->arg, g->mine, sizeof g->mine, g->all);
    pthread_mutex_lock(&g->lock);
    g->result = result;
    g->done = true;
    bool abandoned = g->abandoned;
    pthread_cond_signal(&g->ended);
    pthread_mutex_unlock(&g->lock);
    if (abandoned) {
        destroy(g);
    }
    return NULL;
}

/* Returns false if the callback has not returned by then; `g` belongs to its thread then. */
static bool await(gather *g, pthread_t thread, int64_t deadline_us)
{
    struct timespec until = {.tv_sec = deadline_us / 1000000,
                             .tv_nsec = deadline_us % 1000000 * 1000};
    int error = 0;
    pthread_mutex_lock(&g->lock);
    while (!g->done && error == 0) {
        error = pthread_cond_timedwait(&g->ended, &g->lock, &until);
    }
    bool done = g->done;
    g->abandoned = !done;
    pthread_mutex_unlock(&g->lock);
    if (done) {
        pthread_join(thread, NULL);
    } else {
        pthread_detach(thread);
    }
    return done;
}

static gr_status call(gr_joining *join, gather *g, gr_diag *diag)
{
    pthread_t thread;
    if (join->deadline_us == GR_NEVER) { /* it may take as long as it likes */
        (void)run(g);
        return GR_OK;
    }
    int error = gr_thread_create(&thread, NULL, run, g);
    if (error != 0) {
        destroy(g);
        return gr_fail(diag, GR_E_IO, "the thread for the bootstrap callback cannot be started: %s",
                       strerror(error));
    }
    if (!await(g, thread, join->deadline_us)) {
        return gr_fail(diag, GR_E_TIMEOUT,
                       "the bootstrap callback (allgather) of rank %lld has not returned within %g "
                       "s (the join timeout): do all %lld ranks create the communicator?",
                       (long long)join->config->rank, (double)join->config->join_timeout_us / 1e6,
                       (long long)join->config->world_size);
    }
    return GR_OK;
}

/* Each rank's record, in its place. */
static gr_status check(const gr_group_config *config, const gather *g, gr_record_kind kind,
                       gr_diag *diag)
{
    for (int rank = 0; rank < config->world_size; rank++) {
        gr_record record;
        gr_status status = gr_record_get(g->all + (size_t)rank * GR_RECORD_BYTES, &record);
        gr_wipe(record.secret, sizeof record.secret);
        if (status != GR_OK || record.kind != kind) {
            return gr_fail_peer(diag, GR_E_PROTOCOL, rank,
                                "the bootstrap callback (allgather) gave rank %lld bytes for rank "
                                "%d that rank %d did not give to it: it must bring %d bytes of "
                                "each rank to all, in the order of ranks",
                                (long long)config->rank, rank, rank, GR_RECORD_BYTES);
        }
        if (record.rank != (uint32_t)rank || record.world_size != (uint32_t)config->world_size) {
            return gr_fail_peer(diag, GR_E_PROTOCOL, rank,
                                "the bootstrap callback (allgather) of rank %lld of %lld has in "
                                "place %d what rank %u of %u gave: ranks and world size must be "
                                "those of the callback",
                                (long long)config->rank, (long long)config->world_size, rank,
                                record.rank, record.world_size);
        }
    }
    return GR_OK;
}

/* On success `out` belongs to the caller. */
static gr_status gather_records(gr_joining *join, const gr_record *mine, gather **out,
                                gr_diag *diag)
{
    const gr_group_config *config = join->config;
    gather *g = create(config, mine);
    if (g == NULL) {
        return gr_fail(diag, GR_E_NO_MEMORY, "no memory for a group of %lld",
                       (long long)config->world_size);
    }
    gr_status status = call(join, g, diag);
    if (status != GR_OK) {
        return status;
    }
    status = g->result != 0
                 ? gr_fail(diag, GR_E_IO,
                           "the bootstrap callback (allgather) of rank %lld failed: it returned %d",
                           (long long)config->rank, g->result)
                 : check(config, g, mine->kind, diag);
    if (status != GR_OK) {
        destroy(g);
        return status;
    }
    *out = g;
    return GR_OK;
}

gr_status gr_bootstrap_gather_hosts(gr_joining *join, gr_bootstrap *bootstrap, gr_diag *diag)
{
    const gr_group_config *config = join->config;
    gr_record record = {.kind = GR_RECORD_HOST,
                        .rank = (uint32_t)config->rank,
                        .world_size = (uint32_t)config->world_size,
                        .host = join->self.host};
    gather *g = NULL;
    gr_status status = gather_records(join, &record, &g, diag);
    if (status != GR_OK) {
        return status;
    }
    bootstrap->local_rank = bootstrap->local_size = 0;
    for (int rank = 0; rank < config->world_size; rank++) {
        gr_status known = gr_record_get(g->all + (size_t)rank * GR_RECORD_BYTES, &record);
        bool here = known == GR_OK && record.host == join->self.host;
        bootstrap->local_size += here;
        bootstrap->local_rank += here && rank < config->rank;
    }
    destroy(g);
    return GR_OK;
}

gr_status gr_bootstrap_gather_coordinator(gr_joining *join, gr_diag *diag)
{
    gr_group *group = join->group;
    gr_bootstrap *b = group->bootstrap;
    gr_diag hosted;
    gr_record record = {.kind = GR_RECORD_COORDINATOR,
                        .rank = (uint32_t)join->config->rank,
                        .world_size = (uint32_t)join->config->world_size};
    gr_diag_clear(&hosted);
    if (record.rank == 0) {
        record.status = gr_bootstrap_host(join, &hosted);
        snprintf(record.text, sizeof record.text, "%s",
                 record.status == GR_OK ? b->coordinator : hosted.text);
        if (record.status == GR_OK) {
            memcpy(record.secret, group->secret, sizeof record.secret);
        }
    }
    gather *g = NULL;
    gr_status status = gather_records(join, &record, &g, diag);
    if (status == GR_OK) {
        status = gr_record_get(g->all, &record);
        destroy(g);
    }
    if (status == GR_OK && record.status != GR_OK) {
        status =
            gr_fail_peer(diag, GR_E_IO, 0, "rank 0 cannot host the coordinator: %s", record.text);
    } else if (status == GR_OK && group->secret == NULL) {
        snprintf(b->coordinator, sizeof b->coordinator, "%s", record.text);
        if ((group->secret = gr_secret_keep(record.secret)) == NULL) {
            status = gr_fail(diag, GR_E_NO_MEMORY, "no memory for a secret");
        }
    }
    gr_wipe(record.secret, sizeof record.secret);
    return status;
}
