/* SPDX-License-Identifier: Apache-2.0 */
#include "group/bootstrap.h"

#include "base/fail.h"
#include "base/hash.h"
#include "group/bootstrap_internal.h"
#include "group/member.h"
#include "link/address.h"
#include "link/secret.h"

#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
    LOOKUP_MIN_US = 1000, /* between two looks for the coordinator: twice as long each time */
    LOOKUP_MAX_US = 50000,
    LINGER_US = 5000000, /* for so long a coordinator serves ranks that are behind its own */
    /* For so long a joining worker waits for an answer, twice as long in each round of calls. */
    ANSWER_MIN_US = 500000,
    ANSWER_DOUBLINGS_MAX = 5,
    NOBODY_SHARE = 6 /* of the time for the join: if nobody is there for so long, the job is over */
};

/* ---- Choice ---------------------------------------------------------------------------------- */

static bool is_callback(const gr_group_config *config)
{
    return config->allgather != NULL;
}

static bool is_named(const gr_group_config *config)
{
    return config->coordinator != NULL;
}

static bool on_one_host(const gr_group_config *config)
{
    return config->launch.name != NULL && config->local_size >= config->world_size;
}

static bool is_file(const gr_group_config *config)
{
    return on_one_host(config) || (config->rendezvous_dir != NULL && config->launch.job[0] != '\0');
}

static bool is_port(const gr_group_config *config)
{
    return config->launch.host[0] != '\0' && config->launch.port > 0 && gr_group_has_secret(config);
}

/* rank 0's coordinator listens where everybody looks for it. */
static gr_status lookup_port(gr_joining *join, gr_diag *diag)
{
    gr_bootstrap *b = join->group->bootstrap;
    const gr_launch *launch = &join->config->launch;
    (void)diag;
    _Static_assert(sizeof b->coordinator >= GR_LAUNCH_TEXT_BYTES + 16, "all of the host's name");
    snprintf(b->coordinator, sizeof b->coordinator, "tcp:%s:%d", launch->host, launch->port);
    return GR_OK;
}

/* The coordinator may be at any of the addresses, or on its way from one to another. */
static bool looks_around(const gr_joining *join)
{
    return join->config->joining && join->config->failover;
}

/* A joining worker turns to the next address of GRADUS_COORDINATOR. */
static gr_status lookup_next(gr_joining *join, gr_diag *diag)
{
    gr_bootstrap *b = join->group->bootstrap;
    const char *addresses = join->given;
    (void)diag;
    if (!looks_around(join)) {
        return GR_OK;
    }
    if (!gr_address_next(addresses, &b->next_at, b->coordinator)) {
        b->next_at = 0;
        b->rounds++;
        (void)gr_address_next(addresses, &b->next_at, b->coordinator);
    }
    return GR_OK;
}

static const gr_bootstrap_ops backends[] = {
    {.name = "callback",
     .applies = is_callback,
     .hosted = true,
     .find_hosts = gr_bootstrap_gather_hosts,
     .exchange = gr_bootstrap_gather_coordinator},
    {.name = "coordinator", .applies = is_named, .lookup = lookup_next},
    {.name = "file",
     .applies = is_file,
     .hosted = true,
     .retries = true,
     .publish = gr_bootstrap_write_file,
     .lookup = gr_bootstrap_read_file},
    {.name = "port",
     .applies = is_port,
     .hosted = true,
     .retries = true,
     .fixed_port = true,
     .lookup = lookup_port},
};

static gr_status fail_choice(const gr_group_config *config, gr_diag *diag)
{
    const gr_launch *launch = &config->launch;
    if (launch->name == NULL) {
        return gr_fail(diag, GR_E_INVALID,
                       "GRADUS_RANK is set, but GRADUS_COORDINATOR is not: start the program with "
                       "`gradus run`");
    }
    char by_dir[128] = "", by_port[400] = "";
    if (launch->job[0] != '\0') {
        snprintf(by_dir, sizeof by_dir,
                 "set GRADUS_RENDEZVOUS_DIR to a folder that all hosts share; or ");
    }
    if (launch->host[0] != '\0' && launch->port > 0) {
        snprintf(by_port, sizeof by_port,
                 "give all ranks a GRADUS_SECRET_FILE with the same secret (`openssl rand -hex 32` "
                 "makes one), so that they meet at %.100s, port %d; or ",
                 launch->host, launch->port);
    }
    return gr_fail(diag, GR_E_INVALID,
                   "%s started %lld ranks on several hosts, and nothing says where they meet: %s%s"
                   "start `gradus rendezvous` and give all ranks the GRADUS_COORDINATOR and "
                   "GRADUS_SECRET that it prints",
                   launch->name, (long long)config->world_size, by_dir, by_port);
}

gr_status gr_bootstrap_create(gr_joining *join, gr_bootstrap **bootstrap_out, gr_diag *diag)
{
    const gr_bootstrap_ops *ops = NULL;
    for (size_t i = 0; i < sizeof backends / sizeof backends[0] && ops == NULL; i++) {
        ops = backends[i].applies(join->config) ? &backends[i] : NULL;
    }
    if (ops == NULL) {
        return fail_choice(join->config, diag);
    }
    gr_bootstrap *b = calloc(1, sizeof *b);
    if (b == NULL) {
        return gr_fail(diag, GR_E_NO_MEMORY, "no memory for a bootstrap");
    }
    b->ops = ops;
    b->local_rank = join->config->local_rank;
    b->local_size = join->config->local_size;
    atomic_init(&b->complete, false);
    gr_status status = ops->find_hosts != NULL ? ops->find_hosts(join, b, diag) : GR_OK;
    if (status != GR_OK) {
        gr_bootstrap_destroy(b);
        return status;
    }
    *bootstrap_out = b;
    return GR_OK;
}

void gr_bootstrap_apply(const gr_bootstrap *bootstrap, gr_group_config *config)
{
    if (bootstrap->coordinator[0] != '\0') {
        config->coordinator = bootstrap->coordinator;
    }
    config->local_rank = bootstrap->local_rank;
    config->local_size = bootstrap->local_size;
    /* Rank 0 may be lost like any other rank, and its coordinator with it. */
    config->failover = config->failover || (bootstrap->ops->hosted && config->members_min > 0);
}

/* ---- The coordinator of rank 0 --------------------------------------------------------------- */

static void set_complete(void *bootstrap_arg)
{
    gr_bootstrap *b = bootstrap_arg;
    if (b->path[0] != '\0') {
        (void)unlink(b->path); /* all have read it; the next group may take the same name */
    }
    atomic_store(&b->complete, true);
}

gr_status gr_bootstrap_host(gr_joining *join, gr_diag *diag)
{
    gr_group *group = join->group;
    gr_bootstrap *b = group->bootstrap;
    const gr_group_config *config = join->config;
    const gr_launch *launch = &config->launch;
    uint8_t secret[GR_SECRET_BYTES];
    gr_status status = GR_OK;
    if (gr_group_has_secret(config)) {
        status = gr_group_keep_secret(config, &group->secret, diag);
    } else {
        status = gr_random_bytes(secret, sizeof secret, diag);
        if (status == GR_OK && (group->secret = gr_secret_keep(secret)) == NULL) {
            status = gr_fail(diag, GR_E_NO_MEMORY, "no memory for a secret");
        }
        gr_wipe(secret, sizeof secret);
    }
    if (status != GR_OK) {
        return status;
    }
    gr_coordinator_config coordinator = {
        .world_size = (int)config->world_size,
        .members_min = (int)config->members_min,
        .failover = config->members_min > 0,
        .secret = group->secret,
        .encrypt = config->encrypt,
        .listen_host = join->remote ? gr_interfaces_listen_host(&join->interfaces) : NULL,
        .ports = join->ports,
        .peer_timeout_us = config->peer_timeout_us,
        .on_complete = set_complete,
        .on_complete_arg = b,
        .log = join->log};
    if (b->ops->fixed_port) {
        coordinator.listen_host = "*";
        coordinator.ports =
            (gr_ports){.first = (uint16_t)launch->port, .last = (uint16_t)launch->port};
    }
    status = gr_failover_create(&coordinator, &b->host, diag);
    if (status == GR_OK) {
        const char *address = gr_failover_address(b->host);
        snprintf(b->coordinator, sizeof b->coordinator, "%s", address);
        if (join->remote) {
            gr_interfaces_announce(&join->interfaces, address, b->coordinator);
        }
        status = gr_failover_begin(b->host, NULL, 0, NULL, 0, diag);
    }
    return status;
}

/* ---- Exchange -------------------------------------------------------------------------------- */

/* Sleeps before the next look; false: the time for the join is over. */
static bool sleep_before_lookup(gr_joining *join)
{
    gr_bootstrap *b = join->group->bootstrap;
    b->wait_us = b->wait_us == 0 ? LOOKUP_MIN_US : 2 * b->wait_us;
    b->wait_us = b->wait_us > LOOKUP_MAX_US ? LOOKUP_MAX_US : b->wait_us;
    (void)poll(NULL, 0, (int)(b->wait_us / 1000));
    return !gr_joining_late(join);
}

static gr_status lookup(gr_joining *join, gr_diag *diag)
{
    gr_bootstrap *b = join->group->bootstrap;
    gr_status status;
    while ((status = b->ops->lookup(join, diag)) == GR_PENDING) {
        if (!sleep_before_lookup(join)) {
            return gr_fail_peer(diag, GR_E_TIMEOUT, 0,
                                "rank 0 has not written %s within %g s (GRADUS_JOIN_TIMEOUT): see "
                                "its output, and whether it has the same %s",
                                b->path, (double)join->config->join_timeout_us / 1e6,
                                join->config->rendezvous_dir != NULL ? "GRADUS_RENDEZVOUS_DIR"
                                                                     : "/tmp");
        }
    }
    return status;
}

gr_status gr_bootstrap_exchange(gr_joining *join, gr_diag *diag)
{
    gr_bootstrap *b = join->group->bootstrap;
    gr_status status = GR_OK;
    if (b->ops->exchange != NULL) {
        return b->ops->exchange(join, diag);
    }
    if (b->ops->hosted && join->config->rank == 0 && !join->config->joining) {
        status = gr_bootstrap_host(join, diag);
        return status == GR_OK && b->ops->publish != NULL ? b->ops->publish(join, diag) : status;
    }
    return b->ops->lookup != NULL ? lookup(join, diag) : GR_OK;
}

/* Members listen as long as they live, also those that do not answer. */
static bool is_nobody_there(gr_joining *join, gr_status status)
{
    gr_bootstrap *b = join->group->bootstrap;
    int64_t now_us = gr_clock_now_us(&join->clock);
    bool nobody = status == GR_E_PEER_LOST || status == GR_E_NOT_FOUND;
    b->nobody_us = !nobody ? 0 : b->nobody_us == 0 ? now_us : b->nobody_us;
    int64_t most_us = join->config->join_timeout_us / NOBODY_SHARE; /* 0: it waits for ever */
    return nobody && most_us > 0 && now_us - b->nobody_us >= most_us;
}

gr_status gr_bootstrap_retry(gr_joining *join, gr_status status, gr_diag *diag)
{
    const gr_bootstrap *b = join->group->bootstrap;
    bool again = b->ops->retries && join->config->rank != 0 &&
                 (status == GR_E_PEER_LOST || status == GR_E_AUTH || status == GR_E_IN_USE ||
                  status == GR_E_NOT_FOUND); /* a pod's name comes with its address */
    /* The name of a host that has gone is no longer known. */
    bool looks = looks_around(join) && status != GR_E_NO_MEMORY && status != GR_E_IO;
    if (looks && is_nobody_there(join, status)) {
        return gr_fail(diag, GR_E_PEER_LOST,
                       "there is nobody whom this worker could join at GRADUS_COORDINATOR (%.150s) "
                       "for %g s: the job has ended, or all of its workers were lost",
                       join->given, (double)join->config->join_timeout_us / NOBODY_SHARE / 1e6);
    }
    if ((again || looks) && sleep_before_lookup(join)) {
        return lookup(join, diag);
    }
    return looks ? gr_fail(diag, GR_E_PEER_LOST,
                           "no coordinator of the job has let this worker join within %g s "
                           "(GRADUS_JOIN_TIMEOUT): its workers have ended, or cannot be reached at "
                           "GRADUS_COORDINATOR",
                           (double)join->config->join_timeout_us / 1e6)
                 : status;
}

int64_t gr_bootstrap_patience_us(const gr_joining *join)
{
    const gr_bootstrap *b = join->group->bootstrap;
    int doublings = b->rounds < ANSWER_DOUBLINGS_MAX ? b->rounds : ANSWER_DOUBLINGS_MAX;
    return looks_around(join) ? (int64_t)ANSWER_MIN_US << doublings : join->config->join_timeout_us;
}

gr_ports gr_bootstrap_port(const gr_joining *join)
{
    const gr_launch *launch = &join->config->launch;
    bool there = join->group->bootstrap->ops->fixed_port || looks_around(join);
    uint16_t port = there && launch->port > 0 ? (uint16_t)launch->port : 0;
    return (gr_ports){.first = port, .last = port};
}

void gr_bootstrap_destroy(gr_bootstrap *bootstrap)
{
    if (bootstrap == NULL) {
        return;
    }
    gr_failover_end(bootstrap->host, LINGER_US);
    if (bootstrap->written && !atomic_load(&bootstrap->complete)) {
        (void)unlink(bootstrap->path);
    }
    free(bootstrap);
}
