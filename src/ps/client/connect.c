/* SPDX-License-Identifier: Apache-2.0 */

/* How a client comes to its servers, and leaves them. */

#include "ps/client/client.h"

#include "base/codec.h"
#include "base/fail.h"
#include "base/hash.h"
#include "group/group.h"
#include "link/interface.h"
#include "link/secret.h"

#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
    CONFIG_BYTES_MAX = 64 << 10,
    READERS = GR_PS_PEERS_MAX - GR_PS_READERS_AT,
    READER_TRIES = 8
};
#define CONNECT_US INT64_C(30000000)
#define AGAIN_US 100000 /* between two attempts to reach a server that is not there yet */

/* ---- What the environment says --------------------------------------------------------------- */

typedef struct ps_environment {
    const char *servers, *run;
    int64_t wait_us;
} ps_environment;

static const gr_config_field fields[] = {
    {.env = "GRADUS_SERVERS",
     .type = GR_CONFIG_TEXT,
     .offset = offsetof(ps_environment, servers),
     .value_name = "ADDRESSES",
     .help = GR_PS_SERVERS_HELP},
    {.env = "GRADUS_RUN",
     .type = GR_CONFIG_TEXT,
     .offset = offsetof(ps_environment, run),
     .value_name = "NAME",
     .help =
         "the run that a worker belongs to, which `gradus run` sets where nothing else is said: "
         "servers that keep another run's tensors refuse the worker"},
    {.env = "GRADUS_SERVERS_TIMEOUT",
     .type = GR_CONFIG_DURATION,
     .offset = offsetof(ps_environment, wait_us),
     .default_text = "0",
     .min = 0,
     .max = 86400e6,
     .unit = "s",
     .help = "how long a client waits for servers that are not there yet, nor perhaps the names of "
             "their hosts; 0: whom nobody listens for is lost"},
    {0},
};

const gr_config_table gr_ps_config_table = {
    .name = "ps",
    .title = "What a client of parameter servers is told by its environment, beside the rank's",
    .fields = fields,
    .struct_bytes = sizeof(ps_environment),
};

/* All that a connection is made of. */
typedef struct plan {
    gr_arena arena;
    gr_group_config job;
    ps_environment environment;
    uint8_t secret[GR_SECRET_BYTES];
    int worker;
    const char *servers, *run;
    int64_t timeout_us, wait_by_us; /* for servers that are not there yet */
} plan;

static gr_status take_secret(const gr_ps_config *config, plan *to, gr_diag *diag)
{
    if (config != NULL && config->secret != NULL) {
        memcpy(to->secret, config->secret, sizeof to->secret);
        return GR_OK;
    }
    if (to->job.secret_hex != NULL && to->job.secret_hex[0] != '\0') {
        return gr_secret_parse(to->job.secret_hex, to->secret, diag);
    }
    if (to->job.secret_file != NULL) {
        return gr_secret_read(to->job.secret_file, to->secret, diag);
    }
    return gr_fail(diag, GR_E_INVALID,
                   "parameter servers ask for the job's secret, but neither GRADUS_SECRET nor "
                   "GRADUS_SECRET_FILE is set");
}

static gr_status make_plan(const gr_ps_config *config, plan *to, gr_diag *diag)
{
    gr_status status = gr_group_config_from_env(&to->job, &to->arena, diag);
    if (status == GR_OK) {
        status =
            gr_config_from_env(&gr_ps_config_table, &to->environment, environ, &to->arena, diag);
    }
    if (status == GR_OK) {
        status = take_secret(config, to, diag);
    }
    if (status != GR_OK) {
        return status;
    }
    to->worker = config != NULL ? config->worker : (int)to->job.rank;
    to->servers =
        config != NULL && config->servers != NULL ? config->servers : to->environment.servers;
    to->run = config != NULL && config->run != NULL ? config->run : to->environment.run;
    to->run = to->run != NULL ? to->run : "";
    to->timeout_us = config != NULL && config->timeout_us > 0 ? config->timeout_us : CONNECT_US;
    to->job.encrypt = to->job.encrypt || (config != NULL && config->encrypt != 0);
    if (to->servers == NULL || to->servers[0] == '\0') {
        return gr_fail(diag, GR_E_INVALID,
                       "no parameter servers are named: set GRADUS_SERVERS to what each `gradus "
                       "server` has printed, with commas between");
    }
    size_t size = strlen(to->run);
    if (size >= GR_PS_RUN_BYTES || !gr_text_printable(to->run, size, false)) {
        return gr_fail(
            diag, GR_E_INVALID,
            "the name of the run (GRADUS_RUN) has %zu bytes; it must have up to %d, which "
            "can be printed",
            size, GR_PS_RUN_BYTES - 1);
    }
    if (to->worker < -1 || to->worker >= GR_PS_WORKERS_MAX) {
        return gr_fail(diag, GR_E_INVALID, "a worker's number is %d, must be 0 to %d, or -1",
                       to->worker, GR_PS_WORKERS_MAX - 1);
    }
    return GR_OK;
}

/* ---- Connecting ------------------------------------------------------------------------------ */

/* As peer number `rank`. */
static gr_status open_mesh(gr_ps *ps, const plan *by, int rank, gr_diag *diag)
{
    gr_mesh_config mesh;
    gr_mesh_config_init(&mesh);
    mesh.kind = by->job.link == GR_LINK_ALL_TCP ? GR_LINK_TCP : GR_LINK_SHM;
    mesh.mixed = by->job.link == GR_LINK_AUTO;
    mesh.dynamic_peers = true;
    mesh.rank = rank;
    mesh.world_size = GR_PS_PEERS_MAX;
    mesh.secret = by->secret;
    mesh.encrypt = by->job.encrypt;
    mesh.handshake_timeout_us = by->timeout_us;
    mesh.peer_timeout_us = by->job.peer_timeout_us;
    mesh.spin_us = by->job.spin_us;
    mesh.cma = (gr_cma)by->job.cma;
    gr_status status = gr_mesh_create(&mesh, &ps->mesh, diag);
    if (status == GR_OK) {
        (void)gr_mesh_shared(ps->mesh, mesh.rank, &ps->own); /* of tcp there is none */
    }
    return status;
}

/* "A+B,C": begins to connect to server 0 at A or B, and to server 1 at C. */
static gr_status dial(gr_ps *ps, const char *servers, gr_diag *diag)
{
    for (const char *at = servers;; at++) {
        char addresses[GR_ADDRESS_BYTES + GR_REMOTE_BYTES];
        size_t size = strcspn(at, ",");
        if (size == 0 || size >= sizeof addresses || ps->servers == GR_PS_SERVERS_MAX) {
            return gr_fail(diag, GR_E_INVALID,
                           "\"%.200s\" is no list of parameter servers: 1 to %d addresses with "
                           "commas between, as `gradus server` prints them",
                           servers, GR_PS_SERVERS_MAX);
        }
        memcpy(addresses, at, size);
        addresses[size] = '\0';
        memcpy(ps->endpoints[ps->servers].addresses, addresses, size + 1);
        gr_ps_split_addresses(addresses);
        gr_status status = gr_mesh_connect(ps->mesh, ps->servers, addresses, diag);
        if (status != GR_OK) {
            return status;
        }
        ps->servers++;
        at += size;
        if (*at == '\0') {
            gr_ps_table_init_single(&ps->table, ps->servers);
            return GR_OK;
        }
    }
}

static bool is_refused(const gr_diag *diag)
{
    return diag->status == GR_E_AUTH || diag->status == GR_E_IN_USE;
}

/* It was not reached, but may come. */
static bool is_to_come(const gr_ps_endpoint *endpoint)
{
    return endpoint->lost && endpoint->link == NULL && !is_refused(&endpoint->diag);
}

/* Greeted by all servers that live by their table; else who is missing, or what is wrong. `waits`:
 * also for those that are to come. */
static gr_status look_around(gr_ps *ps, bool waits, int *missing_out, gr_diag *diag)
{
    bool replicated = ps->tabled && gr_ps_table_replicated(&ps->table);
    int lost = -1, hopes = 0;
    *missing_out = ps->greeting->open > 0 ? 0 : -1;
    if (ps->greeting->status != GR_OK) {
        *diag = ps->greeting->diag;
        return (gr_status)diag->status;
    }
    for (int s = ps->servers - 1; s >= 0; s--) {
        const gr_ps_endpoint *endpoint = &ps->endpoints[s];
        bool there = endpoint->link != NULL && !endpoint->lost;
        bool comes = waits && is_to_come(endpoint);
        hopes += !endpoint->lost || comes;
        if (!ps->table.alive[s] || there) {
            continue;
        }
        *missing_out = s;
        if (endpoint->lost && !comes && !(replicated && endpoint->takeover_by_us > 0)) {
            lost = s;
        }
    }
    /* Before there is a table nobody knows whether a lost one is missed. */
    if (lost >= 0 && (ps->tabled || hopes == 0 || is_refused(&ps->endpoints[lost].diag))) {
        *diag = ps->endpoints[lost].diag;
        return (gr_status)diag->status;
    }
    return *missing_out < 0 && ps->tabled ? GR_OK : GR_PENDING;
}

static void dial_again(gr_ps *ps)
{
    for (int s = 0; s < ps->servers; s++) {
        if (is_to_come(&ps->endpoints[s]) && ps->table.alive[s]) {
            gr_ps_dial_again(ps, s);
        }
    }
}

static gr_status greet(gr_ps *ps, int64_t wait_by_us, int64_t deadline_us, gr_diag *diag)
{
    int missing = -1;
    int64_t again_us = 0;
    ps->greeting = gr_ps_op_open(ps, GR_PS_HELLO, NULL);
    ps->greeting->to = GR_PS_TO_LINKED;
    for (;;) {
        gr_ps_progress(ps);
        int64_t now = gr_clock_now_us(&ps->clock);
        bool waits = now < wait_by_us;
        if (waits && now >= again_us) {
            again_us = now + AGAIN_US;
            dial_again(ps);
        }
        gr_status status = look_around(ps, waits, &missing, diag);
        if (status < 0) {
            return status;
        }
        if (status == GR_OK && gr_ps_op_over(ps->greeting)) {
            gr_ps_op *op = ps->greeting;
            ps->greeting = NULL;
            return gr_ps_op_close(op, NULL);
        }
        if (now >= deadline_us) {
            return gr_fail_peer(diag, GR_E_TIMEOUT, missing,
                                "parameter server %d has not answered in time: is it running, and "
                                "does no other client have this one's number?",
                                missing);
        }
        gr_mesh_wait(ps->mesh, waits && again_us < deadline_us ? again_us : deadline_us);
    }
}

static gr_status connect_as(const plan *by, int rank, int64_t deadline_us, gr_ps **ps_out,
                            gr_diag *diag)
{
    gr_ps *ps = calloc(1, sizeof *ps);
    if (ps == NULL) {
        return gr_fail(diag, GR_E_NO_MEMORY, "no memory for a connection");
    }
    ps->clock = gr_clock_real();
    ps->worker = by->worker;
    snprintf(ps->run, sizeof ps->run, "%s", by->run);
    ps->peer_timeout_us = by->job.peer_timeout_us;
    for (int i = GR_PS_OPS_MAX - 1; i >= 0; i--) {
        ps->ops[i].ticket = (uint32_t)i;
        ps->ops[i].next = ps->free_op;
        ps->free_op = &ps->ops[i];
    }
    gr_status status = open_mesh(ps, by, rank, diag);
    if (status == GR_OK) {
        status = dial(ps, by->servers, diag);
    }
    if (status == GR_OK) {
        status = greet(ps, by->wait_by_us, deadline_us, diag);
    }
    if (status != GR_OK) {
        gr_ps_close(ps);
        return status;
    }
    *ps_out = ps;
    return GR_OK;
}

/* Who is no worker takes any number of those for readers. A server refuses one that another reader
 * has: then the next one may be free. */
static gr_status connect_as_any(const plan *by, int64_t deadline_us, gr_ps **ps_out, gr_diag *diag)
{
    uint32_t number = 0;
    gr_status status = gr_random_bytes(&number, sizeof number, diag);
    if (status != GR_OK) {
        return status;
    }
    int tries = 0;
    do {
        int rank = GR_PS_READERS_AT + (int)((number % READERS + (uint32_t)tries) % READERS);
        gr_diag_clear(diag);
        status = connect_as(by, rank, deadline_us, ps_out, diag);
    } while (status == GR_E_IN_USE && ++tries < READER_TRIES);
    return status;
}

gr_status gr_ps_connect(const gr_ps_config *config, gr_ps **ps_out, gr_diag *diag)
{
    plan by = {0};
    gr_diag why = {0};
    gr_clock clock = gr_clock_real();
    gr_arena_init(&by.arena, CONFIG_BYTES_MAX);
    gr_status status = make_plan(config, &by, &why);
    if (status == GR_OK) {
        int64_t deadline_us = gr_clock_deadline_us(&clock, by.timeout_us);
        by.wait_by_us =
            by.environment.wait_us > 0 ? gr_clock_deadline_us(&clock, by.environment.wait_us) : 0;
        deadline_us = by.wait_by_us > deadline_us ? by.wait_by_us : deadline_us;
        status = by.worker >= 0
                     ? connect_as(&by, GR_PS_WORKERS_AT + by.worker, deadline_us, ps_out, &why)
                     : connect_as_any(&by, deadline_us, ps_out, &why);
    }
    if (config == NULL || config->secret == NULL) {
        gr_group_config_wipe(&by.job);
    }
    gr_wipe(by.secret, sizeof by.secret);
    gr_arena_fini(&by.arena);
    if (status != GR_OK && diag != NULL) {
        *diag = why;
    }
    return status;
}

void gr_ps_close(gr_ps *ps)
{
    if (ps == NULL) {
        return;
    }
    gr_mesh_destroy(ps->mesh);
    for (int s = 0; s < ps->servers; s++) {
        free(ps->endpoints[s].words);
    }
    for (int i = 0; i < GR_PS_OPS_MAX; i++) {
        gr_ps_rows_drop(&ps->ops[i]);
        free(ps->ops[i].narrow);
        free(ps->ops[i].pairs);
    }
    for (uint32_t i = 0; i < ps->known_count; i++) {
        free(ps->known[i]->narrow);
        free(ps->known[i]->pairs);
        free(ps->known[i]);
    }
    free((void *)ps->known);
    free(ps);
}
